"""How many tasks an operator gets in an epoch: few for few rows, all partitions for many.

State is cut by vnodes, and a task of any width reads the runs of any other. So the number of tasks
is free in every epoch. A task costs as much as thousands of rows; a task too few costs a core.

Invariants:
- The configured number of partitions is the most; the least is one.
- Counts come from one chain in which each divides the next, so that the ranges of vnodes nest: a
  run of a small epoch never crosses the border between two runs of a larger one halfway. There are
  at most nine of them, so that plans and functions stay cached.
- What is not known is taken to be large. The choice changes no result.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.connectors.base import Split

ROWS_PER_TASK = 25_000
"""Rows whose work is about that of starting a task and reporting its end."""
ROWS_PER_TASK_MAX = 250_000
"""Rows that a task takes before there are more tasks than cores."""
ROWS_PER_RUN = 100
"""Rows whose work is about that of looking into one more open run."""
BYTES_PER_ROW = 4
"""Of a source that nobody has read yet: packed columns, so that the guess is not too low."""
_EPOCHS_KEPT = 8


def task_counts(partitions: int) -> tuple[int, ...]:
    """The numbers of tasks to choose from, ascending; each divides the next.

    Example:
        >>> task_counts(12), task_counts(7), task_counts(256)[-3:]
        ((1, 2, 4, 12), (1, 7), (64, 128, 256))
    """
    counts = [1]
    while counts[-1] < partitions:
        rest = partitions // counts[-1]
        counts.append(counts[-1] * next(n for n in range(2, rest + 1) if rest % n == 0))
    return tuple(counts)


@dataclass
class OperatorHistory:
    """What an operator did in the last epochs, for each row that its sources gave."""

    rows_per_source_row: deque[float] = field(default_factory=lambda: deque(maxlen=_EPOCHS_KEPT))
    rows: deque[int] = field(default_factory=lambda: deque(maxlen=_EPOCHS_KEPT))


class TaskCountPolicy:
    """Chooses from what the splits promise and what the last epochs brought."""

    def __init__(self, partitions: int, cores: Callable[[], int]) -> None:
        """Nothing was seen yet. cores: how many tasks run at a time, asked when it matters."""
        self.counts, self._cores = task_counts(partitions), cores
        self._seen: dict[str, OperatorHistory] = {}
        self._bytes_per_row: dict[str, float] = {}

    def expected(self, split: Split) -> float:
        """About how many rows a split has."""
        if split.rows is not None:
            return split.rows
        return split.bytes / self._bytes_per_row.get(split.source, BYTES_PER_ROW)

    def note(
        self,
        splits: Mapping[str, Split],
        rows: Mapping[str, int],
        sources: Mapping[str, frozenset[str]],
        totals: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Learn from an epoch.

        Args:
            splits: what was read, by source.
            rows: how many rows that was, by source.
            sources: the sources that an operator's rows come from, by operator.
            totals: the counters that the operator's tasks report, by operator.
        """
        for name, split in splits.items():
            if split.rows is None and rows.get(name, 0) > 0 and split.bytes > 0:
                self._bytes_per_row[name] = split.bytes / rows[name]
        for name, counters in totals.items():
            if name not in sources:
                continue
            seen = self._seen.setdefault(name, OperatorHistory())
            work = counters.get("rows", 0) + counters.get("changes", 0)
            given = sum(rows.get(source, 0) for source in sources[name])
            seen.rows.append(work)
            if given:
                seen.rows_per_source_row.append(work / given)

    def choose(self, name: str, rows: float, runs: int, *, timed: bool) -> int:
        """The number of tasks of one operator.

        Args:
            name: of the operator.
            rows: what its sources are expected to give in this epoch.
            runs: how many runs its traces have.
            timed: whether it also works without rows; what becomes due came in some epoch before.
        """
        seen = self._seen.get(name, OperatorHistory())
        work = rows * max(seen.rows_per_source_row, default=1.0)
        if timed:
            work = max(work, *seen.rows, 0)
        work += runs * ROWS_PER_RUN
        wanted = math.ceil(work / ROWS_PER_TASK)
        if wanted > 1:
            wanted = min(wanted, max(self._cores(), math.ceil(work / ROWS_PER_TASK_MAX)))
        return next((count for count in self.counts if count >= wanted), self.counts[-1])
