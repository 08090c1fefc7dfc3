"""The epoch loop: plan, execute, prepare, commit, publish, tell sources, retain.

Invariants:
- Epoch N+1 may be computed while N is being committed, but is handed over only after N is durable.
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
from typing import Any, TypeVar

from holdfast.checkpoint import Store
from holdfast.connectors.base import SourceReader, Split, rows_of, token_text
from holdfast.errors import FencedError, HoldfastError
from holdfast.failpoints import failpoint
from holdfast.format.manifest import Manifest
from holdfast.ids import RandomIds
from holdfast.operators.analysis import Resolved
from holdfast.runtime.checkpoint_marks import Marks
from holdfast.runtime.compactor import Compactor
from holdfast.runtime.evolution import ChangePlan
from holdfast.runtime.graph import Graph
from holdfast.runtime.output_manager import Outputs
from holdfast.runtime.partial_aggregation import Crowding
from holdfast.runtime.pending import Progress, Waiting
from holdfast.runtime.planner import FrameBuilder, Plan
from holdfast.runtime.report import (
    CheckpointReport,
    CheckpointState,
    EpochReport,
    RunSummary,
    Stopwatch,
)
from holdfast.runtime.run_log import record_checkpoint, record_epoch, record_recovery
from holdfast.runtime.source_logs import Logs
from holdfast.runtime.task import Control, StageJob, check_partitions
from holdfast.runtime.watermarks import Watermarks
from holdfast.spark.errors import explainer, spark_failure
from holdfast.state import RunInfo, TraceKind, expired_runs, put_trace, runs_of
from holdfast.storage.open import StorageLocation

log = logging.getLogger("holdfast.pipeline")
_T = TypeVar("_T")


class Engine:
    """Runs epochs of one pipeline on one store."""

    def __init__(
        self,
        *,
        spark: Any,
        graph: Graph,
        resolved: Mapping[str, Resolved],
        store: Store,
        place: StorageLocation,
        partitions: int,
        readers: Mapping[str, SourceReader],
        outputs: Outputs,
        durable_tasks: bool,
        on_epoch: Callable[[EpochReport], None] | None = None,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
        marks: Marks | None = None,
    ) -> None:
        """Take over an opened store; call `start` next."""
        self._marks, self._explain = marks or Marks(), explainer(readers, spark)
        self._graph, self._resolved, self._store = graph, resolved, store
        self._place, self._partitions = place, partitions
        self._readers, self._logs = readers, Logs(readers)
        self._outputs, self._writers = outputs, outputs.writers
        self._on_epoch = on_epoch or (lambda _: None)
        self._on_checkpoint = on_checkpoint or (lambda _: None)
        self._watermarks = Watermarks(graph.sources)
        self._builder = FrameBuilder(
            spark, graph, resolved, readers, place=place, partitions=partitions,
            durable=durable_tasks,
            sink_places={name: w.staging("")[0] for name, w in outputs.writers.items()},
        )  # fmt: skip
        self._ahead_thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-plan")
        self._ahead: Plan | None = None
        self._crowding = Crowding()
        self._schedule = store.schedule()
        self._compactor = Compactor(place, graph.pipeline, partitions, RandomIds(), store.reserve)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-commit")
        self._commit: Future[float] | None = None
        self._waiting: Waiting | None = None
        self._progress = Progress()
        for found in resolved.values():
            self._progress.counts.declare(found.work)
        self._shadow: dict[str, list[RunInfo]] = {}  # of operators that only a rebuild runs again
        self.summary = RunSummary()

    @property
    def _schemas(self) -> dict[str, Any]:
        return {
            trace: schema
            for resolved in self._resolved.values()
            for trace, schema in resolved.work.traces.items()
        }

    # Start

    def start(self) -> None:
        """Restore from the checkpoint that recovery chose, and settle the sinks.

        Every output was looked at before: see `Outputs.look`.
        """
        self._progress.epoch = self._store.epoch_next
        if self._store.current is not None:
            self._restore(self._store.current)
        self._outputs.act(self._store)
        self._store.publish_pending(self._outputs.handlers)
        report = self._store.retain()
        if report.error is not None:
            self.summary.notes.append(f"retention: {report.error}")
        record_recovery(self._graph.pipeline, self._store.current, self._progress.epoch)
        self._compactor.look(self._progress.runs)

    def _restore(self, manifest: Manifest) -> None:
        progress = self._progress
        progress.parent = manifest.checkpoint
        self.summary.resumed_from = int(manifest.epoch)
        for trace in self._schemas:
            entry = manifest.operator(trace)
            if entry is not None:
                progress.runs[trace] = list(runs_of(manifest, trace))
                progress.counts.restore(entry)
        marks = {}
        for name, reader in self._readers.items():
            reader.restore(manifest, self._store.reader)
            source = manifest.source(name)
            if source is not None and source.watermark_us is not None:
                marks[name] = source.watermark_us
        self._watermarks.restore(manifest.watermark_us, marks)

    def fill(self, changes: ChangePlan, views: Mapping[str, Any]) -> None:
        """Give new operators and sinks the rows of the past, as one checkpoint of its own.

        views: rows of kept operators as DataFrames. Positions stay where they are.
        """
        if changes.fills:
            self._fill(changes, views)
        self._outputs.finish(self._store.current)
        self._logs.tell(self._store)  # not before: a fill reads what sources may forget now

    def _fill(self, changes: ChangePlan, views: Mapping[str, Any]) -> None:
        only = changes.new | changes.replayed
        self._shadow = {t: [] for n in changes.replayed for t in self._resolved[n].work.traces}
        given = {id(n): views[n.name] for n in self._graph.operators if n.name in views}
        history = {name: self._readers[name].history() for name in changes.from_sources}
        count = max((len(splits) for splits in history.values()), default=0)
        for number in range(max(1, count)):
            splits = {name: all_[number] for name, all_ in history.items() if number < len(all_)}
            self._fill_epoch(only, splits, given if number == 0 else self._empty(given))
        mark = self._watermarks.previous_watermark_us
        timed = any(one.work.timed for name, one in self._resolved.items() if name in changes.new)
        if timed and mark is not None:  # what the past has closed is closed now
            self._fill_epoch(only, {}, self._empty(given), watermark_us=mark)
        paths = [f"{self._graph.pipeline}/{r.path}" for runs in self._shadow.values() for r in runs]
        self._shadow = {}
        self.finish()
        self._store.storage.delete_many(paths)

    def note_change(self) -> None:
        """Commit what was accepted, a removal or another table, though no row came with it."""
        self._reserved().epochs += 1
        self._progress.epoch += 1
        self.finish(last=False)

    def _reserved(self) -> Waiting:
        if self._waiting is None:
            self._waiting = Waiting(self._store.reserve())
        return self._waiting

    def _empty(self, given: Mapping[int, Any]) -> dict[int, Any]:
        return {node: frame.where("false") for node, frame in given.items()}

    def _fill_epoch(
        self, new: frozenset[str], splits: Mapping[str, Split], given: Mapping[int, Any],
        watermark_us: int | None = None,
    ) -> None:  # fmt: skip
        waiting = self._reserved()
        plan = self._typed(lambda: self._builder.plan(splits, only=new, given=given))
        jobs = self._jobs(waiting, watermark_us, previous_watermark_us=None)
        controls = self._typed(lambda: self._builder.run(plan, jobs))
        failpoint("fill.after_execute")
        self._count(controls, waiting)
        waiting.epochs += 1
        self._progress.epoch += 1

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
        if self._compactor.overdue and self._progress.parent is not None:
            self._compactor.catch_up(
                self._progress.runs, self._schemas, self._progress.parent, self._bounds(), stop
            )
            clock.lap("merge")
        if self._outputs.compaction_due(self._store):
            self.wait()
            self._outputs.compact(self._store)
            clock.lap("fold")
        failpoint("epoch.after_plan")
        controls, waiting, watermark_us = self._execute(plan, clock, look_ahead=not last)
        failpoint("epoch.after_execute")
        report = self._take_in(controls, plan, waiting, watermark_us, clock)
        self._watermarks.previous_watermark_us = watermark_us
        self._schedule.epoch_done()
        if self._schedule.should_checkpoint(log_bytes=self._logs.grown_bytes):
            self._hand_over(clock)
        self.summary.epochs += 1
        self.summary.rows += report.rows
        self.summary.changes += report.changes
        self.summary.late += report.late
        self.summary.last_epoch = report.epoch
        record_epoch(self._graph.pipeline, report)
        self._on_epoch(report)
        return report

    def _next_plan(self) -> Plan | None:
        """The plan that was made ahead, or a new one; None when there is nothing to do."""
        plan, self._ahead = self._ahead, None
        if plan is not None:
            return plan
        splits = self._splits({})
        now, settled = self._watermarks.now_us(), self._watermarks.previous_watermark_us
        moved = now is not None and (settled is None or now > settled)
        if not splits and not (moved and self._builder.wakes):
            return None
        return self._typed(lambda: self._builder.plan(splits))

    def _splits(self, after: Mapping[str, Split]) -> dict[str, Split]:
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
    ) -> tuple[list[Control], Waiting, int | None]:
        waiting = self._reserved()
        watermark_us = self._watermarks.now_us()
        jobs = self._jobs(waiting, watermark_us, self._watermarks.previous_watermark_us)
        ahead: Future[Plan | None] | None = None
        if look_ahead:
            ahead = self._ahead_thread.submit(self._look_ahead, plan.splits)
        try:
            controls = self._typed(lambda: self._builder.run(plan, jobs))
        except HoldfastError as error:
            self._let_go(ahead)
            self._check_not_overtaken(error)
            raise
        finally:
            clock.lap("job")
            if ahead is not None:
                wait([ahead])
        if ahead is not None:
            self._ahead = self._typed(ahead.result)
            clock.lap("look ahead")
        return controls, waiting, watermark_us

    def _let_go(self, ahead: Future[Plan | None] | None) -> None:
        """An epoch that fails takes the plan of the next one with it."""
        plan = ahead.result() if ahead is not None and ahead.exception() is None else None
        if plan is not None:
            self._builder.drop(plan)

    def _check_not_overtaken(self, error: HoldfastError) -> None:
        """Whoever was overtaken may miss files of its own: that is the better explanation."""
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
            raise spark_failure(error, self._progress.epoch, explain=self._explain) from error

    def _jobs(
        self, waiting: Waiting, watermark_us: int | None, previous_watermark_us: int | None
    ) -> dict[str, StageJob]:
        """What every stage must know about this epoch."""
        staging = {
            name: writer.staging(waiting.checkpoint)[1] for name, writer in self._writers.items()
        }
        names = [*self._resolved, *(sink.name for sink in self._graph.sinks)]
        jobs = {}
        held = {**self._progress.runs, **self._shadow}
        for name in names:
            traces = self._resolved[name].work.traces if name in self._resolved else {}
            jobs[name] = StageJob(
                checkpoint=waiting.checkpoint,
                # A later epoch of one checkpoint builds on what the earlier ones wrote.
                parent=waiting.checkpoint if waiting.epochs else self._progress.parent,
                epoch=self._progress.epoch,
                runs={trace: held.get(trace, []) for trace in traces},
                staging=staging,
                watermark_us=watermark_us,
                previous_watermark_us=previous_watermark_us,
            )
        return jobs

    def _bounds(self) -> dict[str, int]:
        """By trace, the event time before which state is forgotten."""
        settled = self._watermarks.previous_watermark_us
        if settled is None:
            return {}
        return {
            trace: bound
            for resolved in self._resolved.values()
            for trace, bound in resolved.work.bounds_us(settled).items()
        }

    def _take_in(
        self, controls: list[Control], plan: Plan, waiting: Waiting, watermark_us: int | None,
        clock: Stopwatch,
    ) -> EpochReport:  # fmt: skip
        progress = self._progress
        totals, bytes_new = self._count(controls, waiting)
        future, rows = 0, 0
        self._logs.read(plan.splits)
        for name, split in plan.splits.items():
            self._readers[name].advance(split)
            observed = plan.observed.get(name)
            seen = observed.read() if observed else None
            self._watermarks.seen(name, seen.newest_us if seen else None)
            future += seen.future if seen else 0
            rows += rows_of(self._readers[name], split, seen.rows if seen else None, plan.scans)
        waiting.rows += rows
        waiting.epochs += 1
        epoch, progress.epoch = progress.epoch, progress.epoch + 1
        clock.lap("take in")
        return EpochReport(
            epoch=epoch, rows=rows, changes=totals.get("changes", 0), keys=totals.get("keys", 0),
            late=totals.get("late", 0), bytes_new=bytes_new, phases_ms=clock.laps,
            backlog={name: reader.backlog() for name, reader in self._readers.items()},
            checkpoint=waiting.state,
            watermark_us=watermark_us, lag_us=self._watermarks.lag_us(watermark_us), future=future,
        )  # fmt: skip

    def _count(self, controls: list[Control], waiting: Waiting) -> tuple[dict[str, int], int]:
        """Take over what the tasks wrote; returns sums of their counters, and bytes of state."""
        progress = self._progress
        totals: dict[str, int] = {}
        by_operator: dict[str, dict[str, int]] = {}
        bytes_new = 0
        check_partitions(controls, set(self._resolved), self._partitions)
        for control in controls:
            for run in control.runs:
                into = self._shadow if run.operator in self._shadow else progress.runs
                into.setdefault(run.operator, []).append(run)
                bytes_new += run.size
            for staged in control.staged:
                waiting.staged.setdefault(staged.sink, []).append(staged)
            for key, value in control.counters.items():
                totals[key] = totals.get(key, 0) + value
                mine = by_operator.setdefault(control.name, {})
                mine[key] = mine.get(key, 0) + value
            live = control.counts.items()
            progress.counts.add({trace: n for trace, n in live if trace not in self._shadow})
        self._crowding.note(by_operator)
        self._builder.condensing = self._crowding.operators()
        return totals, bytes_new

    # Committing

    def _hand_over(self, clock: Stopwatch | None = None) -> None:
        """Wait for the commit before, draft this one, and commit it beside the next epoch."""
        self.wait()
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        if clock is not None:
            clock.lap("wait")
        self._compactor.collect(self._progress.runs)
        self._expire()
        draft = self._store.draft(
            checkpoint=waiting.checkpoint, epoch=self._progress.epoch - 1, label=self._marks.label
        )
        self._marks.mark(draft)
        for trace, schema in self._schemas.items():
            listed = put_trace(
                draft, trace, TraceKind(schema.kind), self._progress.runs.get(trace, []),
                partitions=self._partitions, **self._progress.counts.of(trace)._asdict(),
            )  # fmt: skip
            self._progress.runs[trace] = listed
        for name, reader in self._readers.items():
            position = reader.save(draft)
            mark = self._watermarks.marks_us.get(name)
            draft.set_source(name, position, watermark_us=mark, idle=self._watermarks.is_idle(name))
            self._logs.save(name, position, draft)
        if self._watermarks.previous_watermark_us is not None:
            draft.set_watermark(self._watermarks.previous_watermark_us)
        draft.add_processed(waiting.rows)
        for sink in self._graph.sinks:
            staged = waiting.staged.get(sink.name, [])
            if staged:
                directory = self._writers[sink.name].staging(waiting.checkpoint)[1]
                token = token_text(directory, staged)
                draft.stage_sink(sink.name, token, replay=sink.connector.replay)
        draft.set_properties({**draft.properties, **self._outputs.properties})
        failpoint("epoch.after_draft")
        self._progress.parent = waiting.checkpoint
        self._commit = self._thread.submit(self._finish, draft, waiting.state)
        self._schedule.checkpointed()
        if clock is not None:
            clock.lap("draft")

    def _expire(self) -> None:
        """Runs wholly behind the bound leave the lists unread; nobody will ask for them again."""
        schemas = self._schemas
        for trace, bound in self._bounds().items():
            runs = self._progress.runs.get(trace, [])
            gone = set(expired_runs(runs, bound, time_is_key=schemas[trace].time_is_key))
            if gone:
                self._progress.runs[trace] = [run for run in runs if run not in gone]

    def _finish(self, draft: Any, state: CheckpointState) -> float:
        """Commit, publish, tell the sources, retain: in the commit thread."""
        start = time.perf_counter()
        summary = self._store.commit(draft)
        state.durable = True
        committed_ms = (time.perf_counter() - start) * 1e3
        failpoint("epoch.after_commit")
        if summary.sinks:
            self._store.publish_pending(self._outputs.handlers)
        failpoint("epoch.after_publish")
        self._logs.tell(self._store)
        pending = len(self._store.pending())
        made = record_checkpoint(self._graph.pipeline, summary, committed_ms, pending)
        self._on_checkpoint(made)
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
            self._compactor.collect(self._progress.runs)
            self._compact()
        return took

    def _compact(self) -> None:
        """Begin the next compaction that is due."""
        if (parent := self._progress.parent) is not None:
            self._compactor.start(self._progress.runs, self._schemas, parent, self._bounds())

    def finish(self, *, last: bool = True) -> None:
        """Commit what is left. last: nothing else follows in this run."""
        if self._waiting is not None and self._waiting.epochs:
            self._hand_over()
        self.wait(compact=not last)
        if last and self._compactor.error is not None:
            self.summary.notes.append(f"a compaction failed: {self._compactor.error}")

    def close(self) -> None:
        """Let go of threads; nothing is committed."""
        self._compactor.stop()
        self._ahead_thread.shutdown(wait=True, cancel_futures=True)
        if self._ahead is not None:
            self._builder.drop(self._ahead)
        self._thread.shutdown(wait=True, cancel_futures=True)
