"""The Spark-free half of a source: plan splits between positions, read one in any process.

Invariants:
- A split is a plain value (JSON): root, segment, byte range, sequences, chain hashes around it.
- Reading a split checks every frame and that the chain leads from the one hash to the other, so a
  replaced, truncated or damaged log is an error and never other data.
- A compacted segment is found by sequence: splits planned before a compaction stay readable.
"""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import IncompatibleError, InvalidInputError, NotFoundError
from holdfast.journal.files import JournalFiles
from holdfast.journal.format.columns import BodyReader
from holdfast.journal.format.frame import BadFrameError
from holdfast.journal.format.layout import Layout, segment_first
from holdfast.journal.format.segment import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_TRAILER_BYTES,
    unpack_directory,
    unpack_trailer,
)
from holdfast.journal.frame_scan import FrameScan, scan_frames
from holdfast.journal.query import JournalView, plain
from holdfast.journal.segments import corrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from holdfast.journal.segments import JournalSegment
    from holdfast.journal.types import Position


class JournalSplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A byte range of one segment that holds whole batches."""

    root: str
    journal_id: str
    segment: int
    offset: int
    bytes: int
    first_sequence: int
    last_sequence: int
    chain_before: str
    chain_after: str

    def to_json(self) -> str:
        """As JSON text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> JournalSplit:
        """Read what `to_json` wrote."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise InvalidInputError(
                "not a journal split", kind="invalid_slice", reason=str(error)
            ) from error


def plan_end(view: JournalView, start: Position, *, events_max: int | None = None) -> Position:
    """Where an epoch that begins at `start` ends: whole batches, at most `events_max` events.

    One batch is always taken if there is one, even if it is larger.
    """
    at = view.check_position(start)
    if events_max is None or at.sequence + events_max >= view.visible:
        return view.position()
    end = at.sequence
    for segment, number in view.frames(at.sequence, view.visible):
        following = _frame_end(segment, number)
        if following - at.sequence > events_max and end > at.sequence:
            break
        end = following
        if end - at.sequence >= events_max:
            break
    return view.position(end)


def plan_splits(
    root: str | PathLike[str],
    view: JournalView,
    start: Position,
    end: Position,
    *,
    split_bytes: int = 16 << 20,
) -> list[JournalSplit]:
    """Cut what lies between two positions into splits of about `split_bytes`.

    Both positions are checked against the log: one that was replaced or shortened is an error.
    """
    if split_bytes < 1:
        raise InvalidInputError("split_bytes must be positive", kind="invalid_setting")
    start, end = view.check_position(start), view.check_position(end)
    splits: list[JournalSplit] = []
    run: list[tuple[JournalSegment, int, int, int]] = []
    size = 0
    for segment, number in view.frames(start.sequence, end.sequence):
        directory = segment.directory()
        offset, wide = directory.offsets[number], _frame_bytes(segment, number)
        if run and (run[0][0] is not segment or size + wide > split_bytes):
            splits.append(_split(root, view, run))
            run, size = [], 0
        run.append((segment, number, offset, wide))
        size += wide
    if run:
        splits.append(_split(root, view, run))
    return splits


def _frame_end(segment: JournalSegment, number: int) -> int:
    firsts = segment.directory().firsts
    return firsts[number + 1] if number + 1 < len(firsts) else segment.next_sequence


def _frame_bytes(segment: JournalSegment, number: int) -> int:
    offsets = segment.directory().offsets
    end = offsets[number + 1] if number + 1 < len(offsets) else segment.end_offset
    return end - offsets[number]


def _split(
    root: str | PathLike[str], view: JournalView, run: list[tuple[JournalSegment, int, int, int]]
) -> JournalSplit:
    segment, first, offset, _ = run[0]
    last = run[-1][1]
    return JournalSplit(
        root=fspath(root),
        journal_id=view.meta.journal_id.hex(),
        segment=segment.first_sequence,
        offset=offset,
        bytes=sum(wide for *_, wide in run),
        first_sequence=segment.directory().firsts[first],
        last_sequence=_frame_end(segment, last) - 1,
        chain_before=segment.frame(first).header.previous_hash.hex(),
        chain_after=segment.frame(last).chain_hash.hex(),
    )


def read_split(
    split: JournalSplit, *, files: JournalFiles | None = None
) -> Iterator[pa.RecordBatch]:
    """Record batches of a split, one per appended batch, with plain text columns.

    Needs nothing but the split and the files: no journal object, no index, no lock.
    """
    files = files or JournalFiles()
    layout = Layout(Path(split.root))
    path, offset = _find(files, layout, split)
    walk = FrameScan(
        bytes.fromhex(split.journal_id),
        offset,
        split.first_sequence,
        bytes.fromhex(split.chain_before),
    )
    fd = files.open_read(path)
    try:
        read = lambda at, length: files.read_at(fd, path, at, length)  # noqa: E731
        frames = list(scan_frames(read, walk, offset + split.bytes))
    finally:
        files.close(fd)
    # Nothing is handed out before the whole split is known to be the planned one.
    _check_walk(path, split, walk)
    for at, frame in frames:
        try:
            yield plain(BodyReader(frame.body, frame.header).batch())
        except BadFrameError as error:
            raise corrupt(path, at, error) from error


def _check_walk(path: Path, split: JournalSplit, walk: FrameScan) -> None:
    problem = walk.problem
    moved = ("order", "chain", "foreign", "short")
    if (
        problem is not None
        and problem.reason not in moved
        and (walk.frames or problem.reason != "magic")
    ):
        raise corrupt(path, walk.offset, problem, sequence=walk.sequence)
    if walk.chain_hash.hex() != split.chain_after or walk.sequence != split.last_sequence + 1:
        raise IncompatibleError(
            "the journal is not the one that this split was planned on",
            kind="journal_replaced",
            path=path,
            offset=walk.offset,
            expected=split.chain_after,
            actual=walk.chain_hash.hex(),
            remedy="restore the journal that this position was read from, or begin from scratch",
        )


def _find(files: JournalFiles, layout: Layout, split: JournalSplit) -> tuple[Path, int]:
    """The file and offset of a split: where it was planned, or where compaction moved it."""
    firsts = sorted(
        first
        for name in files.entries(layout.segments)
        if (first := segment_first(name)) is not None and first <= split.first_sequence
    )
    if not firsts:
        raise NotFoundError(
            "the journal was truncated past this split",
            kind="position_truncated",
            sequence=split.first_sequence,
            remedy="begin at the journal's base",
        )
    if split.segment in firsts:
        # A merge keeps the first segment's name and offsets; others move.
        return layout.segment(split.segment), split.offset
    path = layout.segment(firsts[-1])
    data = files.map(path)
    at = max(len(data) - SEGMENT_TRAILER_BYTES, 0)
    try:
        trailer = unpack_trailer(bytes(data[at:]), len(data))
        table = unpack_directory(data[trailer.footer_offset : at], trailer).table
    except BadFrameError as error:
        raise corrupt(path, at, error) from error
    number = int(table["first"].searchsorted(split.first_sequence))
    if number < len(table) and int(table["first"][number]) == split.first_sequence:
        return path, int(table["offset"][number])
    return path, SEGMENT_HEADER_BYTES
