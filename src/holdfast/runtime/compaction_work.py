"""Carrying compactions out: in a thread of the driver, or in tasks of a background Spark job.

A thread costs nothing to start and finds the runs open; but it shares the driver with the epochs.
A job costs some twenty milliseconds, runs on any executor, and several units at a time.

Invariants:
- A unit writes one run, under a name that no other attempt uses, and makes it durable.
- A unit that fails leaves nothing and does not disturb the others; the driver learns why.
- What is cancelled in the driver is removed; what attempts of lost tasks wrote is nobody's, and
  goes with the next clean-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.errors import HoldfastError, StorageError
from holdfast.ids import CheckpointId, Epoch, IdSource, RandomIds
from holdfast.runtime.task import source_of
from holdfast.spark.background import BackgroundJob, cores_of, spread
from holdfast.spark.session import is_local
from holdfast.state import (
    BackgroundCompaction,
    CompactionPlan,
    RunInfo,
    RunTarget,
    TraceSchema,
    run_compaction,
)
from holdfast.storage.open import StorageLocation, storage_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARE = 4
"""A job takes one core of so many; all of them while epochs wait for it."""
THREAD_RUNS_MAX = 64
"""In a local session, a thread compacts up to so many runs."""


class CompactionUnit(msgspec.Struct, frozen=True):
    """One run to write. place: which partition of how many. Crosses to executors."""

    trace: str
    plan: CompactionPlan
    place: tuple[int, int]
    checkpoint: str
    parent: str
    bound_us: int | None = None


class UnitResult(msgspec.Struct, frozen=True):
    """What became of a unit in a task: a run, or the reason why there is none."""

    run: RunInfo | None = None
    kind: str = ""
    reason: str = ""


@dataclass(frozen=True)
class CompactionOutcome:
    """The runs that came of some units, and an error of one that failed."""

    runs: list[RunInfo]
    error: Exception | None = None


class Running(Protocol):
    """Compactions that have begun."""

    @property
    def done(self) -> bool:
        """Whether they have ended in any way."""

    def cancel(self) -> None:
        """Ask them to stop."""

    def result(self) -> CompactionOutcome:
        """Wait for them."""


@dataclass(frozen=True)
class CompactionWork:
    """Carries out units, in the driver or in a task. Crosses to executors inside the plan."""

    place: StorageLocation
    pipeline: str
    schemas: Mapping[str, TraceSchema]

    def compact(
        self, unit: CompactionUnit, ids: IdSource, stopped: Callable[[], bool] = lambda: False
    ) -> RunInfo | None:
        """Write the run of one unit; None when it was stopped."""
        storage = storage_of(self.place)
        partition, partitions = unit.place
        target = RunTarget(
            checkpoint=CheckpointId(unit.checkpoint),
            operator=unit.trace,
            partition=partition,
            partitions=partitions,
            attempt=ids.token(),
            epoch=Epoch(unit.plan.epoch_high),
            base=CheckpointId(unit.parent),
            pipeline=self.pipeline,
        )
        compacted = run_compaction(
            unit.plan,
            storage,
            source_of(self.place, self.pipeline),
            self.schemas[unit.trace],
            target,
            time_bound_us=unit.bound_us,
            stopped=stopped,
        )
        if compacted is not None:
            storage.barrier([f"{self.pipeline}/{compacted.path}"])
        return compacted

    def __call__(self, piece: bytes) -> bytes:
        """In a task: one unit, and what became of it."""
        unit = msgspec.msgpack.decode(piece, type=CompactionUnit)
        try:
            result = UnitResult(self.compact(unit, RandomIds()))
        except HoldfastError as error:
            result = UnitResult(kind=error.kind, reason=str(error))
        except OSError as error:
            result = UnitResult(kind="storage", reason=str(error))
        return msgspec.msgpack.encode(result)


class CompactionRunner:
    """Decides where compactions run. spark: None where there is no session: in a thread."""

    def __init__(
        self, place: StorageLocation, pipeline: str, spark: SparkSession | None = None
    ) -> None:
        """Look at the session once."""
        self._place, self._pipeline, self._spark = place, pipeline, spark
        self._local = spark is None or is_local(spark)

    def begin(
        self,
        units: Sequence[CompactionUnit],
        schemas: Mapping[str, TraceSchema],
        ids: IdSource,
        *,
        hurry: bool,
    ) -> Running:
        """Begin. hurry: epochs wait for it, so that it may take all cores."""
        work = CompactionWork(self._place, self._pipeline, schemas)
        runs = sum(len(unit.plan.runs) for unit in units)
        if self._spark is None or (self._local and runs <= THREAD_RUNS_MAX):
            return _InThread(work, units, ids)
        cores = cores_of(self._spark)
        return _InSpark(self._spark, work, units, cores if hurry else max(1, cores // SHARE), ids)


class _InThread:
    """Units one after the other, in a thread of this process."""

    def __init__(
        self, work: CompactionWork, units: Sequence[CompactionUnit], ids: IdSource
    ) -> None:
        self._work, self._units, self._ids = work, units, ids
        self._compaction = BackgroundCompaction(self._run)

    def _run(self, stopped: Callable[[], bool]) -> CompactionOutcome:
        runs: list[RunInfo] = []
        failed: Exception | None = None
        for unit in self._units:
            try:
                run = None if stopped() else self._work.compact(unit, self._ids, stopped)
            except Exception as error:  # noqa: BLE001 - the other units count
                failed = error
                continue
            runs += [] if run is None else [run]
        if stopped():  # nobody will list them
            pipeline, place = self._work.pipeline, self._work.place
            storage_of(place).delete_many([f"{pipeline}/{run.path}" for run in runs])
            return CompactionOutcome([], failed)
        return CompactionOutcome(runs, failed)

    @property
    def done(self) -> bool:
        return self._compaction.done

    def cancel(self) -> None:
        self._compaction.cancel()

    def result(self) -> CompactionOutcome:
        return self._compaction.result()


class _InSpark:
    """Units in tasks of one background job."""

    def __init__(
        self,
        spark: SparkSession,
        work: CompactionWork,
        units: Sequence[CompactionUnit],
        tasks: int,
        ids: IdSource,
    ) -> None:
        pieces = [(msgspec.msgpack.encode(unit), unit.plan.bytes_estimate) for unit in units]
        groups = [
            [(position, piece) for position, (piece, _) in group]
            for group in spread(pieces, lambda piece: piece[1], tasks)
        ]
        described = f"Holdfast: compact {len(units)} parts of {work.pipeline}"
        self._job = BackgroundJob(spark, work, groups, description=described, ids=ids)

    @property
    def done(self) -> bool:
        return self._job.done

    def cancel(self) -> None:
        self._job.cancel()

    def result(self) -> CompactionOutcome:
        answers = self._job.result()
        results = [msgspec.msgpack.decode(answer, type=UnitResult) for answer in answers or ()]
        failed = next((result for result in results if result.run is None), None)
        error = None if failed is None else _as_error(failed)
        return CompactionOutcome(
            [result.run for result in results if result.run is not None], error
        )


def _as_error(failed: UnitResult) -> Exception:
    return StorageError(
        "a task could not compact",
        kind="compaction_failed",
        cause=failed.kind,
        reason=failed.reason,
    )
