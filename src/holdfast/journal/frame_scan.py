"""Walking the frames of a segment, and the judgement about a tail that does not end cleanly.

Invariants:
- A walk checks every frame's CRC32C, chain hash, body hash, order and journal.
- Bytes are cut only in the last segment, and only if nothing proves that they were acknowledged:
  no index checkpoint, no durable mark and no later frame claims that sequence as durable.
- Pure judgement: `judge_tail` decides, others execute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.journal.format.frame import (
    BODY_BYTES_MAX,
    FRAME_MAGIC,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    BadFrameError,
    Frame,
    read_frame,
    unpack_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK_BYTES = 8 << 20
_NEVER_TORN = ("order", "chain", "foreign", "chain_hash", "body_hash")


@dataclass(slots=True)
class FrameScan:
    """Where a walk stands, and why it ended."""

    journal_id: bytes
    offset: int
    sequence: int
    chain_hash: bytes
    clock: int = 0
    durable: int = 0
    frames: int = 0
    problem: BadFrameError | None = None

    def take(self, frame: Frame) -> None:
        """Check that the frame belongs here, and step over it."""
        header = frame.header
        if header.journal_id != self.journal_id:
            raise BadFrameError("foreign", "the frame belongs to another journal")
        if header.first_sequence != self.sequence:
            raise BadFrameError(
                "order", f"expected sequence {self.sequence}, found {header.first_sequence}"
            )
        if header.previous_hash != self.chain_hash:
            raise BadFrameError("chain", "the frame does not continue the hash chain")
        self.offset += frame.frame_bytes
        self.sequence = header.next_sequence
        self.chain_hash = frame.chain_hash
        self.clock = max(self.clock, header.clock_max)
        self.durable = max(self.durable, header.durable_sequence)
        self.frames += 1


def scan_frames(
    read: Callable[[int, int], bytes], walk: FrameScan, end: int, *, hash_body: bool = True
) -> Iterator[tuple[int, Frame]]:
    """Yield (offset, frame) up to `end`; what ends it early stands in `walk.problem`."""
    block = memoryview(b"")
    block_at = walk.offset
    while walk.offset < end:
        at = walk.offset - block_at
        try:
            wanted, header = HEADER_BYTES, None
            if len(block) - at >= HEADER_BYTES:
                header = unpack_header(block[at : at + HEADER_BYTES])
                wanted = header.frame_bytes
            if len(block) - at < wanted and block_at + len(block) < end:
                size = min(max(wanted, BLOCK_BYTES), end - walk.offset)
                block, block_at = memoryview(read(walk.offset, size)), walk.offset
                if len(block) < size:
                    end = block_at + len(block)
                continue
            frame = read_frame(block, at, hash_body=hash_body, header=header)
            offset = walk.offset
            walk.take(frame)
        except BadFrameError as error:
            walk.problem = error
            return
        yield offset, frame


def later_frames(data: memoryview, journal_id: bytes) -> Iterator[Frame]:
    """Intact frames of this journal anywhere in a damaged stretch (frames are 8-aligned)."""
    raw = bytes(data)
    at = raw.find(FRAME_MAGIC)
    while at >= 0:
        step = 4
        if at % 8 == 0:
            try:
                frame = read_frame(data, at)
            except BadFrameError:
                pass
            else:
                if frame.header.journal_id == journal_id:
                    yield frame
                    step = frame.frame_bytes
        at = raw.find(FRAME_MAGIC, at + step)


@dataclass(frozen=True, slots=True)
class TailVerdict:
    """What to do with a tail that does not end in a whole frame."""

    cut: bool
    why: str


def judge_tail(walk: FrameScan, known_durable: int, rest: memoryview) -> TailVerdict:
    """Torn or damaged? Torn bytes may go, damaged ones were acknowledged and may not.

    Args:
        walk: Ended with a problem; its `sequence` is the first that is not there.
        known_durable: All below this sequence was acknowledged, says checkpoint or mark.
        rest: The bytes from where the walk ended.
    """
    problem = walk.problem
    if problem is not None and problem.reason in _NEVER_TORN:
        return TailVerdict(cut=False, why="an intact frame lies in the wrong place")
    if walk.sequence < known_durable:
        return TailVerdict(cut=False, why=f"everything before {known_durable} was acknowledged")
    for frame in later_frames(rest, walk.journal_id):
        if frame.header.durable_sequence > walk.sequence:
            return TailVerdict(
                cut=False,
                why=f"the frame of sequence {frame.header.first_sequence} behind it was written "
                f"when everything before {frame.header.durable_sequence} was durable",
            )
    if problem is not None and problem.reason == "version":
        return TailVerdict(cut=False, why="a newer version wrote it")
    return TailVerdict(cut=True, why="nothing acknowledged lies there")


FRAME_BYTES_MAX = BODY_BYTES_MAX + OVERHEAD_BYTES
