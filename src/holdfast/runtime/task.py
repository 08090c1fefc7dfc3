"""What runs inside a Spark task: rows of one partition in, one control row out.

Invariants:
- Everything that a task writes has a name that no other try of the task uses; the driver learns of
  it from the control row of the try that won, so retries and speculation change nothing.
- A task keeps nothing between epochs but open files of immutable runs.
- Errors are Holdfast's own, with the operator, epoch and partition; they can be unpickled.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.base import StagedFile
from holdfast.connectors.staging import Target, stage_rows
from holdfast.errors import HoldfastError, InternalError, InvalidInputError
from holdfast.ids import CheckpointId, Epoch, RandomIds
from holdfast.operators.base import EpochContext, OperatorTask, TaskResult, weights_of
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.runtime.stage_job import StageJob, received_job, with_lists
from holdfast.spark.time_zones import in_utc
from holdfast.state import (
    BagPartition,
    LatestPartition,
    RunCache,
    RunInfo,
    RunSource,
    RunTarget,
    TraceKind,
)
from holdfast.state.arrow.batches import one_batch
from holdfast.state.partition import partition_of, vnode_of
from holdfast.storage.open import StorageLocation, storage_of

CONTROL = "__hf_control"


class Control(msgspec.Struct, frozen=True):
    """What one task reports; `counts`: by trace, live rows and keys that came or went."""

    name: str
    partition: int
    runs: list[RunInfo] = []
    staged: list[StagedFile] = []
    counters: dict[str, int] = {}
    counts: dict[str, tuple[int, int]] = {}


@dataclass(frozen=True)
class StageSpec:
    """What is the same in every epoch. Crosses to executors inside the plan.

    `job` is None where the plan is made ahead of its epoch: see `stage_job`. `partitions`: how many
    tasks the operator has in this epoch, each with its range of vnodes.
    """

    name: str
    pipeline: str
    place: StorageLocation
    partitions: int
    task: OperatorTask | None
    targets: tuple[Target, ...] = ()
    emit: bool = False
    durable: bool = False
    job: StageJob | None = None


def check_partitions(controls: Sequence[Control], tasks: Mapping[str, int]) -> None:
    """Every task of every operator reports, and none with rows of another one's partition.

    tasks: by operator, how many it had.
    """
    seen: set[tuple[str, int]] = set()
    for control in controls:
        key = (control.name, control.partition)
        if control.name not in tasks or control.partition < 0:
            continue
        if key in seen or control.partition >= tasks[control.name]:
            raise InternalError(
                "a partition reported twice", operator=control.name, partition=control.partition
            )
        seen.add(key)
    counts = Counter(control.name for control in controls)
    for name, expected in tasks.items():
        if counts[name] not in (0, expected):
            raise InternalError(
                "a partition did not report",
                operator=name,
                expected=expected,
                actual=counts[name],
            )


_sources: dict[tuple[str, str, str], RunSource] = {}
_ids = RandomIds()
_OPEN_MAX = 1024  # a worker takes turns at all partitions: fewer than all runs would find none open
_frozen = False


def source_of(place: StorageLocation, pipeline: str) -> RunSource:
    """Open runs of a pipeline, kept open between epochs."""
    key = (*place.key, pipeline)
    found = _sources.get(key)
    if found is None:
        cache = None
        if place.cache is not None:
            cache = RunCache(place.cache, bytes_max=place.cache_bytes_max, ids=_ids)
        found = _sources[key] = RunSource(
            storage_of(place), pipeline=pipeline, cache=cache, open_max=_OPEN_MAX
        )
    return found


def run_stage(spec: StageSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of `mapInArrow`."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None:
        _spare_the_collector()
    task = context.partitionId() if context else 0
    job = received_job(spec.name, spec.job, context)
    received = [in_utc(batch) for batch in batches if batch.num_rows]
    partition = task if spec.task is None else partition_of_rows(received, spec.partitions)
    try:
        job = with_lists(job, partition, spec.place, spec.pipeline)
        yield from _run(spec, job, partition, received)
    except HoldfastError as error:
        error.facts.setdefault("operator", spec.name)
        error.facts.setdefault("epoch", job.epoch)
        error.facts.setdefault("partition", partition)
        error.facts.setdefault("cause", error.kind)  # the only part of an error that Spark keeps
        raise
    except (pa.ArrowException, ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise InvalidInputError(
            "an operator failed on its rows",
            kind="operator_failed",
            operator=spec.name,
            epoch=job.epoch,
            partition=partition,
            reason=f"{type(error).__name__}: {error}"[:500],
        ) from error


def _spare_the_collector() -> None:
    """Set aside what is loaded now, once in each worker process.

    Spark's workers collect garbage after every task, and walk over every module that was ever
    imported: 30 ms of CPU a task, more than the work of 25,000 rows.
    """
    global _frozen  # noqa: PLW0603 - a fact about this process
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()


def partition_of_rows(batches: Sequence[pa.RecordBatch], partitions: int) -> int:
    """Which partition these rows are of; -1 without rows.

    Taken from the rows themselves: the number of the task also counts the tasks of other operators
    that run in the same stage.
    """
    if not batches:
        return -1
    return partition_of(vnode_of(int(batches[0].column(HASH)[0].as_py())), partitions)


def _run(
    spec: StageSpec, job: StageJob, partition: int, received: list[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    counters: dict[str, int] = {}
    runs: list[RunInfo] = []
    counts: dict[str, tuple[int, int]] = {}
    changes: Any = None
    late: Any = None
    if spec.task is None:
        changes = pa.Table.from_batches(received) if received else None
        counters["rows"] = sum(batch.num_rows for batch in received)
    elif received:
        rows = one_batch(pa.Table.from_batches(received))
        if spec.task.timed:  # heartbeats only say which partition this is
            rows = rows.filter(pc.not_equal(rows.column(WEIGHT), 0))
        counters["rows"] = rows.num_rows
        counters["rows_in"] = int(np.abs(weights_of(rows)).sum())
        result, runs, counts = _process(spec, spec.task, job, partition, rows)
        changes, late = result.changes, result.late
        counters |= result.counters
    count = changes.num_rows if changes is not None else 0
    counters.setdefault("changes", count)
    staged = []
    for target in spec.targets:
        table = late if target.late else changes
        if table is not None and table.num_rows:
            directory = job.staging[target.sink]
            staged.append(
                stage_rows(target, directory, partition, table, ids=_ids, durable=spec.durable)
            )
    control = Control(spec.name, partition, runs, staged, counters, counts)
    data = msgspec.json.encode(control)
    if not spec.emit:
        yield pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], names=[CONTROL])
        return
    schema = spec.task.output if spec.task is not None else pa.schema([])
    head = [pa.nulls(1, f.type) for f in schema]
    names = [*schema.names, CONTROL]
    yield pa.RecordBatch.from_arrays([*head, pa.array([data], pa.binary())], names=names)
    if count:
        table = changes
        yield pa.RecordBatch.from_arrays(
            [*table.columns, pa.nulls(count, pa.binary())], names=names
        )


def _process(
    spec: StageSpec, operator: OperatorTask, job: StageJob, partition: int, rows: pa.RecordBatch
) -> tuple[TaskResult, list[RunInfo], dict[str, tuple[int, int]]]:
    source = source_of(spec.place, spec.pipeline)
    storage = storage_of(spec.place)
    bounds = (
        operator.bounds_us(job.previous_watermark_us)
        if job.previous_watermark_us is not None
        else {}
    )
    opened = {}
    for name, schema in operator.traces.items():
        kind = LatestPartition if schema.kind is TraceKind.LATEST else BagPartition
        opened[name] = kind.open(
            job.runs.get(name, ()),
            source,
            schema,
            partition=partition,
            partitions=spec.partitions,
            time_bound_us=bounds.get(name),
        )
    wanted = spec.emit or any(not target.late for target in spec.targets)
    context = EpochContext(job.epoch, job.watermark_us, job.previous_watermark_us, wanted)
    result = operator.process(rows, opened, context)
    runs = []
    for name, update in result.updates.items():
        target = RunTarget(
            checkpoint=CheckpointId(job.checkpoint),
            operator=name,
            partition=partition,
            partitions=spec.partitions,
            attempt=_ids.token(),
            epoch=Epoch(job.epoch),
            base=CheckpointId(job.parent) if job.parent else None,
            pipeline=spec.pipeline,
        )
        run = opened[name].apply(update, storage, target) if update.num_rows else None
        if run is not None:
            runs.append(run)
            if spec.durable:
                storage.barrier([f"{spec.pipeline}/{run.path}"])
    after = operator.bounds_us(job.watermark_us) if job.watermark_us is not None else bounds
    counts = {name: opened[name].change(after.get(name)) for name in opened}
    return result, runs, {name: change for name, change in counts.items() if any(change)}
