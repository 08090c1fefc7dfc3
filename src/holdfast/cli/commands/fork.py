"""Begin a new pipeline at any checkpoint of another one, in the same root, without copying."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.checkpoint.replication.fork import fork_pipeline
from holdfast.cli.app import argument, command
from holdfast.cli.output import Value, emit
from holdfast.cli.render import GOOD, Line, line, plural, size, wrapped
from holdfast.cli.targets import (
    REF,
    Place,
    find_place,
    named,
    parse_options,
    store_argument,
    store_options,
)
from holdfast.clock import Clock, SystemClock
from holdfast.format.documents import Summary


class Fork(Value, frozen=True, kw_only=True, tag="holdfast.fork/1", tag_field="schema"):
    """`holdfast fork STORE REF NEW`."""

    root: str
    pipeline: str
    source: str
    fork: str
    checkpoint: str
    epoch: int
    files_shared: int
    bytes_shared: int
    pin: str


def fork_place(place: Place, summary: Summary, new: str, clock: Clock) -> Fork:
    """Begin a new pipeline at a checkpoint, without copying a file."""
    made = fork_pipeline(place.storage, place.pipeline, summary.checkpoint, new, clock=clock)
    return Fork(
        root=place.root,
        pipeline=place.pipeline,
        source=made.source.checkpoint,
        fork=made.fork,
        checkpoint=made.summary.checkpoint,
        epoch=made.summary.epoch,
        files_shared=made.files,
        bytes_shared=made.bytes_shared,
        pin=made.pin.label,
    )


def fork_lines(value: Fork) -> Iterator[Line]:
    """A new pipeline."""
    yield line(("forked", GOOD), f" {value.fork} from {value.pipeline} at epoch {value.epoch}")
    yield line(f"checkpoint {value.checkpoint}")
    yield line(
        f"shares {plural(value.files_shared, 'file')}, {size(value.bytes_shared)}; "
        "nothing was copied"
    )
    yield from wrapped(f"{value.pipeline} holds them by the savepoint {value.pin}")
    yield from wrapped("run the fork with sinks of its own: it would write to the same places")


@command("holdfast fork checkpoints/orders before-upgrade orders-test")
@store_argument
@argument("ref", "REF", REF)
@argument("new", "NEW", "Name of the new pipeline.")
@store_options
def fork(
    *,
    store: str,
    ref: str,
    new: str,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> None:
    """Begin a new pipeline at any checkpoint of another one, in the same root, without copying."""
    place = find_place(store, pipeline, parse_options(option))
    value = fork_place(place, named(place, ref), new, SystemClock())
    emit(value, fork_lines, as_json=as_json)
