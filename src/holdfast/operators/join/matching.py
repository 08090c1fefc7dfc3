"""Which rows of two sides belong together: by group, and by group and time. Whole arrays only.

Invariants:
- A row of the one side meets one contiguous range of the ordered rows of the other side, so that
  matches are counted by differences of running sums, without making a single pair.
- Pairs are made only where one of both rows has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.state.arrow.batches import group_rows, number_order


@dataclass(frozen=True, slots=True)
class Entries:
    """Rows of one side: their group, their columns, the weight before and the change of it."""

    group: np.ndarray
    values: list[Any]
    old: np.ndarray
    delta: np.ndarray

    def __len__(self) -> int:
        """How many rows."""
        return len(self.group)

    @property
    def new(self) -> np.ndarray:
        """The weights after the change."""
        after: np.ndarray = self.old + self.delta
        return after

    def take(self, index: np.ndarray) -> Entries:
        """Some of them."""
        picks = pa.array(index)
        values = [column.take(picks) for column in self.values]
        return Entries(self.group[index], values, self.old[index], self.delta[index])

    def joined(self, other: Entries) -> Entries:
        """These and those."""
        if not len(other):
            return self
        if not len(self):
            return other
        return Entries(
            np.concatenate([self.group, other.group]),
            [pa.concat_arrays([a, b]) for a, b in zip(self.values, other.values, strict=True)],
            np.concatenate([self.old, other.old]),
            np.concatenate([self.delta, other.delta]),
        )

    def merged(self) -> Entries:
        """Equal rows as one, so that what cancels out is not shown; rows of weight 0 are gone."""
        if not len(self):
            return self
        groups = group_rows(self.group, self.values)
        old, delta = groups.sums(self.old), groups.sums(self.delta)
        kept = np.flatnonzero((old != 0) | (delta != 0))
        whole = self.take(groups.first()[kept])
        return Entries(whole.group, whole.values, old[kept], delta[kept])


def multiplied(left: Entries, right: Entries, mine: np.ndarray, yours: np.ndarray) -> np.ndarray:
    """How often each pair comes or goes; more often than a long can say is an error."""
    a, b = left.delta[mine], right.new[yours]
    c, d = left.old[mine], right.delta[yours]
    weights: np.ndarray = a * b + c * d
    reach = _largest(a) * _largest(b) + _largest(c) * _largest(d)
    if reach >= 2.0**62:
        rough = a.astype(np.float64) * b + c.astype(np.float64) * d
        if (np.abs(weights.astype(np.float64) - rough) > 2.0**62).any():
            raise InvalidInputError(
                "a pair of rows is there more often than a long can say",
                kind="weight_overflow",
                cause="weight_overflow",
                remedy="weights of both sides are multiplied: use smaller ones",
            )
    return weights


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values.astype(np.float64)).max()) if len(values) else 0.0


@dataclass(frozen=True, slots=True)
class Reach:
    """From where to where rows of the other side may lie, relative to a row's own time."""

    below_us: int
    above_us: int


@dataclass(frozen=True, slots=True)
class Ranges:
    """Row i meets `order[low[i]]` to before `order[high[i]]` of the other side."""

    order: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """The sum of the weights that each row meets."""
        running = np.concatenate(([0], np.cumsum(weights[self.order])))
        total: np.ndarray = running[self.high] - running[self.low]
        return total

    def pairs(self, most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Every row with every row that it meets, as two arrays of row numbers.

        most: so many pairs at a time.
        """
        counts = self.high - self.low
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        for start in range(0, total, most):
            stop = min(start + most, total)
            first = int(np.searchsorted(ends, start, side="right"))
            last = int(np.searchsorted(ends, stop, side="left")) + 1
            begins = ends[first:last] - counts[first:last]
            some = np.minimum(ends[first:last], stop) - np.maximum(begins, start)
            mine = np.repeat(np.arange(first, last), some)
            shift = np.repeat(self.low[first:last] - begins, some)
            yield mine, self.order[np.arange(start, stop) + shift]


def by_group(group: np.ndarray, other: np.ndarray, count: int) -> Ranges:
    """Rows meet all rows of their group."""
    order = number_order(other)
    starts = np.concatenate(([0], np.cumsum(np.bincount(other, minlength=count))))
    return Ranges(order, starts[group], starts[group + 1])


def by_time(
    group: np.ndarray, times: np.ndarray, other: np.ndarray, other_times: np.ndarray, reach: Reach
) -> Ranges:
    """Rows meet those of their group whose time lies within reach.

    Times become ranks first: group and rank then fit into one number, whatever the times are.
    """
    ranks, rank = np.unique(other_times, return_inverse=True)
    width = len(ranks) + 1
    place = other * width + rank
    order = np.argsort(place, kind="stable")
    ordered = place[order]
    first = np.searchsorted(ranks, times - reach.below_us, side="left")
    last = np.searchsorted(ranks, times + reach.above_us, side="right")
    low = np.searchsorted(ordered, group * width + first, side="left")
    high = np.searchsorted(ordered, group * width + last, side="left")
    return Ranges(order, low, np.maximum(low, high))
