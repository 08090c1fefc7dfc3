"""The epoch loop: plan, execute, prepare, commit, publish, tell sources, retain.

Invariants:
- Epoch N+1 may be computed while N is being committed, but is drafted only after N is durable.
- Epoch N+1 may be planned while N is computed; a plan that is not run has changed nothing.
- Positions, state and sink tokens of an epoch go into one draft: they become durable together.
- A failure anywhere leaves the last checkpoint as it was; what was staged is removed at the next
  start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.checkpoint import Store
from holdfast.clock import Clock, SystemClock
from holdfast.connectors.base import SourceReader, Split
from holdfast.errors import FencedError, HoldfastError
from holdfast.failpoints import failpoint
from holdfast.format.manifest import Manifest
from holdfast.ids import IdSource, RandomIds
from holdfast.operators.base import Analyzed
from holdfast.runtime.backfill import BackfillEpoch, plan_backfill
from holdfast.runtime.checkpoint_marks import Marks
from holdfast.runtime.compaction_work import CompactionRunner
from holdfast.runtime.compactor import Compactor
from holdfast.runtime.epoch_size import Pacing
from holdfast.runtime.evolution import ChangePlan
from holdfast.runtime.graph import Graph
from holdfast.runtime.intake import advance
from holdfast.runtime.lag import LagMeter
from holdfast.runtime.output_manager import Outputs, stage_tokens
from holdfast.runtime.partial_aggregation import PartialAggregationPolicy
from holdfast.runtime.pending import Absorbed, EngineState, PendingCheckpoint, absorb
from holdfast.runtime.planner import FrameBuilder, Plan
from holdfast.runtime.quality import QualityCounts
from holdfast.runtime.report import (
    CheckpointReport,
    CheckpointState,
    EpochReport,
    RunSummary,
    Stopwatch,
    record_checkpoint,
    record_epoch,
    record_recovery,
)
from holdfast.runtime.source_logs import Logs
from holdfast.runtime.stage_job import StageJob, jobs_of
from holdfast.runtime.task import Control, check_partitions
from holdfast.runtime.watermarks import Watermarks
from holdfast.spark.errors import explainer, spark_failure
from holdfast.state import RunIndex, RunInfo, TraceKind, put_index, runs_of
from holdfast.storage.open import StorageLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.pipeline")
_T = TypeVar("_T")


class Engine:
    """Runs epochs of one pipeline on one store."""

    def __init__(
        self,
        *,
        spark: SparkSession,
        graph: Graph,
        resolved: Mapping[str, Analyzed],
        store: Store,
        place: StorageLocation,
        partitions: int,
        readers: Mapping[str, SourceReader],
        outputs: Outputs,
        durable_tasks: bool,
        on_epoch: Callable[[EpochReport], None] | None = None,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
        marks: Marks | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        """Take over an opened store; call `start` next."""
        ids = ids or RandomIds()
        self._marks, self._explain = marks or Marks(), explainer(readers, spark)
        self._graph, self._resolved, self._store = graph, resolved, store
        self._place, self._partitions = place, partitions
        self._readers, self._logs = readers, Logs(readers)
        self._pacing = Pacing(store.settings.epoch_target_ms, readers)
        self._outputs, self._writers = outputs, outputs.writers
        self._on_epoch = on_epoch or (lambda _: None)
        self._on_checkpoint = on_checkpoint or (lambda _: None)
        self._watermarks = Watermarks(graph.sources, clock or SystemClock())
        self._lag, self._quality = LagMeter(self._watermarks.clock), QualityCounts()
        self._builder = FrameBuilder(
            spark,
            graph,
            resolved,
            readers,
            place=place,
            partitions=partitions,
            durable=durable_tasks,
            sink_places={name: w.staging("")[0] for name, w in outputs.writers.items()},
            clock=self._watermarks.clock,
            ids=ids,
            run_count=self._run_count,
            task_bytes_max=store.settings.task_bytes_max,
        )
        self._ahead_thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-plan")
        self._ahead: Plan | None = None
        self._partial_aggregation = PartialAggregationPolicy()
        self._schedule = store.schedule()
        runner = CompactionRunner(place, graph.pipeline, spark)
        self._compactor = Compactor(runner, partitions, ids, store.reserve)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-commit")
        self._commit: Future[float] | None = None
        self._pending: PendingCheckpoint | None = None
        self._state = EngineState({trace: RunIndex(partitions) for trace in self._schemas})
        for operator in resolved.values():
            self._state.counts.declare(operator.task)
        self._shadow: dict[str, list[RunInfo]] = {}  # of operators that only a rebuild runs again
        self.summary = RunSummary()

    @property
    def _schemas(self) -> dict[str, Any]:
        return {
            trace: schema
            for resolved in self._resolved.values()
            for trace, schema in resolved.task.traces.items()
        }

    def _run_count(self, operator: str) -> int:
        return sum(len(self._state.runs[t]) for t in self._resolved[operator].task.traces)

    # Start

    def start(self) -> None:
        """Restore from the checkpoint that recovery chose, and publish what sinks wait for.

        Every output was looked at before: see `Outputs.look`.
        """
        self._state.epoch = self._store.epoch_next
        if self._store.current is not None:
            self._restore(self._store.current)
        self._outputs.act(self._store)
        self._store.publish_pending(self._outputs.handlers)
        report = self._store.retain()
        if report.error is not None:
            self.summary.notes.append(f"retention: {report.error}")
        record_recovery(self._graph.pipeline, self._store.current, self._state.epoch)
        self._compactor.look(self._state.runs)

    def _restore(self, manifest: Manifest) -> None:
        state = self._state
        state.parent = manifest.checkpoint
        self.summary.resumed_from = int(manifest.epoch)
        for trace in self._schemas:
            entry = manifest.operator(trace)
            if entry is not None:
                state.runs[trace] = RunIndex(self._partitions, runs_of(manifest, trace))
                state.counts.restore(entry)
        marks = {}
        for name, reader in self._readers.items():
            reader.restore(manifest, self._store.reader)
            source = manifest.source(name)
            if source is not None and source.watermark_us is not None:
                marks[name] = source.watermark_us
        self._watermarks.restore(manifest.watermark_us, marks)

    def backfill(self, changes: ChangePlan, views: Mapping[str, Any]) -> None:
        """Give new operators and sinks the rows of the past, as one checkpoint of its own.

        views: rows of kept operators as DataFrames. Positions stay where they are.
        """
        if changes.backfills:
            self._backfill(changes, views)
        self._outputs.finish(self._store.current)
        self._logs.tell(self._store)  # not before: a backfill reads what sources may forget now

    def _backfill(self, changes: ChangePlan, views: Mapping[str, Any]) -> None:
        only = changes.new | changes.replayed
        self._shadow = {t: [] for n in changes.replayed for t in self._resolved[n].task.traces}
        epochs = plan_backfill(
            changes,
            views,
            graph=self._graph,
            resolved=self._resolved,
            readers=self._readers,
            watermark_us=self._watermarks.previous_watermark_us,
        )
        for epoch in epochs:
            self._backfill_epoch(only, epoch)
        paths = [f"{self._graph.pipeline}/{r.path}" for runs in self._shadow.values() for r in runs]
        self._shadow = {}
        self.finish()
        self._store.storage.delete_many(paths)

    def note_change(self) -> None:
        """Commit what was accepted, a removal or another table, though no row came with it."""
        self._reserved().epochs += 1
        self._state.epoch += 1
        self.finish(last=False)

    def _reserved(self) -> PendingCheckpoint:
        if self._pending is None:
            self._pending = PendingCheckpoint(self._store.reserve())
        return self._pending

    def _backfill_epoch(self, only: frozenset[str], epoch: BackfillEpoch) -> None:
        pending = self._reserved()
        plan = self._typed(lambda: self._builder.plan(epoch.splits, only=only, given=epoch.given))
        jobs = self._jobs(pending, epoch.watermark_us, previous_watermark_us=None)
        controls = self._typed(lambda: self._builder.run(plan, jobs))
        failpoint("fill.after_execute")
        self._count(controls, plan, pending)
        pending.epochs += 1
        self._state.epoch += 1

    # Epochs

    def step(
        self, *, last: bool = False, stop: Callable[[], bool] = lambda: False
    ) -> EpochReport | None:
        """Run one epoch; None when no source has anything new.

        last: no other epoch follows, so none is planned ahead. stop: whether waiting is over.
        """
        clock = Stopwatch()
        plan = self._next_plan()
        clock.lap("plan")
        if plan is None:
            return None
        if self._compactor.overdue and self._state.parent is not None:
            self._compactor.catch_up(
                self._state.runs, self._schemas, self._state.parent, self._bounds(), stop
            )
            clock.lap("merge")
        if self._outputs.compaction_due(self._store):
            self.wait()
            self._outputs.compact(self._store)
            clock.lap("fold")
        failpoint("epoch.after_plan")
        controls, pending, watermark_us = self._execute(plan, clock, look_ahead=not last)
        failpoint("epoch.after_execute")
        report = self._absorb_reports(controls, plan, pending, watermark_us, clock)
        report = self._pacing.noted(report)
        self._watermarks.previous_watermark_us = watermark_us
        self._schedule.epoch_done()
        if self._schedule.should_checkpoint(log_bytes=self._logs.grown_bytes):
            self._start_commit(clock)
        self.summary.add(report)
        self._quality.add(plan.quality)
        record_epoch(self._graph.pipeline, report)
        self._on_epoch(report)
        return report

    def _next_plan(self) -> Plan | None:
        """The plan that was made ahead, or a new one; None when there is nothing to do."""
        plan, self._ahead = self._ahead, None
        if plan is not None:
            return plan
        splits = self._splits({})
        now, previous = self._watermarks.now_us(), self._watermarks.previous_watermark_us
        moved = now is not None and (previous is None or now > previous)
        if not splits and not (moved and self._builder.wakes):
            return None
        return self._typed(lambda: self._builder.plan(splits))

    def _splits(self, after: Mapping[str, Split]) -> dict[str, Split]:
        self._pacing.limit()
        splits = {name: reader.plan(after.get(name)) for name, reader in self._readers.items()}
        return {name: split for name, split in splits.items() if split is not None}

    def _look_ahead(self, after: Mapping[str, Split]) -> Plan | None:
        splits = self._splits(after)
        if not splits:
            return None
        plan = self._builder.plan(splits)
        self._builder.begin(plan)
        return plan

    def _execute(
        self, plan: Plan, clock: Stopwatch, *, look_ahead: bool
    ) -> tuple[list[Control], PendingCheckpoint, int | None]:
        pending = self._reserved()
        watermark_us = self._watermarks.now_us()
        jobs = self._jobs(pending, watermark_us, self._watermarks.previous_watermark_us)
        ahead: Future[Plan | None] | None = None
        if look_ahead:
            ahead = self._ahead_thread.submit(self._look_ahead, plan.splits)
        try:
            controls = self._typed(lambda: self._builder.run(plan, jobs))
        except HoldfastError as error:
            self._discard_plan(ahead)
            self._check_not_overtaken(error)
            raise
        finally:
            clock.lap("job")
            if ahead is not None:
                wait([ahead])
        if ahead is not None:
            self._ahead = self._typed(ahead.result)
            clock.lap("look ahead")
        return controls, pending, watermark_us

    def _discard_plan(self, ahead: Future[Plan | None] | None) -> None:
        """An epoch that fails takes the plan of the next one with it."""
        plan = ahead.result() if ahead is not None and ahead.exception() is None else None
        if plan is not None:
            self._builder.drop(plan)

    def _check_not_overtaken(self, error: HoldfastError) -> None:
        """A writer that was overtaken may miss files: that is the better explanation."""
        if self._commit is not None:  # writes to the catalog that is looked at here
            failed = self._commit.exception()
            if isinstance(failed, FencedError):
                raise failed from error
        self._store.check_alive(error)

    def _typed(self, call: Callable[[], _T]) -> _T:
        """Run code of Spark; its errors become Holdfast's."""
        try:
            return call()
        except HoldfastError:
            raise
        except Exception as error:
            raise spark_failure(error, self._state.epoch, explain=self._explain) from error

    def _jobs(
        self,
        pending: PendingCheckpoint,
        watermark_us: int | None,
        previous_watermark_us: int | None,
    ) -> dict[str, StageJob]:
        """What every stage must know about this epoch."""
        common = StageJob(
            checkpoint=pending.checkpoint,
            # A later epoch of one checkpoint builds on what the earlier ones wrote.
            parent=pending.checkpoint if pending.epochs else self._state.parent,
            epoch=self._state.epoch,
            staging={n: w.staging(pending.checkpoint)[1] for n, w in self._writers.items()},
            watermark_us=watermark_us,
            previous_watermark_us=previous_watermark_us,
        )
        traces = {name: tuple(found.task.traces) for name, found in self._resolved.items()}
        traces |= {sink.name: () for sink in self._graph.sinks}
        return jobs_of(common, traces, {**self._state.lists(), **self._shadow})

    def _bounds(self) -> dict[str, int]:
        """By trace, the event time before which state is forgotten."""
        tasks = [resolved.task for resolved in self._resolved.values()]
        return self._state.bounds(tasks, self._watermarks.previous_watermark_us)

    def _absorb_reports(
        self,
        controls: list[Control],
        plan: Plan,
        pending: PendingCheckpoint,
        watermark_us: int | None,
        clock: Stopwatch,
    ) -> EpochReport:
        state = self._state
        absorbed = self._count(controls, plan, pending)
        self._logs.read(plan.splits)
        by_source, future = advance(plan, self._readers, self._watermarks, self._lag)
        self._builder.note(plan, by_source, absorbed.by_operator)
        backlog, lag = self._lag.measure(self._readers)
        pending.rows += sum(by_source.values())
        pending.epochs += 1
        epoch, state.epoch = state.epoch, state.epoch + 1
        clock.lap("take in")
        return EpochReport(
            epoch=epoch,
            rows=sum(by_source.values()),
            rows_by_source=by_source,
            changes=absorbed.total("changes"),
            keys=absorbed.total("keys"),
            late=absorbed.total("late"),
            bytes_new=absorbed.bytes_new,
            phases_ms=clock.laps,
            backlog=backlog,
            lag=lag,
            outdated=absorbed.total("outdated"),
            bad=dict(plan.quality.bad),
            expectations=dict(plan.quality.expectations),
            checkpoint=pending.state,
            watermark_us=watermark_us,
            lag_us=self._watermarks.lag_us(watermark_us),
            future=future,
            tasks=plan.tasks,
        )

    def _count(self, controls: list[Control], plan: Plan, pending: PendingCheckpoint) -> Absorbed:
        """Take over what the tasks wrote; returns sums of their counters."""
        check_partitions(controls, plan.tasks)
        absorbed = absorb(controls, self._state, pending, self._shadow)
        self._partial_aggregation.note(absorbed.by_operator)
        self._builder.partially_aggregated = self._partial_aggregation.operators()
        return absorbed

    # Committing

    def _start_commit(self, clock: Stopwatch | None = None) -> None:
        """Wait for the commit before, draft this one, and commit it while the next epoch runs."""
        self.wait()
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if clock is not None:
            clock.lap("wait")
        self._compactor.collect(self._state.runs)
        self._state.expire(self._bounds(), self._schemas)
        draft = self._store.draft(
            checkpoint=pending.checkpoint, epoch=self._state.epoch - 1, label=self._marks.label
        )
        self._marks.mark(draft)
        for trace, schema in self._schemas.items():
            put_index(
                draft,
                trace,
                TraceKind(schema.kind),
                self._state.runs[trace],
                **self._state.counts.of(trace)._asdict(),
            )
        for name, reader in self._readers.items():
            position = reader.save(draft)
            mark = self._watermarks.marks_us.get(name)
            draft.set_source(name, position, watermark_us=mark, idle=self._watermarks.is_idle(name))
            self._logs.save(name, position, draft)
        if self._watermarks.previous_watermark_us is not None:
            draft.set_watermark(self._watermarks.previous_watermark_us)
        draft.add_processed(pending.rows)
        stage_tokens(draft, self._graph.sinks, self._writers, pending.staged, pending.checkpoint)
        draft.set_properties({**draft.properties, **self._outputs.properties})
        failpoint("epoch.after_draft")
        self._state.parent = pending.checkpoint
        self._commit = self._thread.submit(self._finish, draft, pending.state)
        self._schedule.checkpointed()
        if clock is not None:
            clock.lap("draft")

    def _finish(self, draft: Any, checkpoint: CheckpointState) -> float:
        """Commit, publish, tell the sources, retain: in the commit thread."""
        start = time.perf_counter()
        summary = self._store.commit(draft)
        checkpoint.durable = True
        committed_ms = (time.perf_counter() - start) * 1e3
        failpoint("epoch.after_commit")
        if summary.sinks:
            self._store.publish_pending(self._outputs.handlers)
        failpoint("epoch.after_publish")
        self._logs.tell(self._store)
        pending = len(self._store.pending())
        self._on_checkpoint(record_checkpoint(self._graph.pipeline, summary, committed_ms, pending))
        report = self._store.retain()
        if report.error is not None:
            log.warning("retention failed and will be tried again: %s", report.error)
        return (time.perf_counter() - start) * 1e3

    def wait(self, *, compact: bool = True) -> float | None:
        """Wait for the commit that is under way; its error is raised here.

        compact: begin the next compaction; with the last commit it would only be cancelled.
        """
        if self._commit is None:
            return None
        commit, self._commit = self._commit, None
        took = commit.result()
        if compact:
            self._compactor.collect(self._state.runs)
            self._compact()
        return took

    def _compact(self) -> None:
        """Begin the next compaction that is due."""
        if (parent := self._state.parent) is not None:
            self._compactor.start(self._state.runs, self._schemas, parent, self._bounds())

    def finish(self, *, last: bool = True) -> None:
        """Commit what is left. last: nothing else follows in this run."""
        if self._pending is not None and self._pending.epochs:
            self._start_commit()
        self.wait(compact=not last)
        if last:
            self.summary.notes.extend(self._quality.notes(self._graph))
        if last and self._compactor.error is not None:
            self.summary.notes.append(f"a compaction failed: {self._compactor.error}")

    def close(self) -> None:
        """Release the threads; nothing is committed."""
        self._compactor.stop()
        self._ahead_thread.shutdown(wait=True, cancel_futures=True)
        if self._ahead is not None:
            self._builder.drop(self._ahead)
        self._thread.shutdown(wait=True, cancel_futures=True)
