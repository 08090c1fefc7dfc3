"""Group commit: producers queue batches, one of them at a time writes for all.

A thread that finds nobody leading leads: it takes what is queued, writes it with one call, makes it
durable with one fsync, wakes the threads whose batches are done and hands leadership to the next
one's.

Invariants:
- One thread at a time is inside the core. Leadership is handed over, or released with a
  notification.
- Every queued batch ends with a receipt or an error; nobody waits for a thread that is gone.
- Two batches with an id in common are never in one group: the second finds the first in the log.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.errors import HoldfastError, InternalError, StorageError
from holdfast.journal.batch import EventIds, PreparedBatch, prepare
from holdfast.journal.format.frame import OVERHEAD_BYTES
from holdfast.journal.types import Durability, JournalSettings, Receipt, make_receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from holdfast.clock import Clock
    from holdfast.journal.log_writer import LogWriter
    from holdfast.journal.segments import SealedSegment
    from holdfast.journal.types import Event


NOTES_MAX = 100


class Ticket:
    """A batch on its way; `wait` gives its receipt."""

    __slots__ = ("_changed", "batch", "done", "error", "gate", "result")

    def __init__(self, batch: PreparedBatch, changed: threading.Condition) -> None:
        """A batch that nobody has taken yet."""
        self.batch = batch
        self.done = False
        self.error: Exception | None = None
        self.result: Receipt | None = None
        # Where an appending thread sleeps until its batch is done, or until it is to lead.
        self.gate: threading.Lock | None = None
        self._changed = changed

    def wait(self, timeout_ms: int | None = None) -> Receipt | None:
        """The receipt once the batch is as durable as was asked for; None after the timeout.

        Raises:
            HoldfastError: What `append` would have raised.
        """
        if not self.done:
            timeout = None if timeout_ms is None else timeout_ms / 1_000
            with self._changed:
                if not self._changed.wait_for(lambda: self.done, timeout):
                    return None
        return self.receipt()

    def receipt(self) -> Receipt:
        """The result of a batch that is done."""
        if self.error is not None:
            raise self.error
        if self.result is None:
            raise InternalError("an append ended without a result")
        return self.result


class CommitQueue:
    """The producers' side of a writer."""

    _core: LogWriter

    def __init__(self, settings: JournalSettings, clock: Clock, ids: EventIds) -> None:
        """An empty queue; the core comes with opening."""
        self.settings = settings
        self._clock = clock
        self._ids = ids
        self._changed = threading.Condition()
        self._queue: deque[Ticket] = deque()
        self._leading = False
        self._wanted = 0
        self._committer: threading.Thread | None = None
        self._closed = False
        self._since_checkpoint = 0
        self._durable = 0
        self._mending = False
        self.index_failures: list[str] = []
        self._jobs: queue.SimpleQueue[SealedSegment | str | None] = queue.SimpleQueue()

    def append(self, batch: pa.RecordBatch | pa.Table | Sequence[Event]) -> Receipt:
        """Append a batch whole or not at all; returns once it is as durable as was asked for.

        Args:
            batch: An Arrow record batch or table, or a sequence of `Event`s.

        Raises:
            InvalidInputError: The batch can never be appended.
            ConflictError: An id was used before for something else.
            CommitUnknownError: An fsync failed. Reopen, append again with the same ids.
            StorageError: Nothing was appended; `retryable` says whether to try again.
        """
        ticket = self._prepare(batch)
        with self._changed:
            self._check_open()
            self._queue.append(ticket)
            lead = not self._leading
            if lead:
                self._leading = True
            else:
                ticket.gate = threading.Lock()
                ticket.gate.acquire()
        if ticket.gate is not None:
            try:
                ticket.gate.acquire()
            except BaseException:
                self._abandon(ticket, ticket.gate)
                raise
        if not ticket.done:
            self._lead(ticket)
        return ticket.receipt()

    def _abandon(self, ticket: Ticket, gate: threading.Lock) -> None:
        """A producer was interrupted while it waited: it takes its batch out and never leads."""
        with self._changed:
            if ticket not in self._queue:
                return  # somebody writes it now
            self._queue.remove(ticket)
            chosen = not gate.locked()
        if chosen:
            self._hand_over()

    def submit(self, batch: pa.RecordBatch | pa.Table | Sequence[Event]) -> Ticket:
        """Append without waiting: a thread of the writer commits what was submitted, in groups.

        A single producer can so encode its next batch while the disk works on the last one. Keep
        the number of tickets that are not done within bounds: they hold their batches in memory.
        """
        ticket = self._prepare(batch)
        with self._changed:
            self._check_open()
            self._queue.append(ticket)
            if self._committer is None:
                self._committer = threading.Thread(
                    target=self._commit_submitted, name="holdfast-journal-commit", daemon=True
                )
                self._committer.start()
            if not self._leading:
                self._changed.notify_all()
        return ticket

    def _prepare(self, batch: pa.RecordBatch | pa.Table | Sequence[Event]) -> Ticket:
        return Ticket(prepare(batch, self._ids, self._clock.wall_us()), self._changed)

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(
                "the journal is closed", kind="journal_closed", remedy="open it again"
            )

    def _commit_submitted(self) -> None:
        while True:
            with self._changed:
                while self._leading or not self._queue:
                    if self._closed and not self._queue:
                        return
                    self._changed.wait()
                self._leading = True
            try:
                self._round()
            except BaseException as error:  # noqa: BLE001 - others wait for this thread
                self.note(f"commit: {error!r}")  # the core is poisoned, every batch hears of it
            finally:
                self._hand_over()

    def note(self, problem: str) -> None:
        """Remember what went wrong off the path of appends; the last hundred are kept."""
        self.index_failures.append(problem)
        del self.index_failures[:-NOTES_MAX]

    def _hand_over(self) -> None:
        """End one's leadership: wake the thread of the next batch, or another one that waits."""
        with self._changed:
            self._durable = self._core.durable
            following = self._queue[0] if self._queue else None
            if following is not None and following.gate is not None and not self._wanted:
                # Leadership passes on directly; nobody else needs to wake up for it.
                following.gate.release()
                return
            self._leading = False
            self._changed.notify_all()

    def _lead(self, own: Ticket) -> None:
        try:
            while not own.done:
                self._round()
        finally:
            self._hand_over()

    def _round(self) -> None:
        """One group: take, place, write, make durable, acknowledge."""
        group = self._take()
        try:
            self._core.check_usable()
            fresh = self._without_known(group)
            if fresh:
                self._write(fresh)
        except HoldfastError as error:
            self._tell(group, error)
        except Exception as error:  # noqa: BLE001 - every waiting producer must hear of it
            broken = InternalError("an append failed in the writer", reason=repr(error)[:500])
            broken.__cause__ = error
            self._core.poison = self._core.poison or broken
            self._tell(group, broken)
        except BaseException:
            broken = InternalError("the thread that wrote for this group was interrupted")
            self._core.poison = self._core.poison or broken
            for one in group:
                one.error = one.error or broken
            self._finish(group)
            raise
        self._finish(group)
        if self._since_checkpoint >= self.settings.checkpoint_bytes:
            self._since_checkpoint = 0
            self._jobs.put("checkpoint")

    @staticmethod
    def _tell(group: list[Ticket], error: HoldfastError) -> None:
        for one in group:
            if one.result is None and one.error is None:
                one.error = error

    def _write(self, fresh: list[Ticket]) -> None:
        """Give batches their place, write them and make them durable."""
        if self._core.tail_bytes >= self.settings.segment_bytes:
            self._jobs.put(self._core.roll())
        placed = self._core.place([one.batch for one in fresh])
        self._core.write(placed)
        if self.settings.durability is not Durability.INTERVAL:
            self._core.sync()
            self._mend_mark()
        for one, frame in zip(fresh, placed, strict=True):
            one.result = make_receipt(self._core.meta.journal_id, frame.header, frame.header_bytes)
            self._since_checkpoint += frame.header.frame_bytes

    def _mend_mark(self) -> None:
        """Have a mark that could not be written written again, off the path of appends."""
        if self._core.mark_problem is not None and not self._mending:
            self._mending = True
            self.note(f"mark: {self._core.mark_problem}")
            self._jobs.put("mark")

    def _finish(self, group: list[Ticket]) -> None:
        """Wake those whose batch is done."""
        with self._changed:
            self._durable = self._core.durable
            for one in group:
                one.done = True
            self._changed.notify_all()
        for one in group:
            if one.gate is not None and one.gate.locked():
                one.gate.release()

    def _take(self) -> list[Ticket]:
        """The next group: one batch, or what fits, but no id twice in a group."""
        group: list[Ticket] = []
        taken = 0
        given: list[np.ndarray[Any, Any]] = []
        with self._changed:
            while self._queue:
                batch = self._queue[0].batch
                if group and taken + len(batch.body) > self.settings.group_bytes_max:
                    break
                if batch.ids_given:
                    ids = batch.ids.view("V16").ravel()
                    if given and np.isin(ids, np.concatenate(given)).any():
                        break
                    given.append(ids)
                group.append(self._queue.popleft())
                taken += len(batch.body) + OVERHEAD_BYTES
                if self.settings.durability is Durability.BATCH:
                    break
        return group

    def _without_known(self, group: list[Ticket]) -> list[Ticket]:
        fresh = []
        for one in group:
            if one.batch.ids_given:
                try:
                    one.result = self._core.first_result(one.batch)
                except HoldfastError as error:
                    one.error = error
            if one.result is None and one.error is None:
                fresh.append(one)
        return fresh

    def _exclusive(self) -> _Leadership:
        """Be the only thread inside the core for a while."""
        return _Leadership(self)


class _Leadership:
    """Be the only thread inside the core for a while."""

    def __init__(self, writer: CommitQueue) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        writer = self._writer
        with writer._changed:  # noqa: SLF001 - part of the writer
            writer._wanted += 1  # noqa: SLF001
            try:
                while writer._leading:  # noqa: SLF001
                    writer._changed.wait()  # noqa: SLF001
                writer._leading = True  # noqa: SLF001
            finally:
                writer._wanted -= 1  # noqa: SLF001

    def __exit__(self, *_: object) -> None:
        self._writer._hand_over()  # noqa: SLF001
