"""Remove one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.app import argument, command
from holdfast.cli.commands.gc import Collected, collected_lines
from holdfast.cli.output import emit
from holdfast.cli.targets import (
    Place,
    find_place,
    named,
    parse_options,
    store_argument,
    store_options,
    take_role,
    takeover_option,
)
from holdfast.format.documents import Summary
from holdfast.settings import Settings


def delete_place(place: Place, summary: Summary, *, takeover: bool) -> Collected:
    """Remove one checkpoint; what others share stays."""
    settings = Settings(recovery_verify="shallow")
    with take_role(place, takeover=takeover, settings=settings, what="delete") as store:
        report = store.delete(summary.checkpoint)
    return Collected(
        root=place.root,
        pipeline=place.pipeline,
        dry_run=False,
        dropped=[*report.dropped],
        kept=[],
        files=report.deleted,
        bytes=report.bytes,
        bytes_by_class=dict(report.plan.classes),
        unknown=[],
        released=[],
        problem=str(report.error) if report.error is not None else "",
    )


@command("holdfast delete checkpoints/orders epoch:17")
@store_argument
@argument("ref", "REF", "Checkpoint to remove.")
@takeover_option
@store_options
def delete(
    *,
    store: str,
    ref: str,
    takeover: bool,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> bool:
    """Remove one checkpoint. Files that others share stay; what must not go is refused."""
    place = find_place(store, pipeline, parse_options(option))
    value = delete_place(place, named(place, ref), takeover=takeover)
    emit(value, collected_lines, as_json=as_json)
    return bool(value.problem)
