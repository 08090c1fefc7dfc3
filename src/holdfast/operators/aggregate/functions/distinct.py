"""count(distinct x), exactly: every value of a group in a trace, with how often it is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.aggregate.functions.base import Batch, Fold, GroupState
from holdfast.operators.columns import DELETED, HASH
from holdfast.state import TraceSchema
from holdfast.state.arrow.batches import group_rows
from holdfast.state.arrow.row_equality import normalise


@dataclass(frozen=True)
class DistinctFold(Fold):
    """Inputs are a value, and a hash of keys and value; `value` is the value's Arrow type."""

    trace: str = ""
    value: Any = None

    def traces(self, keys: pa.Schema) -> Mapping[str, TraceSchema]:
        """How often each value of a group is there."""
        pairs = pa.schema([*keys, pa.field("_value", self.value)])
        return {self.trace: TraceSchema.latest(pairs, pa.schema([("_count", pa.int64())]))}

    @property
    def hashes(self) -> tuple[str, ...]:
        """The one of keys and value."""
        return self.inputs[1:2]

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """A count of distinct values needs its trace."""
        raise NotImplementedError

    def update(self, state: GroupState) -> dict[str, Any]:
        """Values that came into a group for the first time, minus those that left for good."""
        batch = state.batch
        column = batch.rows.column(self.inputs[0])
        given = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        picks = pa.array(given)
        hashes = batch.rows.column(self.inputs[1]).take(picks)
        columns = [normalise(batch.rows.column(n).take(picks)) for n in state.keys]
        columns.append(normalise(column.take(picks)))
        pairs = group_rows(hashes.to_numpy(zero_copy_only=False).view(np.uint64), columns)
        delta = pairs.sums(batch.weights[given])
        first = pa.array(pairs.first() if len(given) else np.zeros(0, np.int64))
        probe = pa.RecordBatch.from_arrays(
            [hashes.take(first), *(c.take(first) for c in columns)],
            names=[HASH, *state.keys, "_value"],
        )
        answer = state.traces[self.trace].lookup(probe)
        counts = answer.values.column(0)
        before = np.where(answer.found, pc.fill_null(counts, 0).to_numpy(zero_copy_only=False), 0)
        after = before + delta
        owner = batch.numbers[given[first.to_numpy()]] if len(given) else np.zeros(0, np.int64)
        values = np.zeros(batch.count, np.int64)
        np.add.at(values, owner, (after > 0).astype(np.int64) - (before > 0).astype(np.int64))
        update = probe.append_column("_count", pa.array(after))
        update = update.append_column(DELETED, pa.array(after == 0))
        if not batch.changes:  # only the first sight of a value matters
            update = update.filter(pa.array(before == 0))
        state.updates[self.trace] = update
        return {self.name: pa.array(self._old(state.old, self.name, state.found) + values)}
