"""The epoch loop: plan, execute, prepare, commit, publish, tell sources, retain.

Invariants:
- Epoch N+1 may be computed while N is being committed, but is handed over only after N is durable.
- Positions, state and sink tokens of an epoch go into one draft: they become durable together.
- A failure anywhere leaves the last checkpoint as it was; what was staged is removed at the next
  start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint import Store
from holdfast.errors import HoldfastError, InternalError
from holdfast.format.manifest import Manifest
from holdfast.ids import CheckpointId, RandomIds
from holdfast.pipeline import frames
from holdfast.pipeline.failures import spark_failure
from holdfast.pipeline.graph import Graph, sources_of
from holdfast.pipeline.merging import Merger
from holdfast.pipeline.report import EpochReport, RunSummary
from holdfast.pipeline.resolve import Resolved
from holdfast.pipeline.sinks.api import SinkWriter, token_text
from holdfast.pipeline.sources.api import Slice, SourceReader
from holdfast.pipeline.stage import Control, Place, Staged, Staging
from holdfast.points import reach
from holdfast.state import RunInfo, TraceKind, put_trace, runs_of

log = logging.getLogger("holdfast.pipeline")


@dataclass
class Progress:
    """Everything that moves from epoch to epoch."""

    runs: dict[str, list[RunInfo]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    watermarks_us: dict[str, int] = field(default_factory=dict)
    parent: CheckpointId | None = None
    epoch: int = 0


@dataclass
class Waiting:
    """Epochs since the last checkpoint, under one reserved id."""

    checkpoint: CheckpointId
    staged: dict[str, list[Staged]] = field(default_factory=dict)
    rows: int = 0
    epochs: int = 0


class Engine:
    """Runs epochs of one pipeline on one store."""

    def __init__(
        self,
        *,
        spark: Any,
        graph: Graph,
        resolved: Mapping[str, Resolved],
        store: Store,
        place: Place,
        partitions: int,
        readers: Mapping[str, SourceReader],
        writers: Mapping[str, SinkWriter],
        durable_tasks: bool,
        on_epoch: Callable[[EpochReport], None] | None = None,
    ) -> None:
        """Take over an opened store; call `start` next."""
        self._graph, self._resolved, self._store = graph, resolved, store
        self._place, self._partitions = place, partitions
        self._readers, self._writers = readers, writers
        self._durable_tasks = durable_tasks
        self._on_epoch = on_epoch or (lambda _: None)
        self._builder = frames.FrameBuilder(spark, graph, resolved, readers)
        self._schedule = store.schedule()
        self._merger = Merger(place, graph.pipeline, partitions, RandomIds(), store.reserve)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-commit")
        self._commit: Future[float] | None = None
        self._waiting: Waiting | None = None
        self._progress = Progress()
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
        """Restore from the checkpoint that recovery chose, and settle the sinks."""
        manifest = self._store.current
        self._progress.epoch = self._store.epoch_next
        if manifest is not None:
            self._restore(manifest)
        for name, writer in self._writers.items():
            writer.retract(int(manifest.epoch) if manifest else None)
            pending = [t.checkpoint for t in self._store.pending() if t.sink == name]
            writer.tidy(pending)
        self._store.settle(self._writers)
        report = self._store.retain()
        if report.error is not None:
            self.summary.notes.append(f"retention: {report.error}")

    def _restore(self, manifest: Manifest) -> None:
        progress = self._progress
        progress.parent = manifest.checkpoint
        self.summary.resumed_from = int(manifest.epoch)
        for trace in self._schemas:
            entry = manifest.operator(trace)
            if entry is not None:
                progress.runs[trace] = list(runs_of(manifest, trace))
                progress.keys[trace] = entry.keys
        for name, reader in self._readers.items():
            reader.restore(manifest, self._store.reader)
            source = manifest.source(name)
            if source is not None and source.watermark_us is not None:
                progress.watermarks_us[name] = source.watermark_us

    # Epochs

    def step(self) -> EpochReport | None:
        """Run one epoch; None when no source has anything new."""
        clock = _Stopwatch()
        slices = self._plan()
        clock.lap("plan")
        if not slices:
            return None
        reach("epoch.after_plan")
        controls, waiting = self._execute(slices, clock)
        reach("epoch.after_execute")
        report = self._take_in(controls, slices, waiting, clock)
        self._schedule.epoch_done()
        if self._schedule.should_checkpoint():
            self._hand_over(clock)
        self.summary.epochs += 1
        self.summary.rows += report.rows
        self.summary.changes += report.changes
        self.summary.late += report.late
        self.summary.last_epoch = report.epoch
        self._on_epoch(report)
        return report

    def _plan(self) -> dict[str, Slice]:
        found = {}
        for name, reader in self._readers.items():
            piece = reader.plan()
            if piece is not None:
                found[name] = piece
        return found

    def _execute(
        self, slices: Mapping[str, Slice], clock: _Stopwatch
    ) -> tuple[list[Control], Waiting]:
        if self._waiting is None:
            self._waiting = Waiting(self._store.reserve())
        waiting = self._waiting
        epoch = frames.Epoch(
            pipeline=self._graph.pipeline,
            place=self._place,
            checkpoint=waiting.checkpoint,
            # A later epoch of one checkpoint builds on what the earlier ones wrote.
            parent=waiting.checkpoint if waiting.epochs else self._progress.parent,
            number=self._progress.epoch,
            partitions=self._partitions,
            runs=self._progress.runs,
            bounds_us=self._bounds(),
            staging=self._staging(waiting.checkpoint),
            durable=self._durable_tasks,
        )
        try:
            built = self._builder.build(epoch, slices)
            clock.lap("build")
            controls = built.run() if built is not None else []
        except HoldfastError:
            raise
        except Exception as error:
            raise spark_failure(error, self._progress.epoch) from error
        clock.lap("job")
        return controls, waiting

    def _bounds(self) -> dict[str, int | None]:
        """By trace, the event time before which state is forgotten."""
        bounds: dict[str, int | None] = {}
        for node in self._graph.operators:
            marks = [self._progress.watermarks_us.get(s.name) for s in sources_of(node)]
            known = [mark for mark in marks if mark is not None]
            if node.within_us is not None and known and len(known) == len(marks):
                bounds[node.name] = min(known) - node.within_us
        return bounds

    def _staging(self, checkpoint: CheckpointId) -> dict[str, Staging]:
        return {
            name: Staging(name, *writer.staging(checkpoint))
            for name, writer in self._writers.items()
        }

    def _take_in(
        self, controls: list[Control], slices: Mapping[str, Slice], waiting: Waiting,
        clock: _Stopwatch,
    ) -> EpochReport:  # fmt: skip
        progress = self._progress
        totals: dict[str, int] = {}
        bytes_new = 0
        self._check_partitions(controls)
        for control in controls:
            for run in control.runs:
                progress.runs.setdefault(run.operator, []).append(run)
                bytes_new += run.size
            for staged in control.staged:
                waiting.staged.setdefault(staged.sink, []).append(staged)
            counts = control.counters
            for key, value in counts.items():
                if key != "time_max_us":
                    totals[key] = totals.get(key, 0) + value
            if control.name in self._resolved:
                self._count_keys(control)
        for name, piece in slices.items():
            self._readers[name].advance(piece)
        rows = sum(p.rows or 0 for p in slices.values()) or totals.get("rows", 0)
        waiting.rows += rows
        waiting.epochs += 1
        epoch, progress.epoch = progress.epoch, progress.epoch + 1
        clock.lap("take in")
        return EpochReport(
            epoch=epoch, rows=rows, changes=totals.get("changes", 0), keys=totals.get("keys", 0),
            late=totals.get("late", 0), bytes_new=bytes_new, phases_ms=clock.laps,
            backlog={name: reader.backlog() for name, reader in self._readers.items()},
        )  # fmt: skip

    def _count_keys(self, control: Control) -> None:
        counts, progress = control.counters, self._progress
        delta = counts.get("keys_new", 0) - counts.get("keys_gone", 0)
        progress.keys[control.name] = progress.keys.get(control.name, 0) + delta
        newest = counts.get("time_max_us")
        node = self._resolved[control.name].node
        if newest is not None:
            for source in sources_of(node):
                mark = newest - source.delay_us
                known = progress.watermarks_us.get(source.name)
                progress.watermarks_us[source.name] = mark if known is None else max(known, mark)

    def _check_partitions(self, controls: list[Control]) -> None:
        """Every task of every operator reports, and none with rows of another one's partition."""
        seen: set[tuple[str, int]] = set()
        for control in controls:
            key = (control.name, control.partition)
            if control.name not in self._resolved or control.partition < 0:
                continue
            if key in seen or control.partition >= self._partitions:
                raise InternalError("a partition reported twice", operator=control.name,
                                    partition=control.partition)  # fmt: skip
            seen.add(key)
        for name in {control.name for control in controls} & set(self._resolved):
            count = sum(1 for control in controls if control.name == name)
            if count != self._partitions:
                raise InternalError("a partition did not report", operator=name,
                                    expected=self._partitions, actual=count)  # fmt: skip

    # Committing

    def _hand_over(self, clock: _Stopwatch | None = None) -> None:
        """Wait for the commit before, draft this one, and commit it beside the next epoch."""
        self.wait()
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        if clock is not None:
            clock.lap("wait")
        self._merger.collect(self._progress.runs)
        draft = self._store.draft(checkpoint=waiting.checkpoint, epoch=self._progress.epoch - 1)
        for trace, schema in self._schemas.items():
            listed = put_trace(
                draft, trace, TraceKind(schema.kind), self._progress.runs.get(trace, []),
                partitions=self._partitions, keys=self._progress.keys.get(trace, 0),
            )  # fmt: skip
            self._progress.runs[trace] = listed
        for name, reader in self._readers.items():
            position = reader.save(draft)
            draft.set_source(name, position, watermark_us=self._progress.watermarks_us.get(name))
        marks = [self._progress.watermarks_us.get(s.name) for s in self._graph.sources]
        if marks and all(mark is not None for mark in marks):
            draft.set_watermark(min(mark for mark in marks if mark is not None))
        draft.add_processed(waiting.rows)
        for sink in self._graph.sinks:
            staged = waiting.staged.get(sink.name, [])
            if staged:
                directory = self._writers[sink.name].staging(waiting.checkpoint)[1]
                token = token_text(directory, staged)
                draft.stage_sink(sink.name, token, replay=sink.connector.replay)
        reach("epoch.after_draft")
        self._progress.parent = waiting.checkpoint
        self._commit = self._thread.submit(self._finish, draft)
        self._schedule.checkpointed()
        if clock is not None:
            clock.lap("draft")

    def _finish(self, draft: Any) -> float:
        """Commit, publish, tell the sources, retain: in the commit thread."""
        start = time.perf_counter()
        summary = self._store.commit(draft)
        reach("epoch.after_commit")
        manifest = self._store.current
        if summary.sinks:
            self._store.settle(self._writers)
        reach("epoch.after_publish")
        if manifest is not None:
            floors = self._store.log_floor()
            for name, reader in self._readers.items():
                reader.committed(manifest, floors.get(name))
        report = self._store.retain()
        if report.error is not None:
            log.warning("retention failed and will be tried again: %s", report.error)
        return (time.perf_counter() - start) * 1e3

    def wait(self) -> float | None:
        """Wait for the commit that is under way; its error is raised here."""
        if self._commit is None:
            return None
        commit, self._commit = self._commit, None
        took = commit.result()
        parent = self._progress.parent
        if parent is not None:
            self._merger.collect(self._progress.runs)
            self._merger.start(self._progress.runs, self._schemas, parent, self._bounds())
        return took

    def finish(self) -> None:
        """Commit what is left and stop."""
        if self._waiting is not None and self._waiting.epochs:
            self._hand_over()
        self.wait()

    def close(self) -> None:
        """Let go of threads; nothing is committed."""
        self._merger.stop()
        self._thread.shutdown(wait=True, cancel_futures=True)


class _Stopwatch:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + (now - self._last) * 1e3
        self._last = now
