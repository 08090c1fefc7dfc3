"""Bag traces: rows with integer weights that sum over all runs; zero disappears.

Invariants:
- Two rows are the same row when all key and value columns are equal.
- A lookup returns each row of a key once, with the sum of its weights, never with zero.
- Negative sums are kept and shown: only who wrote them knows what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from holdfast.state.arrow.batches import combine_bag, empty_batch, group_rows, take
from holdfast.state.arrow.row_equality import rows_equal
from holdfast.state.lookup import Probe, all_rows
from holdfast.state.schema import TraceKind
from holdfast.state.trace import TracePartition


@dataclass(frozen=True, slots=True)
class BagAnswer:
    """All rows of the probed keys, as one batch of key and value columns.

    `probes[i]` is the number of the probe that row i answers, ascending, so that the rows of a
    probe are adjacent: `offsets` has their bounds, for `numpy.add.reduceat` and list arrays.
    """

    probes: np.ndarray
    weights: np.ndarray
    rows: pa.RecordBatch
    probe_count: int

    @property
    def offsets(self) -> np.ndarray:
        """Rows of probe i are offsets[i] to before offsets[i + 1]."""
        return np.searchsorted(self.probes, np.arange(self.probe_count + 1))


class BagPartition(TracePartition):
    """One partition of a bag trace."""

    kind: ClassVar[TraceKind] = TraceKind.BAG

    def lookup(self, keys: pa.Table | pa.RecordBatch) -> BagAnswer:
        """All rows of these keys (a table or batch with hash and key columns)."""
        hashes, columns = self.schema.keys_of(keys)
        if len(hashes):
            self._check_mine(int(hashes.min()), int(hashes.max()))
        row_schema = pa.schema([*self.schema.keys, *self.schema.values])
        none = np.zeros(0, np.int64)
        if not self._views or not len(hashes):
            return BagAnswer(none, none, empty_batch(row_schema), len(hashes))
        probe = Probe(hashes, columns)
        hits = all_rows(self._views, probe, range(1, len(self.schema.stored)))
        rows, probes = hits.rows, probe.order[hits.positions]
        behind = self.schema.behind(rows, self.time_bound_us)
        if behind is not None and behind.any():
            rows, probes = take(rows, np.flatnonzero(~behind)), probes[~behind]
        groups = group_rows(probes, [rows.column(i - 1) for i in self.schema.value_indices])
        sums = groups.sums(rows.column(0).to_numpy())
        nonzero = np.flatnonzero(sums)
        first = groups.first()[nonzero]
        picks = pa.array(first)
        taken = [rows.column(i - 1).take(picks) for i in self.schema.identity_indices]
        answer = pa.RecordBatch.from_arrays(taken, schema=row_schema)
        return BagAnswer(probes[first], sums[nonzero], answer, len(hashes))

    @property
    def rows_stored(self) -> int:
        """How many rows all runs have together, whatever they come to."""
        return sum(view.run.rows for view in self._views)

    def stored_counts(self, hashes: np.ndarray) -> np.ndarray:
        """How many rows are stored under each hash; hashes ascend."""
        counts = np.zeros(len(hashes), np.int64)
        for view in self._views:
            for number in range(view.run.batch_count):
                stored = view.run.hashes(number)
                first = np.searchsorted(stored, hashes, side="left")
                counts += np.searchsorted(stored, hashes, side="right") - first
        return counts

    def stream(self, key: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        """Rows of one key as they are stored, batch by batch, with weights that are not summed.

        For who only adds weights up, and has no room for all rows of a key.
        """
        hashes, columns = self.schema.keys_of(key)
        value = int(hashes[0])
        names = [self.schema.stored.field(i).name for i in self.schema.value_indices]
        for view in self._views:
            for batch in view.batches(*view.row_range(value, value)):
                count = batch.num_rows
                zeros = pa.array(np.zeros(count, np.int64))
                mine = rows_equal(
                    [batch.column(i) for i in self.schema.key_indices],
                    [column.take(zeros) for column in columns],
                )
                behind = self.schema.behind(batch, self.time_bound_us)
                if behind is not None:
                    mine &= ~behind
                rows = batch if mine.all() else take(batch, np.flatnonzero(mine))
                if rows.num_rows:
                    yield rows.select(names), rows.column(1).to_numpy()

    def _combined(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if not rows.num_rows:
            return empty_batch(rows.schema)
        hashes = rows.column(0).to_numpy()
        groups = group_rows(hashes, [rows.column(i) for i in self.schema.identity_indices])
        return combine_bag(rows, groups)
