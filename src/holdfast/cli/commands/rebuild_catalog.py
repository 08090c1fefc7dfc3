"""Make a new catalog from the manifests, where the old one is lost or damaged."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from holdfast.checkpoint.recovery import rebuild
from holdfast.checkpoint.recovery.rebuild import RebuildPlan, plan_rebuild
from holdfast.cli.app import command, flag, option
from holdfast.cli.output import Value, emit
from holdfast.cli.render import BAD, WARN, Line, line, plural, wrapped
from holdfast.cli.targets import (
    Place,
    dry_run_option,
    find_place,
    parse_options,
    store_argument,
    store_options,
)
from holdfast.format import paths
from holdfast.ids import CheckpointId, check_checkpoint_id


class RebuildRow(Value, frozen=True, kw_only=True):
    """A checkpoint that a rebuilt catalog lists."""

    checkpoint: str
    epoch: int
    confirmed: bool


class Rebuild(Value, frozen=True, kw_only=True, tag="holdfast.rebuild/1", tag_field="schema"):
    """`holdfast rebuild-catalog STORE`."""

    root: str
    pipeline: str
    dry_run: bool
    take: list[RebuildRow]
    leave: dict[str, str]
    undecided: list[str]


def rebuild_place(
    place: Place, *, choose: Collection[CheckpointId], force: bool, dry_run: bool
) -> Rebuild:
    """Make a new catalog from the manifests, or show what it would hold."""
    if dry_run:
        plan = plan_rebuild(place.reader, choose=choose)
    else:
        lease = place.storage.exclusive(f"{place.pipeline}/{paths.LOCK}", "rebuild-catalog")
        try:
            plan = rebuild.rebuild_catalog(
                place.storage, place.pipeline, choose=choose, force=force
            )
        finally:
            if lease is not None:
                lease.release()
    return _rebuild_value(place, plan, dry_run=dry_run)


def _rebuild_value(place: Place, plan: RebuildPlan, *, dry_run: bool) -> Rebuild:
    return Rebuild(
        root=place.root,
        pipeline=place.pipeline,
        dry_run=dry_run,
        take=[
            RebuildRow(
                checkpoint=found.summary.checkpoint,
                epoch=found.summary.epoch,
                confirmed=found.confirmed,
            )
            for found in plan.take
        ],
        leave=dict(plan.leave),
        undecided=[*plan.undecided],
    )


def rebuild_lines(value: Rebuild) -> Iterator[Line]:
    """What the new catalog holds."""
    would = "would list" if value.dry_run else "the catalog lists"
    yield line(f"{would} {plural(len(value.take), 'checkpoint')} of pipeline {value.pipeline}")
    for row in value.take:
        proof = "confirmed" if row.confirmed else "not confirmed by a later one or a sink"
        yield line("  ", (row.checkpoint, "cyan"), f" epoch {row.epoch}: {proof}")
    for path, reason in value.leave.items():
        yield from wrapped(f"left out: {path}: {reason}", style=WARN)
    for each in value.undecided:
        yield line((f"undecided: {each}: name one with --choose", BAD))


@command("holdfast rebuild-catalog checkpoints/orders")
@store_argument
@option(
    "--choose",
    multiple=True,
    metavar="ID",
    help="Take this one of two that claim the same place.",
)
@flag("--force", help="Even though the catalog can be read.")
@dry_run_option
@store_options
def rebuild_catalog(
    *,
    store: str,
    choose: Sequence[str],
    force: bool,
    dry_run: bool,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> bool:
    """Make a new catalog from the manifests, where the old one is lost or damaged."""
    place = find_place(store, pipeline, parse_options(option))
    chosen = [check_checkpoint_id(each) for each in choose]
    value = rebuild_place(place, choose=chosen, force=force, dry_run=dry_run)
    emit(value, rebuild_lines, as_json=as_json)
    return bool(value.undecided)
