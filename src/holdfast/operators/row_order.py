"""The order of rows as Spark sorts them, whole columns at a time.

Invariants:
- Ascending puts nulls first, descending last, unless a sort key says otherwise. NaN is the largest
  number, and -0.0 equals 0.0. Text and bytes go by their bytes, false before true; structs
  field by field and lists element by element, a shorter one before a longer one.
- `total_order` never leaves two distinct rows in doubt: what the sort keys leave open is decided
  by the columns that follow, ascending. Batch answers with the same ordering are the same rows.
- Columns that only break ties are looked at for tied rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidInputError
from holdfast.operators.sort_order import SortKey
from holdfast.state.arrow.row_equality import normalise

_types = pa.types
_BYTES = pa.large_binary()


def total_order(
    groups: np.ndarray, keys: Sequence[SortKey], columns: Sequence[Any], ties: Sequence[Any]
) -> np.ndarray:
    """Row numbers ordered by group, then by `keys` over `columns`, then by `ties` ascending."""
    codes: list[np.ndarray] = [groups]
    for key, column in zip(keys, columns, strict=True):
        codes += _keys(column, descending=key.descending, nulls_first=key.nulls_first)
    order = np.lexsort(codes[::-1])
    if not ties or len(order) < 2:
        return order
    same = np.ones(len(order) - 1, np.bool_)
    for code in codes:
        ranked = code[order]
        same &= ranked[1:] == ranked[:-1]
    if not same.any():
        return order
    tied = np.zeros(len(order), np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    places = np.flatnonzero(tied)
    block = np.cumsum(np.append(True, ~same))[places]
    rows = order[places]
    picks = pa.array(rows)
    finer = [block]
    for column in ties:
        finer += _keys(column.take(picks), descending=False, nulls_first=True)
    order[places] = rows[np.lexsort(finer[::-1])]
    return order


def _keys(column: Any, *, descending: bool, nulls_first: bool) -> list[np.ndarray]:
    """Numpy columns whose ascending order is the wanted one."""
    codes = codes_of(column)
    if descending:
        codes = ~codes
    if not column.null_count:
        return [codes]
    null = column.is_null().to_numpy(zero_copy_only=False)
    return [null != nulls_first, np.where(null, 0, codes)]


def codes_of(column: Any) -> np.ndarray:
    """64-bit integers in the order of the values; those of nulls mean nothing."""
    kind = column.type
    if _types.is_null(kind):
        return np.zeros(len(column), np.int64)
    if _types.is_boolean(kind):
        return _filled(column.cast(pa.uint8()), 0).astype(np.int64)
    if _types.is_floating(kind):
        return _float_codes(column)
    if _types.is_integer(kind):
        return _filled(column, 0).astype(np.int64)
    if _types.is_temporal(kind) and kind != pa.month_day_nano_interval():
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return _filled(column.view(width), 0).astype(np.int64)
    return _ranks(column if not _types.is_nested(kind) else encode_ordered(column))


def _filled(column: Any, value: int) -> np.ndarray:
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(value, column.type))
    array: np.ndarray = column.to_numpy(zero_copy_only=False)
    return array


def _float_codes(column: Any) -> np.ndarray:
    """The bits of a double, so that signed integers have its order; NaN is the largest."""
    values = _filled(normalise(column).cast(pa.float64()), 0)
    bits = np.ascontiguousarray(values).view(np.int64)
    lowest = np.int64(np.iinfo(np.int64).min)
    codes: np.ndarray = np.where(bits < 0, lowest - bits - 1, bits)
    codes[np.isnan(values)] = np.iinfo(np.int64).max
    return codes


def _ranks(column: Any) -> np.ndarray:
    """Dense ranks of text, bytes and decimals."""
    coded = pc.dictionary_encode(column)
    words = coded.dictionary
    try:
        order = pc.array_sort_indices(words).to_numpy()
    except pa.ArrowNotImplementedError as error:
        raise unordered(column.type) from error
    rank = np.empty(max(1, len(words)), np.int64)
    rank[order] = np.arange(len(words))
    ranks: np.ndarray = rank[_filled(coded.indices, 0)]
    return ranks


def unordered(kind: Any) -> InvalidInputError:
    """A type that cannot be sorted."""
    return InvalidInputError(
        "values of this type have no order",
        kind="unsupported_type",
        type=str(kind),
        remedy="order by its parts, or leave the column out before this step",
    )


def encode_ordered(array: Any) -> Any:
    """Each value as bytes whose order is the order of the values, nulls first; none is null."""
    kind = array.type
    if _types.is_null(kind):
        return _repeat(b"\0", len(array))
    flag = _raw(array.is_valid().cast(pa.uint8()), 1)
    if _types.is_struct(kind):
        parts = [encode_ordered(child) for child in array.flatten()]
        body = _joined(*parts) if parts else _repeat(b"", len(array))
    elif _types.is_nested(kind):
        body = _encode_lists(array)
    elif _types.is_boolean(kind) or _types.is_primitive(kind):
        body = _encode_numbers(codes_of(array))
    elif _types.is_decimal(kind):
        body = _encode_decimals(array)
    else:
        plain = pc.fill_null(array.cast(_BYTES), pa.scalar(b"", _BYTES))
        # A zero byte inside is escaped, so that the end of a value sorts before everything else.
        escaped = pc.replace_substring(plain, pattern=b"\0", replacement=b"\0\xff")
        body = _joined(escaped, _repeat(b"\0\0", len(array)))
    empty = pa.scalar(b"", _BYTES)
    return _joined(flag, pc.if_else(array.is_valid(), body, empty))


def _encode_lists(array: Any) -> Any:
    if _types.is_map(array.type):
        entries = pa.StructArray.from_arrays([array.keys, array.items], names=["k", "v"])
        mask = array.is_null() if array.null_count else None
        array = pa.ListArray.from_arrays(pa.array(array.offsets.to_numpy()), entries, mask=mask)
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()).to_numpy()
    child = encode_ordered(array.flatten())
    marked = _joined(_repeat(b"\1", len(child)), child)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    joined = pc.binary_join(
        pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), marked),
        pa.scalar(b"", _BYTES),
    )
    return _joined(joined, _repeat(b"\0", len(array)))


def _encode_numbers(codes: np.ndarray) -> Any:
    """Big-endian with the sign turned, so that bytes have the order of the numbers."""
    bits = codes.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)
    return _raw(pa.array(bits.astype(">u8").view(np.uint64)), 8)


def _encode_decimals(array: Any) -> Any:
    filled = pc.fill_null(array.cast(pa.decimal128(38, array.type.scale)), 0)
    words = np.frombuffer(filled.buffers()[1], np.int64).reshape(-1, 2)
    words = words[filled.offset : filled.offset + len(filled)]
    high = _encode_numbers(words[:, 1].copy())
    low = _raw(pa.array(words[:, 0].copy().view(np.uint64).astype(">u8").view(np.uint64)), 8)
    return _joined(high, low)


def _joined(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", _BYTES))


def _repeat(value: bytes, count: int) -> Any:
    return pa.array([value], _BYTES).take(pa.array(np.zeros(count, np.int64)))


def _raw(array: Any, width: int) -> Any:
    return array.view(pa.binary(width)).cast(_BYTES)
