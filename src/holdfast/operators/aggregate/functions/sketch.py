"""approx_count_distinct on streams that only add rows: one HyperLogLog sketch a group.

The sketches are those of Apache DataSketches. The JVM hashes the values; the coupons of a batch
(which register, how many leading zeros) are found for all rows at once and written down in the
library's own serial form, one small image a group. The library merges and estimates.

Invariants:
- The estimate depends on which values a group has seen, not on order, epochs or partitions: an
  image never claims the order of arrival, which the library would otherwise make use of.
- No Python runs for a row; a few calls of the library run for each touched group.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.operators.aggregate.functions.base import Batch, Fold

LG_K_MIN, LG_K_MAX = 8, 21
_ADDRESS_BITS = 26
_REST_BITS = 64 - _ADDRESS_BITS
_ADDRESSES = np.uint64((1 << _ADDRESS_BITS) - 1)
_COMPACT, _OUT_OF_ORDER = 8, 16
_LIST_8, _SET_8, _HLL_8 = 8, 9, 10
_FAMILY, _VERSION = 7, 1


def library() -> Any:
    """Apache DataSketches, or a typed error."""
    try:
        import datasketches
    except ImportError as error:
        raise InvalidInputError(
            "approx_count_distinct needs an extra package",
            kind="missing_extra",
            remedy="pip install 'holdfast-spark[sketch]' on the driver and on the executors",
        ) from error
    return datasketches


def lg_k_of(rsd: float) -> int:
    """The logarithm of the number of registers for a relative standard deviation."""
    return min(LG_K_MAX, max(LG_K_MIN, ceil(log2((1.04 / rsd) ** 2))))


@dataclass(frozen=True)
class SketchFold(Fold):
    """The input is a 64-bit hash of the value, null where there is none."""

    lg_k: int = 9

    @property
    def helpers(self) -> list[Any]:
        """The sketch in the library's serial form."""
        return [pa.field(f"_{self.name}_sketch", pa.binary())]

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Merge the batch into the sketches of the groups that it has values for."""
        sketches = library()
        counts = self._old(old, self.name, found)
        kept = old[f"_{self.name}_sketch"].to_pylist()
        images: list[bytes | None] = [
            data if there else None for data, there in zip(kept, found.tolist(), strict=True)
        ]
        numbers, coupons = self._coupons(batch)
        bounds = np.searchsorted(numbers, np.arange(batch.count + 1))
        for group in np.unique(numbers).tolist():
            mine = coupons[bounds[group] : bounds[group + 1]]
            union = sketches.hll_union(self.lg_k)
            before = images[group]
            if before is not None:
                union.update(sketches.hll_sketch.deserialize(before))
            union.update(sketches.hll_sketch.deserialize(image_of(mine, self.lg_k)))
            merged = union.get_result(sketches.tgt_hll_type.HLL_8)
            images[group] = settled(merged.serialize_compact())
            estimate = sketches.hll_sketch.deserialize(images[group]).get_estimate()
            counts[group] = round(estimate)
        after = pa.array(images, pa.binary())
        return {self.name: pa.array(counts), f"_{self.name}_sketch": after}

    def _coupons(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Each different coupon of a group once, by group."""
        column = batch.rows.column(self.inputs[0])
        given = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        hashes = column.take(pa.array(given)).to_numpy(zero_copy_only=False).view(np.uint64)
        rest = hashes >> np.uint64(_ADDRESS_BITS)
        bits = np.frexp(rest.astype(np.float64))[1]  # exact: fewer than 53 bits
        values = (_REST_BITS - bits + 1).astype(np.uint64)
        coupons = (values << np.uint64(_ADDRESS_BITS)) | (hashes & _ADDRESSES)
        pairs = np.unique((batch.numbers[given].astype(np.uint64) << np.uint64(32)) | coupons)
        return (pairs >> np.uint64(32)).astype(np.int64), pairs.astype(np.uint32)


def image_of(coupons: np.ndarray, lg_k: int) -> bytes:
    """Some different coupons in the serial form: a list, a set, or registers."""
    count = len(coupons)
    data = np.ascontiguousarray(coupons, "<u4").tobytes()
    if count < 8:
        head = struct.pack("<8B", 2, _VERSION, _FAMILY, lg_k, 3, _COMPACT, count, _LIST_8)
        return head + data
    if count <= 3 << (lg_k - 5):  # three quarters of the largest set
        lg_size = max(5, (4 * count // 3 - 1).bit_length())
        while 4 * count > 3 << lg_size:
            lg_size += 1
        head = struct.pack("<8B", 3, _VERSION, _FAMILY, lg_k, lg_size, _COMPACT, 0, _SET_8)
        return head + struct.pack("<I", count) + data
    registers = np.zeros(1 << lg_k, np.uint8)
    slots = coupons & np.uint32((1 << lg_k) - 1)
    np.maximum.at(registers, slots, (coupons >> np.uint32(_ADDRESS_BITS)).astype(np.uint8))
    powers = np.ldexp(1.0, -registers.astype(np.int32))
    low = float(powers[registers < 32].sum())
    high = float(powers[registers >= 32].sum())
    flags = _COMPACT | _OUT_OF_ORDER
    head = struct.pack("<8B", 10, _VERSION, _FAMILY, lg_k, 0, flags, 0, _HLL_8)
    zeros = int((registers == 0).sum())
    return head + struct.pack("<dddII", 0.0, low, high, zeros, 0) + registers.tobytes()


def settled(image: bytes) -> bytes:
    """The same sketch without what the library remembers of the order of arrival."""
    if image[7] & 3 != _HLL_8 & 3:
        return image
    flags = bytes([image[5] | _OUT_OF_ORDER])
    return image[:5] + flags + image[6:8] + struct.pack("<d", 0.0) + image[16:]
