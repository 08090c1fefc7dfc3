"""Opening a journal: index checkpoint and tail, or replay. Reading only; nothing is repaired here.

Invariants:
- Every path ends in the same state: the same sealed segments, the same tail, the same answers.
- A checkpoint is a hint. It is used if it decodes, agrees with itself and with the files;
  otherwise everything is replayed, and the report says why. It never invents an event.
- Damage outside the tail of the last segment is a `CorruptionError`.
- A reader may open while a writer appends: an unfinished frame at the end is not there yet.

Spec: spec/journal-v1.md, section 9.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.errors import CorruptionError, HoldfastError, IncompatibleError, NotFoundError
from holdfast.journal.format.blob import (
    CHECKPOINT_MAGIC,
    META_MAGIC,
    BlobError,
    IndexCheckpoint,
    JournalMeta,
    SegmentSummary,
    unpack_blob,
)
from holdfast.journal.format.frame import BadFrameError
from holdfast.journal.format.layout import Layout, index_first, is_temporary, segment_first
from holdfast.journal.format.segment import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_TRAILER_BYTES,
    FrameDirectory,
    SegmentTrailer,
    frame_table,
    unpack_segment_header,
    unpack_trailer,
)
from holdfast.journal.frame_scan import FrameScan, judge_tail, scan_frames
from holdfast.journal.segments import SealedSegment, TailSegment, corrupt
from holdfast.journal.types import OpenPath, OpenReport

if TYPE_CHECKING:
    from holdfast.journal.files import JournalFiles

CHECKPOINT_BYTES_MAX = 1 << 30
MARK = struct.Struct("<8sQQQ")
MARK_MAGIC = b"HFJMARK1"


@dataclass(slots=True)
class LoadedLog:
    """A journal as it lies on disk."""

    meta: JournalMeta
    sealed: list[SealedSegment]
    tail: TailSegment | None
    clock: int
    durable: int
    report: OpenReport
    torn_offset: int | None = None
    leftovers: list[str] = field(default_factory=list)

    @property
    def next_sequence(self) -> int:
        """The sequence that the next event gets."""
        if self.tail is not None:
            return self.tail.next_sequence
        return self.sealed[-1].next_sequence if self.sealed else self.meta.base_sequence

    @property
    def chain_hash(self) -> bytes:
        """The chain hash at the end."""
        if self.tail is not None:
            return self.tail.chain_hash
        return self.sealed[-1].chain_hash if self.sealed else self.meta.base_hash


def read_meta(files: JournalFiles, layout: Layout) -> JournalMeta:
    """Which journal this is. A damaged or missing one is an error, never a fresh start."""
    try:
        return unpack_blob(files.read(layout.meta, 4096), META_MAGIC, JournalMeta)
    except NotFoundError as error:
        if any(segment_first(name) is not None for name in files.entries(layout.segments)):
            raise CorruptionError(
                "journal.meta is missing, but there are segments",
                kind="meta_missing",
                path=layout.meta,
                remedy="restore journal.meta from a copy; nothing was touched",
            ) from error
        raise NotFoundError(
            "there is no journal here",
            kind="journal_missing",
            path=layout.root,
            remedy="check the path; `holdfast journal append` creates a journal",
        ) from error
    except BlobError as error:
        if error.future:
            raise IncompatibleError(
                "the journal was written by a newer version",
                kind="journal_version",
                path=layout.meta,
                found=error.detail,
                remedy="use a newer Holdfast",
            ) from error
        raise CorruptionError(
            "journal.meta is damaged",
            kind="meta_damaged",
            path=layout.meta,
            reason=str(error),
            remedy="restore journal.meta from a copy; nothing was touched",
        ) from error


def pack_mark(journal_id: bytes, durable: int) -> bytes:
    """The durable mark: a sequence and its complement, so that a half-written one is noticed."""
    return MARK.pack(MARK_MAGIC, int.from_bytes(journal_id[:8]), durable, durable ^ (1 << 64) - 1)


def read_mark(files: JournalFiles, layout: Layout, journal_id: bytes) -> int:
    """What the writer last said to be durable; 0 if the mark is missing or damaged.

    A mark that is there but cannot be read is an error: it could say that a torn-looking tail was
    acknowledged.
    """
    return look_at_mark(files, layout, journal_id)[0]


def look_at_mark(files: JournalFiles, layout: Layout, journal_id: bytes) -> tuple[int, str | None]:
    """What the mark says, and what is wrong with it. Three looks: a writer may be at work on it."""
    problem: str | None = None
    for _ in range(3):
        try:
            data = files.read(layout.mark, MARK.size)
        except NotFoundError:
            return 0, None
        except CorruptionError as error:
            problem = str(error)
            continue
        if len(data) != MARK.size:
            problem = f"it has {len(data)} bytes, not {MARK.size}"
            continue
        magic, owner, durable, complement = MARK.unpack(data)
        if magic != MARK_MAGIC:
            problem = "it is no mark"
        elif owner != int.from_bytes(journal_id[:8]):
            problem = "it belongs to another journal"
        elif durable ^ complement != (1 << 64) - 1:
            problem = "its two numbers disagree"
        else:
            return int(durable), None
    return 0, problem


def read_checkpoint(files: JournalFiles, layout: Layout) -> tuple[IndexCheckpoint | None, str, str]:
    """The index checkpoint, or (None, reason, detail)."""
    try:
        data = files.read(layout.checkpoint, CHECKPOINT_BYTES_MAX)
        found = unpack_blob(data, CHECKPOINT_MAGIC, IndexCheckpoint)
        problem = found.problem()
        if problem is None:
            frame_table(found.directory)
            return found, "used", ""
    except NotFoundError:
        return None, "missing", ""
    except BlobError as error:
        return None, "future" if error.future else "invalid", str(error)
    except (HoldfastError, BadFrameError) as error:
        return None, "invalid", str(error)
    return None, "invalid", f"inconsistent: {problem}"


def match_checkpoint(
    checkpoint: IndexCheckpoint, meta: JournalMeta, sizes: dict[int, int]
) -> tuple[str, str] | None:
    """Why a sound checkpoint does not fit the files, as (reason, detail); None if it does."""
    if checkpoint.journal_id != meta.journal_id:
        return "invalid", "it belongs to another journal"
    if checkpoint.base_sequence != meta.base_sequence:
        return "invalid", "the journal was truncated since"
    if checkpoint.sealed and checkpoint.sealed[0].previous_hash != meta.base_hash:
        return "invalid", "the chain does not begin at the journal's base"
    for summary in checkpoint.sealed:
        actual = sizes.get(summary.first_sequence)
        if actual is None:
            return "invalid", f"segment {summary.first_sequence} is not there"
        if actual != summary.file_bytes:
            return "invalid", f"segment {summary.first_sequence} has another size"
    tail = sizes.get(checkpoint.tail_segment)
    if tail is None or tail < checkpoint.tail_offset:
        return "ahead", f"it ends at {checkpoint.next_sequence}, the log is shorter"
    if any(
        first < checkpoint.tail_segment
        and first not in {s.first_sequence for s in checkpoint.sealed}
        for first in sizes
    ):
        return "invalid", "there are segments that it does not know"
    return None


class Loader:
    """One opening: collects what is found and what was read for the report."""

    def __init__(self, files: JournalFiles, layout: Layout) -> None:
        """Read the meta file and list the segments."""
        self.files = files
        self.layout = layout
        self.meta = read_meta(files, layout)
        entries = files.entries(layout.segments)
        self.sizes = {}
        self.leftovers = [name for name in entries if is_temporary(name)]
        for name, size in sorted(entries.items()):
            first = segment_first(name)
            if first is not None:
                if first < self.meta.base_sequence:
                    self.leftovers.append(name)
                else:
                    self.sizes[first] = size
        self.leftovers += [
            name
            for name in entries
            if (first := index_first(name)) is not None and first not in self.sizes
        ]
        self.sealed: list[SealedSegment] = []
        self.tail: TailSegment | None = None
        self.clock = 0
        self.durable = read_mark(files, layout, self.meta.journal_id)
        self.frames_read = 0
        self.bytes_read = 0
        self.torn: tuple[int, int] | None = None

    def load(self) -> LoadedLog:
        """Take the checkpoint and the tail, or replay."""
        checkpoint, reason, detail = read_checkpoint(self.files, self.layout)
        if checkpoint is not None:
            mismatch = match_checkpoint(checkpoint, self.meta, self.sizes)
            if mismatch is None:
                mismatch = self._anchor(checkpoint)
            if mismatch is not None:
                (reason, detail), checkpoint = mismatch, None
        if not self.sizes and (self.durable > self.meta.base_sequence or reason == "ahead"):
            raise CorruptionError(
                "all journal segments are missing",
                kind="segment_missing",
                path=self.layout.segments,
                durable=self.durable or None,
                detail=detail,
                remedy="restore them from a copy; nothing was touched",
            )
        path = OpenPath.CHECKPOINT if checkpoint is not None else OpenPath.REPLAY
        if checkpoint is not None:
            self.durable = max(self.durable, checkpoint.next_sequence)
            self.clock = checkpoint.clock
            self.sealed = [
                SealedSegment(self.files, self.layout, self.meta.journal_id, summary)
                for summary in checkpoint.sealed
            ]
        elif reason == "missing" and not self.sizes:
            path, reason = OpenPath.FRESH, "empty"
        self._scan_rest(checkpoint)
        return self._finish(path, reason, detail)

    def _anchor(self, checkpoint: IndexCheckpoint) -> tuple[str, str] | None:
        """Check that the tail's last frame before the watermark is the one it names."""
        last = frame_table(checkpoint.directory).table[-1:]
        if not len(last):
            return None if checkpoint.tail_offset == SEGMENT_HEADER_BYTES else ("invalid", "offset")
        tail = TailSegment(
            self.files, self.layout.segment(checkpoint.tail_segment), checkpoint.tail_segment, b""
        )
        offset, first = int(last[0]["offset"]), int(last[0]["first"])
        if offset >= checkpoint.tail_offset:
            return "invalid", "the watermark lies before its last frame"
        frame = tail.frame_at(offset, checkpoint.tail_offset - offset, first)
        if frame.chain_hash != checkpoint.chain_hash:
            return "invalid", "the log has another chain hash at the watermark"
        if frame.header.next_sequence != checkpoint.next_sequence:
            return "invalid", "the log has another sequence at the watermark"
        return None

    def _scan_rest(self, checkpoint: IndexCheckpoint | None) -> None:
        """Read every segment that the checkpoint does not cover, in order."""
        at = self.sealed[-1].next_sequence if self.sealed else self.meta.base_sequence
        chain = self.sealed[-1].chain_hash if self.sealed else self.meta.base_hash
        order = sorted(first for first in self.sizes if first >= at)
        while order:
            first = order.pop(0)
            if first < at:
                # Compaction merged this segment into the one before and died before deleting it.
                self.leftovers.append(self.layout.segment(first).name)
                continue
            if first != at:
                raise CorruptionError(
                    "a journal segment is missing",
                    kind="segment_missing",
                    path=self.layout.segment(at),
                    next_segment=first,
                    remedy="restore the file from a copy; nothing was touched",
                )
            at, chain = self._scan(first, chain, checkpoint, last=not order)

    def _scan(
        self, first: int, chain: bytes, checkpoint: IndexCheckpoint | None, *, last: bool
    ) -> tuple[int, bytes]:
        path = self.layout.segment(first)
        fd = self.files.open_read(path)
        try:
            return self._scan_open(fd, first, chain, checkpoint, last=last)
        finally:
            self.files.close(fd)

    def _scan_open(
        self, fd: int, first: int, chain: bytes, checkpoint: IndexCheckpoint | None, *, last: bool
    ) -> tuple[int, bytes]:
        path = self.layout.segment(first)
        size = self.files.size(fd, path)
        self._check_header(fd, first, chain)
        trailer, flaw = self._trailer(fd, first, size)
        if trailer is None and not last:
            raise corrupt(
                path, max(size - SEGMENT_TRAILER_BYTES, 0), flaw or BadFrameError("footer")
            )
        tail = TailSegment(self.files, path, first, chain)
        if checkpoint is not None and checkpoint.tail_segment == first and checkpoint.directory:
            tail.restore(
                frame_table(checkpoint.directory).directory(),
                checkpoint.tail_offset,
                checkpoint.next_sequence,
                checkpoint.chain_hash,
            )
        end = trailer.footer_offset if trailer is not None else size
        walk = self._walk(fd, tail, end)
        if trailer is not None:
            self._check_footer(fd, tail, walk, trailer)
            self.sealed.append(self._seal(tail, size))
        else:
            if walk.problem is not None:
                self._judge(fd, walk, size)
            self.tail = tail
        return tail.next_sequence, tail.chain_hash

    def _check_header(self, fd: int, first: int, chain: bytes) -> None:
        path = self.layout.segment(first)
        try:
            header = unpack_segment_header(self.files.read_at(fd, path, 0, SEGMENT_HEADER_BYTES))
        except BadFrameError as error:
            raise corrupt(path, 0, error) from error
        problem = header.problem(self.meta.journal_id, first, chain)
        if problem is not None:
            raise corrupt(path, 0, problem)
        self.clock = max(self.clock, header.clock)

    def _trailer(
        self, fd: int, first: int, size: int
    ) -> tuple[SegmentTrailer | None, BadFrameError | None]:
        at = max(size - SEGMENT_TRAILER_BYTES, 0)
        data = self.files.read_at(fd, self.layout.segment(first), at, SEGMENT_TRAILER_BYTES)
        try:
            trailer = unpack_trailer(data, size)
        except BadFrameError as error:
            return None, error
        if (trailer.journal_id, trailer.first_sequence) != (self.meta.journal_id, first):
            return None, BadFrameError("foreign", "the footer belongs to another segment")
        return trailer, None

    def _walk(self, fd: int, tail: TailSegment, end: int) -> FrameScan:
        walk = FrameScan(
            self.meta.journal_id, tail.end_offset, tail.next_sequence, tail.chain_hash, self.clock
        )
        start = walk.offset
        for _, frame in scan_frames(
            lambda at, length: self.files.read_at(fd, tail.path, at, length), walk, end
        ):
            tail.add(frame.header, frame.chain_hash)
        self.frames_read += walk.frames
        self.bytes_read += walk.offset - start
        self.clock = max(self.clock, walk.clock)
        self.durable = max(self.durable, walk.durable)
        return walk

    def _check_footer(
        self, fd: int, tail: TailSegment, walk: FrameScan, trailer: SegmentTrailer
    ) -> None:
        if walk.problem is not None:
            raise corrupt(tail.path, walk.offset, walk.problem)
        stored = self.files.read_at(
            fd, tail.path, trailer.footer_offset, len(tail.directory()) * 32
        )
        found = (walk.offset, walk.sequence, walk.chain_hash, stored)
        wanted = (
            trailer.footer_offset,
            trailer.next_sequence,
            trailer.chain_hash,
            tail.directory().pack(),
        )
        if found != wanted:
            error = BadFrameError("footer", "the footer does not describe the frames")
            raise corrupt(tail.path, trailer.footer_offset, error)

    def _seal(self, tail: TailSegment, size: int) -> SealedSegment:
        return SealedSegment(self.files, self.layout, self.meta.journal_id, summarise(tail, size))

    def _judge(self, fd: int, walk: FrameScan, size: int) -> None:
        path = self.layout.segment(max(self.sizes))
        rest = self.files.read_at(fd, path, walk.offset, size - walk.offset)
        verdict = judge_tail(walk, self.durable, memoryview(rest))
        if not verdict.cut:
            raise corrupt(
                path,
                walk.offset,
                walk.problem or BadFrameError("frame"),
                sequence=walk.sequence,
                why=verdict.why,
            )
        self.torn = (walk.offset, size - walk.offset)

    def _finish(self, path: OpenPath, reason: str, detail: str) -> LoadedLog:
        log = LoadedLog(
            self.meta,
            self.sealed,
            self.tail,
            self.clock,
            self.durable,
            OpenReport(path=path, reason=reason),
            None,
            self.leftovers,
        )
        log.torn_offset = self.torn[0] if self.torn else None
        if self.durable > log.next_sequence and not detail:
            detail = f"everything before {self.durable} was durable once, the log is shorter"
        log.report = OpenReport(
            path=path,
            reason=reason,
            detail=detail,
            checkpoint_kept=reason == "future",
            segments=len(self.sealed) + (self.tail is not None),
            frames_read=self.frames_read,
            bytes_read=self.bytes_read,
            next_sequence=log.next_sequence,
            torn_bytes=self.torn[1] if self.torn else 0,
            torn_file=self.tail.path.name if self.torn and self.tail else "",
            leftovers=tuple(sorted(self.leftovers)),
        )
        log.durable = min(self.durable, log.next_sequence)
        return log


def summarise(segment: TailSegment, file_bytes: int) -> SegmentSummary:
    """What a checkpoint remembers of a segment that was just sealed."""
    directory: FrameDirectory = segment.directory()
    return SegmentSummary(
        first_sequence=segment.first_sequence,
        next_sequence=segment.next_sequence,
        file_bytes=file_bytes,
        wall_min_us=min(directory.wall_mins),
        wall_max_us=max(directory.wall_maxs),
        previous_hash=segment.previous_hash,
        chain_hash=segment.chain_hash,
    )


JournalFingerprint = tuple[Any, ...]


def journal_fingerprint(files: JournalFiles, layout: Layout) -> JournalFingerprint:
    """Changes whenever a writer changes files: two looks between which it does not saw the same."""
    try:
        meta: Any = files.read(layout.meta, 4096)
    except HoldfastError as error:
        meta = error.kind
    return meta, tuple(sorted(files.entries(layout.segments).items()))


def load_log(files: JournalFiles, layout: Layout) -> LoadedLog:
    """Read a journal's state from disk, changing nothing."""
    return Loader(files, layout).load()
