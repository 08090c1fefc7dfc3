"""Release a savepoint."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint import pins
from holdfast.cli.app import command, flag
from holdfast.cli.commands.pin import Pinned, label_argument, pinned_lines
from holdfast.cli.output import emit
from holdfast.cli.targets import Place, find_place, parse_options, store_argument, store_options


def unpin_place(place: Place, label: str, *, force: bool) -> Pinned:
    """Release a savepoint."""
    place.reader.header()
    held = next((p for p in place.reader.pins() if p.label == label), None)
    pins.unpin(place.reader, place.storage, label, force=force)
    return Pinned(
        root=place.root,
        pipeline=place.pipeline,
        label=label,
        checkpoint=held.checkpoint if held else None,
        epoch=held.epoch if held else None,
        pinned=False,
    )


@command("holdfast unpin checkpoints/orders before-upgrade")
@store_argument
@label_argument
@flag("--force", help="Even while a fork needs the files: it will break.")
@store_options
def unpin(
    *,
    store: str,
    label: str,
    force: bool,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> None:
    """Release a savepoint. Works while the pipeline runs."""
    place = find_place(store, pipeline, parse_options(option))
    emit(unpin_place(place, label, force=force), pinned_lines, as_json=as_json)
