"""upsert: the last row of each key, kept up to date.

The view has one row for each key. Its changes are -old +new.

Invariants:
- With a sequence, the result of whole rows depends on the rows alone: the largest one counts, by
  the sequence, then a put over a delete, then by all columns. How rows came in epochs, partitions
  or batches changes nothing. A row behind the stored one is ignored and counted.
- With a sequence a deleted key stays, without its values, so that an older row cannot bring it
  back. In order of arrival it goes.
- A column that a row left out has the value of the newest row before that gave it; a delete ends
  what can be filled from. Of rows that leave columns out one that comes too late is ignored whole.
- Rows are compared whole columns at a time; nothing is done row by row.
"""

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
    group_numbers,
    units_of,
)
from holdfast.operators.columns import DELETED, HASH, WEIGHT
from holdfast.operators.row_order import total_order
from holdfast.operators.sort_order import SortKey
from holdfast.state import TraceSchema
from holdfast.state.arrow.row_equality import normalise, rows_equal

ARRIVAL = "__hf_arrival"
DELETE = "__hf_delete"
SEQUENCE = "_sequence_"
LEFT_OUT = "__hf_left_out_"
GONE = "_gone"
_ORDER, _PUT, _NEWER = "order", "put", "newer"


@dataclass(frozen=True)
class _Folded:
    """Rows of all touched keys in order, stored ones included, and what came of each key.

    last: the row that counts, by key; -1 where all were ignored. gone: it deletes. columns: values.
    """

    last: np.ndarray
    stored: np.ndarray
    gone: np.ndarray
    columns: list[Any]
    places: list[Any]
    outdated: int


@dataclass(frozen=True)
class UpsertTask(OperatorTask):
    """Merges a batch with the stored rows of all touched keys at once.

    `row` are the columns of the input, `places` the types of the sequence; without any, rows are
    ordered by where they stood in Spark.
    """

    name: str
    keys: pa.Schema
    row: pa.Schema
    places: pa.Schema
    order: tuple[SortKey, ...]
    deletes: bool
    keeps_nulls: bool
    left_out: tuple[str, ...]
    changes: bool

    @property
    def complete(self) -> bool:
        """The view is the output."""
        return True

    @property
    def whole_keys(self) -> bool:
        """Which row is the last, and what it fills in, is known when all are there."""
        return True

    @property
    def output(self) -> pa.Schema:
        """The row and a weight: a newer row retracts the older one."""
        return pa.schema([*self.row, pa.field(WEIGHT, pa.int64())])

    @property
    def _values(self) -> list[Any]:
        keys = set(self.keys.names)
        return [field for field in self.row if field.name not in keys]

    @property
    def traces(self) -> Mapping[str, TraceSchema]:
        """The last row; with a sequence its place, and whether it is a deleted one."""
        values = [pa.field(f.name, f.type) for f in self._values]
        if self.order:
            values += [*self.places, pa.field(GONE, pa.bool_())]
        elif not values:
            values = [pa.field(GONE, pa.bool_())]  # a key alone; never true
        return {self.name: TraceSchema.latest(self.keys, pa.schema(values))}

    def visible(self, rows: Rows) -> Rows:
        """Keys that were not deleted."""
        if GONE not in rows.schema.names:
            return rows
        return rows.filter(pc.invert(pc.fill_null(rows.column(GONE), False)))  # noqa: FBT003

    def process(
        self, rows: pa.RecordBatch, traces: Mapping[str, Any], context: EpochContext
    ) -> TaskResult:
        """The last rows of touched keys, before and after."""
        units = units_of(rows)
        if self.changes and not units.all():
            rows, units = rows.filter(pa.array(units != 0)), units[units != 0]
        if not rows.num_rows:
            return TaskResult(pa.RecordBatch.from_pylist([], schema=self.output))
        groups, key_columns = group_by_key(rows, self.keys.names)
        first = pa.array(groups.first())
        probe = pa.RecordBatch.from_arrays(
            [rows.column(HASH).take(first), *(c.take(first) for c in key_columns)],
            names=[HASH, *self.keys.names],
        )
        answer = traces[self.name].lookup(probe)
        folded = self._folded(rows, units, group_numbers(groups, rows.num_rows), answer)
        return self._finish(probe, answer, folded, wanted=context.wanted)

    def _folded(
        self, rows: pa.RecordBatch, units: np.ndarray, numbers: np.ndarray, answer: Any
    ) -> _Folded:
        """Every key's rows in order, behind the stored one, folded into one."""
        known = np.flatnonzero(answer.found)
        picks = pa.array(known)
        old = {
            f.name: answer.values.column(i).take(picks) for i, f in enumerate(answer.values.schema)
        }
        values = [pa.concat_arrays([old[f.name], self._cast(rows, f)]) for f in self._values]
        places = [pa.concat_arrays([old[f.name], self._cast(rows, f)]) for f in self.places]
        deletes = units < 0
        if self.deletes:
            deletes |= rows.column(DELETE).to_numpy(zero_copy_only=False)
        dead = np.zeros(len(known), np.bool_)
        if self.order:
            dead = pc.fill_null(old[GONE], False).to_numpy(zero_copy_only=False)  # noqa: FBT003
        ends = np.concatenate([dead, deletes])
        is_stored = np.arange(len(ends)) < len(known)
        number = np.concatenate([known, numbers])
        order = self._ordered(rows, number, values, places, ends, is_stored)
        number, stored = number[order], is_stored[order]
        count = len(answer.found)
        # The place of each key's stored row in the order: what lies before it came too late.
        begin = np.full(count, -1, np.int64)
        begin[number[stored]] = np.flatnonzero(stored)
        spot = np.arange(len(order))
        outdated = spot < begin[number]
        last = np.full(count, -1, np.int64)
        last[number] = spot  # ascending, so the last row of a key stays
        start = np.searchsorted(number, np.arange(count))
        start = np.where(begin >= 0, begin, start)
        ended = np.where(ends[order], spot, -1)
        since = np.maximum.accumulate(ended)[last]
        columns = [
            self._last_given(rows, field, values[i], order, last, np.maximum(start, since), ends)
            for i, field in enumerate(self._values)
        ]
        taken = pa.array(order[last])
        return _Folded(
            last,
            stored[last],
            ends[order[last]],
            columns,
            [place.take(taken) for place in places],
            int(outdated.sum()),
        )

    def _cast(self, rows: pa.RecordBatch, field: Any) -> Any:
        column = normalise(rows.column(field.name))
        return column if column.type == field.type else column.cast(field.type)

    @property
    def _partial(self) -> bool:
        """Whether rows may leave columns out."""
        return self.keeps_nulls or bool(self.left_out)

    def _ordered(
        self,
        rows: pa.RecordBatch,
        number: np.ndarray,
        values: list[Any],
        places: list[Any],
        ends: np.ndarray,
        is_stored: np.ndarray,
    ) -> np.ndarray:
        """Rows by key, each key's from the first to the last."""
        if not self.order:
            arrived = rows.column(ARRIVAL).to_numpy(zero_copy_only=False)
            came = np.concatenate([np.full(len(ends) - len(arrived), -1, np.int64), arrived])
            order: np.ndarray = np.lexsort([came, number])
            return order
        keys = [*self.order, SortKey(_PUT)]
        columns = [*places, pa.array((~ends).astype(np.int8))]
        if self._partial:  # what is stored was put together: it is no row to compare with
            keys.append(SortKey(_NEWER))
            columns.append(pa.array((~is_stored).astype(np.int8)))
        return total_order(number, keys, columns, values)

    def _last_given(
        self,
        rows: pa.RecordBatch,
        field: Any,
        values: Any,
        order: np.ndarray,
        last: np.ndarray,
        start: np.ndarray,
        ends: np.ndarray,
    ) -> Any:
        """By key, the value of the newest row from `start` on that gave this column."""
        given = ~ends
        if self.keeps_nulls:
            given &= values.is_valid().to_numpy(zero_copy_only=False)
        elif field.name in self.left_out:
            index = self.left_out.index(field.name)
            left = rows.column(f"{LEFT_OUT}{index}").to_numpy(zero_copy_only=False)
            given[len(given) - len(left) :] &= ~left
        if self._partial:
            spot = np.where(given[order], np.arange(len(order)), -1)
            newest = np.maximum.accumulate(spot)[last]
        else:
            newest = np.where(given[order][last], last, -1)
        nothing = newest < start
        return values.take(pa.array(order[np.maximum(newest, 0)], mask=nothing))

    def _finish(
        self, probe: pa.RecordBatch, answer: Any, folded: _Folded, *, wanted: bool
    ) -> TaskResult:
        names = [f.name for f in self._values]
        old = {f.name: answer.values.column(i) for i, f in enumerate(answer.values.schema)}
        was = answer.found.copy()
        if self.order:
            was &= ~pc.fill_null(old[GONE], False).to_numpy(zero_copy_only=False)  # noqa: FBT003
        now = ~folded.gone
        before = [old[name] for name in names]
        alone = np.ones(probe.num_rows, np.bool_)  # a key without other columns
        same = rows_equal(before, folded.columns) if names else alone
        differs = ~(was & now & same)
        gone, born = was & differs, now & differs
        keys = {name: probe.column(name) for name in self.keys.names}
        out = None
        if wanted:
            older, newer = (
                {**keys, **dict(zip(names, c, strict=True))} for c in (before, folded.columns)
            )
            out = changes_batch(
                self.output,
                [older[f.name] for f in self.row],
                gone,
                [newer[f.name] for f in self.row],
                born,
            )
        counters = {
            "keys": probe.num_rows,
            "keys_new": int((now & ~was).sum()),
            "keys_gone": int((was & ~now).sum()),
            "changes": int(gone.sum()) + int(born.sum()),
            "outdated": folded.outdated,
        }
        return TaskResult(out, {self.name: self._update(probe, answer, folded, differs)}, counters)

    def _update(
        self, probe: pa.RecordBatch, answer: Any, folded: _Folded, differs: np.ndarray
    ) -> pa.RecordBatch:
        """What is stored: every row that is another one now, or has another place."""
        columns = [*probe.columns, *folded.columns]
        names = [*probe.schema.names, *(f.name for f in self._values)]
        if self.order:
            columns += [*folded.places, pa.array(folded.gone)]
            names += [*self.places.names, GONE]
            kept, deleted = ~folded.stored, np.zeros(probe.num_rows, np.bool_)
        else:
            if not self._values:
                columns.append(pa.array(np.zeros(probe.num_rows, np.bool_)))
                names.append(GONE)
            kept, deleted = differs & (answer.found | ~folded.gone), folded.gone
        batch = pa.RecordBatch.from_arrays([*columns, pa.array(deleted)], names=[*names, DELETED])
        return batch.filter(pa.array(kept))
