"""Make a savepoint: hold a checkpoint under a label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.cli.app import argument, command, option
from holdfast.cli.output import Value, emit
from holdfast.cli.render import GOOD, Line, line
from holdfast.cli.targets import (
    Place,
    find_place,
    named,
    parse_options,
    ref_argument,
    store_argument,
    store_options,
)
from holdfast.clock import Clock, SystemClock
from holdfast.format.documents import Summary

label_argument = argument("label", "LABEL", "Name of the savepoint.")


class Pinned(Value, frozen=True, kw_only=True, tag="holdfast.pin/1", tag_field="schema"):
    """`holdfast pin STORE LABEL REF` and `holdfast unpin STORE LABEL`."""

    root: str
    pipeline: str
    label: str
    checkpoint: str | None
    epoch: int | None
    pinned: bool


def pin_place(place: Place, label: str, ref: Summary, note: str, clock: Clock) -> Pinned:
    """Hold a checkpoint under a label."""
    from holdfast.checkpoint import pins

    place.reader.header()
    made = pins.pin(place.reader, place.storage, clock, label=label, ref=ref.checkpoint, note=note)
    return Pinned(
        root=place.root,
        pipeline=place.pipeline,
        label=label,
        checkpoint=made.checkpoint,
        epoch=made.epoch,
        pinned=True,
    )


def pinned_lines(value: Pinned) -> Iterator[Line]:
    """A savepoint that is held, or not any more."""
    if value.pinned:
        yield line(("pinned", GOOD), f" {value.label}: epoch {value.epoch} {value.checkpoint}")
    else:
        yield line(f"unpinned {value.label}: the next gc or retention may drop the checkpoint")


@command("holdfast pin checkpoints/orders before-upgrade")
@store_argument
@label_argument
@ref_argument
@option("--note", metavar="TEXT", default="", help="Why it is kept.")
@store_options
def pin(
    *,
    store: str,
    label: str,
    ref: str,
    note: str,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> None:
    """Make a savepoint: hold a checkpoint under a label. Works while the pipeline runs."""
    place = find_place(store, pipeline, parse_options(option))
    value = pin_place(place, label, named(place, ref), note, SystemClock())
    emit(value, pinned_lines, as_json=as_json)
