"""Bring a store of an older format to the newest one.

Invariants:
- A dry run only reads, and says exactly what the real one would do.
- Like every command that changes a pipeline it takes the writer's role first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.checkpoint.upgrade import plan_upgrade, upgrade_store
from holdfast.cli.app import command
from holdfast.cli.output import Value, emit
from holdfast.cli.render import GOOD, WARN, Line, line, wrapped
from holdfast.cli.targets import (
    Place,
    check_lockable,
    dry_run_option,
    find_place,
    parse_options,
    store_argument,
    store_options,
    takeover_option,
)
from holdfast.format.canonical import FORMAT_VERSION


class Upgrade(Value, frozen=True, kw_only=True, tag="holdfast.upgrade/1", tag_field="schema"):
    """`holdfast upgrade STORE`."""

    root: str
    pipeline: str
    dry_run: bool
    format_before: int
    format_after: int
    records: int
    steps: list[str]
    kept: dict[str, int]


def upgrade_place(place: Place, *, dry_run: bool, takeover: bool) -> Upgrade:
    """Upgrade one pipeline, or say what that would change."""
    plan = plan_upgrade(place.reader)
    if plan.needed and not dry_run:
        check_lockable(place, takeover=takeover, what="upgrade")
        plan = upgrade_store(place.storage, place.pipeline, takeover=takeover)
    return Upgrade(
        root=place.root,
        pipeline=place.pipeline,
        dry_run=dry_run,
        format_before=1 if plan.needed else FORMAT_VERSION,
        format_after=FORMAT_VERSION,
        records=plan.records,
        steps=[*plan.steps],
        kept=dict(plan.kept),
    )


def upgrade_lines(value: Upgrade) -> Iterator[Line]:
    """What upgrading does."""
    if not value.steps:
        yield line(f"pipeline {value.pipeline} has format {value.format_after} already")
        return
    word = "would upgrade" if value.dry_run else "upgraded"
    change = f"from format {value.format_before} to {value.format_after}"
    yield line((word, WARN if value.dry_run else GOOD), f" pipeline {value.pipeline} {change}")
    for step in value.steps:
        yield from wrapped(step, indent="  ")
    for kind, count in sorted(value.kept.items()):
        yield line(f"  {count} {kind} of format 1 stay as they are: they are read for ever")


@command("holdfast upgrade --dry-run checkpoints/orders")
@store_argument
@dry_run_option
@takeover_option
@store_options
def upgrade(
    *,
    store: str,
    dry_run: bool,
    takeover: bool,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> None:
    """Bring a store of an older format to the newest one.

    No store needs it to be used: older formats are read, the newest is written. Afterwards older
    versions of Holdfast refuse the store at the first look. Checkpoints are not written again.
    """
    place = find_place(store, pipeline, parse_options(option))
    value = upgrade_place(place, dry_run=dry_run, takeover=takeover)
    emit(value, upgrade_lines, as_json=as_json)
