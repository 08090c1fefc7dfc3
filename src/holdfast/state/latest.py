"""Latest traces: one value row for each key; the newest wins, a tombstone deletes.

Invariants:
- Of several updates of one key in one batch the last one counts.
- A lookup answers every probe, in the caller's order, duplicates included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from holdfast.state.arrow.batches import ascends, combine_latest, empty_batch, group_rows, take
from holdfast.state.arrow.numpy_views import numbers
from holdfast.state.live_counts import Asked
from holdfast.state.lookup import Probe, newest_rows
from holdfast.state.schema import TraceKind
from holdfast.state.trace import TracePartition


@dataclass(frozen=True, slots=True)
class LatestAnswer:
    """Row i of `values` belongs to probe i; it is all null where `found[i]` is False."""

    found: np.ndarray
    values: pa.RecordBatch


class LatestPartition(TracePartition):
    """One partition of a latest trace."""

    kind: ClassVar[TraceKind] = TraceKind.LATEST

    def lookup(self, keys: pa.Table | pa.RecordBatch) -> LatestAnswer:
        """The value rows of these keys (a table or batch with hash and key columns)."""
        hashes, columns = self.schema.keys_of(keys)
        if len(hashes):
            self._check_mine(int(hashes.min()), int(hashes.max()))
        nullable = pa.schema([field.with_nullable(True) for field in self.schema.values])  # noqa: FBT003
        size = len(hashes)
        found = np.zeros(size, np.bool_)
        if not self._views or not size:
            empty = [pa.nulls(size, field.type) for field in nullable]
            return LatestAnswer(found, _batch(empty, nullable, size))
        probe = Probe(hashes, columns)
        hits = newest_rows(self._views, probe, [1, *self.schema.value_indices])
        live = ~numbers(hits.rows.column(0))
        if self.schema.time_is_key:  # then a probe has the time of the row that answers it
            asked = pa.RecordBatch.from_arrays(probe.columns, schema=self.schema.keys)
            behind = self.schema.behind(asked, self.time_bound_us)
            if behind is not None:
                live &= ~behind[hits.positions]
        else:
            behind = self.schema.behind(hits.rows, self.time_bound_us)
            if behind is not None:
                live &= ~behind
        positions = hits.positions[live]
        places = probe.order[positions]
        index = np.zeros(size, np.int64)
        index[places] = np.flatnonzero(live)
        found[places] = True
        if self.schema.time_column is None and (
            self._asked is None or size > len(self._asked.hashes)
        ):
            self._asked = Asked(probe.hashes, probe.columns, found[probe.order])
        picks = pa.array(index, mask=~found)
        values = [hits.rows.column(1 + i).take(picks) for i in range(len(nullable))]
        return LatestAnswer(found, _batch(values, nullable, size))

    def _combined(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if not rows.num_rows:
            return empty_batch(rows.schema)
        hashes = rows.column(0).to_numpy()
        newest = rows
        if not ascends(hashes, strictly=True):
            groups = group_rows(hashes, [rows.column(i) for i in self.schema.key_indices])
            newest = combine_latest(rows, groups)
        if not self._fresh:
            return newest
        deleted = newest.column(1).to_numpy(zero_copy_only=False)
        return take(newest, np.flatnonzero(~deleted)) if deleted.any() else newest


def _batch(columns: list[Any], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """A batch that keeps its number of rows even without columns."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_struct_array(
        cast("pa.StructArray", pa.array([{}] * rows, pa.struct([])))
    )
