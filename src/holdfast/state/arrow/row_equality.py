"""Comparing rows of any Arrow type, whole columns at a time.

Invariants:
- Two values are equal when Spark's GROUP BY puts them together: null equals null, NaN equals
  NaN, -0.0 equals 0.0. Inputs went through `normalise` before.
- `encode` is injective: two rows have the same bytes exactly when they are equal. It is only
  used where Arrow has no kernel (nested types) and in memory: it is no storage format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.state.arrow.numpy_views import numbers, pc

if TYPE_CHECKING:
    from collections.abc import Sequence

_types = pa.types
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def plain_type(kind: Any, column: str) -> Any:
    """The type without dictionaries, views, run-end encoding and extensions, at any depth."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type, column)
    if _types.is_dictionary(kind) or _types.is_run_end_encoded(kind):
        return plain_type(kind.value_type, column)
    if kind in _VIEWS:
        return _VIEWS[kind]
    if _types.is_nested(kind):
        return _plain_nested(kind, column)
    return kind


def _plain_nested(kind: Any, column: str) -> Any:
    if _types.is_struct(kind):
        return pa.struct([_plain_field(field, column) for field in kind])
    if _types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field, column), _plain_field(kind.item_field, column))
    if _types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field, column), kind.list_size)
    if _types.is_large_list(kind) or _types.is_large_list_view(kind):
        return pa.large_list(_plain_field(kind.value_field, column))
    if _types.is_list(kind) or _types.is_list_view(kind):
        return pa.list_(_plain_field(kind.value_field, column))
    raise InvalidInputError(
        "union columns cannot be kept in state",
        kind="unsupported_type",
        column=column,
        type=kind,
        remedy="use a struct with one nullable field for each alternative",
    )


def _plain_field(field: Any, column: str) -> Any:
    return pa.field(field.name, plain_type(field.type, column), field.nullable)


def normalise(array: Any) -> Any:
    """One NaN, no negative zero, at any depth. Returns the array itself when nothing changes."""
    kind = array.type
    if _types.is_floating(kind):
        return _normal_floats(array)
    if not _has_floats(kind):
        return array
    if _types.is_struct(kind):
        children = [normalise(child) for child in array.flatten()]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    lengths, child = _lists(array)
    child = normalise(child)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    mask = array.is_null() if array.null_count else None
    if _types.is_fixed_size_list(kind):
        # flatten() leaves out the slots of null lists, and a fixed-size list needs them.
        slots = np.repeat(np.arange(len(array)), kind.list_size)
        filled = np.repeat(array.is_valid().to_numpy(zero_copy_only=False), kind.list_size)
        index = np.cumsum(filled) - 1
        child = child.take(pa.array(index, mask=~filled)) if len(slots) else child
        build_fixed: Any = pa.FixedSizeListArray.from_arrays  # the stubs know no type with a mask
        return build_fixed(child, type=kind, mask=mask)
    if _types.is_map(kind):
        starts = pa.array(offsets.astype(np.int32), pa.int32(), mask=_offset_mask(array))
        build_map: Any = pa.MapArray.from_arrays  # the stubs know no type with keys and items
        return build_map(starts, child.field(0), child.field(1), type=kind)
    width, build = (
        (np.int64, pa.LargeListArray) if _types.is_large_list(kind) else (np.int32, pa.ListArray)
    )
    return build.from_arrays(pa.array(offsets.astype(width)), child, type=kind, mask=mask)


def _offset_mask(array: Any) -> np.ndarray | None:
    """A mask over n + 1 offsets: how Arrow marks null maps."""
    if not array.null_count:
        return None
    return np.append(array.is_null().to_numpy(zero_copy_only=False), False)


def _normal_floats(array: Any) -> Any:
    width = array.type.bit_width // 8
    raw = np.frombuffer(array.buffers()[1] or b"", dtype=f"f{width}")
    values = raw[array.offset : array.offset + len(array)]
    odd = (values == 0) & np.signbit(values)
    nans = np.isnan(values)
    if not odd.any() and not nans.any():
        return array
    values = values.copy()
    values[odd] = 0.0
    values[nans] = np.nan
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(values, type=array.type, mask=mask)


def _has_floats(kind: Any) -> bool:
    if _types.is_floating(kind):
        return True
    return _types.is_nested(kind) and any(
        _has_floats(kind.field(i).type) for i in range(kind.num_fields)
    )


def rows_equal(left: Sequence[Any], right: Sequence[Any]) -> np.ndarray:
    """For each row whether all columns of both sides are equal."""
    same: np.ndarray | None = None
    for a, b in zip(left, right, strict=True):
        column = _equal(a, b)
        same = column if same is None else same & column
    return np.ones(0, np.bool_) if same is None else same


def _equal(left: Any, right: Any) -> np.ndarray:
    if _types.is_null(left.type):
        return np.ones(len(left), np.bool_)
    left, right = _comparable(left), _comparable(right)
    same = pc.equal(left, right)
    if left.null_count or right.null_count:
        same = pc.or_(
            pc.fill_null(same, False),  # noqa: FBT003
            pc.and_(left.is_null(), right.is_null()),
        )
    return numbers(same)


def row_codes(columns: Sequence[Any]) -> np.ndarray:
    """Numbers that are equal exactly where rows are equal, within this call."""
    codes: np.ndarray | None = None
    size = 1
    for column in columns:
        coded = pc.dictionary_encode(_comparable(column), null_encoding="encode")
        index = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        count = max(1, len(coded.dictionary))
        if codes is None:
            codes, size = index, count
            continue
        if size * count >= 1 << 62:
            distinct, codes = np.unique(codes, return_inverse=True)
            size = len(distinct)
        codes = codes * count + index
        size *= count
    return np.zeros(0, np.int64) if codes is None else codes


def _comparable(array: Any) -> Any:
    """The column as something that Arrow can compare and hash bit by bit."""
    kind = array.type
    if _types.is_floating(kind):
        return array.view({16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[kind.bit_width])
    if _types.is_nested(kind) or kind == pa.month_day_nano_interval():
        return encode(array)
    return array


def encode(array: Any) -> Any:
    """Each row as self-delimiting bytes; no nulls. Only for comparing in memory."""
    kind = array.type
    if _types.is_null(kind):
        return _repeat(b"\0", len(array))
    valid = array.is_valid().cast(pa.uint8())
    parts = [_raw(valid, 1)]
    if _types.is_struct(kind):
        parts += [encode(child) for child in array.flatten()]
    elif _types.is_nested(kind):
        lengths, child = _lists(array)
        offsets = np.zeros(len(array) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), encode(child))
        parts += [_raw(pa.array(lengths), 8), pc.binary_join(lists, pa.scalar(b"", _BYTES))]
    elif _variable(kind):
        filled = pc.fill_null(array.cast(_BYTES), pa.scalar(b"", _BYTES))
        lengths = pc.binary_length(filled).cast(pa.int64())
        parts += [_raw(lengths, 8), filled]
    else:
        plain = array.cast(pa.uint8()) if _types.is_boolean(kind) else array
        raw = _raw(plain, plain.type.bit_width // 8)
        parts.append(pc.fill_null(raw, pa.scalar(b"", _BYTES)))
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", _BYTES))


_BYTES = pa.large_binary()


def _variable(kind: Any) -> bool:
    return bool(
        _types.is_string(kind)
        or _types.is_large_string(kind)
        or _types.is_binary(kind)
        or _types.is_large_binary(kind)
    )


def _repeat(value: bytes, count: int) -> Any:
    return pa.array([value], _BYTES).take(pa.array(np.zeros(count, np.int64)))


def _raw(array: Any, width: int) -> Any:
    return array.view(pa.binary(width)).cast(_BYTES)


def _lists(array: Any) -> tuple[np.ndarray, Any]:
    """Length of each list (0 for null) and the values of all lists that are not null."""
    if _types.is_map(array.type):
        entries = pa.StructArray.from_arrays(
            [array.keys, array.items], fields=[array.type.key_field, array.type.item_field]
        )
        offsets = array.offsets
        mask = array.is_null() if array.null_count else None
        array = pa.ListArray.from_arrays(pa.array(offsets.to_numpy()), entries, mask=mask)
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()).to_numpy()
    return lengths, array.flatten()
