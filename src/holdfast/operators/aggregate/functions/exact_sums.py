"""sum, avg, stddev and variance of doubles whose rows can be retracted.

Invariants:
- What shows depends on the rows that are there alone, not on those that came and went: a sum is the
  double nearest to the exact sum, a mean is off by one unit in the last place at most, a variance
  or a deviation by four.
- NaN and infinities are counted, so that they too can be retracted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.operators.aggregate.functions.base import Batch, Fold
from holdfast.operators.aggregate.functions.exact import (
    STORED,
    Limbs,
    Parts,
    parts_of,
    rounded,
    squares_of,
    stored_form,
    summed,
)
from holdfast.operators.aggregate.functions.moments import divided, spread

BLOCK = 1 << 15
"""Groups whose limbs are in memory at once: one of a wide range makes all of its block wide."""
Terms = Callable[[Parts], list[Parts]]


@dataclass(frozen=True)
class _Input:
    """The values of a batch: which are given, which are finite, and the finite ones."""

    weights: np.ndarray
    given: np.ndarray
    finite: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, batch: Batch, name: str) -> _Input:
        """One input column."""
        column = batch.rows.column(name)
        given = column.is_valid().to_numpy(zero_copy_only=False)
        values = batch.numpy(name)
        finite = given & np.isfinite(values)
        return cls(batch.weights, given, finite, values)

    def counted(self, which: np.ndarray) -> np.ndarray:
        """The weights of some rows, zero for the others."""
        return np.where(which, self.weights, 0)


def _blocks(batch: Batch, given: _Input) -> list[tuple[slice, np.ndarray]]:
    """Groups in blocks, each with its rows that have a finite value."""
    order, starts = batch.groups.order, batch.groups.starts
    found = []
    for begin in range(0, batch.count, BLOCK):
        end = min(begin + BLOCK, batch.count)
        last = len(order) if end == batch.count else starts[end]
        rows = order[starts[begin] : last]
        found.append((slice(begin, end), rows[given.finite[rows]]))
    return found


def _sums(
    batch: Batch,
    given: _Input,
    block: tuple[slice, np.ndarray],
    old: Any,
    found: np.ndarray,
    terms: Terms,
) -> Limbs:
    groups, rows = block
    stored = old.slice(groups.start, groups.stop - groups.start)
    parts = terms(parts_of(given.values[rows]))
    numbers = batch.numbers[rows] - groups.start
    return summed(stored, found[groups], parts, numbers, given.weights[rows])


def _plain(parts: Parts) -> list[Parts]:
    return [parts]


@dataclass(frozen=True)
class ExactSumFold(Fold):
    """sum(x) and avg(x): the input is x."""

    mean: bool = False

    @property
    def helpers(self) -> list[Any]:
        """Count of values, the exact sum of the finite ones, and how many are not finite."""
        counts = [pa.field(f"_{self.name}_{n}", pa.int64()) for n in ("n", "nan", "inf", "ninf")]
        return [*counts, pa.field(f"_{self.name}_exact", STORED)]

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Old sum and what came."""
        given = _Input.of(batch, self.inputs[0])
        infinite = given.given & np.isinf(given.values)
        marks = {
            "n": given.given,
            "nan": given.given & np.isnan(given.values),
            "inf": infinite & (given.values > 0),
            "ninf": infinite & (given.values < 0),
        }
        counts = {
            name: batch.added(
                given.counted(mark), self._old(old, f"_{self.name}_{name}", found), self.name
            )
            for name, mark in marks.items()
        }
        kept, shown = [], []
        for block in _blocks(batch, given):
            sums = _sums(batch, given, block, old[f"_{self.name}_exact"], found, _plain)
            kept.append(stored_form(sums))
            shown.append(self._shown(sums, counts["n"][block[0]]))
        n, nan, inf, ninf = counts.values()
        value = np.concatenate(shown)
        value = np.where(inf > 0, np.inf, np.where(ninf > 0, -np.inf, value))
        value = np.where((nan > 0) | ((inf > 0) & (ninf > 0)), np.nan, value)
        after = {f"_{self.name}_{name}": pa.array(count) for name, count in counts.items()}
        after[f"_{self.name}_exact"] = pa.concat_arrays(kept)
        return {**after, self.name: pa.array(value, mask=n == 0)}

    def _shown(self, sums: Limbs, n: np.ndarray) -> np.ndarray:
        total = rounded(sums)
        if not self.mean:
            return total.doubles()
        return total.over(np.where(n == 0, 1, n))


@dataclass(frozen=True)
class ExactSpreadFold(Fold):
    """stddev(x) and variance(x): the input is x."""

    root: bool = True
    population: bool = False

    @property
    def helpers(self) -> list[Any]:
        """Count of finite values, of others, and the exact sums of values and squares."""
        counts = [pa.field(f"_{self.name}_{n}", pa.int64()) for n in ("n", "odd")]
        return [*counts, *(pa.field(f"_{self.name}_{n}", STORED) for n in ("exact", "squares"))]

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Old sums and what came."""
        given = _Input.of(batch, self.inputs[0])
        n, odd = (
            batch.added(
                given.counted(mark), self._old(old, f"_{self.name}_{part}", found), self.name
            )
            for part, mark in (("n", given.finite), ("odd", given.given & ~given.finite))
        )
        kept: dict[str, list[Any]] = {"exact": [], "squares": []}
        shown = []
        for block in _blocks(batch, given):
            sums, squares = (
                _sums(batch, given, block, old[f"_{self.name}_{part}"], found, terms)
                for part, terms in (("exact", _plain), ("squares", squares_of))
            )
            kept["exact"].append(stored_form(sums))
            kept["squares"].append(stored_form(squares))
            count = n[block[0]]
            by = count.astype(np.float64) * (count if self.population else count - 1)
            shown.append(divided(spread(count, sums, squares), by, root=self.root))
        value = np.where(odd > 0, np.nan, np.concatenate(shown))
        empty = (n + odd) < (1 if self.population else 2)
        after = {f"_{self.name}_n": pa.array(n), f"_{self.name}_odd": pa.array(odd)}
        after |= {f"_{self.name}_{part}": pa.concat_arrays(pieces) for part, pieces in kept.items()}
        return {**after, self.name: pa.array(value, mask=empty)}
