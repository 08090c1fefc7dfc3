"""stddev and variance: by merging central moments, or from exact sums where rows are retracted.

n * sum(x * x) - sum(x) ** 2 loses most of its digits where values lie close together, which is why
nobody computes a variance that way in doubles. In whole numbers it loses none.

Invariants:
- Under retraction the difference is exact; it is rounded once. No value is squared in floating
  point, and what shows is off by four units in the last place at most.
- Groups whose sums have few limbs, which is nearly all of them, are computed as whole columns;
  for the others Python's integers do the same.
- NaN and infinities are counted, so that they too can be retracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.operators.aggregate.functions.base import Batch, Fold
from holdfast.operators.aggregate.functions.exact import (
    BITS,
    SQUARE_UNIT,
    STORED,
    GivenValues,
    Limbs,
    Scaled,
    batch_sums,
    blocks_of,
    rounded,
    squares_of,
    stored_form,
    unchanged,
)

_LIMB = np.uint64((1 << BITS) - 1)
_LIMBS_MAX = 7


@dataclass(frozen=True)
class VarianceFold(Fold):
    """stddev(x) and variance(x) of rows that are never retracted, by merging central moments."""

    root: bool = True
    population: bool = False

    @property
    def helpers(self) -> list[pa.Field[Any]]:
        """Count, mean, sum of squared distances from it, and values that are not finite."""
        kinds = {"n": pa.int64(), "mean": pa.float64(), "m2": pa.float64(), "odd": pa.int64()}
        return [pa.field(f"_{self.name}_{n}", kind) for n, kind in kinds.items()]

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Moments after adding what came."""
        values = batch.numpy(self.inputs[0], fill=np.nan).astype(np.float64)
        given = ~batch.rows.column(self.inputs[0]).is_null().to_numpy(zero_copy_only=False)
        finite = np.isfinite(values)
        strange = np.where(given & ~finite, batch.weights, 0)
        odd = self._old(old, f"_{self.name}_odd", found) + batch.sum_numbers(strange)
        before = tuple(self._old(old, f"_{self.name}_{n}", found) for n in ("n", "mean", "m2"))
        weights = np.where(finite, batch.weights, 0)
        n, mean, m2 = _merged(before, _moments(batch, np.where(finite, values, 0.0), weights))
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = m2 / (n if self.population else n - 1)
            shown = np.sqrt(spread) if self.root else spread
        shown = np.where(odd > 0, np.nan, shown)
        total = n + odd
        empty = (total < 1) if self.population else (total < 2)
        after = {"n": n, "mean": mean, "m2": m2, "odd": odd}
        named = {f"_{self.name}_{key}": pa.array(value) for key, value in after.items()}
        return {self.name: pa.array(shown, mask=empty), **named}


Moments = tuple[np.ndarray, ...]


def _moments(batch: Batch, values: np.ndarray, weights: np.ndarray) -> Moments:
    n = batch.sum_numbers(weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(n > 0, batch.sum_numbers(values * weights) / n, 0.0)
    distance = values - mean[batch.numbers]
    return n, mean, batch.sum_numbers(weights * distance * distance)


def _merged(state: Moments, other: Moments) -> Moments:
    """Moments of a group with another one added to it."""
    n1, mean1, m1 = state
    n2, mean2, m2 = other
    n = n1 + n2
    apart = mean2 - mean1
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(n > 0, (n1 * mean1 + n2 * mean2) / n, 0.0)
        spread = m1 + m2 + np.where(n > 0, apart * apart * n1 * n2 / n, 0.0)
    return n, mean, np.where(n > 1, np.maximum(spread, 0.0), 0.0)


@dataclass(frozen=True)
class ExactVarianceFold(Fold):
    """stddev(x) and variance(x): the input is x."""

    root: bool = True
    population: bool = False

    @property
    def helpers(self) -> list[pa.Field[Any]]:
        """Count of finite values, of others, and the exact sums of values and squares."""
        counts = [pa.field(f"_{self.name}_{n}", pa.int64()) for n in ("n", "odd")]
        return [*counts, *(pa.field(f"_{self.name}_{n}", STORED) for n in ("exact", "squares"))]

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Old sums and what came."""
        given = GivenValues.of(batch, self.inputs[0])
        n, odd = (
            batch.added(
                given.counted(mark), self._old(old, f"_{self.name}_{part}", found), self.name
            )
            for part, mark in (("n", given.finite), ("odd", given.given & ~given.finite))
        )
        kept: dict[str, list[Any]] = {"exact": [], "squares": []}
        shown = []
        for block in blocks_of(batch, given):
            sums, squares = (
                batch_sums(batch, given, block, old[f"_{self.name}_{part}"], found, terms)
                for part, terms in (("exact", unchanged), ("squares", squares_of))
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


def spread(n: np.ndarray, sums: Limbs, squares: Limbs) -> Scaled:
    """N * squares - sums ** 2 for each group, at least zero. Both are carried."""
    plain = sums.negated(sums.cells[:, -1] < 0)
    low, high = _ends(plain)
    low2, high2 = _ends(squares)
    # The sums' limbs are counted from `start`, the squares' from twice that: so the products of
    # all groups fall into the same columns.
    start = np.minimum(low, low2 >> 1)
    easy = (high - start < _LIMBS_MAX) & (high2 - 2 * start < 2 * _LIMBS_MAX)
    easy &= (squares.cells[:, -1] == 0) & (n > 0)
    value, exponent = np.zeros(len(n)), np.zeros(len(n), np.int64)
    groups = np.flatnonzero(easy)
    if len(groups):
        counts = int((high - start)[groups].max()) + 1, int((high2 - 2 * start)[groups].max()) + 1
        made = _columns(n[groups], plain, squares, groups, start[groups], counts)
        value[groups], exponent[groups] = made.value, made.exponent + 2 * BITS * start[groups]
    for group in np.flatnonzero(~easy & (n > 0)).tolist():
        one, two = _integer(plain, group), _integer(squares, group)
        value[group], exponent[group] = _scaled(int(n[group]) * two - one * one)
    return Scaled(np.maximum(value, 0.0), exponent)


def _ends(sums: Limbs) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the lowest and highest limb of each group; zero has limb 0 of the base."""
    low, high = sums.ends()
    return sums.base + low, sums.base + high


def _columns(
    n: np.ndarray,
    sums: Limbs,
    squares: Limbs,
    groups: np.ndarray,
    start: np.ndarray,
    counts: tuple[int, int],
) -> Scaled:
    one = _gathered(sums, groups, start, counts[0])
    two = _gathered(squares, groups, 2 * start, counts[1])
    made = np.zeros((max(2 * counts[0], counts[1] + 2) + 1, len(groups)), np.int64)

    def add(place: int, product: np.ndarray, factor: int) -> None:
        made[place] += factor * (product & _LIMB).view(np.int64)
        made[place + 1] += factor * (product >> np.uint64(BITS)).view(np.int64)

    for i, left in enumerate(one):
        for j in range(i, len(one)):
            add(i + j, left * one[j], -1 if i == j else -2)
    count = n.astype(np.uint64)
    halves = [count & _LIMB, count >> np.uint64(BITS)]
    for j, limb in enumerate(two):
        for k, half in enumerate(halves):
            if k == 0 or half.any():
                add(j + k, limb * half, 1)
    whole = Limbs(made.T, 0)
    whole.carry()
    return rounded(whole, SQUARE_UNIT)


def _gathered(sums: Limbs, groups: np.ndarray, low: np.ndarray, count: int) -> list[np.ndarray]:
    """So many limbs of some groups, from `low` on; zeros where there are none."""
    every = len(groups) == sums.count
    width = sums.cells.shape[1]
    same = every and bool((low == low[0]).all())
    found = []
    for j in range(count):
        if same:
            place = int(low[0]) - sums.base + j
            limb = sums.cells[:, place] if 0 <= place < width else np.zeros(len(groups), np.int64)
        else:
            places = low - sums.base + j
            inside = (places >= 0) & (places < width)
            limb = np.where(inside, sums.cells[groups, np.clip(places, 0, width - 1)], 0)
        found.append(np.ascontiguousarray(limb).view(np.uint64))
    return found


def _integer(sums: Limbs, group: int) -> int:
    """One sum in whole units."""
    total = 0
    for limb in reversed(sums.cells[group].tolist()):
        total = (total << BITS) + limb
    return total << (BITS * sums.base) if sums.base >= 0 else total >> (-BITS * sums.base)


def _scaled(number: int) -> tuple[float, int]:
    """An integer as 64 bits, the last of which stands for all that follow, and an exponent."""
    if number <= 0:
        return 0.0, 0
    shift = max(0, number.bit_length() - 64)
    head = number >> shift
    head |= number != head << shift
    return float(head), shift + SQUARE_UNIT


def divided(spread_of: Scaled, by: np.ndarray, *, root: bool) -> np.ndarray:
    """Spread by a count, or the square root of it, without leaving doubles on the way."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = spread_of.value / by
        exponent = spread_of.exponent
        if root:
            odd = exponent & 1
            quotient = np.sqrt(np.ldexp(quotient, odd.astype(np.int32)))
            exponent = (exponent - odd) // 2
        made: np.ndarray = np.ldexp(quotient, exponent.astype(np.int32))
    return made
