"""Merging runs beside the epochs, never inside one.

Invariants:
- At most one merge at a time. Epochs do not wait for it, unless a partition has so many layers that
  looking into all of them would cost more than waiting: short runs, one after the other, must not
  leave the merging to each other for ever.
- A merged run is durable before it is listed; until then the old runs are.
- A merge that fails or is cancelled changes nothing but the space it leaves to the next clean-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.ids import CheckpointId, Epoch, IdSource
from holdfast.pipeline.stage import Place, source_of, storage_of
from holdfast.state import (
    BackgroundMerge,
    MergePlan,
    MergePolicy,
    RunInfo,
    RunTarget,
    TraceSchema,
    partition_range,
    plan_merge,
    replace,
    run_merge,
)
from holdfast.state.partition import layers, segments


@dataclass
class _Running:
    trace: str
    partition: int
    merge: BackgroundMerge


@dataclass(frozen=True)
class _Work:
    """One merge, for the thread that does it."""

    place: Place
    plan: MergePlan
    schema: TraceSchema
    target: RunTarget
    bound_us: int | None

    def __call__(self, stopped: Callable[[], bool]) -> RunInfo | None:
        storage = storage_of(self.place)
        pipeline = self.target.pipeline or ""
        merged = run_merge(
            self.plan, storage, source_of(self.place, pipeline), self.schema, self.target,
            time_bound_us=self.bound_us, stopped=stopped,
        )  # fmt: skip
        if merged is not None:
            storage.barrier([f"{pipeline}/{merged.path}"])
        return merged


class Merger:
    """Keeps the run lists short."""

    def __init__(
        self, place: Place, pipeline: str, partitions: int, ids: IdSource,
        reserve: Callable[[], CheckpointId], policy: MergePolicy | None = None,
    ) -> None:  # fmt: skip
        """Begin idle."""
        self._place, self._pipeline, self._partitions = place, pipeline, partitions
        self._ids, self._reserve = ids, reserve
        self._policy = policy or MergePolicy()
        self._running: _Running | None = None
        self.merges = 0
        self.error: BaseException | None = None

    def collect(self, runs: dict[str, list[RunInfo]]) -> None:
        """Put a finished merge into its list; wait for one that is overdue."""
        running = self._running
        if running is None or not (running.merge.done or self._late(runs, running)):
            return
        self._running = None
        try:
            merged = running.merge.result()
        except Exception as error:  # noqa: BLE001 - reported; the old runs are as good as before
            self.error = error
            return
        if merged is not None:
            runs[running.trace] = replace(runs[running.trace], merged)
            self.merges += 1

    def _late(self, runs: Mapping[str, list[RunInfo]], running: _Running) -> bool:
        return self._layers(runs, running.trace, running.partition) > self._policy.runs_max

    def overdue(self, runs: Mapping[str, list[RunInfo]]) -> bool:
        """Whether some partition has more layers than it should ever have."""
        return any(
            self._layers(runs, trace, partition) > self._policy.runs_max
            for trace in runs
            for partition in range(self._partitions)
        )

    def _layers(self, runs: Mapping[str, list[RunInfo]], trace: str, partition: int) -> int:
        within = partition_range(partition, self._partitions)
        return len(layers(segments(runs.get(trace, []), within)))

    def start(
        self,
        runs: Mapping[str, list[RunInfo]],
        schemas: Mapping[str, TraceSchema],
        parent: CheckpointId,
        bounds_us: Mapping[str, int | None],
    ) -> None:
        """Begin the next merge that is due, if none is running. All runs must be committed.

        Where several are due, the partition with the most layers comes first.
        """
        if self._running is not None or self.error is not None:
            return
        places = [(trace, partition) for trace in schemas for partition in range(self._partitions)]
        for trace, partition in sorted(places, key=lambda place: -self._layers(runs, *place)):
            plan = plan_merge(runs.get(trace, []), partition, self._partitions, self._policy)
            if plan is None:
                continue
            target = RunTarget(
                checkpoint=self._reserve(), operator=trace, partition=partition,
                partitions=self._partitions, attempt=self._ids.token(),
                epoch=Epoch(plan.epoch_high), base=parent, pipeline=self._pipeline,
            )  # fmt: skip
            work = _Work(self._place, plan, schemas[trace], target, bounds_us.get(trace))
            self._running = _Running(trace, partition, BackgroundMerge(work))
            return

    def stop(self) -> None:
        """Cancel what is running and wait for it."""
        if self._running is not None:
            self._running.merge.cancel()
            try:
                self._running.merge.result()
            except Exception as error:  # noqa: BLE001 - reported
                self.error = error
            self._running = None
