"""Verbs that change a store: pin, unpin, delete, gc, rebuild-catalog, restore, fork, sync.

Invariants:
- Pinning needs no writer. Whatever drops or rolls back takes the writer's role first, and is
  refused while another process holds it, unless a takeover is asked for.
- Taking the writer's role must not choose another checkpoint by the way: where opening would fall
  back, the user is sent to `recover --plan` and `restore`.
- A dry run only reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from holdfast.checkpoint.commit.catalog import CatalogState
from holdfast.checkpoint.gc.reachability import SweepPlan, plan_sweep, reachable
from holdfast.checkpoint.gc.retention import RetentionPlan, plan_retention
from holdfast.checkpoint.pins import pin, unpin
from holdfast.checkpoint.reader import Outcomes, StoreReader
from holdfast.checkpoint.recovery.open import recovery_plan
from holdfast.checkpoint.recovery.rebuild import RebuildPlan, plan_rebuild, rebuild_catalog
from holdfast.checkpoint.replication.fork import fork_pipeline
from holdfast.checkpoint.replication.sync import SyncReport, sync_pipeline
from holdfast.checkpoint.store import Store, open_store
from holdfast.cli.address import Place
from holdfast.cli.facts.listing import source_view
from holdfast.cli.values import (
    Collection as CollectionValue,
)
from holdfast.cli.values import (
    ForeignFile,
    Fork,
    KeptRow,
    Pinned,
    Rebuild,
    RebuildRow,
    Restore,
    SinkEffect,
    Sync,
    SyncedPipeline,
)
from holdfast.clock import Clock
from holdfast.console import failure_of
from holdfast.errors import ConflictError, CorruptionError, HoldfastError, RefusedError
from holdfast.format import paths
from holdfast.format.documents import Summary
from holdfast.format.manifest import Manifest
from holdfast.ids import CheckpointId
from holdfast.settings import Settings
from holdfast.storage.base import Storage

Progress = Callable[[int, int], None]


def pin_place(place: Place, label: str, ref: Summary, note: str, clock: Clock) -> Pinned:
    """Hold a checkpoint under a label."""
    place.reader.header()
    made = pin(place.reader, place.storage, clock, label=label, ref=ref.checkpoint, note=note)
    return Pinned(
        root=place.root, pipeline=place.pipeline, label=label, checkpoint=made.checkpoint,
        epoch=made.epoch, pinned=True,
    )  # fmt: skip


def unpin_place(place: Place, label: str, *, force: bool) -> Pinned:
    """Let a savepoint go."""
    place.reader.header()
    held = next((p for p in place.reader.pins() if p.label == label), None)
    unpin(place.reader, place.storage, label, force=force)
    return Pinned(
        root=place.root, pipeline=place.pipeline, label=label,
        checkpoint=held.checkpoint if held else None, epoch=held.epoch if held else None,
        pinned=False,
    )  # fmt: skip


# The writer's role


def take_role(place: Place, *, takeover: bool, settings: Settings, what: str) -> Store:
    """Open for writing exactly where the pipeline stands."""
    check_lockable(place, takeover=takeover, what=what)
    plan = recovery_plan(place.storage, place.pipeline, settings=settings)
    if plan.refusal is not None:
        raise plan.refusal
    if plan.manifest is None:
        raise RefusedError(
            "the pipeline has no checkpoint yet",
            kind="nothing_there",
            pipeline=place.pipeline,
            remedy="there is nothing to do before the first commit",
        )
    if plan.abandon:
        raise RefusedError(
            "the newest checkpoint is damaged: opening would fall back to an older one",
            kind="would_fall_back",
            newest=plan.abandon[-1],
            chosen=plan.chosen.checkpoint if plan.chosen else None,
            remedy="look at `holdfast recover --plan`, repair it, or `holdfast restore` first",
        )
    return open_store(
        place.storage,
        place.pipeline,
        topology=plan.manifest.topology,
        settings=settings,
        resume=plan.chosen.checkpoint if plan.chosen else None,
        takeover=takeover,
        clean_up=False,
    )


def check_lockable(place: Place, *, takeover: bool, what: str) -> None:
    """Where there are no locks, nobody can see a running pipeline: its end must be asked for."""
    if takeover:
        return
    lease = place.storage.exclusive(f"{place.pipeline}/{paths.LOCK}", what)
    if lease is not None:
        lease.release()
        return
    raise RefusedError(
        "an object store has no lock, so a pipeline that runs now would be fenced off",
        kind="no_lock",
        pipeline=place.pipeline,
        remedy=f"stop the pipeline, then give --takeover to {what}",
    )


# gc and delete


def plan_collection(place: Place, settings: Settings, keep: Collection[CheckpointId], now_us: int
                    ) -> tuple[RetentionPlan, SweepPlan]:  # fmt: skip
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
) -> CollectionValue:
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
    return CollectionValue(
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


def delete_place(place: Place, summary: Summary, *, takeover: bool) -> CollectionValue:
    """Remove one checkpoint; what others share stays."""
    settings = Settings(recovery_verify="shallow")
    with take_role(place, takeover=takeover, settings=settings, what="delete") as store:
        report = store.delete(summary.checkpoint)
    return CollectionValue(
        root=place.root, pipeline=place.pipeline, dry_run=False, dropped=[*report.dropped],
        kept=[], files=report.deleted, bytes=report.bytes,
        bytes_by_class=dict(report.plan.classes), unknown=[], released=[],
        problem=str(report.error) if report.error is not None else "",
    )  # fmt: skip


# rebuild-catalog


def rebuild_place(
    place: Place, *, choose: Collection[CheckpointId], force: bool, dry_run: bool
) -> Rebuild:
    """Make a new catalog from the manifests, or show what it would hold."""
    if dry_run:
        plan = plan_rebuild(place.reader, choose=choose)
    else:
        lease = place.storage.exclusive(f"{place.pipeline}/{paths.LOCK}", "rebuild-catalog")
        try:
            plan = rebuild_catalog(place.storage, place.pipeline, choose=choose, force=force)
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


# restore


def restore_place(
    place: Place,
    summary: Summary,
    *,
    accept_duplicates: bool,
    accept_loss: bool,
    dry_run: bool,
    takeover: bool,
) -> Restore:
    """Roll a pipeline back to a checkpoint, or forward again to one that was abandoned."""
    reader = place.reader
    manifest = reader.manifest(summary)
    settings = Settings(recovery_verify="deep")
    plan = recovery_plan(
        place.storage, place.pipeline, resume=summary.checkpoint, settings=settings,
        accept_duplicates=accept_duplicates, accept_loss=accept_loss,
    )  # fmt: skip
    refusal: HoldfastError | None = plan.refusal
    epoch_next = plan.epoch_next
    state = reader.catalog()
    newer = [entry for entry in state.live if entry.checkpoint in plan.abandon]
    if refusal is None and not dry_run:
        check_lockable(place, takeover=takeover, what="restore")
        with open_store(
            place.storage, place.pipeline, topology=manifest.topology, settings=settings,
            resume=summary.checkpoint, takeover=takeover, clean_up=False,
            accept_duplicates=accept_duplicates, accept_loss=accept_loss,
        ) as store:  # fmt: skip
            epoch_next = store.epoch_next
    return Restore(
        root=place.root,
        pipeline=place.pipeline,
        dry_run=dry_run,
        restored=refusal is None and not dry_run,
        checkpoint=summary.checkpoint,
        epoch=summary.epoch,
        epoch_next=epoch_next,
        abandoned=[entry.checkpoint for entry in newer],
        sinks=_sink_effects(newer, reader.outcomes()),
        positions=[source_view(entry) for entry in manifest.sources],
        refusal=failure_of(_restore_remedy(refusal)) if refusal is not None else None,
    )


def _restore_remedy(error: HoldfastError) -> HoldfastError:
    """The same refusal, with the options of this command in its remedy."""
    if error.kind == "unsafe_fallback":
        error.remedy = "give --accept-duplicates if readers of these sinks can bear it"
    elif error.kind == "token_lost":
        error.remedy = "bring the manifest back, or give --accept-loss"
    return error


_EFFECTS = {
    "deduplicates": "will publish these epochs again and drops what it has seen: nothing doubles",
    "retracts": "retracts everything after this checkpoint at the next run, before it publishes "
    "anything new; what cannot is rebuilt from state or source history, or refused untouched",
    "none": "cannot take these epochs back: rows published there will be published a second time",
}


def _sink_effects(newer: Collection[Summary], outcomes: Outcomes) -> list[SinkEffect]:
    epochs: dict[tuple[str, str], list[int]] = {}
    for entry in newer:
        for sink in entry.sinks:
            key = (sink.name, sink.replay)
            epochs.setdefault(key, [])
            if outcomes.status(entry.checkpoint, sink.name) != "aborted":
                epochs[key].append(entry.epoch)
    return [
        SinkEffect(
            sink=name,
            replay=replay,
            epochs=sorted(found),
            safe=replay != "none" or not found,
            effect=_EFFECTS[replay] if found else "has published nothing newer",
        )
        for (name, replay), found in sorted(epochs.items())
    ]


# fork and sync


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


def sync_places(
    source: Storage,
    target: Storage,
    names: list[str],
    *,
    deep: bool,
    prune: bool,
    progress: Progress | None,
) -> Sync:
    """Bring pipelines to another root; those that share files come after their origins."""
    start = time.perf_counter()
    reports: list[SyncReport] = []
    waiting = list(names)
    while waiting:
        later: list[str] = []
        for name in waiting:
            try:
                reports.append(
                    sync_pipeline(source, target, name, deep=deep, prune=prune, progress=progress)
                )
            except RefusedError as error:
                if error.kind != "origin_missing" or error.facts.get("origin") not in waiting:
                    raise
                later.append(name)
        if len(later) == len(waiting):
            raise ConflictError("forks share files in a circle", kind="fork_circle")
        waiting = later
    return Sync(
        source=source.url,
        destination=target.url,
        seconds=round(time.perf_counter() - start, 6),
        pipelines=[_synced(report) for report in reports],
    )


def _synced(report: SyncReport) -> SyncedPipeline:
    return SyncedPipeline(
        pipeline=report.pipeline,
        checkpoints=report.checkpoints,
        new_checkpoints=report.new_checkpoints,
        files_copied=report.files_copied,
        bytes_copied=report.bytes_copied,
        files_present=report.files_present,
        bytes_present=report.bytes_present,
        pins=report.pins,
        pins_only_there=[*report.pins_only_there],
        removed_files=report.removed_files,
        removed_bytes=report.removed_bytes,
        up_to_date=report.up_to_date,
        notes=report.notes,
    )
