"""Runs the work of an operator over epochs on real traces in memory, without Spark."""

from __future__ import annotations

import pyarrow as pa

from holdfast.ids import CheckpointId, Epoch, SeededIds
from holdfast.operators.base import EpochContext
from holdfast.state import BagPartition, LatestPartition, RunSource, RunTarget, TraceKind
from holdfast.storage import MemoryStorage

IDS = SeededIds(1)


class Harness:
    """Runs work over epochs, keeping the runs as a pipeline would."""

    def __init__(self, work, partitions: int = 1, *, wanted: bool = True) -> None:
        self.work, self.partitions, self.wanted = work, partitions, wanted
        self.storage = MemoryStorage()
        self.source = RunSource(self.storage)
        self.runs = {name: [] for name in work.traces}
        self.epoch = 0
        self.previous_watermark_us: int | None = None

    def step(self, rows: pa.RecordBatch, watermark_us: int | None = None):
        """One epoch; traces are opened with the bounds of the watermark before, as in a task."""
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
