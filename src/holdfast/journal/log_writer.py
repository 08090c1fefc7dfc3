"""The writer's core: gives batches their place, writes them, makes them durable, rolls segments.

One thread at a time is inside (the group's leader, see `writer.py`).

Invariants:
- A batch is acknowledged only after an fsync that succeeded, unless the durability is `interval`.
- A failed fsync poisons the core: nothing is retried, nothing more is accepted, and only
  reopening decides what is there. A failed write is undone by cutting the file back; if even
  that fails, the core is poisoned too.
- The durable mark is a hint for readers: a batch that is durable is acknowledged though the mark
  could not be written. `mark_problem` says so, and the mark is written again.
- A segment is sealed (footer, fsync) before its successor exists; a new segment gets its name only
  when its header is durable.
- The id of an event occurs once in the retained log.

Spec: spec/journal-v1.md, sections 5 and 9.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    FencedError,
    HoldfastError,
    InternalError,
    StorageError,
)
from holdfast.failpoints import failpoint
from holdfast.journal.format.frame import FrameHeader, pack_header, pack_trailer
from holdfast.journal.format.index import mix_keys
from holdfast.journal.format.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    pack_footer,
    pack_segment_header,
)
from holdfast.journal.open import MARK, LoadedLog, pack_mark, summarise
from holdfast.journal.segments import JournalSegment, SealedSegment, TailSegment
from holdfast.journal.types import Receipt, make_receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Clock
    from holdfast.journal.batch import PreparedBatch
    from holdfast.journal.files import JournalFiles, WriterLock
    from holdfast.journal.format.layout import Layout

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Placed:
    """A batch with its place in the log, ready to be written."""

    batch: PreparedBatch
    header: FrameHeader
    header_bytes: bytes
    trailer: bytes
    chain_hash: bytes


class LogWriter:
    """The log of one writer."""

    def __init__(
        self, files: JournalFiles, layout: Layout, clock: Clock, lock: WriterLock, loaded: LoadedLog
    ) -> None:
        """Take over a loaded log; `recover` must run before anything is written."""
        self.files = files
        self.layout = layout
        self.clock = clock
        self.lock = lock
        self.meta = loaded.meta
        self.sealed: list[SealedSegment] = loaded.sealed
        self.logical = loaded.clock
        self.durable = loaded.durable
        self.poison: HoldfastError | None = None
        self._fd: int | None = None
        self._mark_fd: int | None = None
        self.mark_problem: HoldfastError | None = None
        self.closed = False
        self._tail = loaded.tail
        try:
            self._recover(loaded)
        except BaseException:
            self._close_files()
            raise

    @property
    def tail(self) -> TailSegment:
        """The segment that grows."""
        if self._tail is None:
            raise self.poison or StorageError("the journal is closed", kind="journal_closed")
        return self._tail

    @property
    def next_sequence(self) -> int:
        """The sequence that the next event gets."""
        return self.tail.next_sequence

    # ---- opening -------------------------------------------------------------------------

    def _recover(self, loaded: LoadedLog) -> None:
        """Cut what is torn, make what is left durable, and have a tail to write to."""
        last: JournalSegment | None = self._tail or (self.sealed[-1] if self.sealed else None)
        if last is not None:
            fd = self.files.open_write(last.path)
            try:
                if loaded.torn_offset is not None:
                    self.files.cut(fd, last.path, loaded.torn_offset)
                    failpoint("journal_open.after_cut")
                self._rewrite(fd, last, loaded.durable)
                self.files.sync(fd, last.path)
                failpoint("journal_open.after_sync")
            except BaseException:
                self.files.close(fd)
                raise
            if self._tail is None:
                self.files.close(fd)
            else:
                self._fd = fd
        for name in loaded.leftovers:
            self.files.remove(self.layout.segments / name)
        if self._tail is None:
            chain = self.sealed[-1].chain_hash if self.sealed else self.meta.base_hash
            first = self.sealed[-1].next_sequence if self.sealed else self.meta.base_sequence
            self._create_tail(first, chain)
        self.durable = self.next_sequence
        self._mark_fd = self.files.open_or_create(self.layout.mark)
        self.publish_mark()
        with suppress(HoldfastError):  # a mark of the wrong size is none: opening reads the log
            if self.files.size(self._mark_fd, self.layout.mark) > MARK.size:
                self.files.cut(self._mark_fd, self.layout.mark, MARK.size)

    def _rewrite(self, fd: int, last: JournalSegment, durable: int) -> None:
        """Write again what was never known to be durable.

        After a failed fsync the kernel may hold pages that never reached the disk and call them
        clean; an fsync alone would succeed and mean nothing.
        """
        directory = last.directory()
        if not len(directory) or (durable >= last.next_sequence and isinstance(last, TailSegment)):
            return
        number = last.number_of(min(durable, last.next_sequence - 1))
        at = directory.offsets[max(number, 0)]
        size = self.files.size(fd, last.path)
        while at < size:
            data = self.files.read_at(fd, last.path, at, min(size - at, 8 << 20))
            at += self.files.write_at(fd, last.path, [data], at)

    def _create_tail(self, first: int, chain: bytes) -> None:
        header = SegmentHeader(
            self.meta.journal_id, first, chain, self.logical, self.clock.wall_us()
        )
        path = self.layout.segment(first)
        self.files.replace(path, [pack_segment_header(header)])
        self._fd = self.files.open_write(path)
        self._tail = TailSegment(self.files, path, first, chain)

    def publish_mark(self) -> None:
        """Tell readers in other processes what is durable. A failure undoes nothing."""
        if self._mark_fd is None:
            return
        data = pack_mark(self.meta.journal_id, self.durable)
        try:
            self.files.write_at(self._mark_fd, self.layout.mark, [data], 0)
        except HoldfastError as error:
            self.mark_problem = error
        else:
            self.mark_problem = None

    # ---- appending -----------------------------------------------------------------------

    def check_usable(self) -> None:
        """Refuse to continue after a failure, the end, a fork, or the loss of the lock."""
        if self.closed:
            raise StorageError(
                "the journal is closed", kind="journal_closed", remedy="open it again"
            )
        if self.poison is not None:
            raise StorageError(
                "the journal's writer has failed and must be reopened",
                kind="writer_poisoned",
                cause=self.poison.kind,
                remedy="close it and open the journal again; replay decides what is there",
            ) from self.poison
        if not self.lock.held():
            self.poison = FencedError(
                "this process no longer owns the journal",
                kind="journal_fenced",
                path=self.lock.path,
                pid=self.lock.pid,
                remedy="open the journal again; do not share a writer across fork",
            )
            raise self.poison

    def place(self, batches: Sequence[PreparedBatch]) -> list[Placed]:
        """Give batches their sequences and chain hashes, one after another."""
        sequence, chain, logical = self.tail.next_sequence, self.tail.chain_hash, self.logical
        wall = self.clock.wall_us()
        placed = []
        for batch in batches:
            wall_range = batch.wall_range or (wall, wall)
            clocks = batch.clock_range or (logical + 1, logical + batch.count)
            header = FrameHeader(
                int(batch.kind),
                batch.count,
                sequence,
                self.durable,
                len(batch.body),
                wall,
                wall_range[0],
                wall_range[1],
                clocks[0],
                clocks[1],
                chain,
                batch.body_hash,
                self.meta.journal_id,
            )
            header_bytes = pack_header(header)
            trailer, chain = pack_trailer(header_bytes, batch.crc)
            placed.append(Placed(batch, header, header_bytes, trailer, chain))
            sequence += batch.count
            logical = max(logical, clocks[1])
        return placed

    def write(self, placed: Sequence[Placed]) -> None:
        """Write frames at the end of the tail. Afterwards they are accepted, not yet durable."""
        tail = self.tail
        start = tail.end_offset
        parts = [p for f in placed for p in (f.header_bytes, f.batch.body, f.trailer)]
        failpoint("journal_append.before_write")
        try:
            self.files.write_at(self._descriptor(), tail.path, parts, start)
        except BaseException as error:
            self._undo(start, error)
            raise
        failpoint("journal_append.after_write")
        for frame in placed:
            number = len(tail.directory())
            tail.add(frame.header, frame.chain_hash)
            if frame.batch.ids_given:
                tail.add_ids(frame.batch.ids, number, frame.header.first_sequence)
            self.logical = max(self.logical, frame.header.clock_max)

    def _descriptor(self) -> int:
        if self._fd is None:
            raise StorageError("the journal is closed", kind="journal_closed")
        return self._fd

    def _undo(self, size: int, error: BaseException) -> None:
        """Cut a failed write off; where that fails, or the failure is none of the disk's, stop."""
        typed = isinstance(error, HoldfastError)
        try:
            self.files.cut(self._descriptor(), self.tail.path, size)
        except HoldfastError as second:
            self.poison = error if isinstance(error, HoldfastError) else second
        if not typed and self.poison is None:
            self.poison = InternalError("a write was interrupted", reason=repr(error)[:200])
        if isinstance(error, StorageError) and self.poison is None:
            error.took_effect = False
            error.facts["took_effect"] = False

    def sync(self) -> None:
        """Make everything accepted durable, and show it to readers."""
        accepted = self.tail.next_sequence
        if accepted == self.durable:
            return
        try:
            self.files.sync_data(self._descriptor(), self.tail.path)
        except HoldfastError as error:
            raise self.fail(error) from error
        failpoint("journal_append.after_sync")
        self.durable = accepted
        self.publish_mark()
        failpoint("journal_append.after_publish")

    def spoil(self, error: HoldfastError) -> None:
        """Accept nothing more: memory and disk may disagree about which files there are."""
        self.poison = self.poison or error

    def fail(self, error: HoldfastError) -> CommitUnknownError:
        """Poison the core: what the disk holds is unknown from here on."""
        self.poison = error
        return CommitUnknownError(
            "fsync failed: whether the batch is durable is unknown",
            kind="sync_failed",
            path=self.tail.path,
            cause=str(error),
            remedy="reopen the journal and append again with the same ids; it is idempotent",
        )

    # ---- idempotence ---------------------------------------------------------------------

    def find(self, keys: Array) -> tuple[Array, Array]:
        """Which of these ids (rows of two words) are in the log: (which, sequence), compared."""
        mixed = mix_keys(keys)
        found_which, found_sequence = [], []
        for segment in (*self.sealed, self.tail):
            which, sequences = segment.find_ids(mixed)
            for one, sequence in zip(which.tolist(), sequences.tolist(), strict=True):
                body = segment.body(segment.number_of(sequence))
                row = sequence - body.header.first_sequence
                if (body.keys(0)[row] == keys[one]).all():
                    found_which.append(one)
                    found_sequence.append(sequence)
        return np.array(found_which, dtype="<i8"), np.array(found_sequence, dtype="<u8")

    def first_result(self, batch: PreparedBatch) -> Receipt | None:
        """The receipt of the same batch if it was appended before; None if it is new.

        Raises:
            ConflictError: Some of the ids are taken, or the same ids came with other content.
        """
        mixed = np.sort(mix_keys(batch.ids))
        if not any(len(s.find_ids(mixed)[0]) for s in (*self.sealed, self.tail)):
            return None
        which, sequences = self.find(batch.ids[:1])
        if len(which):
            sequence = int(sequences[0])
            segment = self._segment_of(sequence)
            frame = segment.frame(segment.number_of(sequence))
            if (frame.header.first_sequence, frame.header.body_hash) == (sequence, batch.body_hash):
                return make_receipt(
                    self.meta.journal_id, frame.header, frame.header_bytes, duplicate=True
                )
        which, sequences = self.find(batch.ids)
        if not len(which):
            return None
        raise ConflictError(
            "an event id was used before, for something else",
            kind="id_reused",
            id=batch.ids[int(which[0])].tobytes().hex(),
            sequence=int(sequences[0]),
            known=len(which),
            of=batch.count,
            remedy="repeat a batch exactly to get its first receipt, or use new ids",
        )

    def _segment_of(self, sequence: int) -> JournalSegment:
        if sequence >= self.tail.first_sequence:
            return self.tail
        return next(s for s in self.sealed if s.first_sequence <= sequence < s.next_sequence)

    # ---- rolling -------------------------------------------------------------------------

    def roll(self) -> SealedSegment:
        """Seal the tail and begin the next segment."""
        tail, fd = self.tail, self._descriptor()
        at = tail.end_offset
        footer = pack_footer(
            self.meta.journal_id,
            tail.first_sequence,
            tail.next_sequence,
            at,
            tail.chain_hash,
            tail.directory().pack(),
        )
        failpoint("journal_roll.before_footer")
        try:
            self.files.write_at(fd, tail.path, [footer], at)
        except BaseException as error:
            self._undo(at, error)
            raise
        failpoint("journal_roll.after_footer_write")
        try:
            self.files.sync(fd, tail.path)
            failpoint("journal_roll.after_footer_sync")
            self.durable = tail.next_sequence
            self.publish_mark()
            self._fd = None
            self.files.close(fd)
            self._create_tail(tail.next_sequence, tail.chain_hash)
        except HoldfastError as error:
            # The old segment is sealed and there may be no new one: only reopening knows.
            self.poison = error
            raise
        summary = summarise(tail, at + len(footer))
        sealed = SealedSegment(self.files, self.layout, self.meta.journal_id, summary)
        sealed.take_over(tail)
        self.sealed = [*self.sealed, sealed]
        return sealed

    @property
    def tail_bytes(self) -> int:
        """How large the tail's file is."""
        return self.tail.end_offset - SEGMENT_HEADER_BYTES

    def close(self) -> None:
        """Release files and lock."""
        if not self.closed:
            self.closed = True
            self._close_files()
            self.lock.release()

    def _close_files(self) -> None:
        for fd in (self._fd, self._mark_fd):
            if fd is not None:
                self.files.close(fd)
        self._fd = self._mark_fd = None
