"""Small checked files: index checkpoint, journal meta, cursors and holds.

One envelope for all: magic, version, length, CRC32C and a MessagePack body.

Invariants:
- Every byte is covered: magic and version are compared, the CRC32C covers all but itself.
- A newer version is told apart from damage, so that it can be kept instead of overwritten.
- A body with a right CRC is still checked for sense by `IndexCheckpoint.problem`.

Spec: spec/journal-v1.md, sections 6 and 7.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import google_crc32c
import msgspec

from holdfast.journal.format.frame import BadFrameError

META_MAGIC = b"HFJMETA1"
CHECKPOINT_MAGIC = b"HFJIDXC1"
CURSOR_MAGIC = b"HFJCURS1"
HOLD_MAGIC = b"HFJHOLD1"
BLOB_VERSION = 1
_ENVELOPE = struct.Struct("<8sIQI")
T = TypeVar("T")


class JournalMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which journal this is, and where its retained part begins."""

    journal_id: bytes
    created_us: int
    base_sequence: int
    base_hash: bytes


class SegmentSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sealed segment, as the index checkpoint remembers it."""

    first_sequence: int
    next_sequence: int
    file_bytes: int
    wall_min_us: int
    wall_max_us: int
    previous_hash: bytes
    chain_hash: bytes


class IndexCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Summaries of what is sealed and the frame directory of what is not, up to a watermark."""

    journal_id: bytes
    base_sequence: int
    sealed: list[SegmentSummary]
    tail_segment: int
    tail_offset: int
    next_sequence: int
    chain_hash: bytes
    clock: int
    directory: bytes

    def problem(self) -> str | None:
        """What makes the body inconsistent, though its CRC is right; None if nothing does."""
        at = self.base_sequence
        previous: bytes | None = None
        for summary in self.sealed:
            if summary.first_sequence != at or summary.next_sequence <= at:
                return f"sealed segments do not follow each other at sequence {at}"
            if previous is not None and summary.previous_hash != previous:
                return f"the chain breaks at sequence {at}"
            at, previous = summary.next_sequence, summary.chain_hash
        if self.tail_segment != at or self.next_sequence < at:
            return "the tail does not follow the sealed segments"
        if len(self.directory) % 32 or len(self.chain_hash) != 32 or self.tail_offset < 0:
            return "directory, hash or offset have an impossible size"
        if (self.next_sequence == at) != (not self.directory):
            return "the tail directory does not fit the tail's sequences"
        return None


class StoredPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The position inside a cursor or a hold."""

    journal_id: bytes
    segment: int
    offset: int
    sequence: int
    chain_hash: bytes
    updated_us: int


class BlobError(BadFrameError):
    """A checked file that cannot be used; `future` when a newer version wrote it."""

    @property
    def future(self) -> bool:
        """Whether a newer version wrote it."""
        return self.reason == "future"


def pack_blob(magic: bytes, value: msgspec.Struct, version: int = BLOB_VERSION) -> bytes:
    """Envelope and body."""
    body = msgspec.msgpack.encode(value)
    head = _ENVELOPE.pack(magic, version, len(body), 0)[:-4]
    crc = google_crc32c.extend(google_crc32c.value(head), body)
    return head + struct.pack("<I", crc) + body


def unpack_blob(data: bytes, magic: bytes, kind: type[T]) -> T:
    """Read a body of the given type, or say why not."""
    if len(data) < _ENVELOPE.size:
        raise BlobError("short", "less than an envelope")
    found, version, length, crc = _ENVELOPE.unpack_from(data)
    if found != magic:
        raise BlobError("magic", "another kind of file")
    body = data[_ENVELOPE.size :]
    actual = google_crc32c.extend(google_crc32c.value(data[: _ENVELOPE.size - 4]), body)
    if version > BLOB_VERSION:
        # A newer version may have another envelope: its CRC cannot be judged here.
        raise BlobError("future", f"version {version}")
    if length != len(body):
        raise BlobError("short", f"expected={length} actual={len(body)} bytes")
    if crc != actual:
        raise BlobError("crc", f"expected={crc:08x} actual={actual:08x}")
    if version < BLOB_VERSION:
        raise BlobError("version", f"version {version}")
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BlobError("undecodable", str(error)) from error
