"""What runs inside a Spark task: rows of one partition in, one control row out.

Invariants:
- Everything that a task writes has a name that no other try of the task uses; the driver learns of
  it from the control row of the try that won, so retries and speculation change nothing.
- A task keeps nothing between epochs but open files of immutable runs.
- Rows beyond the budget of a task go through local disk and are worked through in pieces (`spool`,
  `piece_work`); its changes leave it piece by piece.
- Errors are Holdfast's own, with the operator, epoch and partition; they can be unpickled.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from holdfast.connectors.base import StagedFile
from holdfast.connectors.staging import StagedWriter, Target
from holdfast.errors import HoldfastError, InternalError, InvalidInputError
from holdfast.ids import RandomIds
from holdfast.operators.base import OperatorTask
from holdfast.runtime.piece_work import PartitionPlace, PieceWork
from holdfast.runtime.spool import Spool
from holdfast.runtime.stage_job import StageJob, received_job, with_lists
from holdfast.settings import TASK_BYTES_MAX
from holdfast.spark.time_zones import in_utc
from holdfast.state import RunCache, RunInfo, RunSource
from holdfast.state.partition import partition_of, partition_range, vnode_of
from holdfast.storage.open import StorageLocation, storage_of

CONTROL = "__hf_control"
_STAGED_BYTES = _EMITTED_BYTES = 16 << 20


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

    `job` is None where the plan is made ahead of its epoch: see `stage_job`. `budget`: how many
    bytes of rows a task works on at once. `partitions`: how many tasks the operator has in this
    epoch, each with its range of vnodes.
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
    budget: int = TASK_BYTES_MAX


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
    rows = (in_utc(batch) for batch in batches if batch.num_rows)
    stage = _Stage(spec, job)
    try:
        if spec.task is None:
            yield from stage.pass_on(task, rows)
        else:
            yield from stage.work(spec.task, rows)
    except HoldfastError as error:
        error.facts.setdefault("operator", spec.name)
        error.facts.setdefault("epoch", job.epoch)
        error.facts.setdefault("partition", stage.partition)
        error.facts.setdefault("cause", error.kind)  # the only part of an error that Spark keeps
        raise
    except (pa.ArrowException, ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise InvalidInputError(
            "an operator failed on its rows",
            kind="operator_failed",
            operator=spec.name,
            epoch=job.epoch,
            partition=stage.partition,
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


def partition_of_hash(value: int | None, partitions: int) -> int:
    """Which partition rows are of that have this hash; -1 without rows.

    Taken from the rows themselves: the number of the task also counts the tasks of other operators
    that run in the same stage.
    """
    return -1 if value is None else partition_of(vnode_of(value), partitions)


class _Stage:
    """One task: what comes in, through the operator, to sinks and to Spark."""

    def __init__(self, spec: StageSpec, job: StageJob) -> None:
        self._spec, self._job = spec, job
        self.partition = -1
        self._writers: list[StagedWriter] = []
        self._changes = 0

    def pass_on(
        self, partition: int, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Stage rows as they come; there is no operator."""
        self._take_place(partition)
        try:
            for rows in _larger(batches, min(self._spec.budget, _STAGED_BYTES)):
                yield from self._give(rows, None)
            control = self._control({"rows": self._changes, "changes": self._changes}, [], {})
        except BaseException:
            self._abort()
            raise
        yield control

    def work(
        self, operator: OperatorTask, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Rows of one partition through the operator."""
        spec = self._spec
        with Spool(spec.budget) as spool:
            for batch in batches:
                spool.add(batch)
            if spool.first_hash is None:
                yield self._control({"changes": 0}, [], {})
                return
            self._take_place(partition_of_hash(spool.first_hash, spec.partitions))
            work = self._work(operator)
            try:
                vnodes = partition_range(self.partition, spec.partitions)
                budget = max(1, spec.budget // operator.growth)
                pieces = spool.pieces(vnodes, budget, whole=operator.whole_keys)
                for result in work.results(pieces):
                    yield from self._give(result.changes, result.late)
                    for changes in result.more:
                        yield from self._give(changes, None)
                counters = work.counters
                if work.wanted or "changes" not in counters:
                    counters["changes"] = self._changes
                if spool.spilled:
                    counters["spilled_bytes"] = spool.spilled_bytes
                live = {name: change for name, change in work.counts.items() if any(change)}
                control = self._control(counters, work.runs(), live)
            except BaseException:
                work.abort()
                self._abort()
                raise
            yield control  # from here on all that was written is whole

    def _work(self, operator: OperatorTask) -> PieceWork:
        spec = self._spec
        place = PartitionPlace(
            pipeline=spec.pipeline,
            storage=storage_of(spec.place),
            source=source_of(spec.place, spec.pipeline),
            partition=self.partition,
            partitions=spec.partitions,
            durable=spec.durable,
            budget=spec.budget,
        )
        wanted = spec.emit or any(not target.late for target in spec.targets)
        return PieceWork(operator, self._job, place, _ids, wanted)

    def _take_place(self, partition: int) -> None:
        """Learn which partition this is, and so which runs are its own."""
        spec, self.partition = self._spec, partition
        self._job = with_lists(self._job, partition, spec.place, spec.pipeline)
        self._writers = [
            StagedWriter(
                target,
                self._job.staging[target.sink],
                self.partition,
                ids=_ids,
                durable=spec.durable,
            )
            for target in spec.targets
        ]

    def _abort(self) -> None:
        for writer in self._writers:
            writer.abort()

    def _give(
        self, changes: pa.RecordBatch | pa.Table | None, late: pa.RecordBatch | None
    ) -> Iterator[pa.RecordBatch]:
        """Stage what sinks get, and give Spark what something after it needs."""
        for writer in self._writers:
            rows = late if writer.target.late else changes
            if rows is not None and rows.num_rows:
                writer.write(rows)
        if changes is None or not changes.num_rows:
            return
        self._changes += changes.num_rows
        if self._spec.emit:
            step = max(1, _EMITTED_BYTES * changes.num_rows // max(1, changes.nbytes))
            for start in range(0, changes.num_rows, step):
                some = changes.slice(start, step)
                none = pa.nulls(some.num_rows, pa.binary())
                yield pa.RecordBatch.from_arrays([*some.columns, none], names=self._names)

    @property
    def _names(self) -> list[str]:
        task = self._spec.task
        return [*(task.output.names if task is not None else ()), CONTROL]

    def _control(
        self, counters: dict[str, int], runs: list[RunInfo], counts: dict[str, tuple[int, int]]
    ) -> pa.RecordBatch:
        """The last row: what the driver must know."""
        staged = [file for writer in self._writers if (file := writer.close()) is not None]
        control = Control(self._spec.name, self.partition, runs, staged, counters, counts)
        data = pa.array([msgspec.json.encode(control)], pa.binary())
        if not self._spec.emit:
            return pa.RecordBatch.from_arrays([data], names=[CONTROL])
        task = self._spec.task
        head = [pa.nulls(1, f.type) for f in (task.output if task is not None else pa.schema([]))]
        return pa.RecordBatch.from_arrays([*head, data], names=self._names)


def _larger(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch | pa.Table]:
    """Batches put together until they have so many bytes."""
    held: list[pa.RecordBatch] = []
    total = 0
    for batch in batches:
        held.append(batch)
        total += batch.nbytes
        if total >= size:
            yield pa.Table.from_batches(held)
            held, total = [], 0
    if held:
        yield pa.Table.from_batches(held)
