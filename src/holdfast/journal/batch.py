"""Batches on their way in: from Arrow columns or single events to the buffers of a frame body.

Invariants:
- What the caller gave is checked here, with the column's name in the error; a `PreparedBatch`
  can always be written.
- No loop over events on the Arrow path. The event path is for small batches.
- Encoding and hashing need no lock: a prepared batch knows nothing of its place in the log.
"""

from __future__ import annotations

import os
import struct
import uuid
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.journal.format.columns import (
    BodyColumns,
    PayloadKind,
    TextColumn,
    encode_body,
    encode_columns,
)
from holdfast.journal.format.frame import BODY_BYTES_MAX, COUNT_MAX, crc32c, hash_bytes
from holdfast.journal.format.index import mix_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.journal.types import Event

Array = np.ndarray[Any, Any]
COLUMNS = ("id", "correlation", "causation", "entity", "scope", "kind", "wall_time", "clock",
           "payload")  # fmt: skip
CLOCK_MAX = (1 << 62) - 1
# So many texts are looked at to decide whether encoding a column is worth its time.
SAMPLE = 16


class EventIds(Protocol):
    """Where ids of events come from, so that tests can replay them."""

    def ids(self, count: int, wall_us: int) -> Array:
        """`count` new UUIDv7 as rows of two big-endian words."""
        ...


def _uuid7(random: Array, count: int, wall_us: int) -> Array:
    """Random words to UUIDv7: 48 bits of milliseconds, version and variant."""
    octets = random.view("|u1").reshape(count, 16)
    stamp = ((wall_us // 1_000) & ((1 << 48) - 1)).to_bytes(6, "big")
    octets[:, :6] = np.frombuffer(stamp, "|u1")
    octets[:, 6] = octets[:, 6] & 0x0F | 0x70
    octets[:, 8] = octets[:, 8] & 0x3F | 0x80
    return octets.view(">u8")


class RandomEventIds:
    """UUIDv7 from a generator that the operating system's randomness seeds.

    Seeded again in a forked child, which would otherwise repeat its parent's ids. The ids are
    unique, not secret.
    """

    def __init__(self) -> None:
        """Seed from the operating system."""
        self._seed()

    def _seed(self) -> None:
        self._pid = os.getpid()
        self._random = np.random.SFC64(int.from_bytes(os.urandom(32), "little"))

    def ids(self, count: int, wall_us: int) -> Array:
        """New ids of the given instant."""
        if self._pid != os.getpid():
            self._seed()
        return _uuid7(self._random.random_raw(2 * count), count, wall_us)


class SeededEventIds:
    """Replayable ids for tests and worked examples."""

    def __init__(self, seed: int = 0) -> None:
        """Begin the sequence that belongs to the seed."""
        self._random = np.random.SFC64(seed)

    def ids(self, count: int, wall_us: int) -> Array:
        """New ids of the given instant."""
        return _uuid7(self._random.random_raw(2 * count), count, wall_us)


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """An encoded and hashed body, and what the frame header needs to know about it."""

    count: int
    kind: PayloadKind
    body: bytes
    body_hash: bytes
    crc: int
    ids: Array
    ids_given: bool
    wall_range: tuple[int, int] | None
    clock_range: tuple[int, int] | None


def prepare(
    batch: pa.RecordBatch | pa.Table | Sequence[Event], ids: EventIds, wall_us: int
) -> PreparedBatch:
    """Encode an Arrow record batch or table, or a sequence of `Event`s.

    Args:
        batch: Columns by name: `entity` and `kind` are needed; `id`, `correlation`, `causation`,
            `scope`, `wall_time`, `clock` and `payload` (binary, string holding JSON, or struct)
            may be left out.
        ids: Gives ids to events that have none.
        wall_us: Only for the ids; events without a time get the time of their frame.
    """
    if isinstance(batch, pa.Table):
        merged = batch.combine_chunks().to_batches()
        batch = merged[0] if merged else pa.RecordBatch.from_pylist([], schema=batch.schema)
    count = batch.num_rows if isinstance(batch, pa.RecordBatch) else len(batch)
    if not 0 < count <= COUNT_MAX:
        raise _bad("a batch holds 1 to 16,777,216 events", "batch", count=count)
    if isinstance(batch, pa.RecordBatch):
        columns, given, walls, clocks = _from_arrow(batch, ids, wall_us)
    else:
        columns, given, walls, clocks = _from_events(batch, ids, wall_us)
    body = encode_body(columns)
    if len(body) > BODY_BYTES_MAX:
        raise _bad("a batch is at most 1 GiB", "batch", bytes=len(body))
    keys = np.frombuffer(columns.ids, dtype=">u8").reshape(count, 2)
    if given and count > 1 and _repeats(keys):
        raise _bad("the same id occurs twice in a batch", "id")
    return PreparedBatch(
        count, columns.kind, body, hash_bytes(body), crc32c(body), keys, given, walls, clocks
    )


def _repeats(keys: Array) -> bool:
    """Whether a row occurs twice: 64-bit keys first, which sort fast, then the rows themselves."""
    mixed = np.sort(mix_keys(keys))
    if not (mixed[1:] == mixed[:-1]).any():
        return False
    return len(np.unique(keys, axis=0)) != len(keys)


def _bad(what: str, column: str, **facts: object) -> InvalidInputError:
    return InvalidInputError(
        what,
        kind="invalid_event",
        column=column,
        **facts,
        remedy="see docs/guides/journal.md for the columns of a batch",
    )


def _ids(column: Any, name: str) -> bytes | memoryview:
    """16-byte ids as one buffer; nulls become zeros, except for the event's own id."""
    if column.type == pa.string() or column.type == pa.binary():
        column = _cast(column, pa.binary(16), name)
    if column.type != pa.binary(16):
        raise _bad("ids are 16 bytes wide", name, type=column.type)
    if column.null_count:
        if name == "id":
            raise _bad("some events have an id and others have none", name)
        column = column.fill_null(bytes(16))
    start = column.offset * 16
    return memoryview(column.buffers()[1])[start : start + len(column) * 16]


def _cast(column: Any, kind: Any, name: str) -> Any:
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _bad("column has an unusable type", name, type=column.type, wanted=kind) from error


def _integers(column: Any, name: str, low: int, high: int) -> tuple[Any, tuple[int, int]]:
    if column.null_count:
        raise _bad("column has nulls", name)
    if pa.types.is_timestamp(column.type):
        column = _cast(column, pa.timestamp("us", column.type.tz), name)
    values = _cast(column, pa.int64(), name).to_numpy(zero_copy_only=False)
    least, most = int(values.min()), int(values.max())
    if least < low or most > high:
        raise _bad("number is out of range", name, least=least, most=most)
    return np.ascontiguousarray(values, dtype="<i8").view("|u1").data, (least, most)


def _text(column: Any, name: str) -> TextColumn:
    """Texts with codes, or without where there is one for all events or one for each."""
    if column.null_count:
        raise _bad("column has nulls", name)
    codes: Any = b""
    if isinstance(column, pa.DictionaryArray):
        indices = _cast(column.indices, pa.int32(), name).to_numpy()
        values = column.dictionary
        if int(indices.max()) >= len(values) or int(indices.min()) < 0:
            raise _bad("dictionary index is out of range", name)
        codes = indices.view("|u1").data
        if values.null_count:
            raise _bad("column has nulls", name)
        values = _as_text(values, name)
    else:
        values = _as_text(column, name)
        offsets, data = _variable(values)
        first = values[0].as_py().encode()
        if len(data) == len(first) * len(values) and bytes(data) == first * len(values):
            ends = np.frombuffer(offsets, "<i4")
            if len(first) == 0 or (ends[1:] - ends[:-1] == len(first)).all():
                return TextColumn(b"", ends[:2].view("|u1").data, first)
        if len(set(values[:SAMPLE].to_pylist())) <= min(len(values), SAMPLE) // 2:
            encoded = values.dictionary_encode()
            values = encoded.dictionary
            codes = encoded.indices.to_numpy().view("|u1").data
    offsets, data = _variable(values)
    return TextColumn(codes if len(values) > 1 else b"", offsets, data)


def _as_text(values: Any, name: str) -> Any:
    values = _cast(values, pa.string(), name)
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _bad("text is not UTF-8", name) from error
    return values


def _variable(column: Any) -> tuple[Any, Any]:
    """Offsets that begin at 0, and their data."""
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, "<i4")[column.offset : column.offset + len(column) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    if first:
        offsets = offsets - np.int32(first)
    view = memoryview(data)[first:last] if data is not None and last > first else b""
    return offsets.view("|u1").data, view


def _payload(column: Any) -> tuple[PayloadKind, Any, Any]:
    kind = column.type
    if pa.types.is_struct(kind):
        if column.null_count:
            raise _bad("typed columns have null rows", "payload")
        return PayloadKind.COLUMNS, b"", encode_columns(pa.RecordBatch.from_struct_array(column))
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    column = _cast(column, pa.string() if text else pa.binary(), "payload")
    if column.null_count:
        column = column.fill_null("null" if text else b"")
    if text:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise _bad("JSON is not UTF-8", "payload") from error
    offsets, data = _variable(column)
    return PayloadKind.JSON if text else PayloadKind.BYTES, offsets, data


_ONE_EMPTY = TextColumn(b"", bytes(8), b"")
_Converted = tuple[BodyColumns, bool, tuple[int, int] | None, tuple[int, int] | None]


def _from_arrow(batch: pa.RecordBatch, ids: EventIds, wall_us: int) -> _Converted:
    names = batch.schema.names
    for name in names:
        if name not in COLUMNS or names.count(name) > 1:
            raise _bad("no such column, or twice", name, allowed=",".join(COLUMNS))
    have = {name: batch.column(index) for index, name in enumerate(names)}
    for name in ("entity", "kind"):
        if name not in have:
            raise _bad("column is missing", name)
    count = batch.num_rows
    walls: tuple[int, int] | None = None
    clocks: tuple[int, int] | None = None
    wall_data, clock_data = b"", b""
    if "wall_time" in have:
        wall_data, walls = _integers(have["wall_time"], "wall_time", -(1 << 62), 1 << 62)
    if "clock" in have:
        clock_data, clocks = _integers(have["clock"], "clock", 0, CLOCK_MAX)
    kind, offsets, data = (
        _payload(have["payload"])
        if "payload" in have
        else (PayloadKind.BYTES, bytes(4 * count + 4), b"")
    )
    given = "id" in have
    columns = BodyColumns(
        count,
        kind,
        _ids(have["id"], "id") if given else ids.ids(count, wall_us).tobytes(),
        _ids(have["correlation"], "correlation") if "correlation" in have else b"",
        _ids(have["causation"], "causation") if "causation" in have else b"",
        wall_data,
        clock_data,
        _text(have["entity"], "entity"),
        _text(have["scope"], "scope") if "scope" in have else _ONE_EMPTY,
        _text(have["kind"], "kind"),
        offsets,
        data,
    )
    return columns, given, walls, clocks


def _from_events(events: Sequence[Event], ids: EventIds, wall_us: int) -> _Converted:
    """A few events, without Arrow: for single appends this is several times faster."""
    given = events[0].id is not None
    if any((event.id is not None) != given for event in events):
        raise _bad("some events have an id and others have none", "id")
    count = len(events)
    kind, payloads = _event_payloads(events)
    if kind is PayloadKind.COLUMNS:
        offsets, data = b"", encode_columns(pa.RecordBatch.from_pylist(payloads))
    else:
        data = b"".join(payloads)
        if len(data) > BODY_BYTES_MAX:
            raise _bad("a batch is at most 1 GiB", "payload")
        offsets = _offsets(payloads)
    walls, wall_data = _event_numbers([event.wall_us for event in events], "wall_us", -(1 << 62))
    clocks, clock_data = _event_numbers([event.clock for event in events], "clock", 0)
    columns = BodyColumns(
        count,
        kind,
        b"".join(_uuid(event.id, "id") for event in events)
        if given
        else ids.ids(count, wall_us).tobytes(),
        _event_ids([event.correlation for event in events], "correlation"),
        _event_ids([event.causation for event in events], "causation"),
        wall_data,
        clock_data,
        _event_text([event.entity for event in events], "entity"),
        _event_text([event.scope for event in events], "scope"),
        _event_text([event.kind for event in events], "kind"),
        offsets,
        data,
    )
    return columns, given, walls, clocks


def _uuid(value: Any, name: str) -> bytes:
    if value is None:
        return bytes(16)
    if isinstance(value, uuid.UUID):
        return value.bytes
    raise _bad("ids are uuid.UUID values", name, type=type(value).__name__)


def _event_ids(values: list[Any], name: str) -> bytes:
    if all(value is None for value in values):
        return b""
    return b"".join(_uuid(value, name) for value in values)


def _event_numbers(
    values: list[int | None], name: str, low: int
) -> tuple[tuple[int, int] | None, bytes]:
    if all(value is None for value in values):
        return None, b""
    known = [value for value in values if value is not None]
    if len(known) != len(values):
        raise _bad("some events have a value and others have none", name)
    if min(known) < low or max(known) > CLOCK_MAX:
        raise _bad("number is out of range", name, least=min(known), most=max(known))
    return (min(known), max(known)), struct.pack(f"<{len(known)}q", *known)


def _event_text(values: list[str], name: str) -> TextColumn:
    codes: dict[str, int] = {}
    try:
        rows = [codes.setdefault(value, len(codes)) for value in values]
        texts = [value.encode() for value in codes]
    except (AttributeError, TypeError, UnicodeError) as error:
        raise _bad("text is not UTF-8 text", name) from error
    packed = b"" if len(texts) == 1 else struct.pack(f"<{len(rows)}i", *rows)
    return TextColumn(packed, _offsets(texts), b"".join(texts))


def _offsets(parts: list[bytes]) -> bytes:
    # For a few events this is several times faster than numpy.
    ends = accumulate(map(len, parts), initial=0)
    return struct.pack(f"<{len(parts) + 1}i", *ends)


def _event_payloads(events: Sequence[Event]) -> tuple[PayloadKind, list[Any]]:
    """Bytes stay bytes, text is JSON text, a mapping of plain values is a row of columns."""
    kinds = {type(event.payload) for event in events}
    if kinds <= {bytes, bytearray, memoryview}:
        return PayloadKind.BYTES, [bytes(event.payload) for event in events]
    if kinds == {str}:
        for event in events:
            _check_json(event.payload)
        return PayloadKind.JSON, [event.payload.encode() for event in events]
    if kinds == {dict}:
        return PayloadKind.COLUMNS, [event.payload for event in events]
    raise _bad("the payloads of a batch are all bytes, all JSON text or all mappings", "payload")


def _check_json(text: str) -> None:
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise _bad("payload is not JSON", "payload", reason=str(error)) from error
