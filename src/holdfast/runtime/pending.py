"""What moves from epoch to epoch, and what waits for the next checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.connectors.base import StagedFile
from holdfast.ids import CheckpointId
from holdfast.runtime.live_counts import LiveCounts
from holdfast.runtime.report import CheckpointState
from holdfast.runtime.task import Control
from holdfast.state import RunInfo, TraceSchema, expired_runs


@dataclass
class EngineState:
    """Everything that moves from epoch to epoch."""

    runs: dict[str, list[RunInfo]] = field(default_factory=dict)
    counts: LiveCounts = field(default_factory=LiveCounts)
    parent: CheckpointId | None = None
    epoch: int = 0

    def expire(self, bounds_us: Mapping[str, int], schemas: Mapping[str, TraceSchema]) -> None:
        """Runs wholly behind the bound leave the lists unread; nobody will ask for them again."""
        for trace, bound_us in bounds_us.items():
            runs = self.runs.get(trace, [])
            expired = set(expired_runs(runs, bound_us, time_is_key=schemas[trace].time_is_key))
            if expired:
                self.runs[trace] = [run for run in runs if run not in expired]


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
            runs = shadow if run.operator in shadow else state.runs
            runs.setdefault(run.operator, []).append(run)
            absorbed.bytes_new += run.size
        for staged in control.staged:
            pending.staged.setdefault(staged.sink, []).append(staged)
        counters = absorbed.by_operator.setdefault(control.name, {})
        for key, value in control.counters.items():
            counters[key] = counters.get(key, 0) + value
        live = control.counts.items()
        state.counts.add({trace: count for trace, count in live if trace not in shadow})
    return absorbed
