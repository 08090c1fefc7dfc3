"""How many rows and keys every trace holds: what the tasks report, added up over the epochs.

Invariants:
- A count is exact from the beginning of a trace on, or it is not known: a store of format 1 does
  not say, and nothing is guessed.
- Where rows are forgotten by time, but a partition without rows is not visited, the count is a
  bound: what was forgotten there is not subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.format.documents import Counts
from holdfast.format.manifest import OperatorEntry
from holdfast.operators.base import Work


class Count(NamedTuple):
    """Rows and keys of a trace, and what they are."""

    rows: int = 0
    keys: int = 0
    counts: Counts = "live"


class LiveCounts:
    """Counts by trace, along the epochs of one run."""

    def __init__(self) -> None:
        """Nothing was counted, because nothing is there."""
        self._known: dict[str, Count] = {}
        self._bounds: set[str] = set()

    def declare(self, work: Work) -> None:
        """Learn which traces of an operator forget where nobody looks."""
        if not work.timed:
            self._bounds.update(work.bounds_us(0))

    def restore(self, entry: OperatorEntry) -> None:
        """Go on from what a checkpoint says."""
        self._known[entry.name] = Count(entry.rows, entry.keys, entry.counts)

    def add(self, changes: Mapping[str, tuple[int, int]]) -> None:
        """Take in what one task reports."""
        for trace, (rows, keys) in changes.items():
            before = self._known.get(trace, Count())
            self._known[trace] = before._replace(rows=before.rows + rows, keys=before.keys + keys)

    def of(self, trace: str) -> Count:
        """What a checkpoint says about a trace."""
        known = self._known.get(trace, Count())
        if known.counts == "unknown":
            return Count(0, 0, "unknown")
        return known._replace(counts="bound") if trace in self._bounds else known
