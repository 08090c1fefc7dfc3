"""apply: an Arrow user function over rows and state of all touched keys of a partition.

Invariants:
- The function is asked about keys that have rows in this epoch or whose timer is due, each once.
  What it returns is the whole state of these keys: one that is missing is deleted, another one is
  an error. Keys that it was not asked about are never touched.
- The same rows and the same state reach it in the same order: by key, then time, then all columns.
- Nothing of an answer that is not right in every respect is written.
- A timer fires once, when the watermark has reached it: a time that the function gives back as it
  was is done. Another one counts again, also if it has passed: then the next watermark tells it.
- A key that the TTL has forgotten is gone, with its timer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.apply.declare import APPLY_WEIGHT
from holdfast.operators.base import (
    EpochContext,
    OperatorTask,
    TaskResult,
    group_by_key,
    group_numbers,
    weights_of,
)
from holdfast.operators.columns import DELETED, HASH, WEIGHT
from holdfast.operators.row_order import total_order
from holdfast.operators.sort_order import SortKey
from holdfast.operators.udf import called, checked_table, places_of, wrong_answer
from holdfast.state import TraceSchema
from holdfast.state.arrow.batches import group_rows
from holdfast.state.arrow.row_equality import normalise, row_codes, rows_equal

if TYPE_CHECKING:
    from holdfast.state import LatestPartition

TOUCHED = "_touched"
_STAMP = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class ApplyContext:
    """What a function learns in addition to rows and state.

    keys: all keys that it is asked about. due: those of them whose timer has fired.
    """

    epoch: int
    watermark_us: int | None
    keys: pa.Table
    due: pa.Table

    @property
    def watermark(self) -> datetime | None:
        """No row with an older event time is expected any more; None: nothing is known."""
        if self.watermark_us is None:
            return None
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.watermark_us)


@dataclass(frozen=True)
class _Asked:
    """The keys of one call: hash and key columns, their state, which are due, their rows."""

    keys: pa.RecordBatch
    found: np.ndarray
    state: pa.RecordBatch
    due: np.ndarray
    rows: pa.Table
    numbers: np.ndarray
    armed: np.ndarray
    """Keys without state that still have a timer: of a life that the TTL has ended."""


@dataclass(frozen=True)
class ApplyTask(OperatorTask):
    """`row` is the input, `state` what the user keeps; `weighted`: the input carries weights."""

    name: str
    keys: pa.Schema
    row: pa.Schema
    state: pa.Schema
    result: pa.Schema
    function: Callable[..., Any]
    weighted: bool
    changes: bool
    time: str | None = None
    ttl_us: int | None = None
    timers: str | None = None

    @property
    def whole_keys(self) -> bool:
        """The function is called for a key once an epoch, with all of its rows."""
        return True

    @property
    def timed(self) -> bool:
        """Timers fire when only the watermark moves."""
        return self.timers is not None

    @property
    def late(self) -> pa.Schema | None:
        """Rows from before what is remembered."""
        if self.ttl_us is None:
            return None
        return self.row.append(pa.field(WEIGHT, pa.int64())) if self.weighted else self.row

    @property
    def shown(self) -> list[str]:
        """The view is keys and state."""
        return [*self.keys.names, *self.state.names]

    def bounds_us(self, watermark_us: int) -> Mapping[str, int]:
        """Keys are forgotten a while after they were touched."""
        return {} if self.ttl_us is None else {self.name: watermark_us - self.ttl_us}

    @property
    def output(self) -> pa.Schema:
        """What the function gives, with a weight if it says so."""
        return self.result.append(pa.field(WEIGHT, pa.int64())) if self.changes else self.result

    @property
    def traces(self) -> Mapping[str, TraceSchema]:
        """State by key, and timers by time."""
        values, time = self.state, None
        if self.ttl_us is not None:
            values, time = values.append(pa.field(TOUCHED, _STAMP)), TOUCHED
        found = {self.name: TraceSchema.latest(self.keys, values, time_column=time)}
        if self.timers is not None:
            wake = pa.schema([pa.field("_wake", _STAMP)])
            found[f"{self.name}.timers"] = TraceSchema.latest(self.keys, wake, time_column="_wake")
        return found

    def process(
        self, rows: pa.RecordBatch, traces: Mapping[str, Any], context: EpochContext
    ) -> TaskResult:
        """Ask the function once about all keys, check what it says, and write that down."""
        rows, late = self._on_time(rows, context)
        asked, stale = self._ask(rows, traces, context)
        nothing = pa.RecordBatch.from_pylist([], schema=self.output)
        counters = {"late": late.num_rows if late is not None else 0, "keys": asked.keys.num_rows}
        updates: dict[str, Any] = {}
        if not asked.keys.num_rows:
            if stale.num_rows:
                updates[f"{self.name}.timers"] = _timers(stale, pa.nulls(stale.num_rows, _STAMP))
            return TaskResult(nothing, updates, counters, late)
        keys = asked.keys.select(self.keys.names)
        about = ApplyContext(
            context.epoch,
            context.watermark_us,
            pa.Table.from_batches([keys]),
            pa.Table.from_batches([keys.filter(pa.array(asked.due))]),
        )
        state = asked.state.filter(pa.array(asked.found)).select(self.shown)
        answer = called(
            self.function,
            asked.rows,
            pa.Table.from_batches([state]),
            about,
            kind="apply_failed",
            keys=keys,
        )
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise wrong_answer(
                keys,
                kind="apply_result",
                expected="(output, new state)",
                actual=type(answer).__name__,
            )
        output = self._output(answer[0], keys)
        kept = checked_table(
            answer[1], pa.schema([*self.keys, *self.state]), what="new state", keys=keys
        )
        places = places_of(kept, keys, self.keys.names)
        self._write(asked, stale, kept, places, updates)
        now = np.zeros(keys.num_rows, np.bool_)
        now[places] = True
        counters["keys_new"] = int((now & ~asked.found).sum())
        counters["keys_gone"] = int((asked.found & ~now).sum())
        counters["timers"] = int(asked.due.sum())
        return TaskResult(output, updates, counters, late)

    def _on_time(
        self, rows: pa.RecordBatch, context: EpochContext
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """Rows that may still touch a key, and those that are too old."""
        mark = context.watermark_us
        if self.ttl_us is None or mark is None or not rows.num_rows:
            return rows, None
        times = rows.column(str(self.time)).cast(pa.int64())
        old = pc.fill_null(pc.less(times, mark - self.ttl_us), False)  # noqa: FBT003
        if not pc.any(old).as_py():
            return rows, None
        shape = cast("pa.Schema", self.late)  # there is a time to live
        late = rows.filter(old)
        late = pa.RecordBatch.from_arrays(
            [late.column(field.name) for field in shape], schema=shape
        )
        return rows.filter(pc.invert(old)), late

    def _ask(
        self, rows: pa.RecordBatch, traces: Mapping[str, Any], context: EpochContext
    ) -> tuple[_Asked, pa.RecordBatch]:
        """Touched and due keys with their state; timers of keys that are gone come apart."""
        names = [HASH, *self.keys.names]
        if self.weighted and rows.num_rows:
            rows = self._summed(rows)
        due = self._due(traces, context, names)
        touched = pa.RecordBatch.from_arrays(
            [rows.column(HASH), *(normalise(rows.column(n)) for n in self.keys.names)], names=names
        )
        # The same bits: half of all hashes are negative to Spark and large to a trace.
        due = due.set_column(0, HASH, due.column(HASH).view(pa.int64())).cast(touched.schema)
        both = pa.Table.from_batches([touched, due]).combine_chunks()
        hashes = both.column(HASH).to_numpy().view(np.uint64)
        columns = [_one(both.column(n)) for n in self.keys.names]
        groups = group_rows(hashes, columns)
        numbers = group_numbers(groups, both.num_rows)
        count = len(groups.starts)
        keys = pa.RecordBatch.from_arrays(
            [
                _one(both.column(n)).take(pa.array(groups.first() if count else [], pa.int64()))
                for n in names
            ],
            names=names,
        )
        has_rows = np.zeros(count, np.bool_)
        has_rows[numbers[: rows.num_rows]] = True
        is_due = np.zeros(count, np.bool_)
        is_due[numbers[rows.num_rows :]] = True
        answer = traces[self.name].lookup(keys)
        found = self._remembered(answer, context)
        stays = has_rows | found
        stale = keys.filter(pa.array(~stays))
        # What was forgotten does not show through: not even when it was last touched.
        there = pa.array(np.arange(count), mask=~found)
        state = pa.RecordBatch.from_arrays(
            [*keys.columns, *(column.take(there) for column in answer.values.columns)],
            names=[*names, *answer.values.schema.names],
        )
        moved = np.cumsum(stays) - 1
        mine = moved[numbers[: rows.num_rows]]
        keep = pa.array(stays)
        table, order = self._table(rows, mine)
        return _Asked(
            keys.filter(keep),
            found[stays],
            state.filter(keep),
            (is_due & found)[stays],
            table,
            mine[order],
            self._armed(keys, found, traces)[stays],
        ), stale

    def _armed(
        self, keys: pa.RecordBatch, found: np.ndarray, traces: Mapping[str, Any]
    ) -> np.ndarray:
        """Keys that the TTL has forgotten and whose timer is still there."""
        armed = np.zeros(keys.num_rows, np.bool_)
        lost = np.flatnonzero(~found)
        if self.timers is None or self.ttl_us is None or not len(lost):
            return armed
        answer = traces[f"{self.name}.timers"].lookup(keys.take(pa.array(lost)))
        armed[lost[answer.found]] = True
        return armed

    def _remembered(self, answer: Any, context: EpochContext) -> np.ndarray:
        """Which keys have state; the bound of the trace is that of the epoch before."""
        found: np.ndarray = answer.found
        if self.ttl_us is None or context.watermark_us is None:
            return found
        times = answer.values.column(TOUCHED).cast(pa.int64())
        old = pc.fill_null(pc.less(times, context.watermark_us - self.ttl_us), False)  # noqa: FBT003
        gone: np.ndarray = old.to_numpy(zero_copy_only=False)
        remembered: np.ndarray = found & ~gone
        return remembered

    def _summed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows that came and went in one epoch are not there."""
        columns = [normalise(rows.column(n)) for n in self.row.names]
        groups, _ = group_by_key(rows, self.keys.names)
        numbers = group_numbers(groups, rows.num_rows)
        whole = group_rows(numbers, columns)
        sums = whole.sums(weights_of(rows))
        kept = np.flatnonzero(sums)
        first = rows.take(pa.array(whole.first()[kept]))
        place = first.schema.get_field_index(WEIGHT)
        return first.set_column(place, WEIGHT, pa.array(sums[kept]))

    def _due(
        self, traces: Mapping[str, Any], context: EpochContext, names: list[str]
    ) -> pa.RecordBatch:
        mark = context.watermark_us
        if self.timers is not None and mark is not None and mark != context.previous_watermark_us:
            # A timer at the watermark is due: no row before it is expected any more.
            trace: LatestPartition = traces[f"{self.name}.timers"]
            return trace.due(None, mark + 1).select(names)
        schema = pa.schema([pa.field(HASH, pa.uint64()), *self.keys])
        return pa.RecordBatch.from_pylist([], schema=schema)

    def _table(self, rows: pa.RecordBatch, numbers: np.ndarray) -> tuple[pa.Table, np.ndarray]:
        """The rows as the function sees them, and the order that they are in."""
        columns = {n: rows.column(n) for n in self.row.names}
        keys = [SortKey(self.time)] if self.time is not None else []
        order = total_order(
            numbers,
            keys,
            [columns[key.column] for key in keys],
            [c for n, c in columns.items() if n != self.time],
        )
        fields = list(self.row)
        if self.weighted:
            columns[APPLY_WEIGHT] = pa.array(weights_of(rows))
            fields.append(pa.field(APPLY_WEIGHT, pa.int64()))
        picks = pa.array(order)
        arrays = [columns[f.name].take(picks) for f in fields]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields)), order

    def _output(self, answer: Any, keys: pa.RecordBatch) -> pa.RecordBatch:
        if answer is None:
            return pa.RecordBatch.from_pylist([], schema=self.output)
        schema = self.result
        if self.changes:
            schema = schema.append(pa.field(APPLY_WEIGHT, pa.int64()))
        table = checked_table(answer, schema, what="output", keys=keys)
        if self.changes:
            weights = table.column(APPLY_WEIGHT)
            if weights.null_count:
                raise wrong_answer(keys, kind="apply_result", part="output", nulls=APPLY_WEIGHT)
            table = _netted(table, self.result.names)
        return pa.RecordBatch.from_arrays(table.columns, schema=self.output)

    def _write(
        self,
        asked: _Asked,
        stale: pa.RecordBatch,
        kept: pa.RecordBatch,
        places: np.ndarray,
        updates: dict[str, Any],
    ) -> None:
        """Rows of state that differ, tombstones, and timers that were set, moved or cleared."""
        count = asked.keys.num_rows
        index = np.full(count, -1)
        index[places] = np.arange(len(places))
        picks = pa.array(index, mask=index < 0)
        new = {n: kept.column(n).take(picks) for n in self.state.names}
        wake = self._wake(new, asked)
        if wake is not None:
            timer = str(self.timers)
            new[timer] = wake.cast(self.state.field(timer).type)
        if self.ttl_us is not None:
            new[TOUCHED] = self._touched(asked)
        names = [*self.state.names, *([TOUCHED] if self.ttl_us is not None else [])]
        same = rows_equal([asked.state.column(n) for n in names], [new[n] for n in names])
        differs = ((index >= 0) & ~(asked.found & same)) | (asked.found & (index < 0))
        update = pa.RecordBatch.from_arrays(
            [*asked.keys.columns, *(new[n] for n in names), pa.array(index < 0)],
            names=[*asked.keys.schema.names, *names, DELETED],
        )
        updates[self.name] = update.filter(pa.array(differs))
        if wake is not None:
            before = asked.state.column(str(self.timers)).cast(_STAMP)
            moved = pa.array(~rows_equal([before], [wake]) | asked.armed)
            timers = _timers(asked.keys.filter(moved), wake.filter(moved))
            gone = _timers(stale, pa.nulls(stale.num_rows, _STAMP))
            updates[f"{self.name}.timers"] = pa.Table.from_batches([timers, gone])

    def _wake(self, new: dict[str, Any], asked: _Asked) -> Any:
        """When keys want to be called; a time that was just told is done, any other one is new."""
        if self.timers is None:
            return None
        wake = new[self.timers].cast(_STAMP)
        told = asked.due & rows_equal([asked.state.column(self.timers).cast(_STAMP)], [wake])
        return pc.if_else(pa.array(told), pa.scalar(None, _STAMP), wake)

    def _touched(self, asked: _Asked) -> Any:
        """The newest event time of each key, from before or now."""
        before = asked.state.column(TOUCHED).cast(pa.int64())
        times = _one(asked.rows.column(str(self.time))).cast(_STAMP).cast(pa.int64())
        lowest = np.iinfo(np.int64).min
        newest = np.full(asked.keys.num_rows, lowest)
        filled = pc.fill_null(times, lowest).to_numpy(zero_copy_only=False)
        np.maximum.at(newest, asked.numbers, filled)
        came = pa.array(newest, mask=newest == lowest)
        return pc.max_element_wise(before, came).cast(_STAMP)


def _netted(table: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Each distinct row once: one that is retracted and given again has not changed."""
    if not table.num_rows:
        return table
    groups = group_rows(row_codes([normalise(table.column(n)) for n in names]), [])
    sums = groups.sums(table.column(APPLY_WEIGHT).to_numpy(zero_copy_only=False))
    kept = np.flatnonzero(sums)
    kept = kept[np.argsort(sums[kept], kind="stable")]  # what goes before what comes
    rows = table.take(pa.array(groups.first()[kept])).select(names)
    return rows.append_column(APPLY_WEIGHT, pa.array(sums[kept]))


def _timers(keys: pa.RecordBatch, wake: Any) -> pa.RecordBatch:
    update: pa.RecordBatch = keys.append_column("_wake", wake)
    return update.append_column(DELETED, wake.is_null())


def _one(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
