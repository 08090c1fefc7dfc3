"""Collecting: retention, deletion and clean-up, catalog first, files second.

Invariants:
- The drop record is durable before the first file is deleted.
- Pins are read again after the drop record: one that came in between puts its checkpoint back,
  and so does the next opening if this writer dies first.
- Before anything is dropped, the newest fully committed checkpoint that stays is known to be whole.
- An unreadable manifest of a checkpoint that stays stops everything; so does a damaged catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from weakref import WeakValueDictionary

from holdfast.checkpoint.commit.catalog import CatalogState, CatalogWriter
from holdfast.checkpoint.gc.reachability import (
    SweepPlan,
    SweepReport,
    plan_sweep,
    reachable,
    run_sweep,
)
from holdfast.checkpoint.gc.retention import RetentionPlan, plan_retention
from holdfast.checkpoint.reader import Outcomes, StoreReader
from holdfast.checkpoint.recovery.open import StoreEnvironment
from holdfast.checkpoint.recovery.rebuild import dropped_but_whole
from holdfast.checkpoint.replication.fork import pins_for
from holdfast.checkpoint.segments import Segments
from holdfast.checkpoint.verify import check_file
from holdfast.errors import (
    CommitUnknownError,
    CorruptionError,
    FencedError,
    HoldfastError,
    NotFoundError,
    RefusedError,
)
from holdfast.failpoints import failpoint
from holdfast.format import paths
from holdfast.format.documents import DropBody, Summary
from holdfast.format.inventory import NO_FILES, Inventory
from holdfast.format.manifest import Manifest
from holdfast.ids import CheckpointId
from holdfast.storage.base import Entry
from holdfast.storage.local.reserve import fill_reserve


class Collector:
    """Removes what is no longer needed, for one writer."""

    def __init__(
        self, environment: StoreEnvironment, reader: StoreReader, catalog: CatalogWriter
    ) -> None:
        """Begin with no manifest in memory."""
        self._environment = environment
        self._reader = reader
        self._catalog = catalog
        self._manifests: dict[CheckpointId, Manifest] = {}
        self._trusted: set[CheckpointId] = set()
        self._segments: Segments = WeakValueDictionary()

    def remember(self, manifest: Manifest, *, trusted: bool) -> None:
        """Keep a manifest in memory; `trusted` means that this process has committed it."""
        self._manifests[manifest.checkpoint] = manifest
        for part in manifest.inventory.parts:
            self._segments[part.entry.path, part.entry.sha256] = part.segment
        if trusted:
            self._trusted.add(manifest.checkpoint)

    def manifest(self, summary: Summary) -> Manifest:
        """The manifest of a live checkpoint, from memory or storage."""
        known = self._manifests.get(summary.checkpoint)
        if known is None:
            try:
                known = self._reader.manifest(summary, segments=self._segments)
                self.remember(known, trusted=False)
            except NotFoundError:
                self._catalog.confirm_alive()  # it was a successor that retired it
                raise
        return known

    @property
    def _state(self) -> CatalogState:
        return self._catalog.state

    # The three ways to remove

    def retain(self, outcomes: Outcomes, *, keep: Collection[CheckpointId]) -> SweepReport:
        """Drop what the settings no longer keep, with their files; compact when it is time."""
        self._catalog.check_alive()
        report = SweepReport(SweepPlan())
        try:
            if self._plan(outcomes, keep, pins=False).drop:
                plan = self._plan(outcomes, keep)
                if plan.drop:
                    report = self._drop_and_sweep(plan, outcomes, "retention")
            if report.error is None and self._due():
                report.compacted = self._catalog.compact()
        except (FencedError, CommitUnknownError):
            raise
        except HoldfastError as error:
            report.error = error
        fill_reserve(self._environment.storage)
        return report

    def compact_if_due(self) -> None:
        """Keep the catalog short, whatever the caller does; what cannot be done is tried again.

        Only a writer that is fenced, or does not know what it has written, is told so.
        """
        try:
            if self._due():
                self._catalog.compact()
        except (FencedError, CommitUnknownError):
            raise
        except HoldfastError:
            return

    def _due(self) -> bool:
        return self._catalog.compaction_due(self._environment.settings.base_every_min)

    def gc(
        self,
        outcomes: Outcomes,
        *,
        keep: Collection[CheckpointId],
        dry_run: bool,
        busy: Collection[CheckpointId],
    ) -> SweepReport:
        """Retention and a full sweep; a dry run shows both and does neither."""
        self._catalog.check_alive()
        self._check_undamaged()
        plan = self._plan(outcomes, keep)
        dropped = tuple(entry.checkpoint for entry in plan.drop)
        if dry_run:
            state = CatalogState(
                base=self._state.base,
                head=self._state.head,
                live=tuple(e for e in self._state.live if e.checkpoint not in dropped),
            )
            sweep = self._plan_sweep(self._reader.directory.list(), state, busy)
            return SweepReport(sweep, dropped=dropped, dry_run=True)
        self._rescue_pinned()
        if plan.drop:
            self._check_safe(plan, outcomes)
            dropped = self._drop(plan.drop, "gc")
        sweep = self._plan_sweep(self._everything(), self._state, busy)
        report = run_sweep(self._reader.directory, self._environment.storage, sweep, "gc")
        report.dropped = dropped
        failpoint("gc.after_sweep")
        report.released = self._release_fork_pins()
        self.compact_if_due()
        fill_reserve(self._environment.storage)
        return report

    def _release_fork_pins(self) -> tuple[str, ...]:
        """A fork that needs nothing of its origin any more lets the origin's savepoint go."""
        name = self._reader.directory.pipeline
        needs = (e.pipeline for s in self._state.live for e in self.manifest(s).files)
        if self._lost(self._state) or any(pipeline not in (None, name) for pipeline in needs):
            return ()
        fork_pins = pins_for(self._environment.storage, name)
        if fork_pins:
            # A fork of this name that is made now opens the pipeline before it pins anything.
            self._catalog.confirm_alive()
        for path in fork_pins.values():
            self._environment.storage.delete(path)
        return tuple(fork_pins)

    def delete(
        self, summary: Summary, outcomes: Outcomes, *, current: CheckpointId | None
    ) -> SweepReport:
        """Remove one checkpoint."""
        self._catalog.check_alive()
        self._check_undamaged()
        self._check_deletable(summary, outcomes, current)
        failpoint("delete.before_record")
        files = self._files_of([summary])
        live = self._state.live
        self._catalog.append(DropBody(checkpoints=[summary.checkpoint], reason="delete"))
        failpoint("delete.after_record")
        dropped = self._put_back_pinned(live, [summary.checkpoint])
        if not dropped:
            raise _not_deletable(summary, "it was pinned meanwhile", "unpin it first")
        report = self._sweep(files, dropped)
        failpoint("delete.after_sweep")
        self.compact_if_due()
        fill_reserve(self._environment.storage)
        return report

    def clean_up(self, *, busy: Collection[CheckpointId] = ()) -> SweepReport:
        """At start: remove unreferenced leftovers of our own; never fails the opening."""
        report = SweepReport(SweepPlan())
        try:
            self._check_undamaged()
            self._rescue_pinned()
            sweep = self._plan_sweep(self._everything(), self._state, busy)
            return run_sweep(self._reader.directory, self._environment.storage, sweep, "cleanup")
        except HoldfastError as error:
            report.error = error
        return report

    # Deciding

    def _plan(
        self, outcomes: Outcomes, keep: Collection[CheckpointId], *, pins: bool = True
    ) -> RetentionPlan:
        return plan_retention(
            self._state,
            outcomes,
            self._reader.pins() if pins else (),
            settings=self._environment.settings,
            now_us=self._environment.clock.wall_us(),
            keep=keep,
        )

    def _check_undamaged(self) -> None:
        if self._state.damage:
            raise CorruptionError(
                "the catalog is damaged: a sweep could delete what it has forgotten",
                kind="catalog_damaged",
                path=self._state.damage[0].path,
                remedy="run `holdfast rebuild-catalog` first",
            )

    def _check_safe(self, plan: RetentionPlan, outcomes: Outcomes) -> None:
        """The newest fully committed checkpoint that stays must be whole."""
        for retained in plan.keep:
            summary = retained.summary
            if summary.abandoned or not outcomes.fully_committed(summary):
                continue
            if summary.checkpoint in self._trusted:
                return
            for entry in self.manifest(summary).files:
                path = self._reader.directory.file(entry)
                finding = check_file(self._environment.storage, path, entry, deep=False)
                if finding is not None:
                    raise CorruptionError(
                        "the checkpoint that would stay is not whole, so nothing is dropped",
                        kind="kept_is_damaged",
                        path=path,
                        reason=finding.message,
                    )
            self._trusted.add(summary.checkpoint)
            return

    def _check_deletable(
        self, summary: Summary, outcomes: Outcomes, current: CheckpointId | None
    ) -> None:
        labels = [p.label for p in self._reader.pins() if p.checkpoint == summary.checkpoint]
        committed = [e for e in self._state.candidates if outcomes.fully_committed(e)]
        reason = None
        if labels:
            reason = f"it is pinned as {', '.join(labels)}", "unpin it first"
        elif summary.checkpoint == current:
            reason = "the running pipeline builds on it", "commit another one first"
        elif not summary.abandoned and not outcomes.fully_committed(summary):
            reason = "its sinks are still pending", "settle them first"
        elif [e.checkpoint for e in committed] == [summary.checkpoint]:
            reason = "it is the only fully committed one", "commit another one first"
        if reason is not None:
            raise _not_deletable(summary, *reason)

    # Doing

    def _drop_and_sweep(self, plan: RetentionPlan, outcomes: Outcomes, reason: str) -> SweepReport:
        self._check_undamaged()
        self._check_safe(plan, outcomes)
        files = self._files_of(plan.drop)
        dropped = self._drop(plan.drop, reason)
        report = self._sweep(files, dropped)
        failpoint("gc.after_sweep")
        return report

    def _drop(self, drop: Sequence[Summary], reason: str) -> tuple[CheckpointId, ...]:
        """Take checkpoints out of the catalog; whatever was pinned meanwhile comes back."""
        failpoint("gc.before_record")
        live = self._state.live
        dropped = [entry.checkpoint for entry in drop]
        self._catalog.append(DropBody(checkpoints=dropped, reason=reason))
        failpoint("gc.after_record")
        return self._put_back_pinned(live, dropped)

    def _put_back_pinned(
        self, live: Sequence[Summary], dropped: Sequence[CheckpointId]
    ) -> tuple[CheckpointId, ...]:
        """Revive what was pinned while it was being dropped; returns what stays dropped."""
        late = {p.checkpoint for p in self._reader.pins()}.intersection(dropped)
        if late:
            still_dropped = set(dropped) - late
            self._catalog.append_base(tuple(e for e in live if e.checkpoint not in still_dropped))
        return tuple(checkpoint for checkpoint in dropped if checkpoint not in late)

    def _everything(self) -> list[Entry]:
        """All files of the pipeline, none of them written by a successor.

        Without the question afterwards, a writer that was overtaken would take the checkpoints
        of its successor for leftovers.
        """
        listing = [*self._reader.directory.list()]
        self._catalog.confirm_alive()
        return listing

    def _rescue_pinned(self) -> None:
        """Revive checkpoints whose pin was confirmed while a writer died dropping them.

        Their pins would hold nothing, and the sweep that follows would delete their files.
        """
        known = {entry.checkpoint for entry in self._state.live}
        rescued = []
        for pin in self._reader.pins():
            if pin.checkpoint not in known:
                summary = dropped_but_whole(self._reader, pin)
                if summary is not None:
                    rescued.append(summary)
                    known.add(pin.checkpoint)
        if rescued:
            live = sorted([*self._state.live, *rescued], key=lambda entry: entry.sequence)
            self._catalog.append_base(tuple(live))

    def _needed(self, state: CatalogState) -> set[str]:
        """Every path that a live checkpoint names; unreadable manifests stop the collection."""
        return reachable(self._readable(state), self._reader.directory.pipeline)

    def _readable(self, state: CatalogState) -> Iterator[Manifest]:
        for summary in state.live:
            try:
                yield self.manifest(summary)
            except CorruptionError:
                if summary.checkpoint not in self._lost(state):
                    raise

    def _lost(self, state: CatalogState) -> set[CheckpointId]:
        """Abandoned, unpinned, unreadable: left alone until they are dropped."""
        abandoned = [entry for entry in state.live if entry.abandoned]
        pinned = {pin.checkpoint for pin in self._reader.pins()} if abandoned else set()
        lost = set()
        for summary in abandoned:
            if summary.checkpoint not in pinned:
                try:
                    self.manifest(summary)
                except CorruptionError:
                    lost.add(summary.checkpoint)
        return lost

    def _needed_of(self, files: Iterable[Entry]) -> set[str]:
        """Which of these a live checkpoint names; follows what live checkpoints do not share."""
        manifests = [*self._readable(self._state)]
        names = (None, self._reader.directory.pipeline)
        newest = manifests[-1].inventory if manifests else NO_FILES
        needed = {paths.manifest(manifest.checkpoint) for manifest in manifests}
        needed |= {f.path for f in files if any(newest.find((name, f.path)) for name in names)}
        for manifest in manifests[:-1]:
            beyond = manifest.inventory.beyond(newest)
            needed.update(entry.path for entry in beyond if entry.pipeline in names)
        return needed

    def _plan_sweep(
        self,
        listing: Iterable[Entry],
        state: CatalogState,
        busy: Collection[CheckpointId] = (),
        *,
        needed: set[str] | None = None,
    ) -> SweepPlan:
        needed = self._needed(state) if needed is None else needed
        lost = self._lost(state)
        return plan_sweep(listing, state, needed, busy={*busy, *lost}, sharers_unknown=bool(lost))

    def _files_of(self, drop: Sequence[Summary]) -> list[Entry] | None:
        """What dropped checkpoints may leave behind; None means: look at everything."""
        entries: dict[str, Entry] = {}
        dropped = {summary.checkpoint for summary in drop}
        newest = self._newest([s for s in self._state.live if s.checkpoint not in dropped])
        for summary in drop:
            try:
                manifest = self.manifest(summary)
            except CorruptionError:
                return None
            for file in manifest.inventory.beyond(newest):
                if file.pipeline in (None, self._reader.directory.pipeline):
                    entries[file.path] = Entry(file.path, file.size)
            for entry in self._reader.directory.list(paths.checkpoint_dir(summary.checkpoint)):
                entries[entry.path] = entry
            for entry in self._outcome_entries(summary):
                entries[entry.path] = entry
        return [*entries.values()]

    def _newest(self, live: Sequence[Summary]) -> Inventory:
        """What the newest readable one of these checkpoints has."""
        for summary in reversed(live):
            try:
                return self.manifest(summary).inventory
            except CorruptionError:
                continue
        return NO_FILES

    def _outcome_entries(self, summary: Summary) -> list[Entry]:
        if not summary.sinks:
            return []
        prefix = f"{paths.OUTCOMES}/{summary.epoch:020d}-"
        return [e for e in self._reader.directory.list(paths.OUTCOMES) if e.path.startswith(prefix)]

    def _sweep(self, files: list[Entry] | None, dropped: tuple[CheckpointId, ...]) -> SweepReport:
        listing = self._everything() if files is None else files
        needed = None if files is None else self._needed_of(files)
        plan = self._plan_sweep(listing, self._state, needed=needed)
        report = run_sweep(self._reader.directory, self._environment.storage, plan, "gc")
        report.dropped = dropped
        for checkpoint in dropped:
            self._manifests.pop(checkpoint, None)
        return report


def _not_deletable(summary: Summary, reason: str, remedy: str) -> RefusedError:
    return RefusedError(
        f"the checkpoint cannot be deleted: {reason}",
        kind="not_deletable",
        checkpoint=summary.checkpoint,
        epoch=summary.epoch,
        remedy=remedy,
    )
