"""Compacting runs concurrently with epochs, never inside one.

Invariants:
- At most one compaction at a time. An epoch waits for compactions only before it begins, and only
  while a partition has more layers than the policy allows: short runs, one after the other, must
  not leave the compaction to each other, and a look-up must not become slower for ever.
- A compacted run is durable before it is listed; until then the old runs are.
- A compaction that fails or is cancelled changes nothing but the space it leaves to the next
  clean-up. After a failure the next one is tried some epochs later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.ids import CheckpointId, Epoch, IdSource
from holdfast.runtime.task import source_of
from holdfast.state import (
    BackgroundCompaction,
    CompactionPlan,
    CompactionPolicy,
    RunInfo,
    RunTarget,
    TraceSchema,
    partition_range,
    plan_compaction,
    replace,
    run_compaction,
)
from holdfast.state.partition import layers, run_slices, runs_by_partition
from holdfast.storage.open import StorageLocation, storage_of

log = logging.getLogger("holdfast.pipeline")
_REST_MAX = 64  # epochs without a try, after failures in a row


@dataclass
class _Running:
    trace: str
    compaction: BackgroundCompaction


@dataclass(frozen=True)
class _Candidate:
    """One partition of one trace, and the runs that it reads."""

    layers: int
    trace: str
    partition: int
    runs: list[RunInfo]


@dataclass(frozen=True)
class _Work:
    """One compaction, for the thread that does it."""

    place: StorageLocation
    plan: CompactionPlan
    schema: TraceSchema
    target: RunTarget
    bound_us: int | None

    def __call__(self, stopped: Callable[[], bool]) -> RunInfo | None:
        storage = storage_of(self.place)
        pipeline = self.target.pipeline or ""
        compacted = run_compaction(
            self.plan,
            storage,
            source_of(self.place, pipeline),
            self.schema,
            self.target,
            time_bound_us=self.bound_us,
            stopped=stopped,
        )
        if compacted is not None:
            storage.barrier([f"{pipeline}/{compacted.path}"])
        return compacted


class Compactor:
    """Keeps the run lists short."""

    def __init__(
        self,
        place: StorageLocation,
        pipeline: str,
        partitions: int,
        ids: IdSource,
        reserve: Callable[[], CheckpointId],
        policy: CompactionPolicy | None = None,
    ) -> None:
        """Begin idle."""
        self._place, self._pipeline, self._partitions = place, pipeline, partitions
        self._ids, self._reserve = ids, reserve
        self._policy = policy or CompactionPolicy()
        self._running: _Running | None = None
        self.compactions = 0
        self.error: Exception | None = None
        """The last one, for the summary."""
        self.overdue = 0
        """Partitions that had too many layers when they were last looked at."""
        self._failures = self._rest = 0

    def collect(self, runs: dict[str, list[RunInfo]]) -> None:
        """Put a finished compaction into its list."""
        if self._running is not None and self._running.compaction.done:
            self._take(self._running, runs)

    def _take(self, running: _Running, runs: dict[str, list[RunInfo]]) -> None:
        """Wait for a compaction and put it into its list. One that failed is tried again later."""
        try:
            compacted = running.compaction.result()
        except Exception as error:  # noqa: BLE001 - its runs are as good as before
            self._running = None
            self.error = error
            self._failures += 1
            self._rest = min(_REST_MAX, 2**self._failures)
            log.warning("a compaction failed and will be tried again: %s", error)
            return
        self._running = None
        if compacted is not None:
            runs[running.trace] = replace(runs[running.trace], compacted)
            self.compactions += 1
            self._failures = 0

    def look(self, runs: Mapping[str, list[RunInfo]]) -> None:
        """See whether some partition has more layers than it should ever have."""
        self._note(self._candidates(runs))

    def _note(self, candidates: Sequence[_Candidate]) -> None:
        self.overdue = sum(1 for place in candidates if place.layers > self._policy.runs_max)

    def _candidates(self, runs: Mapping[str, list[RunInfo]]) -> list[_Candidate]:
        """Where compaction may pay, the most layers first."""
        candidates = []
        for trace, all_runs in runs.items():
            for partition, partition_runs in enumerate(
                runs_by_partition(all_runs, self._partitions)
            ):
                within = partition_range(partition, self._partitions)
                count = (
                    len(layers(run_slices(partition_runs, within)))
                    if len(partition_runs) > 1
                    else len(partition_runs)
                )
                if count >= min(self._policy.fanout, self._policy.runs_max):
                    candidates.append(_Candidate(count, trace, partition, partition_runs))
        return sorted(candidates, key=lambda place: -place.layers)

    def start(
        self,
        runs: Mapping[str, list[RunInfo]],
        schemas: Mapping[str, TraceSchema],
        parent: CheckpointId,
        bounds_us: Mapping[str, int | None],
    ) -> None:
        """Begin the next compaction that is due, if none is running.

        Where several are due, the partition with the most layers comes first.
        """
        candidates = [place for place in self._candidates(runs) if place.trace in schemas]
        self._note(candidates)
        if self._rest:
            self._rest -= 1
        elif self._running is None:
            self._running = self._begin(candidates, schemas, parent, bounds_us)

    def catch_up(
        self,
        runs: dict[str, list[RunInfo]],
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
            if self._running is None:
                return
            self._take(self._running, runs)
            if self._rest:  # it failed
                return
            self.look(runs)

    def _begin(
        self,
        candidates: Sequence[_Candidate],
        schemas: Mapping[str, TraceSchema],
        parent: CheckpointId,
        bounds_us: Mapping[str, int | None],
    ) -> _Running | None:
        for place in candidates:
            plan = plan_compaction(place.runs, place.partition, self._partitions, self._policy)
            if plan is None:
                continue
            target = RunTarget(
                checkpoint=self._reserve(),
                operator=place.trace,
                partition=place.partition,
                partitions=self._partitions,
                attempt=self._ids.token(),
                epoch=Epoch(plan.epoch_high),
                base=parent,
                pipeline=self._pipeline,
            )
            bound_us = bounds_us.get(place.trace)
            work = _Work(self._place, plan, schemas[place.trace], target, bound_us)
            return _Running(place.trace, BackgroundCompaction(work))
        return None

    def stop(self) -> None:
        """Cancel what is running and wait for it."""
        if self._running is not None:
            self._running.compaction.cancel()
            try:
                self._running.compaction.result()
            except Exception as error:  # noqa: BLE001 - reported
                self.error = error
            self._running = None
