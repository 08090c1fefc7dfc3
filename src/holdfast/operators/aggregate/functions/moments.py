"""The spread of values from their exact sum and the exact sum of their squares.

n * sum(x * x) - sum(x) ** 2 loses most of its digits where values lie close together, which is why
nobody computes a variance that way in doubles. In whole numbers it loses none.

Invariants:
- The difference is exact; it is rounded once. No value is squared in floating point.
- Groups whose sums have few limbs, which is nearly all of them, are computed as whole columns;
  for the others Python's integers do the same.
"""

from __future__ import annotations

import numpy as np

from holdfast.operators.aggregate.functions.exact import BITS, SQUARE_UNIT, Limbs, Scaled, rounded

_MASK = np.uint64((1 << BITS) - 1)
_LIMBS_MAX = 7


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
    n: np.ndarray, sums: Limbs, squares: Limbs, groups: np.ndarray, start: np.ndarray,
    counts: tuple[int, int],
) -> Scaled:  # fmt: skip
    one = _gathered(sums, groups, start, counts[0])
    two = _gathered(squares, groups, 2 * start, counts[1])
    made = np.zeros((max(2 * counts[0], counts[1] + 2) + 1, len(groups)), np.int64)

    def add(place: int, product: np.ndarray, factor: int) -> None:
        made[place] += factor * (product & _MASK).view(np.int64)
        made[place + 1] += factor * (product >> np.uint64(BITS)).view(np.int64)

    for i, left in enumerate(one):
        for j in range(i, len(one)):
            add(i + j, left * one[j], -1 if i == j else -2)
    count = n.astype(np.uint64)
    halves = [count & _MASK, count >> np.uint64(BITS)]
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
