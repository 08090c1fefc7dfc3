"""Receipts checked without an index, and proofs of single events.

Invariants:
- `check_receipt` reads segment files only: no index checkpoint, no look-up index.
- An event proof holds the frame header, the chunks of the body that the event touches, and the
  hashes that lead to the body hash. It is checked against the chain hash in a receipt, no more.
- The reader of a proof and the reader of a body are the same function, `read_event`.
"""

from __future__ import annotations

import struct
import uuid
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from holdfast.errors import CorruptionError, InvalidInputError, NotFoundError
from holdfast.journal.files import JournalFiles
from holdfast.journal.format.blake3_tree import CHUNK_BYTES, check_chunks, prove_chunks
from holdfast.journal.format.columns import (
    DIRECTORY,
    DIRECTORY_BYTES,
    PayloadKind,
    decode_columns,
    spans_of,
)
from holdfast.journal.format.frame import (
    HEADER_BYTES,
    BadFrameError,
    Frame,
    FrameHeader,
    hash_bytes,
    read_frame,
    require,
    unpack_header,
)
from holdfast.journal.format.layout import Layout, segment_first
from holdfast.journal.format.segment import SEGMENT_HEADER_BYTES
from holdfast.journal.segments import corrupt
from holdfast.journal.types import Event, Receipt

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.journal.query import JournalView

    Reader = Callable[[int, int], bytes]


class EventProof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Proof that one event stands in a frame with a known chain hash."""

    sequence: int
    header: bytes
    chunks: dict[int, bytes]
    hashes: list[bytes]

    def to_json(self) -> str:
        """As JSON text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> EventProof:
        """Read what `to_json` wrote."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise InvalidInputError(
                "not an event proof", kind="invalid_proof", reason=str(error)
            ) from error


def read_event(read: Reader, header: FrameHeader, row: int) -> Event:
    """One event of a body, touching no more bytes than it needs.

    Args:
        read: Gives bytes of the body by offset and length.
        header: The frame's header.
        row: Which event of the frame.
    """
    kind = header.payload_kind
    lengths = DIRECTORY.unpack(read(0, DIRECTORY_BYTES))
    spans = spans_of(lengths, header.body_bytes, header.count, kind)

    def number(index: int, layout: str, default: int) -> int:
        at, length = spans[index]
        return int(struct.unpack(layout, read(at + 8 * row, 8))[0]) if length else default

    def key(index: int) -> uuid.UUID | None:
        at, length = spans[index]
        value = read(at + 16 * row, 16) if length else bytes(16)
        return uuid.UUID(bytes=value) if index == 0 or any(value) else None

    def part(offsets: int, data: int, which: int) -> bytes:
        low, high = struct.unpack("<ii", read(spans[offsets][0] + 4 * which, 8))
        if not 0 <= low <= high <= spans[data][1]:
            raise BadFrameError("body", "offsets do not ascend within their data")
        return read(spans[data][0] + low, high - low)

    def text(base: int) -> str:
        values = spans[base + 1][1] // 4 - 1
        which = 0 if values == 1 else row
        if spans[base][1]:
            which = struct.unpack("<i", read(spans[base][0] + 4 * row, 4))[0]
        if not 0 <= which < values:
            raise BadFrameError("body", "a code lies outside its dictionary")
        try:
            return part(base + 1, base + 2, which).decode()
        except UnicodeDecodeError as error:
            raise BadFrameError("body", "text is not UTF-8") from error

    payload: object
    if kind == PayloadKind.COLUMNS:
        rows = decode_columns(pa.py_buffer(read(*spans[15])), header.count)
        payload = rows[row].as_py()
    else:
        payload = part(14, 15, row)
        payload = payload.decode(errors="strict") if kind == PayloadKind.JSON else payload
    return Event(
        entity=text(5),
        scope=text(8),
        kind=text(11),
        payload=payload,
        id=key(0),
        correlation=key(1),
        causation=key(2),
        wall_us=number(3, "<q", header.wall_us),
        clock=number(4, "<Q", header.clock_first + row),
        sequence=header.first_sequence + row,
    )


def prove_event(view: JournalView, sequence: int) -> EventProof:
    """Build the proof of one event. Costs some milliseconds; nothing was prepared for it."""
    segment = view.segment_of(sequence)
    return prove_in_frame(segment.frame(segment.number_of(sequence), hash_body=True), sequence)


def prove_in_frame(frame: Frame, sequence: int) -> EventProof:
    """Build the proof of one event of a frame."""
    touched: set[int] = set()

    def read(at: int, length: int) -> bytes:
        touched.update(range(at // CHUNK_BYTES, (at + max(length, 1) - 1) // CHUNK_BYTES + 1))
        return bytes(frame.body[at : at + length])

    read_event(read, frame.header, sequence - frame.header.first_sequence)
    last = (len(frame.body) - 1) // CHUNK_BYTES
    wanted = {number for number in touched if number <= last}
    return EventProof(
        sequence=sequence,
        header=frame.header_bytes,
        chunks={
            n: bytes(frame.body[n * CHUNK_BYTES : (n + 1) * CHUNK_BYTES]) for n in sorted(wanted)
        },
        hashes=prove_chunks(frame.body, wanted),
    )


def check_event(proof: EventProof, chain_hash: str) -> Event:
    """Check a proof against the chain hash after its frame, and return the event that it proves.

    Raises:
        CorruptionError: The proof does not lead to that chain hash, or proves nothing.
    """
    try:
        header = unpack_header(proof.header)
        same = hash_bytes(proof.header).hex() == chain_hash and len(proof.header) == HEADER_BYTES
        require(same, "proof", "the frame has another chain hash")
        inside = header.first_sequence <= proof.sequence < header.next_sequence
        require(inside, "proof", "the event lies outside the frame")
        root = check_chunks(header.body_bytes, proof.chunks, proof.hashes)
        require(root == header.body_hash, "proof", "the chunks do not lead to the body hash")

        def read(at: int, length: int) -> bytes:
            found = bytearray()
            while length > 0:
                number, skip = divmod(at, CHUNK_BYTES)
                data = proof.chunks.get(number, b"")[skip : skip + length]
                require(data, "proof", "the proof lacks a chunk that the event needs")
                found += data
                at, length = at + len(data), length - len(data)
            return bytes(found)

        return read_event(read, header, proof.sequence - header.first_sequence)
    except (BadFrameError, UnicodeDecodeError) as error:
        raise CorruptionError(
            "event proof does not hold",
            kind="proof",
            sequence=proof.sequence,
            reason=str(error),
            remedy="ask the journal for a new proof, and check against the receipt of that batch",
        ) from error


def check_receipt(
    root: str | PathLike[str], receipt: Receipt, *, files: JournalFiles | None = None
) -> Frame:
    """Find the frame of a receipt by reading segments alone, and check that it is unchanged.

    Raises:
        CorruptionError: Another frame, or damage, lies where the receipt says.
        NotFoundError: That part of the journal was truncated, or never was there.
    """
    receipt.check()
    files, layout = files or JournalFiles(), Layout(Path(root))
    firsts = sorted(
        first
        for name in files.entries(layout.segments)
        if (first := segment_first(name)) is not None and first <= receipt.first_sequence
    )
    if not firsts:
        raise NotFoundError(
            "the journal no longer holds this receipt's batch",
            kind="position_truncated",
            sequence=receipt.first_sequence,
            remedy="it was truncated away",
        )
    path = layout.segment(firsts[-1])
    data = memoryview(files.read(path, 1 << 40))
    at = SEGMENT_HEADER_BYTES
    while at < len(data):
        try:
            header = unpack_header(data[at : at + HEADER_BYTES])
            if header.next_sequence > receipt.first_sequence:
                frame = read_frame(data, at)
                same = frame.header_bytes == receipt.header
                require(same, "receipt", "the batch is not the one of the receipt")
                return frame
        except BadFrameError as error:
            raise corrupt(path, at, error, sequence=receipt.first_sequence) from error
        at += header.frame_bytes
    raise NotFoundError(
        "the journal does not reach this receipt's batch",
        kind="event_missing",
        path=path,
        sequence=receipt.first_sequence,
        remedy="the log lost its end; restore it from a copy",
    )
