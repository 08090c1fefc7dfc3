"""Compacting runs concurrently with epochs, never inside one.

What is due is planned here, from run lists alone, and carried out elsewhere: in a thread of this
process where that costs least, in tasks of a background Spark job otherwise.

Invariants:
- At most two compactions at a time, a short and a long one, so that small runs never wait for
  large ones. They share no epoch of a trace.
- An epoch waits for compactions only before it begins, and only while a partition has more layers
  than the policy allows: short runs of a pipeline, one after the other, must not leave the
  compaction to each other, and a look-up must not become slower for ever.
- A compacted run is durable before it is listed; until then the old runs are.
- A compaction that fails or is cancelled changes nothing but the space it leaves to the next
  clean-up. After a failure the next one is tried some epochs later. What did not fail is listed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import InternalError
from holdfast.ids import CheckpointId, IdSource
from holdfast.runtime.compaction_work import (
    CompactionOutcome,
    CompactionRunner,
    CompactionUnit,
    Running,
)
from holdfast.runtime.task_counts import task_counts
from holdfast.state import (
    CompactionPlan,
    CompactionPolicy,
    RunIndex,
    TraceSchema,
    VnodeRange,
    partition_range,
    plan_trace,
)
from holdfast.state.partition import partition_of

log = logging.getLogger("holdfast.pipeline")
_REST_MAX = 64  # epochs without a try, after failures in a row
_LANES = ("short", "long")
LONG_BYTES = 64 << 20
"""From so many bytes on a compaction is a long one."""


@dataclass
class _Lane:
    """One of the two compactions that may run at a time, and what it works on."""

    running: Running
    plans: dict[str, list[CompactionPlan]]


class Compactor:
    """Keeps the run lists short."""

    def __init__(
        self,
        runner: CompactionRunner,
        partitions: int,
        ids: IdSource,
        reserve: Callable[[], CheckpointId],
        policy: CompactionPolicy | None = None,
    ) -> None:
        """Begin idle. runner: carries out what is planned here."""
        self._runner, self._ids, self._reserve = runner, ids, reserve
        self._counts = task_counts(partitions)
        self._policy = policy or CompactionPolicy()
        self._lanes: dict[str, _Lane] = {}
        self.compactions = 0
        self.error: Exception | None = None
        """The last one, for the summary."""
        self.overdue = 0
        """Partitions that had too many layers when they were last looked at."""
        self._failures = self._rest = 0

    def collect(self, runs: Mapping[str, RunIndex]) -> None:
        """Put finished compactions into their lists."""
        for name in [name for name, lane in self._lanes.items() if lane.running.done]:
            self._take(name, runs)

    def _take(self, name: str, runs: Mapping[str, RunIndex]) -> None:
        """Wait for a compaction and put it into its list. One that failed is tried again later."""
        try:
            outcome = self._lanes[name].running.result()
        except Exception as error:  # noqa: BLE001 - its runs are as good as before
            outcome = CompactionOutcome([], error)
        del self._lanes[name]
        for run in outcome.runs:
            if run.operator in runs:
                runs[run.operator].replace(run)
                self.compactions += 1
        if outcome.error is not None:
            self.error = outcome.error
            self._failures += 1
            self._rest = min(_REST_MAX, 2**self._failures)
            log.warning("a compaction failed and will be tried again: %s", outcome.error)
        elif outcome.runs:
            self._failures = 0

    def look(self, runs: Mapping[str, RunIndex]) -> None:
        """See whether some partition has more layers than it should ever have."""
        over = self._policy.runs_max + 1
        self.overdue = sum(len(index.deepest(over)) for index in runs.values())

    def start(
        self,
        runs: Mapping[str, RunIndex],
        schemas: Mapping[str, TraceSchema],
        parent: CheckpointId,
        bounds_us: Mapping[str, int | None],
    ) -> None:
        """Begin the compactions that are due, as far as none of their kind is running."""
        self.look(runs)
        if self._rest:
            self._rest -= 1
            return
        due = min(self._policy.fanout, self._policy.runs_max)
        planned = {}
        for trace in schemas:
            if len(self._lanes) < len(_LANES) and trace in runs and runs[trace].deepest(due):
                planned[trace] = self._plan(trace, runs[trace])
        for lane in _LANES:
            plans = {t: units for t, units in planned.items() if units and _lane(units) == lane}
            if plans and lane not in self._lanes:
                self._begin(lane, plans, schemas, parent, bounds_us)

    def _plan(self, trace: str, index: RunIndex) -> list[CompactionPlan]:
        busy = [plan for lane in self._lanes.values() for plan in lane.plans.get(trace, ())]
        return plan_trace(index, self._counts, self._policy, busy)

    def catch_up(
        self,
        runs: Mapping[str, RunIndex],
        schemas: Mapping[str, TraceSchema],
        parent: CheckpointId,
        bounds_us: Mapping[str, int | None],
        stop: Callable[[], bool],
    ) -> None:
        """Wait for compactions while a partition has more layers than it should ever have."""
        if self.overdue:
            log.info(
                "compactions are overdue in %d partitions: the epoch waits for them", self.overdue
            )
        while self.overdue and not stop():
            self.start(runs, schemas, parent, bounds_us)
            if not self._lanes:
                return
            self._take(min(self._lanes, key=_LANES.index), runs)
            self.look(runs)
            if self._rest:  # it failed
                return

    def _begin(
        self,
        lane: str,
        plans: dict[str, list[CompactionPlan]],
        schemas: Mapping[str, TraceSchema],
        parent: CheckpointId,
        bounds_us: Mapping[str, int | None],
    ) -> None:
        checkpoint = self._reserve()
        units = [
            CompactionUnit(
                trace=trace,
                plan=plan,
                place=_place(plan.vnodes, self._counts),
                checkpoint=str(checkpoint),
                parent=str(parent),
                bound_us=bounds_us.get(trace),
            )
            for trace, some in plans.items()
            for plan in some
        ]
        used = {trace: schemas[trace] for trace in plans}
        running = self._runner.begin(units, used, self._ids, hurry=self.overdue > 0)
        self._lanes[lane] = _Lane(running, plans)

    def stop(self) -> None:
        """Cancel what is running and wait for it."""
        for lane in self._lanes.values():
            lane.running.cancel()
        for name in [*self._lanes]:
            try:
                self._lanes[name].running.result()
            except Exception as error:  # noqa: BLE001 - reported
                self.error = error
            del self._lanes[name]


def _lane(units: Sequence[CompactionPlan]) -> str:
    return _LANES[sum(unit.bytes_estimate for unit in units) >= LONG_BYTES]


def _place(vnodes: VnodeRange, counts: Sequence[int]) -> tuple[int, int]:
    """Which partition of how many has these vnodes."""
    for count in counts:
        number = partition_of(vnodes.low, count)
        if partition_range(number, count) == vnodes:
            return number, count
    raise InternalError("a compaction is cut like no partition", low=vnodes.low, high=vnodes.high)
