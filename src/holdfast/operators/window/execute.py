"""Tumbling and sliding windows: an aggregate by keys and window, which closes and forgets by time.

The JVM sends every row once, with its event time; the task puts it into its windows, so that a
sliding window does not multiply what is shuffled. All windows of a key are in one partition.

Invariants:
- A window is closed at a watermark when it ends at or before it, less the lateness. What a window
  gets is decided by the watermark that was known before the epoch began.
- Rows of an epoch never meet a window that closes in that epoch: for it they are late.
- With `closing`, every window is given exactly once, in the epoch whose watermark closes it.
- What belongs to a closed window is behind the bound of every trace, and so is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.aggregate.execute import ROWS, AggregateTask
from holdfast.operators.base import EpochContext, OperatorTask, Rows, TaskResult
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.window.declare import END, START
from holdfast.operators.window.panes import added_up, can_add_up
from holdfast.state import TraceSchema

AT = "__hf_at"
ROW = "__hf_row"
_TOP = np.uint64(0xFF << 56)


@dataclass(frozen=True)
class TimedTask(OperatorTask):
    """What all kinds of windows share: when they are closed, and what is late."""

    name: str
    inner: AggregateTask
    lateness_us: int
    closing: bool
    row: pa.Schema | None

    @property
    def timed(self) -> bool:
        """Every partition looks at what the watermark has passed."""
        return True

    @property
    def wakes(self) -> bool:
        """Rows that show when windows close must not wait for the next rows."""
        return self.closing

    @property
    def late(self) -> pa.Schema | None:
        """The rows as they came, if somebody asked for late ones."""
        return self.row

    @property
    def output(self) -> pa.Schema:
        """Keys, window and results; a weight unless windows are given once, when they close."""
        return self.inner.results if self.closing else self.inner.output

    def closed_us(self, watermark_us: int | None) -> int | None:
        """Windows that end before this are closed."""
        return None if watermark_us is None else watermark_us - self.lateness_us + 1

    def late_rows(self, rows: pa.RecordBatch, missed: np.ndarray) -> pa.RecordBatch | None:
        """The original rows of what came too late; None where nobody asked for them."""
        if self.row is None or not missed.any():
            return None
        gone = rows.filter(pa.array(missed))
        names = [name for name in self.row.names if name != WEIGHT]
        row: Any = gone.column(ROW)
        columns = dict(zip(names, row.flatten(), strict=True))
        columns[WEIGHT] = gone.column(WEIGHT)
        return pa.RecordBatch.from_arrays(
            [columns[field.name].cast(field.type) for field in self.row], schema=self.row
        )


@dataclass(frozen=True)
class WindowTask(TimedTask):
    """An aggregate whose last two keys are the beginning and the end of a window."""

    size_us: int
    slide_us: int
    offset_us: int = 0

    def bounds_us(self, watermark_us: int) -> Mapping[str, int]:
        """Windows are forgotten when they are closed, whatever the aggregates keep for them."""
        bound = watermark_us - self.lateness_us + 1
        return dict.fromkeys(self.inner.traces, bound)

    @property
    def growth(self) -> int:
        """A row is copied into each of its windows, unless rows can be added up before."""
        each = -(-self.size_us // self.slide_us)
        return 1 if can_add_up(self.inner.folds) else each

    @property
    def traces(self) -> Mapping[str, TraceSchema]:
        """Those of the aggregate, each with the end of the window as its time."""
        return {
            name: replace(schema, time_column=END) for name, schema in self.inner.traces.items()
        }

    def visible(self, rows: Rows) -> Rows:
        """Windows that have rows."""
        return self.inner.visible(rows)

    def process(
        self, rows: pa.RecordBatch, traces: Mapping[str, Any], context: EpochContext
    ) -> TaskResult:
        """Rows into their windows, windows into the aggregate, closed windows out."""
        closed = self.closed_us(context.watermark_us)
        inside, late, count = self._assign(rows, closed)
        if self.closing:  # windows are given when they close, not when they change
            context = replace(context, wanted=False)
        result = self.inner.process(inside, traces, context)
        counters = {**result.counters, "late": count}
        changes = result.changes
        if self.closing:
            changes = pa.RecordBatch.from_pylist([], schema=self.output)
            counters["changes"] = 0
        if closed is not None:
            names = [ROWS, *(self.output.names if self.closing else [])]
            due = traces[self.name].due(None, closed, names)
            shown = due.filter(pc.greater(due.column(ROWS), 0))
            counters["keys_gone"] = counters.get("keys_gone", 0) + shown.num_rows
            if self.closing:
                changes = shown.select(self.output.names)
                counters["changes"] = changes.num_rows
        return TaskResult(changes, result.updates, counters, late)

    def _assign(self, rows: pa.RecordBatch, closed_us: int | None) -> tuple[Any, Any, int]:
        """Every row once for each of its open windows; rows that missed one, and their number."""
        at = _times(rows)
        missed = np.zeros(len(at), np.bool_)
        if closed_us is not None:  # by the first of its windows to end, which is the first to close
            first_end = at + self.slide_us - (at - self.offset_us - self.size_us) % self.slide_us
            missed = first_end < closed_us
        late = self.late_rows(rows, missed)
        each = -(-self.size_us // self.slide_us)
        if each > 1 and can_add_up(self.inner.folds):
            pane = at - (at - self.offset_us) % math.gcd(self.size_us, self.slide_us)
            keys = [name for name in self.inner.keys.names if name not in (START, END)]
            rows = added_up(rows, pane, AT, keys, self.inner.folds)
            at = _times(rows)
        starts = (at - (at - self.offset_us) % self.slide_us)[:, None]
        starts = starts - np.arange(each, dtype=np.int64) * self.slide_us
        ends = starts + self.size_us
        inside = ends > at[:, None]
        if closed_us is not None:
            inside &= ends >= closed_us
        everything = each == 1 and bool(inside.all())
        index = np.arange(len(at)) if everything else np.repeat(np.arange(len(at)), inside.sum(1))
        spans = (starts[inside], ends[inside])
        return self._spread(rows, index, *spans, whole=everything), late, int(missed.sum())

    def _spread(
        self,
        rows: pa.RecordBatch,
        index: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        *,
        whole: bool,
    ) -> Any:
        names = [name for name in rows.schema.names if name not in (AT, ROW)]
        kept = rows.select(names)
        if not whole:
            kept = kept.take(pa.array(index))
        mixed = {HASH, *(name for fold in self.inner.folds for name in fold.hashes)}
        columns = [
            pa.array(window_hash(column.to_numpy(zero_copy_only=False), starts))
            if name in mixed
            else column
            for name, column in zip(names, kept.columns, strict=True)
        ]
        for name, micros in ((START, starts), (END, ends)):
            names.append(name)
            columns.append(pa.array(micros).cast(self.inner.keys.field(name).type))
        return pa.RecordBatch.from_arrays(columns, names=names)


def _times(rows: pa.RecordBatch) -> np.ndarray:
    micros: np.ndarray = rows.column(AT).to_numpy(zero_copy_only=False).astype(np.int64)
    return micros


def window_hash(hashes: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """A hash for each window of a key, in the vnode of the key; what is stored goes by it."""
    raw = hashes.view(np.uint64)
    mixed = raw ^ (starts.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    result: np.ndarray = ((raw & _TOP) | (mixed & ~_TOP)).view(np.int64)
    return result
