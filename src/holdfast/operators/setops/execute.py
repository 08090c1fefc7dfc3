"""except and intersect: two streams compared row by row, and rows with or without a match.

Invariants:
- Rows are the same when all columns are, nulls included.
- How often a row shows depends on how often each side has it, by the rule of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    group_by_key,
    repeated,
    retyped,
    weights_of,
)
from holdfast.operators.columns import DELETED, HASH, SIDE, WEIGHT
from holdfast.state import TraceSchema
from holdfast.state.arrow.batches import empty_batch

SHOWN = "_shown"
_LEFT, _RIGHT = "_left", "_right"


RULES: dict[str, Callable[[Any, Any], Any]] = {
    "except": lambda a, b: ((a > 0) & (b <= 0)).astype(np.int64),
    "except all": lambda a, b: np.maximum(np.maximum(a, 0) - np.maximum(b, 0), 0),
    "intersect": lambda a, b: ((a > 0) & (b > 0)).astype(np.int64),
    "intersect all": lambda a, b: np.maximum(np.minimum(a, b), 0),
    "matched": lambda a, b: np.where(b > 0, a, 0),
    "unmatched": lambda a, b: np.where(b > 0, 0, a),
}
"""By rule: how often a row shows that the left side has a times and the right side b times."""


@dataclass(frozen=True)
class SetTask(OperatorTask):
    """Counts of both sides for each distinct row."""

    name: str
    row: pa.Schema
    rule: str
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
        """How often each row is there on both sides, and how often it shows."""
        values = pa.schema([(name, pa.int64()) for name in (_LEFT, _RIGHT, SHOWN)])
        return {self.name: TraceSchema.latest(self.row, values)}

    def visible(self, rows: Rows) -> Rows:
        """Rows as often as the rule lets them show."""
        return repeated(rows, SHOWN)

    def process(
        self, rows: pa.RecordBatch, traces: Mapping[str, Any], context: EpochContext
    ) -> TaskResult:
        """Rows that show more or less often than before."""
        del context
        if not rows.num_rows:
            return TaskResult(empty_batch(self.output))
        rows = retyped(rows, {field.name: field.type for field in self.row})
        groups, columns = group_by_key(rows, self.row.names)
        first = pa.array(groups.first())
        keys = [column.take(first) for column in columns]
        probe = pa.RecordBatch.from_arrays(
            [rows.column(HASH).take(first), *keys], names=[HASH, *self.row.names]
        )
        answer = traces[self.name].lookup(probe)
        before = [
            np.where(answer.found, pc.fill_null(column, 0).to_numpy(zero_copy_only=False), 0)
            for column in answer.values.columns
        ]
        sides = rows.column(SIDE).to_numpy(zero_copy_only=False)
        weights = weights_of(rows)
        left, right = (
            before[number] + groups.sums(np.where(sides == number, weights, 0)) for number in (0, 1)
        )
        now = RULES[self.rule](left, right)
        delta = now - before[2]
        moved = np.flatnonzero((left != before[0]) | (right != before[1]))
        update = pa.RecordBatch.from_arrays(
            [
                *probe.columns,
                pa.array(left),
                pa.array(right),
                pa.array(now),
                pa.array((left == 0) & (right == 0)),
            ],
            names=[*probe.schema.names, _LEFT, _RIGHT, SHOWN, DELETED],
        ).take(pa.array(moved))
        counters = {
            "keys": len(groups.starts),
            "keys_new": int(((before[2] <= 0) & (now > 0)).sum()),
            "keys_gone": int(((before[2] > 0) & (now <= 0)).sum()),
        }
        return TaskResult(self._changes(keys, delta), {self.name: update}, counters)

    def _changes(self, keys: list[Any], delta: np.ndarray) -> pa.RecordBatch:
        kept = np.flatnonzero(delta)
        index = kept if self.changes else np.repeat(kept, np.maximum(delta[kept], 0))
        picks = pa.array(index)
        columns = [
            key.take(picks).cast(field.type) for key, field in zip(keys, self.row, strict=True)
        ]
        if self.changes:
            columns.append(pa.array(delta[kept]))
        return pa.RecordBatch.from_arrays(columns, schema=self.output)
