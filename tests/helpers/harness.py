"""Runs the work of an operator over epochs on real traces in memory, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from holdfast.ids import CheckpointId, Epoch, SeededIds
from holdfast.operators.base import EpochContext, TaskResult
from holdfast.operators.columns import WEIGHT
from holdfast.runtime.piece_work import PartitionPlace, PieceWork
from holdfast.runtime.spool import Spool
from holdfast.runtime.stage_job import StageJob
from holdfast.state import BagPartition, LatestPartition, RunSource, RunTarget, TraceKind
from holdfast.state.arrow.batches import one_batch
from holdfast.state.run_info import ALL_VNODES
from holdfast.storage import MemoryStorage

IDS = SeededIds(1)


class Harness:
    """Runs work over epochs, keeping the runs as a pipeline would.

    budget: where a test sets it, rows go through a spool and are worked through in pieces of so
    many bytes, as in a task with more rows than fit.
    """

    budget: int | None = None
    steps = 0

    def __init__(self, work, partitions: int = 1, *, wanted: bool = True) -> None:
        self.work, self.partitions, self.wanted = work, partitions, wanted
        self.storage = MemoryStorage()
        self.source = RunSource(self.storage)
        self.runs = {name: [] for name in work.traces}
        self.epoch = 0
        self.previous_watermark_us: int | None = None

    def step(self, rows: pa.RecordBatch, watermark_us: int | None = None):
        """One epoch; traces are opened with the bounds of the watermark before, as in a task."""
        if self.budget is not None and rows.num_rows:
            return self._pieces(rows, watermark_us)
        bounds = (
            {}
            if self.previous_watermark_us is None
            else self.work.bounds_us(self.previous_watermark_us)
        )
        traces = {}
        for name, schema in self.work.traces.items():
            kind = LatestPartition if schema.kind is TraceKind.LATEST else BagPartition
            traces[name] = kind.open(
                self.runs[name], self.source, schema, time_bound_us=bounds.get(name)
            )
        context = EpochContext(self.epoch, watermark_us, self.previous_watermark_us, self.wanted)
        result = self.work.process(rows, traces, context)
        more = list(result.more)
        if more:
            table = pa.Table.from_batches([result.changes, *more])
            result = replace(result, changes=one_batch(table))
        for name, update in result.updates.items():
            target = RunTarget(
                checkpoint=IDS.checkpoint_id(0), operator=name, partition=0, partitions=1,
                attempt=IDS.token(), epoch=Epoch(self.epoch),
                base=CheckpointId("0198c0de-0000-7000-8000-000000000000"),
            )  # fmt: skip
            run = traces[name].apply(update, self.storage, target) if update.num_rows else None
            if run is not None:
                self.runs[name].append(run)
        self.epoch += 1
        self.previous_watermark_us = watermark_us
        return result

    def _pieces(self, rows: pa.RecordBatch, watermark_us: int | None) -> TaskResult:
        """The same through the disk; what comes out is put together."""
        job = StageJob(
            IDS.checkpoint_id(0), "0198c0de-0000-7000-8000-000000000000", self.epoch, self.runs,
            watermark_us=watermark_us, previous_watermark_us=self.previous_watermark_us,
        )  # fmt: skip
        place = PartitionPlace(None, self.storage, self.source, 0, 1, False, self.budget)
        work = PieceWork(self.work, job, place, IDS, self.wanted)
        if self.work.timed and WEIGHT not in rows.schema.names:  # heartbeats would bring it
            rows = rows.append_column(WEIGHT, pa.array([1] * rows.num_rows, pa.int64()))
        changes, late = [], []
        with Spool(self.budget) as spool:
            for start in range(0, rows.num_rows, 5):
                spool.add(rows.slice(start, 5))
            pieces = spool.pieces(ALL_VNODES, self.budget, whole=self.work.whole_keys)
            for result in work.results(pieces):
                Harness.steps += 1
                changes += [result.changes] if result.changes is not None else []
                changes += result.more
                late += [result.late] if result.late is not None else []
        for run in work.runs():
            self.runs[run.operator].append(run)
        self.epoch += 1
        self.previous_watermark_us = watermark_us
        both = [
            one_batch(pa.Table.from_batches(some)) if some else None for some in (changes, late)
        ]
        return TaskResult(both[0], {}, work.counters, both[1])
