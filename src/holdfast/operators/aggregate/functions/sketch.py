"""approx_count_distinct on streams that only add rows: one HyperLogLog sketch a group.

The JVM hashes the values. A hash is a coupon: 26 bits of address, and how many leading zeros the
other 38 bits have. A small group keeps its coupons; a large one keeps registers, for each low part
of the address the largest number of leading zeros. Sketches are stored in the serial form of Apache
DataSketches, with HLL_8 registers, so that its libraries read them, too.

Estimates are those of Otmar Ertl, "New cardinality estimation algorithms for HyperLogLog sketches"
(2017), improved raw estimator: no tables, and no range in which it is biased.

Invariants:
- The estimate depends on which values a group has seen, not on order, epochs or partitions.
- Whether a group has coupons or registers depends on the number of its coupons alone.
- No Python runs for a row or a group: all groups of a batch are computed as whole columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, log2
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import CorruptionError
from holdfast.operators.aggregate.functions.base import Batch, Fold
from holdfast.state.arrow.numpy_views import buffer_of

LG_K_MIN, LG_K_MAX = 8, 21
_ADDRESS_BITS = 26
_REST_BITS = 64 - _ADDRESS_BITS
_ADDRESSES = np.uint64((1 << _ADDRESS_BITS) - 1)
_VALUES = 64
"""Numbers of leading zeros that a coupon has room for."""
_FAMILY, _VERSION = 7, 1
_COMPACT, _OUT_OF_ORDER = 8, 16
_LIST_8, _SET_8, _HLL_8 = 8, 9, 10
_LIST_MAX = 7
_LIST_HEAD, _SET_HEAD, _HLL_HEAD = 8, 12, 40
_CELLS_MAX = 1 << 22
"""Registers that are in memory at once, unless one group alone has more."""


def lg_k_of(rsd: float) -> int:
    """The logarithm of the number of registers for a relative standard deviation."""
    return min(LG_K_MAX, max(LG_K_MIN, ceil(log2((1.04 / rsd) ** 2))))


def coupons_max(lg_k: int) -> int:
    """How many coupons a group keeps before it has registers."""
    return 3 << (lg_k - 5)


@dataclass(frozen=True)
class SketchFold(Fold):
    """The input is a 64-bit hash of the value, null where there is none."""

    lg_k: int = 9

    @property
    def helpers(self) -> list[pa.Field[Any]]:
        """The sketch in its serial form."""
        return [pa.field(f"_{self.name}_sketch", pa.binary())]

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Merge the batch into the sketches of the groups that it has values for."""
        kept = old[f"_{self.name}_sketch"].take(pa.array(np.arange(batch.count), mask=~found))
        counts = self._old(old, self.name, found)
        owners, coupons = self._coupons(batch)
        touched = np.unique(owners)
        if not len(touched):
            return {self.name: pa.array(counts), f"_{self.name}_sketch": kept}
        stored = Images.of(kept.take(pa.array(touched)), self.lg_k)
        numbers = np.searchsorted(touched, owners)
        images, estimates = merged(stored, numbers, coupons, self.lg_k)
        counts[touched] = np.rint(estimates).astype(np.int64)
        picks = np.arange(batch.count)
        picks[touched] = batch.count + np.arange(len(touched))
        after = pa.concat_arrays([kept, images]).take(pa.array(picks))
        return {self.name: pa.array(counts), f"_{self.name}_sketch": after}

    def _coupons(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Each distinct coupon of a group once, by group."""
        column = batch.rows.column(self.inputs[0])
        given = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        hashes = column.take(pa.array(given)).to_numpy(zero_copy_only=False).view(np.uint64)
        rest = hashes >> np.uint64(_ADDRESS_BITS)
        bits = np.frexp(rest.astype(np.float64))[1]  # exact: fewer than 53 bits
        values = (_REST_BITS - bits + 1).astype(np.uint64)
        coupons = (values << np.uint64(_ADDRESS_BITS)) | (hashes & _ADDRESSES)
        return _distinct(batch.numbers[given], coupons)


def _distinct(owners: np.ndarray, coupons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each pair once, in order."""
    pairs = (owners.astype(np.uint64) << np.uint64(32)) | coupons.astype(np.uint64)
    pairs.sort()
    if len(pairs):
        pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])]
    return (pairs >> np.uint64(32)).astype(np.int64), pairs.astype(np.uint32)


@dataclass(frozen=True)
class Images:
    """Stored sketches of several groups: their bytes, where each begins, and what it is.

    A group without a sketch has mode 0.
    """

    data: np.ndarray
    starts: np.ndarray
    modes: np.ndarray
    counts: np.ndarray
    """Coupons, of those that have no registers."""

    @classmethod
    def of(cls, column: Any, lg_k: int) -> Images:
        """Read the heads; what is not a sketch of this size is refused."""
        offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
        buffer = column.buffers()[2]
        data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.zeros(0, np.uint8)
        starts, sizes = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
        there = column.is_valid().to_numpy(zero_copy_only=False)
        if (sizes[there] < _LIST_HEAD).any():
            raise _unreadable(lg_k)
        heads = np.zeros((len(sizes), _SET_HEAD), np.int64)
        wide = np.minimum(sizes, _SET_HEAD) * there
        rows, places = _spans(np.arange(len(sizes)), wide)
        heads[rows, places] = data[starts[rows] + places]
        modes = np.where(there, heads[:, 7], 0)
        long = heads[:, 8:12] @ (np.int64(1) << np.array([0, 8, 16, 24]))
        counts = np.select([modes == _LIST_8, modes == _SET_8], [heads[:, 6], long], 0)
        expected = np.select(
            [modes == _LIST_8, modes == _SET_8, modes == _HLL_8],
            [_LIST_HEAD + 4 * counts, _SET_HEAD + 4 * counts, _HLL_HEAD + (1 << lg_k)],
            -1,
        )
        sound = (sizes == expected) & (heads[:, 2] == _FAMILY) & (heads[:, 3] == lg_k)
        if not sound[there].all():
            raise _unreadable(lg_k)
        return cls(data, starts, modes, counts)

    def coupons(self) -> tuple[np.ndarray, np.ndarray]:
        """Those of the groups that keep them, with the group of each."""
        rows, places = _spans(np.arange(len(self.starts)), self.counts)
        heads = np.where(self.modes == _LIST_8, _LIST_HEAD, _SET_HEAD)
        at = (self.starts + heads)[rows] + 4 * places
        four = self.data[at[:, None] + np.arange(4)]
        return rows, np.ascontiguousarray(four).view("<u4").reshape(-1).astype(np.uint32)

    def registers(self, groups: np.ndarray, lg_k: int) -> np.ndarray:
        """The registers of some groups; zeros for those that have none yet."""
        found = np.zeros((len(groups), 1 << lg_k), np.uint8)
        large = np.flatnonzero(self.modes[groups] == _HLL_8)
        at = self.starts[groups[large]] + _HLL_HEAD
        found[large] = self.data[at[:, None] + np.arange(1 << lg_k)]
        return found


def merged(
    stored: Images, owners: np.ndarray, coupons: np.ndarray, lg_k: int
) -> tuple[Any, np.ndarray]:
    """Stored sketches with more coupons: the new images, and what they estimate."""
    count = len(stored.starts)
    before = stored.coupons()
    owners, coupons = _distinct(
        np.concatenate([before[0], owners]), np.concatenate([before[1], coupons])
    )
    sizes = np.bincount(owners, minlength=count)
    large = (stored.modes == _HLL_8) | (sizes > coupons_max(lg_k))
    estimates = coupon_estimates(sizes)
    small = np.flatnonzero(~large)
    mine = ~large[owners]
    parts = [coupon_images(sizes[small], coupons[mine], lg_k)]
    groups = np.flatnonzero(large)
    step = max(1, _CELLS_MAX >> lg_k)
    bounds = np.searchsorted(owners, np.arange(count + 1))
    for begin in range(0, len(groups), step):
        block = groups[begin : begin + step]
        registers = stored.registers(block, lg_k)
        rows, places = _spans(np.arange(len(block)), sizes[block])
        picked = coupons[bounds[block][rows] + places]
        slots = (picked & np.uint32((1 << lg_k) - 1)).astype(np.int64)
        values = (picked >> np.uint32(_ADDRESS_BITS)).astype(np.uint8)
        np.maximum.at(registers.reshape(-1), (rows << lg_k) + slots, values)
        histogram = np.bincount(
            (np.arange(len(block))[:, None] * _VALUES + registers).reshape(-1),
            minlength=len(block) * _VALUES,
        ).reshape(-1, _VALUES)
        estimates[block] = register_estimates(histogram)
        parts.append(register_images(registers, histogram, lg_k))
    order = np.empty(count, np.int64)
    order[np.concatenate([small, groups])] = np.arange(count)
    return pa.concat_arrays(parts).take(pa.array(order)), estimates


def coupon_estimates(sizes: np.ndarray) -> np.ndarray:
    """Values behind so many coupons: two values share one where address and zeros agree."""
    known = sizes.astype(np.float64)
    alike = 3 << _ADDRESS_BITS  # one in 2**26 addresses, and for a third of them as many zeros
    made: np.ndarray = known + known * known / (2.0 * alike)
    return made


def register_estimates(histogram: np.ndarray) -> np.ndarray:
    """Values behind registers, of which each row says how many hold each number of zeros."""
    m = histogram.sum(1).astype(np.float64)
    z = m * _tau(1.0 - histogram[:, _REST_BITS + 1] / m)
    for value in range(_REST_BITS, 0, -1):
        z = 0.5 * (z + histogram[:, value])
    z += m * _sigma(histogram[:, 0] / m)
    with np.errstate(divide="ignore"):
        made: np.ndarray = m * m / (2.0 * log(2.0) * z)
    return made


def _sigma(x: np.ndarray) -> np.ndarray:
    """For registers that are empty: x + sum of x**(2**k) * 2**(k - 1); infinite where all are."""
    x, y, z = x.copy(), np.ones(len(x)), x.copy()
    whole = x >= 1.0
    x[whole] = 0.0
    while x.any():
        x = x * x
        z = z + x * y
        y = y + y
        x[x * y < z * 1e-17] = 0.0
    z[whole] = np.inf
    return z


def _tau(x: np.ndarray) -> np.ndarray:
    """For registers that cannot say more: (1 - x - sum of (1 - x**(2**-k))**2 * 2**-k) / 3."""
    inner = (x > 0.0) & (x < 1.0)
    x, y, z = np.where(inner, x, 1.0), np.ones(len(x)), np.where(inner, 1.0 - x, 0.0)
    for _ in range(64):
        x = np.sqrt(x)
        y = 0.5 * y
        z = z - (1.0 - x) ** 2 * y
    made: np.ndarray = z / 3.0
    return made


def coupon_images(sizes: np.ndarray, coupons: np.ndarray, lg_k: int) -> Any:
    """Sketches of so many coupons each, in their order: lists of up to seven, or sets."""
    listed = sizes <= _LIST_MAX
    sets = ~listed
    heads = np.zeros((len(sizes), _SET_HEAD), np.uint8)
    heads[:, 0] = np.where(listed, 2, 3)
    heads[:, 1:4] = _VERSION, _FAMILY, lg_k
    heads[:, 4] = np.where(listed, 3, _lg_table(sizes))
    heads[:, 5] = _COMPACT
    heads[:, 6] = np.where(listed, sizes, 0)
    heads[:, 7] = np.where(listed, _LIST_8, _SET_8)
    heads[sets, 8:12] = np.ascontiguousarray(sizes[sets], "<u4").view(np.uint8).reshape(-1, 4)
    head_sizes = np.where(listed, _LIST_HEAD, _SET_HEAD)
    offsets = np.append(0, np.cumsum(head_sizes + 4 * sizes))
    data = np.zeros(int(offsets[-1]), np.uint8)
    rows, places = _spans(np.arange(len(sizes)), head_sizes)
    data[offsets[rows] + places] = heads[rows, places]
    rows, places = _spans(np.arange(len(sizes)), sizes)
    at = (offsets[:-1] + head_sizes)[rows] + 4 * places
    four = np.ascontiguousarray(coupons, "<u4").view(np.uint8).reshape(-1, 4)
    data[at[:, None] + np.arange(4)] = four
    return _binary(offsets, data)


def _lg_table(sizes: np.ndarray) -> np.ndarray:
    """The logarithm of the hash table that a set of coupons fills up to three quarters."""
    found = np.full(len(sizes), 5)
    while (grows := 4 * sizes > 3 << found).any():
        found = found + grows
    return found


def register_images(registers: np.ndarray, histogram: np.ndarray, lg_k: int) -> Any:
    """Sketches with registers; no order of arrival is claimed."""
    powers = np.ldexp(1.0, -np.arange(_VALUES))
    sums = [histogram[:, part] @ powers[part] for part in (slice(0, 32), slice(32, None))]
    images = np.zeros((len(registers), _HLL_HEAD + (1 << lg_k)), np.uint8)
    images[:, :8] = 10, _VERSION, _FAMILY, lg_k, 0, _COMPACT | _OUT_OF_ORDER, 0, _HLL_8
    for place, numbers in ((16, sums[0]), (24, sums[1])):
        images[:, place : place + 8] = (
            np.ascontiguousarray(numbers, "<f8").view(np.uint8).reshape(-1, 8)
        )
    empty = np.ascontiguousarray(histogram[:, 0], "<u4")
    images[:, 32:36] = empty.view(np.uint8).reshape(-1, 4)
    images[:, _HLL_HEAD:] = registers
    offsets = np.arange(len(registers) + 1) * images.shape[1]
    return _binary(offsets, images.reshape(-1))


def _binary(offsets: np.ndarray, data: np.ndarray) -> Any:
    buffers = [None, buffer_of(offsets.astype(np.int32)), buffer_of(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _spans(rows: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row as often as its size says, and the place of each within its row."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(rows, sizes), np.arange(total) - np.repeat(ends - sizes, sizes)


def _unreadable(lg_k: int) -> CorruptionError:
    return CorruptionError(
        "a stored sketch is not one of Holdfast's",
        kind="sketch_unreadable",
        cause="sketch_unreadable",
        lg_k=lg_k,
        remedy="go back to an earlier checkpoint: `holdfast verify` says which ones are intact",
    )
