"""Bag traces: rows with integer weights that sum over all runs; zero disappears.

Invariants:
- Two rows are the same row when all key and value columns are equal.
- A lookup returns each row of a key once, with the sum of its weights, never with zero.
- Negative sums are kept and shown: only who wrote them knows what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from holdfast.state.arrow.batches import combine_bag, empty_batch, group_rows, take
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

    def _combined(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if not rows.num_rows:
            return empty_batch(rows.schema)
        hashes = rows.column(0).to_numpy()
        groups = group_rows(hashes, [rows.column(i) for i in self.schema.identity_indices])
        return combine_bag(rows, groups)
