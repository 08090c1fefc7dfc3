"""Journal frame: one batch of events as bytes, and the hash chain through all of them.

A frame is a 160-byte header, a columnar body (`journal/format/columns.py`) and a 40-byte trailer.

Invariants:
- `body_hash` is the plain BLAKE3 of the body; the chain hash is the BLAKE3 of the header, which
  holds the previous chain hash and the body hash. So it covers previous hash, header and payload.
- The CRC32C covers every byte of body, header and chain hash; the end mark is compared.
- `durable_sequence` says what was known to be durable when the frame was written. A valid frame
  behind a damaged one with a larger `durable_sequence` proves that acknowledged data was damaged.
- Pure: no file, no clock. A wrong byte raises `BadFrameError`, which knows no file name.

Spec: spec/journal-v1.md, section 3.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c
import pyarrow as pa
from blake3 import blake3

FRAME_MAGIC = b"HFJ1"
FRAME_END = b"1JFH"
FRAME_VERSION = 1
HASH_BYTES = 32
BODY_BYTES_MAX = 1 << 30
COUNT_MAX = 1 << 24

_HEADER = struct.Struct("<4sHHIIQQQqqqQQ32s32s16s")
_TRAILER = struct.Struct("<32sI4s")
HEADER_BYTES = _HEADER.size
TRAILER_BYTES = _TRAILER.size
OVERHEAD_BYTES = HEADER_BYTES + TRAILER_BYTES


class BadFrameError(Exception):
    """Bytes that are no frame. The caller knows the file and makes a typed error of it."""

    def __init__(self, reason: str, detail: str = "", *, offset: int = 0) -> None:
        """Say what is wrong, in one word and one sentence."""
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.offset = offset


def require(condition: object, reason: str, detail: str) -> None:
    """Raise `BadFrameError` unless the condition holds."""
    if not condition:
        raise BadFrameError(reason, detail)


class FrameHeader(NamedTuple):
    """The fields of a frame header, in stored order."""

    flags: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody wants here
    first_sequence: int
    durable_sequence: int
    body_bytes: int
    wall_us: int
    wall_min_us: int
    wall_max_us: int
    clock_first: int
    clock_max: int
    previous_hash: bytes
    body_hash: bytes
    journal_id: bytes

    @property
    def next_sequence(self) -> int:
        """The sequence after the last event of the frame."""
        return self.first_sequence + self.count

    @property
    def frame_bytes(self) -> int:
        """Header, body and trailer."""
        return OVERHEAD_BYTES + self.body_bytes

    @property
    def payload_kind(self) -> int:
        """Which kind of payload the body holds."""
        return self.flags & 0xFF


class Frame(NamedTuple):
    """A checked frame inside a buffer; `body` is a view, not a copy."""

    header: FrameHeader
    header_bytes: bytes
    body: memoryview
    chain_hash: bytes

    @property
    def frame_bytes(self) -> int:
        """Header, body and trailer."""
        return OVERHEAD_BYTES + len(self.body)


def hash_bytes(data: bytes | memoryview) -> bytes:
    """BLAKE3, 32 bytes."""
    return blake3(data).digest()


def crc32c(data: bytes | memoryview, start: int = 0) -> int:
    """CRC32C of a buffer, continued from `start`.

    The extension refuses memoryviews; an Arrow buffer over one is taken, without a copy.
    """
    plain = data if isinstance(data, bytes) else pa.py_buffer(data)
    return int(google_crc32c.extend(start, plain))


def pack_header(header: FrameHeader) -> bytes:
    """The 160 bytes of a header."""
    return _HEADER.pack(FRAME_MAGIC, FRAME_VERSION, HEADER_BYTES, *header)


def pack_trailer(header_bytes: bytes, crc_of_body: int) -> tuple[bytes, bytes]:
    """The trailer that closes a frame, and the chain hash in it."""
    chain = blake3(header_bytes).digest()
    crc = crc32c(header_bytes + chain, crc_of_body)
    return _TRAILER.pack(chain, crc, FRAME_END), chain


def unpack_header(data: bytes | memoryview) -> FrameHeader:
    """Read a header and check all that can be checked without the body."""
    if len(data) < HEADER_BYTES:
        raise BadFrameError("short", "less than a frame header")
    fields = _HEADER.unpack(data[:HEADER_BYTES])
    if fields[0] != FRAME_MAGIC:
        raise BadFrameError("magic", "no frame begins here")
    if fields[1] != FRAME_VERSION:
        raise BadFrameError("version", f"frame version {fields[1]} is not known")
    if fields[2] != HEADER_BYTES:
        raise BadFrameError("header", "header length is wrong")
    header = FrameHeader(*fields[3:])
    if not 0 < header.count <= COUNT_MAX:
        raise BadFrameError("header", f"event count {header.count} is out of range")
    if header.body_bytes % 8 or header.body_bytes > BODY_BYTES_MAX:
        raise BadFrameError("header", f"body length {header.body_bytes} is out of range")
    if header.flags > 2:
        raise BadFrameError("header", f"flags {header.flags} are not known")
    if header.next_sequence >= 1 << 63 or header.durable_sequence > header.first_sequence:
        raise BadFrameError("header", "sequences are out of range")
    return header


def read_frame(
    data: memoryview,
    offset: int = 0,
    *,
    hash_body: bool = True,
    header: FrameHeader | None = None,
) -> Frame:
    """Check the frame at an offset of a buffer: structure, CRC, chain hash and body hash.

    Args:
        data: A buffer that holds the frame wholly.
        offset: Where the frame begins.
        hash_body: False leaves out the BLAKE3 of the body; the CRC still covers every byte.
        header: The header at that offset, if the caller has unpacked it already.

    Raises:
        BadFrameError: With a one-word reason; `short` when the buffer ends too early.
    """
    header_bytes = bytes(data[offset : offset + HEADER_BYTES])
    if header is None:
        header = unpack_header(header_bytes)
    body_at = offset + HEADER_BYTES
    end = body_at + header.body_bytes
    if end + TRAILER_BYTES > len(data):
        raise BadFrameError("short", "the frame runs past the end")
    body = data[body_at:end]
    chain, crc, mark = _TRAILER.unpack_from(data, end)
    actual = crc32c(header_bytes + chain, crc32c(body))
    if crc != actual or mark != FRAME_END:
        raise BadFrameError("crc", f"expected={crc:08x} actual={actual:08x}")
    if hash_bytes(header_bytes) != chain:
        raise BadFrameError("chain_hash", "the chain hash does not belong to the header")
    if hash_body and hash_bytes(body) != header.body_hash:
        raise BadFrameError("body_hash", "the body does not belong to the header")
    return Frame(header, header_bytes, body, chain)


def genesis_hash(journal_id: bytes) -> bytes:
    """The chain hash before the first frame of a journal: bound to its id."""
    return blake3(b"holdfast journal v1\x00" + journal_id).digest()
