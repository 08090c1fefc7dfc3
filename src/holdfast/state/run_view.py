"""A slice of an open run: what one partition sees of it, found by binary search.

Invariants:
- A view never shows a row outside its vnodes.
- `find` makes one pass over all probes for each record batch, and skips batches without probes.
- Windows end between hashes, never between rows of one hash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.state.arrow.interpolation_search import lower_bound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from holdfast.state.run_info import VnodeRange
    from holdfast.state.run_reader import RunFile

PAIRS_MAX = 1 << 20


class RunView:
    """The rows of one run inside a range of vnodes."""

    def __init__(self, run: RunFile, vnodes: VnodeRange) -> None:
        """See only these vnodes of the run."""
        self.run = run
        self.low = max(vnodes.hash_low, run.info.hash_min)
        self.high = min(vnodes.hash_high, run.info.hash_max)

    @property
    def empty(self) -> bool:
        """Whether the run certainly has no row here."""
        return self.low > self.high or not self.run.rows

    def find(self, probes: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Where sorted probe hashes occur: (batch, positions of probes, rows in that batch).

        Every probe is paired with every row of its hash. One answer holds about `PAIRS_MAX`
        pairs at most, unless one single probe has more.
        """
        begin = int(np.searchsorted(probes, np.uint64(self.low), side="left"))
        end = int(np.searchsorted(probes, np.uint64(self.high), side="right"))
        if self.empty or begin >= end:
            return
        run = self.run
        starts = np.searchsorted(probes[begin:end], run.hash_mins, side="left") + begin
        ends = np.searchsorted(probes[begin:end], run.hash_maxs, side="right") + begin
        for number in np.flatnonzero(starts < ends).tolist():
            inside = probes[starts[number] : ends[number]]
            yield from self._find_in(number, int(starts[number]), inside)

    def _find_in(
        self, number: int, offset: int, probes: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        hashes = self.run.hashes(number)
        left = lower_bound(hashes, probes)
        hit = np.flatnonzero(hashes[np.minimum(left, len(hashes) - 1)] == probes)
        if not len(hit):
            return
        if self.run.hashes_distinct:
            yield number, hit + offset, left[hit]
            return
        counts = np.searchsorted(hashes, probes[hit], side="right") - left[hit]
        for piece in _pieces(counts):
            some = hit[piece]
            many = counts[piece]
            before = np.concatenate(([0], np.cumsum(many)[:-1]))
            within = np.arange(int(many.sum())) - np.repeat(before, many)
            yield number, np.repeat(some + offset, many), np.repeat(left[some], many) + within

    def row_range(self, low: int, high: int) -> tuple[int, int]:
        """The rows whose hashes lie in low..high (inclusive) and in this view."""
        low, high = max(low, self.low), min(high, self.high)
        if low > high:
            return 0, 0
        return self._rank(low, "left"), self._rank(high, "right")

    def _rank(self, value: int, side: Any) -> int:
        """How many rows of the run come before the value."""
        run, key = self.run, np.uint64(value)
        number = int(np.searchsorted(run.hash_maxs, key, side=side))
        if number >= run.batch_count:
            return run.rows
        if key < run.hash_mins[number]:  # between two batches: no row has to be looked at
            return int(run.batch_starts[number])
        return int(run.batch_starts[number]) + int(
            np.searchsorted(run.hashes(number), key, side=side)
        )

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The rows from start to before stop as slices of record batches."""
        starts = self.run.batch_starts
        number = int(np.searchsorted(starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(starts[number + 1]))
            if end > start:
                yield self.run.batch(number).slice(start - int(starts[number]), end - start)
            start, number = end, number + 1

    def sample(self, step: int) -> np.ndarray:
        """The hash of every step-th row of the view."""
        start, stop = self.row_range(self.low, self.high)
        rows = np.arange(start + step - 1, stop, step)
        numbers = np.searchsorted(self.run.batch_starts, rows, side="right") - 1
        samples = [
            self.run.hashes(int(n))[rows[numbers == n] - self.run.batch_starts[n]]
            for n in np.unique(numbers)
        ]
        return np.concatenate(samples) if samples else np.zeros(0, np.uint64)


def _pieces(counts: np.ndarray) -> Iterator[slice]:
    """Slices of probes that have at most about `PAIRS_MAX` pairs together."""
    totals = np.cumsum(counts)
    start = 0
    while start < len(counts):
        before = int(totals[start - 1]) if start else 0
        stop = int(np.searchsorted(totals, before + PAIRS_MAX, side="right"))
        stop = max(stop, start + 1)
        yield slice(start, stop)
        start = stop


def windows(views: Sequence[RunView], low: int, high: int, rows_max: int) -> list[tuple[int, int]]:
    """Hash ranges (inclusive) that together cover low..high, each of about `rows_max` rows."""
    step = max(1, rows_max // (2 * max(1, len(views))))
    samples = np.sort(np.concatenate([view.sample(step) for view in views] or [np.zeros(0)]))
    each = max(1, rows_max // (2 * step))
    cuts = np.unique(samples[each - 1 :: each].astype(np.uint64)) if len(samples) else samples
    bounds: list[tuple[int, int]] = []
    for cut in cuts.tolist():
        if low <= cut < high:
            bounds.append((low, int(cut)))
            low = int(cut) + 1
    return [*bounds, (low, high)]
