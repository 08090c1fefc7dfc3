"""Delete files that no checkpoint needs; with --retain, old checkpoints as well.

Invariants:
- A dry run only reads, and says exactly what the real one would do.
- The writer's role is taken first, and refused while another process holds it, unless a takeover
  is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import click

from holdfast.checkpoint.commit.catalog import CatalogState
from holdfast.checkpoint.gc.reachability import SweepPlan, plan_sweep, reachable
from holdfast.checkpoint.gc.retention import RetentionPlan, plan_retention
from holdfast.checkpoint.reader import Outcomes, StoreReader
from holdfast.cli.app import command, option
from holdfast.cli.output import Value, emit
from holdfast.cli.render import BAD, WARN, Col, Line, line, plural, short_ids, size, table, wrapped
from holdfast.cli.targets import (
    Place,
    dry_run_option,
    find_place,
    named,
    parse_options,
    store_argument,
    store_options,
    take_role,
    takeover_option,
)
from holdfast.clock import Clock, SystemClock
from holdfast.errors import CorruptionError
from holdfast.format.manifest import Manifest
from holdfast.ids import CheckpointId
from holdfast.settings import Settings


class KeptRow(Value, frozen=True, kw_only=True):
    """A checkpoint that stays, and why."""

    checkpoint: str
    epoch: int
    reasons: list[str]


class ForeignFile(Value, frozen=True, kw_only=True):
    """A file that Holdfast did not write. It is never touched."""

    path: str
    bytes: int


class Collected(Value, frozen=True, kw_only=True, tag="holdfast.gc/1", tag_field="schema"):
    """`holdfast gc STORE` and `holdfast delete STORE REF`."""

    root: str
    pipeline: str
    dry_run: bool
    dropped: list[str]
    kept: list[KeptRow]
    files: int
    bytes: int
    bytes_by_class: dict[str, int]
    unknown: list[ForeignFile]
    released: list[str]
    problem: str = ""


def plan_collection(
    place: Place, settings: Settings, keep: Collection[CheckpointId], now_us: int
) -> tuple[RetentionPlan, SweepPlan]:
    """What a collection would do. Reads only."""
    reader = place.reader
    reader.header()
    state, outcomes = reader.catalog(), reader.outcomes()
    if state.damage:
        raise CorruptionError(
            "the catalog is damaged: a sweep could delete what it has forgotten",
            kind="catalog_damaged",
            path=state.damage[0].path,
            remedy="run `holdfast rebuild-catalog` first",
        )
    plan = _retention(reader, state, outcomes, settings, keep, now_us)
    gone = {entry.checkpoint for entry in plan.drop}
    left = CatalogState(
        base=state.base,
        head=state.head,
        live=tuple(entry for entry in state.live if entry.checkpoint not in gone),
    )
    manifests, lost = _manifests(reader, left)
    needed = reachable(manifests, reader.directory.pipeline)
    return plan, plan_sweep(reader.directory.list(), left, needed, busy=lost)


def _retention(
    reader: StoreReader,
    state: CatalogState,
    outcomes: Outcomes,
    settings: Settings,
    keep: Collection[CheckpointId],
    now_us: int,
) -> RetentionPlan:
    return plan_retention(
        state, outcomes, reader.pins(), settings=settings, now_us=now_us, keep=keep
    )


def _manifests(
    reader: StoreReader, state: CatalogState
) -> tuple[list[Manifest], set[CheckpointId]]:
    """Manifests of what stays; only an abandoned, unpinned one may be unreadable."""
    pinned = {p.checkpoint for p in reader.pins()}
    found, lost = [], set()
    for summary in state.live:
        try:
            found.append(reader.manifest(summary))
        except CorruptionError:
            if not summary.abandoned or summary.checkpoint in pinned:
                raise
            lost.add(summary.checkpoint)
    return found, lost


def collect_place(
    place: Place,
    *,
    retain: int | None,
    retain_age_ms: int,
    keep: Collection[CheckpointId],
    dry_run: bool,
    takeover: bool,
    clock: Clock,
) -> Collected:
    """Drop what is not retained and sweep what nothing refers to."""
    live = len(place.reader.list())
    settings = Settings(
        retain=max(2, live) if retain is None else retain,
        retain_age_ms=retain_age_ms,
        recovery_verify="shallow",
    )
    plan, sweep = plan_collection(place, settings, keep, clock.wall_us())
    kept = [
        KeptRow(
            checkpoint=row.summary.checkpoint, epoch=row.summary.epoch, reasons=list(row.reasons)
        )
        for row in plan.keep
    ]
    dropped = [entry.checkpoint for entry in plan.drop]
    files, size, problem = len(sweep.delete), sweep.bytes, ""
    released: tuple[str, ...] = ()
    if not dry_run:
        with take_role(place, takeover=takeover, settings=settings, what="gc") as store:
            report = store.gc(keep=keep)
        sweep, dropped = report.plan, [*report.dropped]
        files, size, released = report.deleted, report.bytes, report.released
        problem = str(report.error) if report.error is not None else ""
    return Collected(
        root=place.root,
        pipeline=place.pipeline,
        dry_run=dry_run,
        dropped=[*dropped],
        kept=kept,
        files=files,
        bytes=size,
        bytes_by_class=dict(sweep.classes),
        unknown=[ForeignFile(path=entry.path, bytes=entry.size) for entry in sweep.foreign],
        released=[*released],
        problem=problem,
    )


def collected_lines(value: Collected) -> Iterator[Line]:
    """What went and what stays."""
    would = "would drop" if value.dry_run else "dropped"
    yield line(f"{would} {plural(len(value.dropped), 'checkpoint')}")
    for each in value.dropped:
        yield line("  ", each)
    if value.kept:
        names = short_ids([row.checkpoint for row in value.kept])
        yield from table(
            [Col("stays"), Col("epoch", right=True), Col("because", cut=True, least=20)],
            [
                ((names[row.checkpoint], "cyan"), str(row.epoch), ", ".join(row.reasons))
                for row in value.kept
            ],
        )
    would = "would delete" if value.dry_run else "deleted"
    yield line(f"{would} {plural(value.files, 'file')}, {size(value.bytes)}")
    for name, total in sorted(value.bytes_by_class.items()):
        yield line(f"  {name}: {size(total)}")
    if value.unknown:
        total = sum(file.bytes for file in value.unknown)
        yield line(
            (f"{plural(len(value.unknown), 'unknown file')}, {size(total)}: left alone", WARN)
        )
        for file in value.unknown:
            yield from wrapped(f"{file.path} ({size(file.bytes)})", indent="  ")
    for origin in value.released:
        yield line(f"nothing of {origin} is shared any more: its savepoint was released")
    if value.problem:
        yield from wrapped(f"stopped: {value.problem}", style=BAD)


@command("holdfast gc --dry-run --retain 5 checkpoints/orders")
@store_argument
@option(
    "--retain",
    type=click.IntRange(min=2),
    metavar="N",
    help="Also drop all but the newest N checkpoints. Default: drop none.",
)
@option(
    "--keep-hours",
    "age",
    type=click.IntRange(min=0),
    default=0,
    metavar="H",
    help="Keep what is younger.",
    show_default=True,
)
@option("--keep", multiple=True, metavar="REF", help="Keep this one too.")
@dry_run_option
@takeover_option
@store_options
def gc(
    *,
    store: str,
    retain: int | None,
    age: int,
    keep: Sequence[str],
    dry_run: bool,
    takeover: bool,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> bool:
    """Delete files that no checkpoint needs; with --retain, old checkpoints as well.

    Savepoints, pending checkpoints and unknown files always stay.
    """
    place = find_place(store, pipeline, parse_options(option))
    value = collect_place(
        place,
        retain=retain,
        retain_age_ms=age * 3_600_000,
        keep={named(place, ref).checkpoint for ref in keep},
        dry_run=dry_run,
        takeover=takeover,
        clock=SystemClock(),
    )
    emit(value, collected_lines, as_json=as_json)
    return bool(value.problem)
