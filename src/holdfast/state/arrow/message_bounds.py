"""What an Arrow message may unpack to, read from its framing before a byte is unpacked.

A compressed buffer begins with its unpacked length (8 bytes, -1: stored as it is). Arrow allocates
that much before it looks at the rest, so a small file could ask for any amount of memory.

Invariants:
- A record batch unpacks to at most `UNPACKED_BYTES_MAX`, whatever it declares; writers keep to it.
- A message has the rows that its checked summary names; the columns of fixed width and the offsets
  unpack to what so many rows need.
- Only framing is read here: a few hundred bytes for each batch, nothing is allocated.

Spec: spec/run-v1.md, section 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

UNPACKED_BYTES_MAX = 256 << 20
PADDING = 64
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_MAGIC = b"ARROW1"
_TAIL = struct.Struct("<i6s")
_INT, _LONG = struct.Struct("<i"), struct.Struct("<q")
_PREFIX = 8


class BoundsError(ValueError):
    """The framing asks for more than a run can hold, or is no framing at all."""


@dataclass(frozen=True, slots=True)
class _FlatTable:
    """One flatbuffer table; every access is checked against the bytes that are there."""

    data: memoryview
    at: int

    @classmethod
    def root(cls, data: memoryview) -> _FlatTable:
        return cls(data, _offset(data, 0))

    def field(self, number: int) -> int | None:
        """Where a field's value lies; None when it is absent."""
        vtable = self.at - _int(self.data, self.at)
        slot = 4 + 2 * number
        if slot + 2 > _short(self.data, vtable):
            return None
        offset = _short(self.data, vtable + slot)
        return self.at + offset if offset else None

    def table(self, number: int) -> _FlatTable | None:
        place = self.field(number)
        return None if place is None else _FlatTable(self.data, _offset(self.data, place))

    def vector(self, number: int) -> tuple[int, int]:
        """First element and length of a vector of structs; none when it is absent."""
        place = self.field(number)
        if place is None:
            return 0, 0
        start = _offset(self.data, place)
        return start + 4, _int(self.data, start)

    def structs(self, number: int, width: int) -> Iterator[int]:
        """Where each struct of a vector lies."""
        start, count = self.vector(number)
        if not 0 <= count <= len(self.data) // width:
            raise BoundsError("a vector is longer than its message")
        return (start + i * width for i in range(count))


def _int(data: memoryview, at: int) -> int:
    return int(_INT.unpack_from(data, _inside(data, at, 4))[0])


def _long(data: memoryview, at: int) -> int:
    return int(_LONG.unpack_from(data, _inside(data, at, 8))[0])


def _short(data: memoryview, at: int) -> int:
    place = _inside(data, at, 2)
    return int.from_bytes(data[place : place + 2], "little")


def _offset(data: memoryview, at: int) -> int:
    return at + _int(data, at)


def _inside(data: memoryview, at: int, width: int) -> int:
    if not 0 <= at <= len(data) - width:
        raise BoundsError("the framing points outside of its message")
    return at


def last_message(content: Any) -> tuple[int, int]:
    """Offset and length of a file's last record batch, by its footer; dictionaries are refused."""
    size = content.size
    if size < _TAIL.size + len(_MAGIC):
        raise BoundsError("the file is too short")
    length, magic = _TAIL.unpack(bytes(content.slice(size - _TAIL.size, _TAIL.size)))
    if magic != _MAGIC or not 0 < length <= size - _TAIL.size:
        raise BoundsError("the file has no footer")
    footer = _FlatTable.root(memoryview(content.slice(size - _TAIL.size - length, length)))
    if footer.vector(2)[1]:
        raise BoundsError("the file has dictionaries")
    last = None
    for last in footer.structs(3, 24):  # noqa: B007 - the last one is wanted
        pass
    if last is None:
        raise BoundsError("the file has no batches")
    offset = _long(footer.data, last)
    extent = _int(footer.data, last + 8) + _long(footer.data, last + 16)
    if offset < 0 or not 0 < extent <= size - offset:
        raise BoundsError("a batch lies outside of the file")
    return offset, extent


def check_message(message: Any, schema: pa.Schema, rows: int) -> None:
    """Refuse a record batch with other rows, or that unpacks to more than so many rows can need."""
    head = _FlatTable.root(memoryview(message.metadata))
    kind = head.field(1)
    if kind is None or head.data[_inside(head.data, kind, 1)] != _RECORD_BATCH:
        raise BoundsError("the message is no record batch")
    batch = head.table(2)
    if batch is None:
        raise BoundsError("the message is empty")
    length = batch.field(0)
    if (0 if length is None else _long(batch.data, length)) != rows:
        raise BoundsError("the message has other rows than its record")
    body = message.body
    buffers = [_long(batch.data, at) for at in batch.structs(2, 16)]
    lengths = [_long(batch.data, at + 8) for at in batch.structs(2, 16)]
    packed = batch.table(3) is not None
    sizes = [
        _unpacked(body, at, size, packed=packed) for at, size in zip(buffers, lengths, strict=True)
    ]
    if packed and sum(sizes) > UNPACKED_BYTES_MAX:
        raise BoundsError(f"the batch unpacks to {sum(sizes)} bytes")
    for size, most in zip(sizes, _most(schema, rows), strict=False):
        if packed and most is not None and size > most:
            raise BoundsError(f"a column of {rows} rows unpacks to {size} bytes")


def _unpacked(body: Any, at: int, size: int, *, packed: bool) -> int:
    if size == 0:
        return 0
    if at < 0 or size < 0 or body is None or at + size > body.size:
        raise BoundsError("a buffer lies outside of its message")
    if not packed:
        return size
    if size < _PREFIX:
        raise BoundsError("a compressed buffer has no length")
    (declared,) = _LONG.unpack(bytes(body.slice(at, _PREFIX)))
    if declared == -1:
        return int(size) - _PREFIX
    if declared < 0:
        raise BoundsError("a compressed buffer has a negative length")
    return int(declared)


def _most(schema: pa.Schema, rows: int) -> Iterator[int | None]:
    """For each buffer in order, the most that so many rows need; None where rows do not tell.

    Ends at the first column whose children have other lengths than the batch.
    """
    bits = (rows + 7) // 8 + PADDING
    for field in schema:
        kind = field.type
        if pa.types.is_null(kind):
            continue
        yield bits
        if pa.types.is_nested(kind):
            return
        if pa.types.is_boolean(kind):
            yield bits
        elif pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
            yield rows * ((kind.bit_width + 7) // 8) + PADDING
        elif pa.types.is_fixed_size_binary(kind):
            yield rows * kind.byte_width + PADDING
        elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            yield (rows + 1) * 8 + PADDING
            yield None
        else:
            yield (rows + 1) * 4 + PADDING
            yield None


def refuse_packed(stream: Any) -> None:
    """Refuse an Arrow stream with compressed buffers, for places where nothing is compressed."""
    reader = pa.ipc.MessageReader.open_stream(stream)
    while True:
        try:
            head = _FlatTable.root(memoryview(reader.read_next_message().metadata))
        except (StopIteration, EOFError):
            return
        kind = head.field(1)
        content = None if kind is None else head.table(2)
        number = 0 if kind is None else head.data[_inside(head.data, kind, 1)]
        if number == _DICTIONARY_BATCH and content is not None:
            content = content.table(1)
        if number in (_DICTIONARY_BATCH, _RECORD_BATCH) and content and content.table(3):
            raise BoundsError("the columns are compressed")
