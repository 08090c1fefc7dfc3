"""One epoch as one Spark job: DataFrames from splits, stages for operators and sinks.

Invariants:
- One action an epoch. What tasks have to say comes back in control rows of that action.
- A plan depends on splits alone. What changes from epoch to epoch otherwise (runs, directories,
  watermark) travels next to it, so that a plan can be made while the epoch before is computed.
- An operator whose sources have nothing new does not run, unless time alone can make it work.
- An operator's rows are kept (persisted) only when something after it in Spark needs them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from holdfast.clock import Clock
from holdfast.connectors.base import SourceReader, Split
from holdfast.connectors.staging import Target
from holdfast.ids import VNODE_COUNT, IdSource
from holdfast.operators.base import Analyzed
from holdfast.operators.columns import BAD, HASH
from holdfast.operators.declaration import Declaration, Node, SinkNode, SourceNode, upstream
from holdfast.runtime.analysis import source_frame
from holdfast.runtime.bad_rows import ObservedBad, bad_rows, bad_schema, observe_bad
from holdfast.runtime.graph import Graph
from holdfast.runtime.heartbeats import with_heartbeats
from holdfast.runtime.quality import (
    ObservedExpectation,
    Quality,
    observe_expectation,
    read_quality,
)
from holdfast.runtime.stage_job import StageJob, sent_jobs, with_documents
from holdfast.runtime.task import (
    CONTROL,
    Control,
    StageSpec,
    run_stage,
)
from holdfast.runtime.task_counts import TaskCountPolicy
from holdfast.runtime.watermarks import Observed, count_rows, observe, time_kind
from holdfast.spark.arrow_types import spark_schema
from holdfast.spark.classic import (
    ArrowMap,
    Scan,
    begin_shuffles,
    finished,
    is_classic,
    is_on,
    plan_now,
    scans_of,
)
from holdfast.spark.partitioning import Shuffle
from holdfast.state.partition import partition_sql
from holdfast.storage.open import StorageLocation, storage_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("holdfast.pipeline")
_CONTROL_ONLY = T.StructType([T.StructField(CONTROL, T.BinaryType())])


@dataclass
class Plan:
    """The one action of an epoch, and what to release afterwards. tasks: by operator, how many."""

    splits: dict[str, Split]
    only: frozenset[str] | None = None
    given: Mapping[int, Any] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    action: Any = None
    stages: list[str] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    begun: list[Any] = field(default_factory=list)
    observed: dict[str, Observed] = field(default_factory=dict)
    bad: dict[str, ObservedBad] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, ObservedExpectation] = field(default_factory=dict)
    quality: Quality = field(default_factory=Quality)
    scans: list[Scan] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)

    @property
    def is_observed(self) -> bool:
        """Whether rows are watched on their way."""
        return bool(self.observed or self.bad or self.expected)


class FrameBuilder:
    """Builds the actions of epochs and runs them."""

    def __init__(
        self,
        spark: SparkSession,
        graph: Graph,
        analyzed: Mapping[str, Analyzed],
        readers: Mapping[str, SourceReader],
        *,
        place: StorageLocation,
        partitions: int,
        durable: bool,
        sink_places: Mapping[str, StorageLocation],
        clock: Clock,
        ids: IdSource,
        task_bytes_max: int,
        run_count: Callable[[str], int] = lambda _: 0,
    ) -> None:
        """Remember what stays the same between epochs.

        run_count: how many runs the traces of an operator have now.
        """
        self._spark = spark
        self._graph = graph
        self._analyzed = analyzed
        self._readers = readers
        self._place, self._partitions, self._durable = place, partitions, durable
        self._sink_places, self._clock, self._ids = sink_places, clock, ids
        self._task_bytes_max = task_bytes_max
        self._direct = {s.name for s in graph.sinks if s.input.staged_by() is not None}
        self._feeding = _feeding(graph, self._direct)
        self.partially_aggregated: set[str] = set()
        """Operators whose rows are added up in the JVM first; see `PartialAggregationPolicy`."""
        self.classic = is_classic(spark)
        """Whether jobs can travel in local properties; Spark Connect has none."""
        self.task_counts = TaskCountPolicy(partitions, self._cores)
        self._run_count = run_count
        self.sources_of = {
            operator.name: frozenset(n.name for n in upstream(operator) if n.name in readers)
            for operator in graph.operators
        }
        """The sources that an operator's rows come from."""
        self._shuffles: dict[int, Shuffle] = {}
        self._maps: dict[tuple[Any, ...], ArrowMap] = {}
        self._time_kinds: dict[str, str] = {}

    @property
    def wakes(self) -> bool:
        """Whether the watermark alone is worth an epoch."""
        return any(found.task.wakes for found in self._analyzed.values())

    def plan(
        self,
        splits: Mapping[str, Split],
        *,
        only: frozenset[str] | None = None,
        given: Mapping[int, Any] | None = None,
    ) -> Plan:
        """The action for some splits, analysed and planned as far as Spark lets us.

        only: operators and sinks that run, where not all do. given: rows of steps that do not run.
        """
        plan = Plan(dict(splits), only, given or {})
        plan.tasks = {node.name: self._tasks(node, plan) for node in self._graph.operators}
        if self.classic:
            self._build(plan, {})
            if plan.action is not None:
                plan_now(plan.action)
        return plan

    def _cores(self) -> int:
        """How many tasks Spark runs at a time; where it does not tell, all that there may be."""
        return int(self._spark.sparkContext.defaultParallelism) if self.classic else VNODE_COUNT

    def _tasks(self, node: Declaration, plan: Plan) -> int:
        if plan.given:  # nobody knows how many rows
            return self._partitions
        splits = [plan.splits[name] for name in self.sources_of[node.name] if name in plan.splits]
        rows = sum(self.task_counts.expected(split) for split in splits)
        timed = self._analyzed[node.name].task.timed
        return self.task_counts.choose(node.name, rows, self._run_count(node.name), timed=timed)

    def note(
        self, plan: Plan, rows: Mapping[str, int], totals: Mapping[str, Mapping[str, int]]
    ) -> None:
        """Learn from an epoch: rows by source, and the counters of operators."""
        self.task_counts.note(plan.splits, rows, self.sources_of, totals)

    def begin(self, plan: Plan) -> None:
        """Let the part of a plan that needs no state run already: reading, and the shuffle.

        Not where the rows are observed on their way: an observation belongs to its action.
        """
        if not self.classic or plan.action is None or plan.is_observed:
            return
        try:
            plan.begun = begin_shuffles(plan.action)
        except Exception:  # the action does it all again, and its error counts
            log.debug("an epoch did not begin ahead", exc_info=True)

    def run(self, plan: Plan, jobs: Mapping[str, StageJob]) -> list[Control]:
        """Run the one job of an epoch and read the control rows."""
        storage, pipeline = storage_of(self._place), self._graph.pipeline
        token = self._ids.token
        try:
            with with_documents(jobs, plan.tasks, storage, pipeline, token) as sent:
                if not self.classic:
                    self._build(plan, sent)
                if plan.action is None:
                    return []
                with self._sent(plan, sent):
                    scans = self._begun_scans(plan)
                    rows = plan.action.collect()
                    plan.scans = scans + self._scans(plan)
        finally:
            self.drop(plan)
        epoch = next(iter(jobs.values())).epoch
        plan.quality = read_quality(self._graph, epoch, plan.bad, plan.expected)
        return [msgspec.json.decode(bytes(row[0]), type=Control) for row in rows]

    def _sent(self, plan: Plan, jobs: Mapping[str, StageJob]) -> AbstractContextManager[None]:
        if not self.classic:
            return nullcontext()
        return sent_jobs(self._spark.sparkContext, {name: jobs[name] for name in plan.stages})

    def _uncounted(self, plan: Plan) -> list[Split]:
        """Splits that do not know their number of rows beforehand, and are not observed."""
        if not self.classic:
            return []
        splits = plan.splits.values()
        seen = plan.observed.keys() | plan.bad.keys()
        return [p for p in splits if p.rows is None and p.source not in seen]

    def _begun_scans(self, plan: Plan) -> list[Scan]:
        """What was read ahead of the action, which begins by setting Spark's counters to zero."""
        if not plan.begun or not self._uncounted(plan) or not finished(plan.begun):
            return []
        return scans_of(plan.action) or []

    def _scans(self, plan: Plan) -> list[Scan]:
        """What was read of sources that do not know their number of rows beforehand."""
        uncounted = self._uncounted(plan)
        scans = scans_of(plan.action) if uncounted and is_on("row counts") else None
        if scans is None:  # the epochs that are planned from now on observe their rows
            for split in uncounted:
                try:
                    rows = self._readers[split.source].read(self._spark, split)
                    plan.counted[split.source] = int(rows.count())
                except Exception:  # a count for people is no reason to fail
                    log.debug("rows were not counted", exc_info=True)
        return scans or []

    def drop(self, plan: Plan) -> None:
        """Release what a plan keeps in Spark."""
        for frame in plan.kept:
            frame.unpersist()

    def _build(self, plan: Plan, jobs: Mapping[str, StageJob]) -> None:
        frames: dict[int, DataFrame] = dict(plan.given)
        controls: list[Any] = []
        for operator in self._graph.operators:
            if self._runs(operator, plan):
                self._operator(operator, plan, frames, controls, jobs)
        for sink in self._graph.sinks:
            if self._staged_before(sink, plan) or not self._runs(sink, plan):
                continue
            frame = self._frame(sink.input, plan, frames)
            target = self._target(sink)
            spec = self._spec(sink.name, None, (target,), jobs, emit=False)
            controls.append(self._staged(frame, spec, _CONTROL_ONLY))
            plan.stages.append(sink.name)
        for control in controls:
            plan.action = control if plan.action is None else plan.action.union(control)

    def _staged_before(self, sink: SinkNode, plan: Plan) -> bool:
        """Whether the operator before a sink stages its rows, or nobody can."""
        if sink.name not in self._direct:
            return False
        return plan.only is None or sink.input.late or sink.input.name in plan.only

    def _runs(self, node: Node, plan: Plan) -> bool:
        if plan.only is not None:
            return node.name in plan.only
        return any(
            found.name in plan.splits
            or (found.name in self._analyzed and self._analyzed[found.name].task.timed)
            for found in upstream(node)
        )

    def _operator(
        self,
        node: Declaration,
        plan: Plan,
        frames: dict[int, DataFrame],
        controls: list[Any],
        jobs: Mapping[str, StageJob],
    ) -> None:
        analyzed = self._analyzed[node.name]
        frame = analyzed.project([self._frame(found, plan, frames) for found in node.inputs])
        n = plan.tasks[node.name]
        if node.name in self.partially_aggregated:
            partial = analyzed.partial_aggregate(frame)
            frame = frame if partial is None else partial
        if analyzed.task.timed:
            frame = with_heartbeats(self._spark, frame, n)
        if n not in self._shuffles:
            self._shuffles[n] = Shuffle(n, partition_sql(HASH, n))
        shuffled = self._shuffles[n](frame)
        emit = node.name in self._feeding
        targets = tuple(
            self._target(sink, late=sink.input.late)
            for sink in self._graph.sinks
            if (plan.only is None or sink.name in plan.only) and sink.input.staged_by() is node
        )
        spec = self._spec(node.name, analyzed, targets, jobs, emit=emit, partitions=n)
        plan.stages.append(node.name)
        if not emit:
            controls.append(self._staged(shuffled, spec, _CONTROL_ONLY))
            return
        schema = spark_schema(analyzed.task.output).add(CONTROL, T.BinaryType())
        kept = self._staged(shuffled, spec, schema).persist()
        plan.kept.append(kept)
        frames[id(node)] = kept.where(F.col(CONTROL).isNull()).drop(CONTROL)
        controls.append(kept.where(F.col(CONTROL).isNotNull()).select(CONTROL))

    def _target(self, sink: SinkNode, *, late: bool = False) -> Target:
        return Target(sink.name, self._sink_places[sink.name], late, sink.connector.by_slot)

    def _staged(self, frame: DataFrame, spec: StageSpec, schema: Any) -> DataFrame:
        """The rows of a frame through a stage; the same stage is sent as the same function."""
        if spec.job is not None:
            return ArrowMap(_body(spec), schema)(frame)
        # Adding up in the JVM changes the columns that come in.
        sinks = tuple(target.sink for target in spec.targets)
        added_up = spec.name in self.partially_aggregated
        key = (spec.name, spec.partitions, spec.emit, sinks, added_up)
        made = self._maps.get(key)
        if made is None:
            made = self._maps[key] = ArrowMap(_body(spec), schema)
        return made(frame)

    def _spec(
        self,
        name: str,
        analyzed: Analyzed | None,
        targets: tuple[Target, ...],
        jobs: Mapping[str, StageJob],
        *,
        emit: bool,
        partitions: int = 1,
    ) -> StageSpec:
        return StageSpec(
            name=name,
            pipeline=self._graph.pipeline,
            place=self._place,
            partitions=partitions,
            task=analyzed.task if analyzed else None,
            targets=targets,
            emit=emit,
            durable=self._durable,
            job=jobs.get(name),
            budget=self._task_bytes_max,
        )

    def _frame(self, node: Node, plan: Plan, frames: dict[int, DataFrame]) -> DataFrame:
        """The rows that a step gives in this epoch."""
        found = frames.get(id(node))
        if found is not None:
            return found
        if node.bad_of is not None:
            made = self._bad(node, plan)
        elif node.name in self._readers:
            made = self._source(node.name, plan)
        elif node.name in self._analyzed:  # an operator that did not run has no changes
            output = self._analyzed[node.name].task.output
            made = self._spark.createDataFrame([], spark_schema(output))
        else:
            made = node.frame([self._frame(found, plan, frames) for found in node.inputs])
            if node.expectation is not None:
                name = node.expectation.name
                made, plan.expected[name] = observe_expectation(node.expectation, made)
        frames[id(node)] = made
        return made

    def _source(self, name: str, plan: Plan) -> DataFrame:
        """The rows of a source in this epoch, counted and with their event times observed."""
        node = next(source for source in self._graph.sources if source.name == name)
        split = plan.splits.get(name)
        if split is None:
            return source_frame(node, node.connector.empty(self._spark))
        whole = self._read(node, split, plan)
        rows = source_frame(node, whole)
        if node.event_time is not None:
            kind = self._time_kinds.get(name)
            if kind is None:
                kind = self._time_kinds[name] = time_kind(node, rows)
            rows, plan.observed[name] = observe(node, rows, kind, self._clock)
        elif split.rows is None and name not in plan.bad and not self._counts_itself:
            rows, plan.observed[name] = count_rows(rows)
        return rows

    @property
    def _counts_itself(self) -> bool:
        """Whether Spark tells how many rows it has read."""
        return self.classic and is_on("row counts")

    def _read(self, node: SourceNode, split: Split, plan: Plan) -> DataFrame:
        """All rows of a split, read or not; the same DataFrame for all who ask in one epoch."""
        known: DataFrame | None = plan.whole.get(node.name)
        if known is not None:
            return known
        whole = self._readers[node.name].read(self._spark, split)
        if BAD in whole.columns:
            whole, plan.bad[node.name] = observe_bad(node.name, whole)
        plan.whole[node.name] = whole
        return whole

    def _bad(self, node: Node, plan: Plan) -> DataFrame:
        """What a source could not read in this epoch."""
        source = next(source for source in self._graph.sources if source.name == node.bad_of)
        split = plan.splits.get(source.name)
        found = None if split is None else bad_rows(self._read(source, split, plan))
        if found is not None:
            return found
        return self._spark.createDataFrame([], bad_schema(self._spark, node, self._graph.sources))


def _body(spec: StageSpec) -> Any:
    def body(batches: Any) -> Any:
        return run_stage(spec, batches)

    return body


def _feeding(graph: Graph, direct: set[str]) -> set[str]:
    """Operators whose rows go to something else in Spark."""
    found: set[str] = set()
    targets: list[Node] = [
        *graph.operators,
        *(sink for sink in graph.sinks if sink.name not in direct),
    ]
    waiting = [node for target in targets for node in target.inputs]
    while waiting:
        node = waiting.pop()
        if node.staged_by() is None:
            waiting.extend(node.inputs)
        elif not node.late:
            found.add(node.name)
    return found
