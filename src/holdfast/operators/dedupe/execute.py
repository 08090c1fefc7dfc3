"""distinct and dedupe: every distinct row once, and the first row of each key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.base import (
    EpochContext,
    OperatorTask,
    Rows,
    TaskResult,
    changes_batch,
    group_by_key,
    positive,
    weights_of,
)
from holdfast.operators.columns import DELETED, HASH, WEIGHT
from holdfast.state import TraceSchema


@dataclass(frozen=True)
class DistinctTask(OperatorTask):
    """A row shows while the sum of its weights is more than zero."""

    name: str
    row: pa.Schema
    changes: bool

    @property
    def complete(self) -> bool:
        """The view is the output."""
        return True

    @property
    def output(self) -> pa.Schema:
        """The row, and a weight in a changelog."""
        return self.row.append(pa.field(WEIGHT, pa.int64())) if self.changes else self.row

    @property
    def traces(self) -> Mapping[str, TraceSchema]:
        """How often each row is there."""
        return {self.name: TraceSchema.latest(self.row, pa.schema([("_count", pa.int64())]))}

    def visible(self, rows: Rows) -> Rows:
        """Rows that are there."""
        return positive(rows, "_count")

    def process(
        self, rows: pa.RecordBatch, traces: Mapping[str, Any], context: EpochContext
    ) -> TaskResult:
        """Rows whose count crossed zero."""
        del context
        if not rows.num_rows:
            return TaskResult(pa.RecordBatch.from_pylist([], schema=self.output))
        groups, columns = group_by_key(rows, self.row.names)
        first = pa.array(groups.first())
        keys = [column.take(first) for column in columns]
        probe = pa.RecordBatch.from_arrays(
            [rows.column(HASH).take(first), *keys], names=[HASH, *self.row.names]
        )
        answer = traces[self.name].lookup(probe)
        kept = pc.fill_null(answer.values.column(0), 0).to_numpy(zero_copy_only=False)
        before = np.where(answer.found, kept, 0)
        after = before + groups.sums(weights_of(rows))
        was, now = before > 0, after > 0
        update = probe.append_column("_count", pa.array(after))
        update = update.append_column(DELETED, pa.array(after == 0))
        if not self.changes:  # only the first sight of a row matters
            update = update.filter(pa.array(~was))
        out = changes_batch(self.output, keys, was & ~now, keys, now & ~was)
        counters = {
            "keys": len(groups.starts),
            "keys_new": int((now & ~was).sum()),
            "keys_gone": int((was & ~now).sum()),
        }
        return TaskResult(out, {self.name: update}, counters)


@dataclass(frozen=True)
class DedupeTask(OperatorTask):
    """The first row of each key goes through; with a time bound, keys are forgotten."""

    name: str
    keys: pa.Schema
    row: pa.Schema
    time: str | None = None
    within_us: int = 0

    def bounds_us(self, watermark_us: int) -> Mapping[str, int]:
        """Keys are forgotten a while after they were seen."""
        return {self.name: watermark_us - self.within_us} if self.time is not None else {}

    @property
    def replayable(self) -> bool:
        """Where no key is ever forgotten."""
        return self.time is None

    @property
    def whole_keys(self) -> bool:
        """The earliest row of an epoch is known when all are there."""
        return self.time is not None

    @property
    def late(self) -> pa.Schema | None:
        """Rows of which nobody can tell any more whether they are duplicates."""
        return self.row if self.time is not None else None

    @property
    def output(self) -> pa.Schema:
        """The rows as they came."""
        return self.row

    @property
    def traces(self) -> Mapping[str, TraceSchema]:
        """The keys that were seen, and when."""
        if self.time is None:
            return {self.name: TraceSchema.latest(self.keys, pa.schema([("_epoch", pa.int64())]))}
        seen = pa.field("_seen", self.row.field(self.time).type)
        return {self.name: TraceSchema.latest(self.keys, pa.schema([seen]), time_column="_seen")}

    def process(
        self, rows: pa.RecordBatch, traces: Mapping[str, Any], context: EpochContext
    ) -> TaskResult:
        """Rows of keys that are not known yet; of several at once, the earliest."""
        counters, late = {"late": 0}, None
        if self.time is not None and rows.num_rows:
            mark = context.watermark_us
            bound = None if mark is None else mark - self.within_us
            rows, late = self._on_time(rows, bound)
            counters["late"] = 0 if late is None else late.num_rows
        if not rows.num_rows:
            return TaskResult(
                pa.RecordBatch.from_pylist([], schema=self.output), {}, counters, late
            )
        groups, columns = group_by_key(rows, self.keys.names)
        first = pa.array(groups.first())
        probe = pa.RecordBatch.from_arrays(
            [rows.column(HASH).take(first), *(c.take(first) for c in columns)],
            names=[HASH, *self.keys.names],
        )
        answer = traces[self.name].lookup(probe)
        fresh = pa.array(~self._remembered(answer, context))
        chosen = rows.take(first).filter(fresh)
        if self.time is None:
            value = pa.array(np.full(chosen.num_rows, context.epoch, np.int64))
            update = probe.filter(fresh).append_column("_epoch", value)
        else:
            update = probe.filter(fresh).append_column("_seen", chosen.column(self.time))
        out = pa.RecordBatch.from_arrays(
            [chosen.column(field.name).cast(field.type) for field in self.row], schema=self.row
        )
        counters |= {
            "keys": len(groups.starts),
            "keys_new": chosen.num_rows,
            "duplicates": rows.num_rows - chosen.num_rows,
        }
        return TaskResult(out, {self.name: update}, counters, late)

    def _remembered(self, answer: Any, context: EpochContext) -> np.ndarray:
        """Which keys are known; the bound of the trace is that of the epoch before."""
        found: np.ndarray = answer.found
        if self.time is None or context.watermark_us is None:
            return found
        times = answer.values.column(0).cast(pa.int64())
        bound = context.watermark_us - self.within_us
        old = pc.fill_null(pc.less(times, bound), False)  # noqa: FBT003
        remembered: np.ndarray = found & ~old.to_numpy(zero_copy_only=False)
        return remembered

    def _on_time(
        self, rows: pa.RecordBatch, bound_us: int | None
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """Rows in order of time, and the late ones; nulls are never late and come last."""
        times, late = rows.column(str(self.time)).cast(pa.int64()), None
        if bound_us is not None:
            old = pc.fill_null(pc.less(times, bound_us), False)  # noqa: FBT003
            if pc.any(old).as_py():
                gone = rows.filter(old)
                late = pa.RecordBatch.from_arrays(
                    [gone.column(field.name).cast(field.type) for field in self.row],
                    schema=self.row,
                )
                rows, times = rows.filter(pc.invert(old)), times.filter(pc.invert(old))
        order = pc.array_sort_indices(times, null_placement="at_end")
        return rows.take(order), late
