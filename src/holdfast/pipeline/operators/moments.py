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

from holdfast.pipeline.operators.exact import BITS, SQUARE_UNIT, Limbs, Scaled, rounded

_MASK = np.uint64((1 << BITS) - 1)
_LIMBS_MAX = 6
_WINDOW = 20


def spread(n: np.ndarray, sums: Limbs, squares: Limbs) -> Scaled:
    """N * squares - sums ** 2 for each group, at least zero. Both are carried."""
    plain = sums.negated(sums.cells[:, -1] < 0)
    low, high = _ends(plain)
    low2, high2 = _ends(squares)
    start = np.minimum(2 * low, low2)
    need = np.maximum(2 * high + 4, high2 + 5) - start
    easy = (high - low < _LIMBS_MAX) & (need <= _WINDOW) & (squares.cells[:, -1] == 0) & (n > 0)
    value, exponent = np.zeros(len(n)), np.zeros(len(n), np.int64)
    groups = np.flatnonzero(easy)
    if len(groups):
        made = _columns(n, plain, squares, groups, (low, high, low2, high2, start))
        value[groups], exponent[groups] = made.value, made.exponent + BITS * start[groups]
    for group in np.flatnonzero(~easy & (n > 0)).tolist():
        one, two = _integer(plain, group), _integer(squares, group)
        value[group], exponent[group] = _scaled(int(n[group]) * two - one * one)
    return Scaled(np.maximum(value, 0.0), exponent)


def _ends(sums: Limbs) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the lowest and highest limb of each group; zero has limb 0 of the base."""
    filled = sums.cells != 0
    width = filled.shape[1]
    low = np.argmax(filled, 1)
    high = np.where(filled.any(1), width - 1 - np.argmax(filled[:, ::-1], 1), low)
    return sums.base + low, sums.base + high


def _columns(
    n: np.ndarray, sums: Limbs, squares: Limbs, groups: np.ndarray, ends: tuple[np.ndarray, ...]
) -> Scaled:
    low, high, low2, high2, start = (end[groups] for end in ends)
    made = np.zeros((len(groups), _WINDOW), np.int64)
    rows = np.arange(len(groups))

    def add(place: np.ndarray, product: np.ndarray, factor: int) -> None:
        made[rows, place] += factor * (product & _MASK).astype(np.int64)
        made[rows, place + 1] += factor * (product >> np.uint64(BITS)).astype(np.int64)

    one = _gathered(sums, groups, low, int((high - low).max()) + 1)
    for i, left in enumerate(one):
        for j in range(i, len(one)):
            add(2 * low - start + i + j, left * one[j], -1 if i == j else -2)
    count = n[groups].astype(np.uint64)
    halves = [count & _MASK, count >> np.uint64(BITS)]
    for j, limb in enumerate(_gathered(squares, groups, low2, int((high2 - low2).max()) + 1)):
        for k, half in enumerate(halves):
            add(low2 - start + j + k, limb * half, 1)
    whole = Limbs(made, 0)
    whole.carry()
    return rounded(whole, SQUARE_UNIT)


def _gathered(sums: Limbs, groups: np.ndarray, low: np.ndarray, count: int) -> list[np.ndarray]:
    """So many limbs of some groups, from their lowest on; zeros behind the highest."""
    found = []
    for j in range(count):
        place = low - sums.base + j
        inside = place < sums.cells.shape[1]
        limb = sums.cells[groups, np.minimum(place, sums.cells.shape[1] - 1)]
        found.append(np.where(inside, limb, 0).astype(np.uint64))
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
