"""Segment file: a header, frames, and (once sealed) a footer index of the frames.

Invariants:
- A segment begins with the journal's id, its first sequence and the chain hash before it, so a
  segment of another journal, or one put in another's place, is found by its header.
- A segment that has a successor is sealed. Its footer names the offset, first sequence and time
  range of every frame; the trailer at the very end holds the footer's hash and a CRC32C.
- Pure: no file, no clock.

Spec: spec/journal-v1.md, sections 2 and 5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np

from holdfast.journal.format.frame import BadFrameError, FrameHeader, hash_bytes

SEGMENT_MAGIC = b"HFJSEG1\n"
FOOTER_MAGIC = b"HFJFOOT1"
SEGMENT_VERSION = 1
_HEADER = struct.Struct("<8sI16sQ32sQq40sI")
_TRAILER = struct.Struct("<8sI16sQQQ32s32sI4xI")
SEGMENT_HEADER_BYTES = _HEADER.size
SEGMENT_TRAILER_BYTES = _TRAILER.size
_ZERO40 = bytes(40)
_ENTRY = np.dtype([("offset", "<u8"), ("first", "<u8"), ("wall_min", "<i8"), ("wall_max", "<i8")])


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment says about itself before its first frame."""

    journal_id: bytes
    first_sequence: int
    previous_hash: bytes
    clock: int
    created_us: int

    def problem(self, journal_id: bytes, first: int, chain: bytes) -> BadFrameError | None:
        """Why this header does not belong to that place; None if it does."""
        if self.journal_id != journal_id:
            return BadFrameError("foreign", "the segment belongs to another journal")
        if self.first_sequence != first:
            return BadFrameError("order", "the segment has another's name")
        if self.previous_hash != chain:
            return BadFrameError("chain", "the segment does not continue the hash chain")
        return None


def pack_segment_header(header: SegmentHeader) -> bytes:
    """The 128 bytes at the beginning of a segment."""
    data = _HEADER.pack(
        SEGMENT_MAGIC,
        SEGMENT_VERSION,
        header.journal_id,
        header.first_sequence,
        header.previous_hash,
        header.clock,
        header.created_us,
        _ZERO40,
        0,
    )
    return data[:-4] + struct.pack("<I", google_crc32c.value(data[:-4]))


def unpack_segment_header(data: bytes) -> SegmentHeader:
    """Read and check a segment header."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise BadFrameError("short", "less than a segment header")
    magic, version, journal_id, first, previous, clock, created, zero, crc = _HEADER.unpack(
        data[:SEGMENT_HEADER_BYTES]
    )
    if magic != SEGMENT_MAGIC:
        raise BadFrameError("magic", "this is no journal segment")
    if crc != google_crc32c.value(data[: SEGMENT_HEADER_BYTES - 4]):
        raise BadFrameError("crc", "the segment header is damaged")
    if version != SEGMENT_VERSION:
        raise BadFrameError("version", f"segment version {version} is not known")
    if zero != _ZERO40:
        raise BadFrameError("header", "reserved bytes are not zero")
    return SegmentHeader(journal_id, first, previous, clock, created)


@dataclass(slots=True)
class FrameDirectory:
    """Offset, first sequence and time range of every frame, as growing lists."""

    offsets: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    wall_mins: list[int] = field(default_factory=list)
    wall_maxs: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.wall_maxs)

    def add(self, offset: int, header: FrameHeader) -> None:
        """Append one frame. The last list grows last: it is the published length."""
        self.offsets.append(offset)
        self.firsts.append(header.first_sequence)
        self.wall_mins.append(header.wall_min_us)
        self.wall_maxs.append(header.wall_max_us)

    def pack(self) -> bytes:
        """As little-endian records."""
        table = np.empty(len(self), dtype=_ENTRY)
        table["offset"] = self.offsets
        table["first"] = self.firsts
        table["wall_min"] = self.wall_mins
        table["wall_max"] = self.wall_maxs
        return table.tobytes()


@dataclass(frozen=True, slots=True)
class FrameTable:
    """A frame directory as read from a footer: numpy views over the stored bytes."""

    table: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.table)

    def directory(self) -> FrameDirectory:
        """As lists that can grow."""
        table = self.table
        return FrameDirectory(
            table["offset"].tolist(),
            table["first"].tolist(),
            table["wall_min"].tolist(),
            table["wall_max"].tolist(),
        )


def frame_table(data: bytes | memoryview) -> FrameTable:
    """Read the packed records; anything that does not ascend is refused."""
    if len(data) % _ENTRY.itemsize:
        raise BadFrameError("footer", "the frame directory has a broken length")
    table = np.frombuffer(data, dtype=_ENTRY)
    for name in ("offset", "first"):
        if (table[name][1:] <= table[name][:-1]).any():
            raise BadFrameError("footer", f"frame {name}s do not ascend")
    return FrameTable(table)


@dataclass(frozen=True, slots=True)
class SegmentTrailer:
    """The last bytes of a sealed segment."""

    journal_id: bytes
    first_sequence: int
    next_sequence: int
    footer_offset: int
    chain_hash: bytes
    footer_hash: bytes
    frames: int


def pack_footer(
    journal_id: bytes, first: int, following: int, at: int, chain: bytes, directory: bytes
) -> bytes:
    """Frame directory and trailer, to be appended behind the last frame."""
    data = _TRAILER.pack(
        FOOTER_MAGIC,
        SEGMENT_VERSION,
        journal_id,
        first,
        following,
        at,
        chain,
        hash_bytes(directory),
        len(directory) // _ENTRY.itemsize,
        0,
    )
    return directory + data[:-4] + struct.pack("<I", google_crc32c.value(data[:-4]))


def unpack_trailer(data: bytes, file_bytes: int) -> SegmentTrailer:
    """Read and check the trailer at the end of a sealed segment."""
    if len(data) != SEGMENT_TRAILER_BYTES:
        raise BadFrameError("short", "less than a segment trailer")
    magic, version, journal_id, first, following, at, chain, digest, frames, crc = _TRAILER.unpack(
        data
    )
    if magic != FOOTER_MAGIC:
        raise BadFrameError("unsealed", "the segment does not end in a footer")
    if crc != google_crc32c.value(data[:-4]):
        raise BadFrameError("crc", "the segment trailer is damaged")
    if version != SEGMENT_VERSION:
        raise BadFrameError("version", f"segment version {version} is not known")
    if at + frames * _ENTRY.itemsize + SEGMENT_TRAILER_BYTES != file_bytes or frames == 0:
        raise BadFrameError("footer", "the footer does not fit the file")
    return SegmentTrailer(journal_id, first, following, at, chain, digest, frames)


def unpack_directory(data: bytes | memoryview, trailer: SegmentTrailer) -> FrameTable:
    """Read the frame directory of a sealed segment, checked against its trailer."""
    if hash_bytes(data) != trailer.footer_hash:
        raise BadFrameError("footer", "the footer index does not match its hash")
    table = frame_table(data)
    if table.table["first"][0] != trailer.first_sequence or len(table) != trailer.frames:
        raise BadFrameError("footer", "the footer index does not match its trailer")
    return table


FRAME_ENTRY_BYTES = _ENTRY.itemsize
