"""group_by().agg(): one row for each group, kept up to date.

Invariants:
- A group exists while the weights of its rows sum to more than zero.
- Changes are only what differs: an update that leaves a row as it was gives nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.aggregate.functions.base import Batch, Fold, GroupState
from holdfast.operators.aggregate.functions.sums import CountFold
from holdfast.operators.base import (
    EpochContext,
    OperatorTask,
    Rows,
    TaskResult,
    changes_batch,
    group_by_key,
    group_numbers,
    positive,
    units_of,
    weights_of,
)
from holdfast.operators.columns import DELETED, HASH, WEIGHT
from holdfast.state import TraceSchema
from holdfast.state.arrow.row_equality import rows_equal

ROWS = "_rows"


@dataclass(frozen=True)
class AggregateTask(OperatorTask):
    """Folds a batch into all touched groups at once."""

    name: str
    keys: pa.Schema
    folds: tuple[Fold, ...]
    changes: bool

    @property
    def complete(self) -> bool:
        """The view is the output."""
        return True

    @property
    def results(self) -> pa.Schema:
        """The columns that the user sees."""
        return pa.schema([*self.keys, *(pa.field(f.name, f.type) for f in self.folds)])

    @property
    def output(self) -> pa.Schema:
        """Results and a weight: an update retracts the old row."""
        return self.results.append(pa.field(WEIGHT, pa.int64()))

    @property
    def traces(self) -> Mapping[str, TraceSchema]:
        """The view, and the traces of the aggregates that need more than it holds."""
        values = [pa.field(f.name, f.type) for f in self.folds]
        values += [helper for fold in self.folds for helper in fold.helpers]
        main = TraceSchema.latest(self.keys, pa.schema([*values, pa.field(ROWS, pa.int64())]))
        found = {self.name: main}
        for fold in self.folds:
            found |= fold.traces(self.keys)
        return found

    def visible(self, rows: Rows) -> Rows:
        """Groups that have rows."""
        return positive(rows, ROWS)

    def process(
        self, rows: pa.RecordBatch, traces: Mapping[str, Any], context: EpochContext
    ) -> TaskResult:
        """Look the touched groups up, fold, and say what changed."""
        if not rows.num_rows:
            return TaskResult(pa.RecordBatch.from_pylist([], schema=self.output))
        groups, key_columns = group_by_key(rows, self.keys.names)
        first = pa.array(groups.first())
        keys = [column.take(first) for column in key_columns]
        hashes = rows.column(HASH).take(first)
        probe = pa.RecordBatch.from_arrays([hashes, *keys], names=[HASH, *self.keys.names])
        answer = traces[self.name].lookup(probe)
        batch = Batch(
            rows,
            groups,
            group_numbers(groups, rows.num_rows),
            weights_of(rows),
            self.changes,
            units_of(rows),
        )
        old = {field.name: answer.values.column(i) for i, field in enumerate(answer.values.schema)}
        state = GroupState(batch, self.keys.names, probe, old, answer.found, traces, self.folds)
        return self._finish(state, self._fold(state), wanted=context.wanted)

    def _fold(self, state: GroupState) -> dict[str, Any]:
        """Results and helpers of all folds after this batch, and how many rows a group has."""
        new: dict[str, Any] = {}
        for fold in self.folds:
            new.update(fold.update(state))
        rows = CountFold(name=ROWS, type=pa.int64())
        return new | rows.fold(state.batch, state.old, state.found)

    def _finish(self, state: GroupState, new: dict[str, Any], *, wanted: bool) -> TaskResult:
        batch, probe, old, found = state.batch, state.probe, state.old, state.found
        rows = new[ROWS].to_numpy(zero_copy_only=False)
        before = np.where(found, pc.fill_null(old[ROWS], 0).to_numpy(zero_copy_only=False), 0)
        was, now = before > 0, rows > 0
        names = [fold.name for fold in self.folds]
        same = rows_equal([old[n] for n in names], [_flat(new[n]) for n in names])
        differs = ~(was & now & same)
        keys = [probe.column(n) for n in self.keys.names]
        gone, born = was & differs, now & differs
        before_rows, after_rows = ([*keys, *(_flat(c[n]) for n in names)] for c in (old, new))
        out = changes_batch(self.output, before_rows, gone, after_rows, born) if wanted else None
        stored = self.traces[self.name].values.names
        update = pa.RecordBatch.from_arrays(
            [*probe.columns, *(_flat(new[n]) for n in stored), pa.array(rows == 0)],
            names=[*probe.schema.names, *stored, DELETED],
        )
        state.updates[self.name] = update
        counters = {
            "keys": batch.count,
            "keys_new": int((~was & now).sum()),
            "keys_gone": int((was & ~now).sum()),
            "changes": int(gone.sum()) + int(born.sum()),
        }
        return TaskResult(out, state.updates, counters)


def _flat(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
