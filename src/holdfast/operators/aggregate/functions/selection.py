"""The values at some ranks of very many, without having them all in memory.

A value is found by its bits, sixteen at a time: how many values begin with each of them is counted,
and the one that the rank falls into is looked at closer. So four passes over the values find any
number of ranks, in memory for one batch.

Invariants:
- Weights are added up, whatever their signs: a value that came and went is not there.
- The order is that of Spark: NaN is larger than every number; -0.0 is 0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

Values = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]
"""Gives batches of doubles and their weights, the same ones each time."""

_DIGIT = 16
_SIGN = np.uint64(1 << 63)


def total(values: Values) -> int:
    """How many values there are."""
    return sum(int(weights.sum()) for _, weights in values())


def at_ranks(values: Values, ranks: np.ndarray) -> np.ndarray:
    """The values at these ranks, counted from zero, among the sorted values."""
    prefixes = np.zeros(len(ranks), np.uint64)
    rest = ranks.astype(np.int64)
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        wanted, place = np.unique(prefixes, return_inverse=True)
        counts = np.zeros((len(wanted), 1 << _DIGIT), np.int64)
        for batch, weights in values():
            codes = ordered(batch)
            digits = (codes >> np.uint64(shift)) & np.uint64((1 << _DIGIT) - 1)
            above = shift + _DIGIT
            heads = codes >> np.uint64(above) if above < 64 else np.zeros(len(codes), np.uint64)
            for number, head in enumerate(wanted):
                mine = heads == head
                np.add.at(counts[number], digits[mine].astype(np.int64), weights[mine])
        ends = np.cumsum(counts, axis=1)
        for number, row in enumerate(place):
            digit = int(np.searchsorted(ends[row], rest[number], side="right"))
            rest[number] -= ends[row][digit - 1] if digit else 0
            prefixes[number] = (prefixes[number] << np.uint64(_DIGIT)) | np.uint64(digit)
    return doubles(prefixes)


def ordered(values: np.ndarray) -> np.ndarray:
    """Doubles as integers of the same order."""
    plain = np.where(np.isnan(values), np.nan, values + 0.0)
    bits = plain.view(np.uint64)
    codes: np.ndarray = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return codes


def doubles(codes: np.ndarray) -> np.ndarray:
    """The reverse of `ordered`."""
    bits = np.where(codes & _SIGN, codes & ~_SIGN, ~codes)
    return bits.view(np.float64)
