"""What moves from epoch to epoch, and what waits for the next checkpoint.

Invariants:
- A count of rows and keys is exact from the beginning of a trace on, or it is not known: a store of
  format 1 does not say, and nothing is guessed.
- Where rows are forgotten by time, but a partition without rows is not visited, the count is a
  bound: what was forgotten there is not subtracted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.connectors.base import StagedFile
from holdfast.format.documents import Counts
from holdfast.format.manifest import OperatorEntry
from holdfast.ids import CheckpointId
from holdfast.operators.base import OperatorTask
from holdfast.runtime.report import CheckpointState
from holdfast.runtime.task import Control
from holdfast.state import RunIndex, RunInfo, TraceSchema


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

    def declare(self, task: OperatorTask) -> None:
        """Learn which traces of an operator forget where nobody looks."""
        if not task.timed:
            self._bounds.update(task.bounds_us(0))

    def restore(self, entry: OperatorEntry) -> None:
        """Continue from what a checkpoint says."""
        self._known[entry.name] = Count(entry.rows, entry.keys, entry.counts)

    def add(self, changes: Mapping[str, tuple[int, int]]) -> None:
        """Add what one task reports."""
        for trace, (rows, keys) in changes.items():
            before = self._known.get(trace, Count())
            self._known[trace] = before._replace(rows=before.rows + rows, keys=before.keys + keys)

    def of(self, trace: str) -> Count:
        """What a checkpoint says about a trace."""
        known = self._known.get(trace, Count())
        if known.counts == "unknown":
            return Count(0, 0, "unknown")
        return known._replace(counts="bound") if trace in self._bounds else known


@dataclass
class EngineState:
    """Everything that moves from epoch to epoch."""

    runs: dict[str, RunIndex] = field(default_factory=dict)
    counts: LiveCounts = field(default_factory=LiveCounts)
    parent: CheckpointId | None = None
    epoch: int = 0

    @staticmethod
    def bounds(tasks: Iterable[OperatorTask], watermark_us: int | None) -> dict[str, int]:
        """By trace, the event time before which state is forgotten at a watermark."""
        if watermark_us is None:
            return {}
        return {trace: us for task in tasks for trace, us in task.bounds_us(watermark_us).items()}

    def expire(self, bounds_us: Mapping[str, int], schemas: Mapping[str, TraceSchema]) -> None:
        """Runs wholly behind the bound leave the lists unread; nobody will ask for them again."""
        for trace, bound_us in bounds_us.items():
            if trace in self.runs:
                self.runs[trace].expire(bound_us, time_is_key=schemas[trace].time_is_key)

    def lists(self) -> dict[str, list[RunInfo]]:
        """All runs by trace, oldest first."""
        return {trace: index.runs() for trace, index in self.runs.items()}


@dataclass
class PendingCheckpoint:
    """Epochs since the last checkpoint, under one reserved id."""

    checkpoint: CheckpointId
    staged: dict[str, list[StagedFile]] = field(default_factory=dict)
    rows: int = 0
    epochs: int = 0
    state: CheckpointState = field(init=False)

    def __post_init__(self) -> None:
        """Not durable yet."""
        self.state = CheckpointState(self.checkpoint)


@dataclass
class Absorbed:
    """What the tasks of one epoch report, added up."""

    by_operator: dict[str, dict[str, int]] = field(default_factory=dict)
    bytes_new: int = 0

    def total(self, counter: str) -> int:
        """A counter over all operators."""
        return sum(counters.get(counter, 0) for counters in self.by_operator.values())


def absorb(
    controls: Iterable[Control],
    state: EngineState,
    pending: PendingCheckpoint,
    shadow: dict[str, list[RunInfo]],
) -> Absorbed:
    """Put runs, staged files and counts of an epoch's tasks where the next checkpoint finds them.

    Args:
        controls: what the tasks report.
        state: gets the runs, and the counts of rows and keys.
        pending: gets the staged files.
        shadow: gets the runs of operators that only a rebuild runs again; they are not counted.

    Returns:
        Sums of the counters by operator, and bytes of new state.
    """
    absorbed = Absorbed()
    for control in controls:
        for run in control.runs:
            if run.operator in shadow:
                shadow[run.operator].append(run)
            else:
                state.runs[run.operator].add(run)
            absorbed.bytes_new += run.size
        for staged in control.staged:
            pending.staged.setdefault(staged.sink, []).append(staged)
        counters = absorbed.by_operator.setdefault(control.name, {})
        for key, value in control.counters.items():
            counters[key] = counters.get(key, 0) + value
        live = control.counts.items()
        state.counts.add({trace: count for trace, count in live if trace not in shadow})
    return absorbed
