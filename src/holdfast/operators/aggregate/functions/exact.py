"""Exact sums of doubles for many groups at once: retraction undoes them to the last bit.

A double is a whole number of 53 bits times a power of two. All of them are multiples of 2**-1074,
so that a sum is one large integer. It is kept in limbs of 32 bits, only those it needs: a group
whose values are of one size has three or four. Adding and retracting is adding integers, so the
order of rows, epochs and partitions makes no difference, and an outlier leaves nothing behind.

Invariants:
- A sum is never rounded while it is kept. `rounded` gives the double that is nearest to it.
- One sum has one stored form: no limb that is zero at the low end, none at the high end that only
  repeats the sign. The empty list is zero.
- Infinities and NaN are no numbers: they are counted elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.operators.aggregate.functions.base import Batch

STORED = pa.list_(pa.int32())
"""The position of the lowest limb, then the limbs; the highest one carries the sign."""
UNIT = -1074
SQUARE_UNIT = 2 * UNIT
BITS = 32
_MASK = np.int64((1 << BITS) - 1)
_HALF = 27
_WEIGHTS_SAFE = 1 << 29
_ROWS_SAFE = 1 << 21
BLOCK = 1 << 15
"""Groups whose limbs are in memory at once: one of a wide range makes all of its block wide."""


@dataclass
class Limbs:
    """One integer for each group: column j counts 2**(32 * (base + j)).

    The cells of a column lie side by side in memory, since all work goes by columns.
    """

    cells: np.ndarray
    base: int

    @property
    def count(self) -> int:
        """How many groups."""
        return int(self.cells.shape[0])

    @property
    def top(self) -> int:
        """The position behind the highest limb."""
        return self.base + int(self.cells.shape[1])

    def carry(self) -> None:
        """Bring every limb but the highest into 0 to 2**32 - 1."""
        cells = self.cells
        for j in range(cells.shape[1] - 1):
            cells[:, j + 1] += cells[:, j] >> BITS
            cells[:, j] &= _MASK

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last column that is not zero; both are 0 where all are."""
        low, high = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        filled = [column != 0 for column in self.cells.T]
        for j in range(1, len(filled)):
            np.copyto(high, j, where=filled[j])
        for j in range(len(filled) - 1, -1, -1):
            np.copyto(low, j, where=filled[j])
        return low, high

    def negated(self, which: np.ndarray) -> Limbs:
        """With the other sign where `which` says so."""
        if not which.any():
            return self
        made = Limbs(np.where(which, -self.cells.T, self.cells.T).T, self.base)
        made.carry()
        return made

    def pick(self, groups: np.ndarray) -> Limbs:
        """Some of them."""
        return Limbs(self.cells[groups], self.base)


def loaded(stored: Any, found: np.ndarray, low: int, high: int) -> Limbs:
    """Stored sums as limbs from `low` to `high` or further; groups that are not found are zero."""
    lists: Any = stored.combine_chunks() if isinstance(stored, pa.ChunkedArray) else stored
    values = lists.values.to_numpy(zero_copy_only=False)
    offsets = lists.offsets.to_numpy()
    sizes = np.where(found, np.diff(offsets), 0)
    if lists.null_count:
        sizes[lists.is_null().to_numpy(zero_copy_only=False)] = 0
    there = np.flatnonzero(sizes)
    starts, sizes = offsets[there].astype(np.int64), sizes[there].astype(np.int64) - 1
    lows = values[starts].astype(np.int64)
    if len(there):
        low, high = min(low, int(lows.min())), max(high, int((lows + sizes).max()))
    cells = np.zeros((high - low + 2, len(found)), np.int64).T
    rows = np.repeat(there, sizes)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    columns = np.repeat(lows - low, sizes) + within
    limbs = values[np.repeat(starts + 1, sizes) + within].astype(np.int64)
    last = within == np.repeat(sizes - 1, sizes)
    cells[rows, columns] = np.where(last, limbs, limbs & _MASK)
    made = Limbs(cells, low)
    made.carry()
    return made


def stored_form(sums: Limbs) -> Any:
    """The canonical lists; `sums` are carried, with a highest limb that only has the sign."""
    cells = sums.cells
    sign = cells[:, -1]
    repeated = sign & _MASK
    high = np.zeros(len(cells), np.int64)
    for j in range(1, cells.shape[1] - 1):
        np.copyto(high, j, where=cells[:, j] != repeated)
    rows = np.arange(len(cells))
    low, last = sums.ends()
    empty = (last == 0) & (cells[:, 0] == 0)
    # One more limb where the highest bit of the last one says the opposite of the sign.
    high += (cells[rows, high] >> (BITS - 1)) != (sign & 1)
    sizes = np.where(empty, 0, high - low + 2)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    values = np.zeros(int(offsets[-1]), np.int64)
    there = np.flatnonzero(~empty)
    values[offsets[there]] = low[there] + sums.base
    counts = sizes[there] - 1
    owner = np.repeat(there, counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    values[np.repeat(offsets[there] + 1, counts) + within] = cells[owner, low[owner] + within]
    narrow = values.astype(np.uint32).view(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32), pa.int32()), pa.array(narrow, pa.int32()), type=STORED
    )


@dataclass(frozen=True)
class Parts:
    """Finite doubles as whole numbers: `digits` (below 2**55, not negative) times 2**`places`."""

    digits: np.ndarray
    places: np.ndarray
    negative: np.ndarray


def parts_of(values: np.ndarray) -> Parts:
    """Doubles in units of 2**-1074; all of them must be finite."""
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    exponent = (bits >> 52) & 0x7FF
    fraction = bits & ((1 << 52) - 1)
    normal = exponent > 0
    digits = fraction | (normal.astype(np.int64) << 52)
    return Parts(digits, np.where(normal, exponent - 1, 0), bits < 0)


def squares_of(parts: Parts) -> list[Parts]:
    """The squares in units of 2**-2148, as the three products of their halves."""
    low = parts.digits & ((1 << _HALF) - 1)
    high = parts.digits >> _HALF
    places = 2 * parts.places
    plus = np.zeros(len(low), np.bool_)
    return [
        Parts(low * low, places, plus),
        Parts(2 * low * high, places + _HALF, plus),
        Parts(high * high, places + 2 * _HALF, plus),
    ]


def summed(
    stored: Any, found: np.ndarray, terms: list[Parts], numbers: np.ndarray, weights: np.ndarray
) -> Limbs:
    """Stored sums and what came: for each row, its terms times its weight, to its group."""
    low, high = _reach(terms, weights)
    if not len(numbers):
        low, high = 0, 1
    sums = loaded(stored, found, low, high)
    for begin in range(0, len(numbers), _ROWS_SAFE):
        piece = slice(begin, begin + _ROWS_SAFE)
        for part in terms:
            some = Parts(part.digits[piece], part.places[piece], part.negative[piece])
            _add(sums, some, numbers[piece], weights[piece])
        sums.carry()
    return sums


def _reach(terms: list[Parts], weights: np.ndarray) -> tuple[int, int]:
    """Limbs that the terms can touch, with room above for what they sum to."""
    low, high = 1 << 20, 0
    for part in terms:
        if len(part.places):
            low = min(low, int(part.places.min()) // BITS)
            high = max(high, int(part.places.max()) // BITS)
    room = 4 if _light(weights) else 6
    return low, high + room


def _light(weights: np.ndarray) -> bool:
    """Whether limbs times these weights, all together, stay far below 2**63."""
    return not len(weights) or float(np.abs(weights.astype(np.float64)).sum()) < _WEIGHTS_SAFE


def _add(sums: Limbs, part: Parts, numbers: np.ndarray, weights: np.ndarray) -> None:
    sign = np.where(part.negative, -1, 1)
    if _light(weights):
        _scatter(sums, part.digits, part.places, numbers, sign * weights)
        return
    # Heavy weights by their bytes: the absolute value of the lowest long fits an unsigned one.
    sizes = np.where(weights < 0, -weights, weights).view(np.uint64)
    sign = np.where(weights < 0, -sign, sign)
    for byte in range(8):
        digit = ((sizes >> np.uint64(8 * byte)) & np.uint64(0xFF)).astype(np.int64)
        rows = np.flatnonzero(digit)
        if len(rows):
            _scatter(
                sums,
                part.digits[rows],
                part.places[rows] + 8 * byte,
                numbers[rows],
                sign[rows] * digit[rows],
            )


def _scatter(
    sums: Limbs, digits: np.ndarray, places: np.ndarray, numbers: np.ndarray, factor: np.ndarray
) -> None:
    """Add digits * 2**places * factor to the limbs of their groups."""
    shift = places & (BITS - 1)
    low = (digits & _MASK) << shift
    rest = ((digits >> BITS) << shift) + (low >> BITS)
    count = sums.count
    index = ((places >> 5) - sums.base) * count + numbers
    flat = sums.cells.T.reshape(-1)
    np.add.at(flat, index, (low & _MASK) * factor)
    np.add.at(flat, index + count, (rest & _MASK) * factor)
    np.add.at(flat, index + 2 * count, (rest >> BITS) * factor)


@dataclass(frozen=True)
class Scaled:
    """Numbers as `value` (below 2**64) times 2**`exponent`, far beyond the reach of doubles.

    rest: what the rounding of `value` has left out, in the same unit.
    """

    value: np.ndarray
    exponent: np.ndarray
    rest: np.ndarray | float = 0.0

    def doubles(self) -> np.ndarray:
        """As doubles; too large ones are infinite."""
        with np.errstate(over="ignore"):
            made: np.ndarray = np.ldexp(self.value, self.exponent.astype(np.int32))
        return made

    def over(self, n: np.ndarray) -> np.ndarray:
        """Divided by whole numbers, as doubles, by less than one unit in the last place off.

        Divided before it is scaled: a sum beyond all doubles may have a mean among them.
        """
        divisor = n.astype(np.float64)
        beyond = (n - divisor.astype(np.int64)).astype(np.float64)  # of counts above 2**53
        quotient = self.value / divisor
        product, error = _product(quotient, divisor)
        left = (self.value - product) - error + self.rest - quotient * beyond
        made: np.ndarray = np.ldexp(quotient + left / divisor, self.exponent.astype(np.int32))
        return made


_SPLIT = float(2**27 + 1)


def _product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product of doubles, and exactly what its rounding has left out."""
    product = a * b
    high_a, high_b = a * _SPLIT, b * _SPLIT
    high_a, high_b = high_a - (high_a - a), high_b - (high_b - b)
    low_a, low_b = a - high_a, b - high_b
    error = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    return product, error


def rounded(sums: Limbs, unit: int = UNIT) -> Scaled:
    """Each sum with 53 bits, to the nearest, ties to even; `sums` are carried."""
    negative = sums.cells[:, -1] < 0
    sums = sums.negated(negative)
    cells = sums.cells
    low, high = sums.ends()
    rows = np.arange(len(cells))
    first, second, third = (
        np.where(high >= n, cells[rows, np.maximum(high - n, 0)], 0).astype(np.uint64)
        for n in range(3)
    )
    spare = (BITS - np.frexp(first.astype(np.float64))[1]).astype(np.uint64)
    spare = np.where(first > 0, spare, np.uint64(0))
    whole = ((first << np.uint64(BITS)) | second) << spare
    # What does not fit into 64 bits only matters as more than nothing.
    whole |= third >> (np.uint64(BITS) - spare)
    dropped = ((third << spare) & np.uint64(_MASK)) != 0
    dropped |= low <= high - 3
    whole |= dropped.astype(np.uint64)
    value = whole.astype(np.float64)
    # Where the rounding reached 2**64, the difference to it wraps around to what it is.
    reached = np.where(value < 2.0**64, value, 0.0).astype(np.uint64)
    rest = (whole - reached).astype(np.int64).astype(np.float64)
    exponent = BITS * (sums.base + high - 1) - spare.astype(np.int64) + unit
    sign = np.where(negative, -1.0, 1.0)
    return Scaled(value * sign, exponent, rest * sign)


@dataclass(frozen=True)
class GivenValues:
    """The values of a batch: which are given, which are finite, and the finite ones."""

    weights: np.ndarray
    given: np.ndarray
    finite: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, batch: Batch, name: str) -> GivenValues:
        """One input column."""
        column = batch.rows.column(name)
        given = column.is_valid().to_numpy(zero_copy_only=False)
        values = batch.numpy(name)
        finite = given & np.isfinite(values)
        return cls(batch.weights, given, finite, values)

    def counted(self, which: np.ndarray) -> np.ndarray:
        """The weights of some rows, zero for the others."""
        return np.where(which, self.weights, 0)


def blocks_of(batch: Batch, given: GivenValues) -> list[tuple[slice, np.ndarray]]:
    """Groups in blocks, each with its rows that have a finite value."""
    order, starts = batch.groups.order, batch.groups.starts
    found = []
    for begin in range(0, batch.count, BLOCK):
        end = min(begin + BLOCK, batch.count)
        last = len(order) if end == batch.count else starts[end]
        rows = order[starts[begin] : last]
        found.append((slice(begin, end), rows[given.finite[rows]]))
    return found


def batch_sums(
    batch: Batch,
    given: GivenValues,
    block: tuple[slice, np.ndarray],
    old: Any,
    found: np.ndarray,
    terms: Callable[[Parts], list[Parts]],
) -> Limbs:
    """The stored sums of a block of groups, and what the batch adds to them."""
    groups, rows = block
    stored = old.slice(groups.start, groups.stop - groups.start)
    parts = terms(parts_of(given.values[rows]))
    numbers = batch.numbers[rows] - groups.start
    return summed(stored, found[groups], parts, numbers, given.weights[rows])


def unchanged(parts: Parts) -> list[Parts]:
    """The values themselves."""
    return [parts]
