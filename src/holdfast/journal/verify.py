"""Verification: every byte of every segment, the chain through all of them, and what is derived.

Invariants:
- Reads only. Every problem becomes a finding with file and offset; one does not hide others.
- Every single flipped bit in a segment or in the index checkpoint is found: frames by CRC32C and
  BLAKE3, headers, footers and checkpoint by CRC32C and by comparison with the frames.
- A tail that does not end in a whole frame is a finding too, though a writer may cut it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.errors import HoldfastError, NotFoundError
from holdfast.journal.files import JournalFiles
from holdfast.journal.format.blob import (
    CURSOR_MAGIC,
    HOLD_MAGIC,
    IndexCheckpoint,
    JournalMeta,
    SegmentSummary,
)
from holdfast.journal.format.columns import BodyReader
from holdfast.journal.format.frame import BadFrameError, Frame, genesis_hash, require
from holdfast.journal.format.index import build_index, mix_keys, pack_index, unpack_index
from holdfast.journal.format.layout import Layout, segment_first
from holdfast.journal.format.segment import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_TRAILER_BYTES,
    FrameDirectory,
    pack_footer,
    unpack_segment_header,
    unpack_trailer,
)
from holdfast.journal.frame_scan import FrameScan, scan_frames
from holdfast.journal.maintenance import load_position
from holdfast.journal.open import (
    CHECKPOINT_BYTES_MAX,
    JournalFingerprint,
    journal_fingerprint,
    look_at_mark,
    match_checkpoint,
    read_checkpoint,
    read_meta,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]
_LOOKS = 20  # at a journal that changes meanwhile


@dataclass(frozen=True, slots=True)
class JournalFinding:
    """One problem."""

    kind: str
    path: str
    offset: int
    message: str


@dataclass(slots=True)
class JournalVerifyReport:
    """What was checked and what was found."""

    findings: list[JournalFinding] = field(default_factory=list)
    segments: int = 0
    frames: int = 0
    events: int = 0
    bytes: int = 0
    base_sequence: int = 0
    next_sequence: int = 0
    chain_hash: str = ""
    deep: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


class Verifier:
    """One verification."""

    def __init__(
        self,
        root: str | PathLike[str],
        *,
        deep: bool,
        files: JournalFiles | None,
        progress: Callable[[int], None],
    ) -> None:
        """Prepare; `progress` hears of every segment's bytes."""
        self.files = files or JournalFiles()
        self.layout = Layout(Path(root))
        self.deep = deep
        self.progress = progress
        self.report = JournalVerifyReport(deep=deep)
        self.summaries: list[SegmentSummary] = []
        self.directory = FrameDirectory()
        self.tail_first: int | None = None
        self.frame_ends: dict[int, tuple[int, bytes]] = {}
        self.keys: list[Array] = []
        self.clock = 0

    def find(self, kind: str, path: Path, offset: int, message: str) -> None:
        """Note a problem."""
        self.report.findings.append(JournalFinding(kind, str(path), offset, message))

    def run(self) -> JournalVerifyReport:
        """Check everything."""
        try:
            meta = read_meta(self.files, self.layout)
            durable = self._mark(meta)  # before what it marks
            entries = self.files.entries(self.layout.segments)
        except HoldfastError as error:
            self.find(error.kind, self.layout.meta, 0, str(error))
            return self.report
        if meta.base_sequence == 0 and meta.base_hash != genesis_hash(meta.journal_id):
            self.find("meta_damaged", self.layout.meta, 0, "the genesis hash is wrong")
        self.report.base_sequence = meta.base_sequence
        sizes = {
            f: size for name, size in entries.items() if (f := segment_first(name)) is not None
        }
        sizes = {first: size for first, size in sizes.items() if first >= meta.base_sequence}
        self._segments(meta, sizes)
        self._checkpoint(meta, sizes)
        if durable > self.report.next_sequence:
            self.find(
                "durable_lost",
                self.layout.segments,
                0,
                f"all before {durable} was durable, the log ends at {self.report.next_sequence}",
            )
        self._positions()
        if self.deep:
            self._duplicates()
        return self.report

    def _mark(self, meta: JournalMeta) -> int:
        try:
            durable, problem = look_at_mark(self.files, self.layout, meta.journal_id)
        except HoldfastError as error:
            self.find(error.kind, self.layout.mark, 0, str(error))
            return 0
        if problem is not None:
            self.find(
                "mark_damaged",
                self.layout.mark,
                0,
                f"{problem}; the next writer writes it again, from the log",
            )
        return durable

    def _segments(self, meta: JournalMeta, sizes: dict[int, int]) -> None:
        at, chain = meta.base_sequence, meta.base_hash
        order = sorted(sizes)
        for number, first in enumerate(order):
            path = self.layout.segment(first)
            if first < at:
                # Left over by a compaction that died; a writer removes it. Not damage.
                continue
            if first > at:
                self.find("segment_missing", self.layout.segment(at), 0, f"the next is {first}")
            try:
                at, chain = self._segment(meta, first, chain, last=number == len(order) - 1)
            except HoldfastError as error:
                self.find(error.kind, path, 0, str(error))
                at, chain = first + 1, b""
            self.report.segments += 1
            self.report.bytes += sizes[first]
            self.progress(sizes[first])
        self.report.next_sequence, self.report.chain_hash = at, chain.hex()

    def _segment(
        self, meta: JournalMeta, first: int, chain: bytes, *, last: bool
    ) -> tuple[int, bytes]:
        path = self.layout.segment(first)
        data = self._content(path, last=last)
        try:
            header = unpack_segment_header(bytes(data[:SEGMENT_HEADER_BYTES]))
            own = (header.journal_id, header.first_sequence) == (meta.journal_id, first)
            require(own, "foreign", "the segment belongs to another place or journal")
            if chain and header.previous_hash != chain:
                self.find("segment_chain", path, 0, "the segment does not continue the hash chain")
            before = header.previous_hash
        except BadFrameError as error:
            self.find(f"segment_{error.reason}", path, 0, str(error))
            before = chain
        walk = FrameScan(meta.journal_id, SEGMENT_HEADER_BYTES, first, before)
        end, footer = self._footer_at(meta, path, data, first, last=last)
        directory = FrameDirectory()
        bodies: list[BodyReader] = []
        for offset, frame in scan_frames(lambda at, size: data[at : at + size], walk, end):  # type: ignore[arg-type,return-value]
            directory.add(offset, frame.header)
            self._frame(path, offset, frame, bodies)
        self.clock = max(self.clock, walk.clock)
        self.report.frames += walk.frames
        self.report.events += walk.sequence - first
        if walk.problem is not None:
            kind = "torn_tail" if last and not footer else f"segment_{walk.problem.reason}"
            self.find(kind, path, walk.offset, str(walk.problem))
        if footer:
            self._footer(meta, path, data, walk, first, directory)
            self._sealed(meta, len(data), walk, first, before, directory, bodies)
        else:
            self.tail_first, self.directory = first, directory
        return walk.sequence, walk.chain_hash

    def _content(self, path: Path, *, last: bool) -> memoryview:
        # The last one is read, not mapped: a writer may shorten it, and that kills a mapper.
        return (
            memoryview(self.files.read(path, 1 << 40)) if last else self.files.map(path, whole=True)
        )

    def _footer_at(
        self, meta: JournalMeta, path: Path, data: memoryview, first: int, *, last: bool
    ) -> tuple[int, bool]:
        at = max(len(data) - SEGMENT_TRAILER_BYTES, 0)
        try:
            trailer = unpack_trailer(bytes(data[at:]), len(data))
            own = (trailer.journal_id, trailer.first_sequence) == (meta.journal_id, first)
            require(own, "footer", "the footer belongs to another segment")
        except BadFrameError as error:
            if not last:
                self.find(f"segment_{error.reason}", path, at, str(error))
            return len(data), False
        return trailer.footer_offset, True

    def _frame(self, path: Path, offset: int, frame: Frame, bodies: list[BodyReader]) -> None:
        self.frame_ends[frame.header.next_sequence] = (offset + frame.frame_bytes, frame.chain_hash)
        if not self.deep:
            return
        try:
            body = BodyReader(frame.body, frame.header)
            body.batch()
            walls, clocks = body.walls(), body.clocks()
            ranges = (int(walls.min()), int(walls.max()), int(clocks.max()))
            header = frame.header
            wanted = (header.wall_min_us, header.wall_max_us, header.clock_max)
            require(ranges == wanted, "body", "times in the header are not those of the events")
            bodies.append(body)
            self.keys.append(mix_keys(body.keys(0)))
        except BadFrameError as error:
            self.find(f"frame_{error.reason}", path, offset, str(error))

    def _footer(
        self,
        meta: JournalMeta,
        path: Path,
        data: memoryview,
        walk: FrameScan,
        first: int,
        directory: FrameDirectory,
    ) -> None:
        wanted = pack_footer(
            meta.journal_id, first, walk.sequence, walk.offset, walk.chain_hash, directory.pack()
        )
        if walk.problem is None and bytes(data[walk.offset :]) != wanted:
            self.find(
                "segment_footer", path, walk.offset, "the footer does not describe the frames"
            )

    def _sealed(
        self,
        meta: JournalMeta,
        size: int,
        walk: FrameScan,
        first: int,
        before: bytes,
        directory: FrameDirectory,
        bodies: list[BodyReader],
    ) -> None:
        if not len(directory):
            return
        self.summaries.append(
            SegmentSummary(
                first,
                walk.sequence,
                size,
                min(directory.wall_mins),
                max(directory.wall_maxs),
                before,
                walk.chain_hash,
            )
        )
        index_path = self.layout.index(first)
        if walk.problem is not None:
            return
        try:
            if not self.files.exists(index_path):
                return
            data = self.files.map(index_path)
            unpack_index(data, meta.journal_id, first, walk.sequence, walk.chain_hash)
            if self.deep:
                rebuilt = build_index(first, bodies)
                wanted = pack_index(rebuilt, meta.journal_id, walk.sequence, walk.chain_hash)
                require(bytes(data) == wanted, "body", "the index is not the one of these frames")
        except (BadFrameError, HoldfastError) as error:
            self.find("index_damaged", index_path, 0, str(error))

    def _checkpoint(self, meta: JournalMeta, sizes: dict[int, int]) -> None:
        found, reason, detail = read_checkpoint(self.files, self.layout)
        path = self.layout.checkpoint
        if found is None:
            if reason not in ("missing", "future"):
                self.find("checkpoint_invalid", path, 0, detail)
            elif reason == "future":
                self.find("checkpoint_future", path, 0, f"written by a newer version: {detail}")
            return
        mismatch = match_checkpoint(found, meta, sizes)
        if mismatch is None and not self.report.findings:
            mismatch = self._compare(found, meta)
        if mismatch is not None:
            self.find(f"checkpoint_{mismatch[0]}", path, 0, mismatch[1])

    def _compare(self, found: IndexCheckpoint, meta: JournalMeta) -> tuple[str, str] | None:
        """Everything in a checkpoint follows from the frames; compare it."""
        if found.sealed != self.summaries[: len(found.sealed)]:
            return "invalid", "it describes other segments"
        if found.next_sequence == meta.base_sequence:
            return None
        at_end = self.frame_ends.get(found.next_sequence)
        if at_end is None or at_end[1] != found.chain_hash:
            return "ahead", "the log has no such chain hash at the watermark"
        if found.tail_segment == self.tail_first:
            if found.directory != self.directory.pack()[: len(found.directory)]:
                return "invalid", "its frame directory is not the one of the tail"
            wanted = at_end[0] if found.directory else SEGMENT_HEADER_BYTES
            if found.tail_offset != wanted:
                return "invalid", "its offset is not where the frame ends"
        if found.clock > self.clock:
            return "invalid", "its logical clock is ahead of all frames"
        return None

    def _positions(self) -> None:
        for directory, magic, suffix in (
            (self.layout.cursors, CURSOR_MAGIC, ".cursor"),
            (self.layout.holds, HOLD_MAGIC, ".hold"),
        ):
            try:
                names = [name for name in self.files.entries(directory) if name.endswith(suffix)]
            except HoldfastError as error:
                self.find(error.kind, directory, 0, str(error))
                continue
            for name in names:
                try:
                    load_position(self.files, directory / name, magic)
                except NotFoundError:  # released since it was listed
                    continue
                except HoldfastError as error:
                    self.find(error.kind, directory / name, 0, str(error))

    def _duplicates(self) -> None:
        """Whether an id occurs twice: equal keys first, then the ids themselves."""
        if not self.keys:
            return
        flat = np.sort(np.concatenate(self.keys))
        same = flat[1:][flat[1:] == flat[:-1]]
        if len(same):
            self.find(
                "id_twice",
                self.layout.segments,
                0,
                f"{len(same)} ids (or their 64-bit keys) occur more than once",
            )


def verify_journal(
    root: str | PathLike[str],
    *,
    deep: bool = False,
    files: JournalFiles | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> JournalVerifyReport:
    """Verify a journal: reads everything, changes nothing.

    Args:
        root: The journal's directory.
        deep: Also decode every body, rebuild every look-up index, and look for ids used twice.
        files: The operating system.
        progress: Is told the bytes of every segment that is done.

    A writer may truncate, compact and seal meanwhile: findings count only if the files have stayed
    as they were, the growth of the last one apart; otherwise everything is looked at again.
    """
    files = files or JournalFiles()
    layout = Layout(Path(root))
    for _ in range(_LOOKS):
        before = _settled(files, layout)
        report = Verifier(root, deep=deep, files=files, progress=progress).run()
        if report.ok or _settled(files, layout) == before:
            break
    return report


def _settled(files: JournalFiles, layout: Layout) -> JournalFingerprint | None:
    """What a writer changes other than by appending to the last segment."""
    try:
        meta, segments = journal_fingerprint(files, layout)
        index = files.read(layout.checkpoint, CHECKPOINT_BYTES_MAX)
    except NotFoundError:
        index = b""
    except HoldfastError:
        return None
    return meta, segments[:-1], len(segments), index
