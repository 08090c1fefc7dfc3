"""Arrow columns from numpy and back, by their buffers.

`pa.array` and `Array.to_numpy` import pandas where it is installed, a third of a second, to ask
whether something is one of its kind. Numbers need none of that. `pyarrow.compute` builds hundreds
of functions when it is imported, longer than many a command takes that needs none of them: `pc`
loads it by its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import numpy as np
import pyarrow as pa

_NUMBERS = {pa.int64(): np.int64, pa.uint64(): np.uint64, pa.bool_(): np.bool_}


class _Kernels:
    """`pyarrow.compute`, as if it had been imported."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module("pyarrow.compute"), name)
        self.__dict__[name] = value
        return value


pc: Any = _Kernels()


def buffer_of(values: np.ndarray) -> pa.Buffer:
    """The memory of a numpy array, in place. The stubs know buffers from Python 3.12 on only."""
    return pa.py_buffer(cast("Any", values))


def indices(values: np.ndarray) -> pa.Array[Any]:
    """64-bit integers as an Arrow column."""
    plain = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(plain), [None, buffer_of(plain)])


def bits(mask: np.ndarray) -> pa.Array[Any]:
    """Truth values as an Arrow column."""
    packed = np.packbits(mask, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, buffer_of(packed)])


def numbers(column: Any) -> np.ndarray:
    """A column of 64-bit integers, in place, or of truth values; neither has nulls."""
    kind, size = column.type, len(column)
    data = column.buffers()[1]
    if column.null_count or data is None or kind not in _NUMBERS:
        plain: np.ndarray = column.to_numpy(zero_copy_only=False)
        return plain
    if kind != pa.bool_():
        return np.frombuffer(data, _NUMBERS[kind])[column.offset : column.offset + size]
    first = column.offset // 8
    raw = np.frombuffer(data, np.uint8)[first : (column.offset + size + 7) // 8]
    skip = column.offset - 8 * first
    return np.unpackbits(raw, bitorder="little")[skip : skip + size].view(np.bool_)
