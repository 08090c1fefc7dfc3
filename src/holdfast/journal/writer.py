"""The writer: one per journal, any number of producer threads.

Appending is in `group_commit.py`, the log itself in `log_writer.py`, reading what is there in
`open.py`. Opening, closing and the writer's threads are here.

Invariants:
- One writer per journal: a second one gets a `ConflictError` that names the first.
- An acknowledged append survives a power cut (except with `Durability.INTERVAL`, where
  `wait_durable` is the acknowledgement).
- Readers see an event only once it is durable: visible follows durable.
- Indexes and checkpoints are made off the path of appends; losing them loses time, never events.
"""

from __future__ import annotations

import os
import threading
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from holdfast.clock import Clock, SystemClock
from holdfast.errors import (
    CommitUnknownError,
    HoldfastError,
    InternalError,
    NotFoundError,
    StorageError,
)
from holdfast.journal.batch import EventIds, RandomEventIds
from holdfast.journal.files import JournalFiles, WriterLock
from holdfast.journal.format.blob import META_MAGIC, JournalMeta, pack_blob
from holdfast.journal.format.frame import genesis_hash
from holdfast.journal.format.layout import Layout, index_first
from holdfast.journal.group_commit import CommitQueue
from holdfast.journal.log_writer import LogWriter
from holdfast.journal.maintenance import (
    HoldStore,
    TruncateReport,
    compact_segments,
    move_base,
    plan_truncation,
    remove_segments,
    write_checkpoint,
    write_index,
)
from holdfast.journal.open import load_log
from holdfast.journal.query import JournalView
from holdfast.journal.types import Durability, JournalSettings, OpenReport

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from holdfast.journal.segments import SealedSegment
    from holdfast.journal.types import Position


def create_meta(files: JournalFiles, layout: Layout, journal_id: bytes, wall_us: int) -> None:
    """Begin a new journal."""
    meta = JournalMeta(journal_id, wall_us, 0, genesis_hash(journal_id))
    files.replace(layout.meta, [pack_blob(META_MAGIC, meta)])


class JournalWriter(CommitQueue):
    """An open journal that can be appended to. Use it as a context manager."""

    def __init__(
        self,
        root: str | PathLike[str],
        settings: JournalSettings | None = None,
        *,
        clock: Clock | None = None,
        ids: EventIds | None = None,
        files: JournalFiles | None = None,
        journal_id: bytes | None = None,
        create: bool = True,
    ) -> None:
        """Open a journal for writing, recovering it if need be.

        Args:
            root: The journal's directory on a local disk.
            settings: How to write.
            clock: Wall time of frames.
            ids: Ids of events that come without one.
            files: The operating system; tests give one that fails.
            journal_id: The 16 bytes of a new journal's id; random if left out.
            create: Whether to begin a new journal where there is none.

        Raises:
            ConflictError: Another writer has it open.
            CorruptionError: Acknowledged data is damaged; nothing was changed.
        """
        super().__init__(
            settings or JournalSettings(), clock or SystemClock(), ids or RandomEventIds()
        )
        self.layout = Layout(Path(root))
        self._files = files or JournalFiles()
        # Derived files have one maker at a time. Taken before leadership, never inside it.
        self._upkeep_lock = threading.Lock()
        self._over = False
        self._stop = threading.Event()
        self._core, self.report = self._open(journal_id, create=create)
        self._durable = self._core.durable
        self._mend_mark()
        self._threads = [threading.Thread(target=self._upkeep, name="holdfast-journal-upkeep")]
        if self.settings.durability is Durability.INTERVAL:
            self._threads.append(
                threading.Thread(target=self._ticker, name="holdfast-journal-sync")
            )
        try:
            names = self._files.entries(self.layout.segments)
            present = {index_first(name) for name in names}
            for segment in self._core.sealed:
                if segment.first_sequence not in present:
                    self._jobs.put(segment)
            for thread in self._threads:
                thread.daemon = True
                thread.start()
        except BaseException:
            self._stop.set()
            self._jobs.put(None)
            self._core.close()
            raise

    def _open(self, journal_id: bytes | None, *, create: bool) -> tuple[LogWriter, OpenReport]:
        files, layout = self._files, self.layout
        if not create and not files.exists(layout.meta):
            raise NotFoundError(
                "there is no journal here",
                kind="journal_missing",
                path=layout.root,
                remedy="check the path, or let it be created",
            )
        files.make_directory(layout.root)
        files.make_directory(layout.segments)
        lock = WriterLock(files, layout.lock, f"host={os.uname().nodename}")
        try:
            files.remove(layout.meta.with_name("journal.meta.tmp"))
            if not files.exists(layout.meta) and not files.entries(layout.segments):
                wall = self._clock.wall_us()
                fresh = journal_id or self._ids.ids(1, wall).tobytes()
                create_meta(files, layout, fresh, wall)
            loaded = load_log(files, layout)
            return LogWriter(files, layout, self._clock, lock, loaded), loaded.report
        except BaseException:
            lock.release()
            raise

    # ---- positions -----------------------------------------------------------------------

    @property
    def accepted(self) -> int:
        """All events before this sequence were written; a power cut may still take some."""
        return self._core.next_sequence

    @property
    def durable(self) -> int:
        """All events before this sequence survive a power cut."""
        return self._durable

    @property
    def visible(self) -> int:
        """All events before this sequence are shown to readers. Never ahead of `durable`."""
        return self._durable

    def wait_accepted(self, sequence: int, timeout_ms: int | None = None) -> bool:
        """Wait until all events before `sequence` are accepted; False after the timeout."""
        return self._wait(lambda: self.accepted >= sequence, timeout_ms)

    def wait_durable(self, sequence: int, timeout_ms: int | None = None) -> bool:
        """Wait until all events before `sequence` are durable; False after the timeout.

        Raises:
            CommitUnknownError: The writer failed, so that it can never be known.
        """
        return self._wait(lambda: self._durable >= sequence, timeout_ms)

    def wait_visible(self, sequence: int, timeout_ms: int | None = None) -> bool:
        """Wait until all events before `sequence` are visible; False after the timeout."""
        return self.wait_durable(sequence, timeout_ms)

    def _wait(self, reached: Any, timeout_ms: int | None) -> bool:
        def over() -> bool:
            return bool(reached()) or self._core.poison is not None or self._over

        with self._changed:
            self._changed.wait_for(over, None if timeout_ms is None else timeout_ms / 1_000)
            if reached():
                return True
        if self._core.poison is not None:
            raise self._unknown(self._core.poison)
        return False

    @staticmethod
    def _unknown(poison: HoldfastError) -> CommitUnknownError:
        error = CommitUnknownError(
            "the journal's writer has failed: what it had not made durable is unknown",
            kind="durability_unknown",
            cause=str(poison),
            remedy="reopen the journal and append again with the same ids; replay decides",
        )
        error.__cause__ = poison
        return error

    def flush(self) -> int:
        """Make everything accepted durable now; returns the durable sequence."""
        with self._exclusive():
            self._core.check_usable()
            self._core.sync()
            self._mend_mark()
        return self._durable

    def _ticker(self) -> None:
        """Sync at every interval; ends with the writer, or when it has failed and all know."""
        while not self._stop.wait(self.settings.interval_ms / 1_000):
            if self._core.poison is not None:
                return
            try:
                self.flush()
            except BaseException as error:  # noqa: BLE001 - waiters must hear of it, whatever it is
                if isinstance(error, StorageError) and self._core.poison is None:
                    # Nothing was tried (the lock could not be looked at): the next tick does it.
                    self.note(f"sync: {error}")
                    continue
                self._fail("sync", error)

    def _fail(self, what: str, error: BaseException) -> None:
        """A thread of the writer cannot continue: nobody may wait for what it would have done."""
        self.note(f"{what}: {error!r}")
        with self._changed:
            if self._core.poison is None:
                broken = InternalError(
                    f"the journal's {what} thread failed", reason=repr(error)[:500]
                )
                self._core.poison = error if isinstance(error, HoldfastError) else broken
            self._changed.notify_all()

    # ---- reading -------------------------------------------------------------------------

    def view(self) -> JournalView:
        """A snapshot of what is visible, for queries."""
        with self._changed:
            segments = (*self._core.sealed, self._core.tail)
            return JournalView(self._core.meta, segments, self._durable)

    # ---- upkeep --------------------------------------------------------------------------

    def _upkeep(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if job == "mark":
                    self._write_mark()
                elif isinstance(job, str):
                    self.checkpoint()
                else:
                    self._index(job)
            except BaseException as error:  # noqa: BLE001 - the thread must outlive any one job
                # Derived data: an append must not fail for it, and it is made again at need.
                self.note(str(error) if isinstance(error, HoldfastError) else repr(error))

    def _write_mark(self) -> None:
        """Write the mark again after an interval, as often as it takes: readers wait for it."""
        if self._stop.wait(self.settings.interval_ms / 1_000):
            return  # closing tries once more
        with self._exclusive():
            self._mending = False
            self._core.check_usable()
            self._core.publish_mark()
            self._mend_mark()

    def _index(self, segment: SealedSegment) -> None:
        """Write the index of a sealed segment, unless compaction has merged it meanwhile."""
        with self._upkeep_lock:
            if segment in self._core.sealed:
                write_index(
                    self._files, self.layout, self._core.meta.journal_id, segment, self._pause
                )

    def _pause(self) -> None:
        """Leave the interpreter to the producers for a moment; not while closing."""
        self._stop.wait(0.001)

    def checkpoint(self) -> bool:
        """Write the index checkpoint; False if one of a newer version is kept in its place."""
        with self._upkeep_lock:
            with self._exclusive():
                self._core.check_usable()
                self._core.sync()
                meta, tail, sealed = self._core.meta, self._core.tail, self._core.sealed
                state = (
                    tail.end_offset,
                    tail.next_sequence,
                    tail.chain_hash,
                    len(tail.directory()),
                )
                logical = self._core.logical
            return write_checkpoint(self._files, self.layout, meta, sealed, tail, state, logical)

    @property
    def holds(self) -> HoldStore:
        """Named holds: what truncation must leave alone."""
        return HoldStore(self._files, self.layout, self._clock)

    def truncate_before(
        self, sequence: int, *, holds: Mapping[str, Position] | None = None, dry_run: bool = False
    ) -> TruncateReport:
        """Remove whole sealed segments before `sequence`, never past a hold.

        Args:
            sequence: Events from here on stay.
            holds: More holds than the stored ones, by name: the oldest retained position of every
                pipeline that reads this journal.
            dry_run: Only say what would go.
        """
        with self._exclusive():
            self._core.check_usable()
            view = JournalView(
                self._core.meta, (*self._core.sealed, self._core.tail), self._core.durable
            )

            def every() -> dict[str, Position]:
                return {**self.holds.all(), **(holds or {})}

            plan = plan_truncation(view, sequence, every())
            if not dry_run and plan.segments:
                meta, plan = move_base(self._files, self.layout, view, plan, every)
                self._core.meta = meta
                kept = [s for s in self._core.sealed if s.first_sequence >= plan.base_sequence]
                self._core.sealed = kept
                remove_segments(self._files, self.layout, plan)
        if not dry_run and plan.segments:
            self.checkpoint()
        return plan

    def compact(self, *, target_bytes: int | None = None) -> list[tuple[int, int]]:
        """Merge small neighbouring sealed segments; frames and chain stay byte for byte.

        Appends wait while it runs.

        Args:
            target_bytes: How large a merged segment may be; `segment_bytes` if left out.

        Returns:
            For every merge the first sequence and the number of segments that became one.
        """
        with self._upkeep_lock:
            with self._exclusive():
                self._core.check_usable()
                merged, sealed = compact_segments(
                    self._files,
                    self.layout,
                    self._core.meta,
                    self._core.sealed,
                    self.settings.compact_bytes,
                    target_bytes or self.settings.segment_bytes,
                    self._core.spoil,
                )
                self._core.sealed = sealed
            firsts = {first for first, _ in merged}
            for segment in sealed:
                if segment.first_sequence in firsts:
                    write_index(self._files, self.layout, self._core.meta.journal_id, segment)
        if merged:
            self.checkpoint()
        return merged

    # ---- the end -------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, write the index checkpoint, release the lock.

        An index checkpoint that cannot be written (on a full disk, say) is noted in
        `index_failures` and fails nothing: it is derived, and what was appended is durable.

        Raises:
            CommitUnknownError: Something accepted is not durable.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._committer is not None:
            self._committer.join()
        self._stop.set()
        self._jobs.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        try:
            if self._core.poison is None:
                self.flush()
                self._last_checkpoint()
            lost = self._core.poison
            if lost is not None and self.accepted > self._core.durable and self._promised:
                raise self._unknown(lost)
        finally:
            with self._exclusive():
                self._core.close()
            with self._changed:
                self._over = True
                self._changed.notify_all()

    @property
    def _promised(self) -> bool:
        """Whether appends were acknowledged before they were durable."""
        return self.settings.durability is Durability.INTERVAL

    def _last_checkpoint(self) -> None:
        try:
            self._core.publish_mark()
            self.checkpoint()
        except (StorageError, NotFoundError) as error:
            self.note(f"checkpoint: {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
