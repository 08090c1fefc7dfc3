"""Frame body: the columns of a batch as consecutive buffers in Arrow's physical layout.

A body is a directory of sixteen 32-bit lengths and then the sixteen buffers, each padded with
zeros to 8 bytes. It holds no sequence number, so producers encode and hash it in parallel,
before the writer gives the batch its place.

Invariants:
- Decoding never trusts a length: all are checked against the body before a buffer is touched.
- What was decoded is safe to hand to Arrow: offsets ascend within their data, codes lie within
  their dictionary, text is UTF-8.
- Absent columns cost nothing: no correlation, causation, wall time or clock is length 0.

Spec: spec/journal-v1.md, section 4.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.journal.format.frame import BadFrameError, FrameHeader
from holdfast.state.arrow.message_bounds import refuse_packed

DIRECTORY = struct.Struct("<16I")
DIRECTORY_BYTES = DIRECTORY.size
_PADS = tuple(bytes(n) for n in range(8))

ID_TYPE = pa.binary(16)
TIME_TYPE = pa.timestamp("us", "UTC")
TEXT_TYPE = pa.dictionary(pa.int32(), pa.string())


class PayloadKind(IntEnum):
    """What a batch carries."""

    BYTES = 0
    JSON = 1
    COLUMNS = 2


@dataclass(frozen=True, slots=True)
class TextColumn:
    """Texts and which event has which: codes, offsets, data.

    No codes means that there is one text for all events, or one for each, in order.
    """

    codes: Any
    offsets: Any
    data: Any


@dataclass(frozen=True, slots=True)
class BodyColumns:
    """A batch as buffers, ready to be laid down. Empty buffers are absent columns."""

    count: int
    kind: PayloadKind
    ids: Any
    correlations: Any
    causations: Any
    walls: Any
    clocks: Any
    entity: TextColumn
    scope: TextColumn
    event_kind: TextColumn
    payload_offsets: Any
    payload: Any


def encode_body(columns: BodyColumns) -> bytes:
    """Lay the buffers down behind their directory."""
    buffers = (
        columns.ids,
        columns.correlations,
        columns.causations,
        columns.walls,
        columns.clocks,
        columns.entity.codes,
        columns.entity.offsets,
        columns.entity.data,
        columns.scope.codes,
        columns.scope.offsets,
        columns.scope.data,
        columns.event_kind.codes,
        columns.event_kind.offsets,
        columns.event_kind.data,
        columns.payload_offsets,
        columns.payload,
    )
    lengths = [len(buffer) for buffer in buffers]
    parts: list[Any] = [DIRECTORY.pack(*lengths)]
    for buffer, length in zip(buffers, lengths, strict=True):
        if length:
            parts.append(buffer)
            parts.append(_PADS[-length % 8])
    return b"".join(parts)


def spans(body: memoryview, count: int, kind: int) -> list[tuple[int, int]]:
    """Where the sixteen buffers lie, as (offset, length); every length is checked."""
    if len(body) < DIRECTORY_BYTES:
        raise BadFrameError("body", "less than a directory")
    return spans_of(DIRECTORY.unpack(bytes(body[:DIRECTORY_BYTES])), len(body), count, kind)


def spans_of(
    lengths: tuple[int, ...], body_bytes: int, count: int, kind: int
) -> list[tuple[int, int]]:
    """As `spans`, from the lengths alone: what an event proof needs."""
    found = []
    at = DIRECTORY_BYTES
    for length in lengths:
        found.append((at, length))
        at += length + -length % 8
    if at != body_bytes:
        raise BadFrameError("body", "the directory does not add up to the body")
    wide = count * 16
    ok = lengths[0] == wide and lengths[1] in (0, wide) and lengths[2] in (0, wide)
    ok = ok and lengths[3] in (0, count * 8) and lengths[4] in (0, count * 8)
    for base in (5, 8, 11):
        values = lengths[base + 1] // 4 - 1
        ok = ok and lengths[base + 1] % 4 == 0 and values >= 1
        ok = ok and (lengths[base] == count * 4 or (lengths[base] == 0 and values in (1, count)))
    ok = ok and lengths[14] == (0 if kind == PayloadKind.COLUMNS else (count + 1) * 4)
    if not ok:
        raise BadFrameError("body", "a buffer does not have the length that the count asks for")
    return found


def _check_offsets(offsets: np.ndarray[Any, Any], data_bytes: int) -> None:
    if offsets[0] != 0 or offsets[-1] != data_bytes or (offsets[1:] < offsets[:-1]).any():
        raise BadFrameError("body", "offsets do not ascend within their data")


class BodyReader:
    """Columns of one body, decoded on demand and checked as they are."""

    __slots__ = ("_body", "_buffer", "_spans", "_texts", "header")

    def __init__(self, body: memoryview, header: FrameHeader) -> None:
        """Check the directory; nothing else is read yet."""
        self._body = body
        self.header = header
        self._spans = spans(body, header.count, header.payload_kind)
        self._buffer: Any = pa.py_buffer(body)
        self._texts: dict[int, Any] = {}

    def _numpy(self, index: int, dtype: str) -> np.ndarray[Any, Any]:
        at, length = self._spans[index]
        return np.frombuffer(self._body[at : at + length], dtype=dtype)

    def _arrow(self, index: int) -> Any:
        at, length = self._spans[index]
        return self._buffer.slice(at, length)

    def keys(self, index: int) -> np.ndarray[Any, Any]:
        """Ids (0), correlations (1) or causations (2) as rows of two big-endian words."""
        return self._numpy(index, ">u8").reshape(-1, 2)

    def id_column(self, index: int) -> Any:
        """Ids (0), correlations (1) or causations (2) as Arrow; sixteen zeros are null."""
        count = self.header.count
        if self._spans[index][1] == 0:
            return pa.nulls(count, ID_TYPE)
        array = pa.Array.from_buffers(ID_TYPE, count, [None, self._arrow(index)])
        if index == 0:
            return array
        absent: np.ndarray[Any, Any] = ~np.any(self.keys(index), axis=1)
        if not absent.any():
            return array
        return pc.if_else(pa.array(absent), pa.scalar(None, ID_TYPE), array)

    def walls(self) -> np.ndarray[Any, Any]:
        """Wall times in microseconds."""
        if self._spans[3][1]:
            return self._numpy(3, "<i8")
        return np.full(self.header.count, self.header.wall_us, dtype="<i8")

    def clocks(self) -> np.ndarray[Any, Any]:
        """Logical clocks."""
        if self._spans[4][1]:
            return self._numpy(4, "<u8")
        first = self.header.clock_first
        return np.arange(first, first + self.header.count, dtype="<u8")

    def text_values(self, base: int) -> Any:
        """The texts of entity (5), scope (8) or kind (11), checked. One may occur twice."""
        if base in self._texts:
            return self._texts[base]
        offsets = self._numpy(base + 1, "<i4")
        _check_offsets(offsets, self._spans[base + 2][1])
        array = pa.Array.from_buffers(
            pa.string(), len(offsets) - 1, [None, self._arrow(base + 1), self._arrow(base + 2)]
        )
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BadFrameError("body", "text is not UTF-8") from error
        self._texts[base] = array
        return array

    def codes(self, base: int, values: int) -> np.ndarray[Any, Any]:
        """Which text every event has, checked against the number of texts."""
        if self._spans[base][1] == 0:
            if values == 1:
                return np.zeros(self.header.count, dtype="<i4")
            return np.arange(self.header.count, dtype="<i4")
        codes = self._numpy(base, "<i4")
        if int(codes.view("<u4").max()) >= values:
            raise BadFrameError("body", "a code lies outside its dictionary")
        return codes

    def text(self, base: int) -> Any:
        """Entity (5), scope (8) or kind (11) as a dictionary array."""
        values = self.text_values(base)
        return pa.DictionaryArray.from_arrays(pa.array(self.codes(base, len(values))), values)

    def payload(self) -> Any:
        """Binary, string (JSON) or struct (typed columns)."""
        if self.header.payload_kind == PayloadKind.COLUMNS:
            return decode_columns(self._arrow(15), self.header.count)
        offsets = self._numpy(14, "<i4")
        _check_offsets(offsets, self._spans[15][1])
        kind = pa.string() if self.header.payload_kind == PayloadKind.JSON else pa.binary()
        array = pa.Array.from_buffers(
            kind, self.header.count, [None, self._arrow(14), self._arrow(15)]
        )
        if self.header.payload_kind == PayloadKind.JSON:
            try:
                array.validate(full=True)
            except pa.ArrowInvalid as error:
                raise BadFrameError("body", "JSON is not UTF-8") from error
        return array

    def matches(self, base: int, value: str) -> np.ndarray[Any, Any]:
        """Which events have this entity (5), scope (8) or kind (11)."""
        values = self.text_values(base)
        equal = pc.equal(values, value).to_numpy(zero_copy_only=False)
        if self._spans[base][1]:
            return np.asarray(equal[self.codes(base, len(values))])
        return np.repeat(equal, self.header.count) if len(values) == 1 else np.asarray(equal)

    def batch(self, rows: np.ndarray[Any, Any] | None = None) -> pa.RecordBatch:
        """The body as an Arrow record batch with the global sequence in front.

        Args:
            rows: Only these events; cheaper than decoding all and choosing then.
        """
        first = self.header.first_sequence
        sequence = np.arange(first, first + self.header.count, dtype="<u8")
        walls, clocks, payload = self.walls(), self.clocks(), self.payload()
        keys = [self.id_column(index) for index in range(3)]
        if rows is None:
            texts = [self.text(base) for base in (5, 8, 11)]
        else:
            chosen = pa.array(rows)
            texts = [self._some_text(base, rows) for base in (5, 8, 11)]
            sequence, walls, clocks = sequence[rows], walls[rows], clocks[rows]
            keys = [column.take(chosen) for column in keys]
            payload = payload.take(chosen)
        names = (
            "sequence",
            "id",
            "correlation",
            "causation",
            "entity",
            "scope",
            "kind",
            "wall_time",
            "clock",
            "payload",
        )
        times = pa.array(walls).view(TIME_TYPE)
        columns = [pa.array(sequence), *keys, *texts, times, pa.array(clocks), payload]
        return pa.RecordBatch.from_arrays(columns, names=list(names))

    def _some_text(self, base: int, rows: np.ndarray[Any, Any]) -> Any:
        values = self.text_values(base)
        codes = self.codes(base, len(values))[rows]
        return pa.DictionaryArray.from_arrays(
            pa.array(np.arange(len(rows), dtype="<i4")), values.take(pa.array(codes))
        )


def encode_columns(batch: pa.RecordBatch) -> bytes:
    """Typed columns as an Arrow IPC stream of one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def decode_columns(buffer: Any, count: int) -> pa.StructArray:
    """Typed columns as a struct array of `count` rows, fully validated."""
    try:
        refuse_packed(buffer)  # Arrow would allocate what the bytes ask for
        with pa.ipc.open_stream(buffer) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
        array = batch.to_struct_array()
        _names(array.type)
    except (pa.ArrowException, OSError, StopIteration, ValueError) as error:
        raise BadFrameError("body", f"typed columns do not decode: {error}") from error
    if len(array) != count:
        raise BadFrameError("body", "typed columns have another number of rows")
    return array


def _names(kind: Any) -> list[str]:
    """Names of fields at any depth. Arrow does not check that they are UTF-8; reading them does."""
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return [name for field in fields for name in (field.name, *_names(field.type))]
