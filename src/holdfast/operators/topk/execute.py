"""top_k and latest: the k first rows of each key by an ordering, kept up to date.

The view is a bag of the rows that show. Its changes are the operator's changes.

Invariants:
- The order is total: the given keys, then all other columns ascending. Which rows show never
  depends on how rows came in epochs, partitions or batches.
- A stream that only adds rows keeps no more than k rows a key. A changelog also keeps all rows,
  and reads them only for keys that were full and lost a row that showed.
- Changes are what differs; with a rank, a row that moves is one that differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.operators.base import (
    EpochContext,
    OperatorTask,
    TaskResult,
    group_by_key,
    group_numbers,
    weights_of,
)
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.row_order import total_order
from holdfast.operators.sort_order import SortKey
from holdfast.operators.zset import ZSet
from holdfast.state import TraceSchema
from holdfast.state.arrow.batches import group_rows
from holdfast.state.arrow.row_equality import normalise


@dataclass(frozen=True)
class TopKTask(OperatorTask):
    """Merges a batch with what shows of all touched keys at once.

    `row` are the columns of the input, `extra` values of expressions that it is ordered by; they
    are kept, but do not show. `keys` may hold one constant column that is not part of the row.
    """

    name: str
    keys: pa.Schema
    row: pa.Schema
    extra: Any
    order: tuple[SortKey, ...]
    k: int
    rank: str | None
    changes: bool

    @property
    def complete(self) -> bool:
        """The view is the output."""
        return True

    @property
    def output(self) -> pa.Schema:
        """The row, its rank if asked for, and a weight: better rows push others out."""
        fields = [*self.row]
        if self.rank is not None:
            fields.append(pa.field(self.rank, pa.int32()))
        return pa.schema([*fields, pa.field(WEIGHT, pa.int64())])

    @property
    def _values(self) -> pa.Schema:
        keys = set(self.keys.names)
        return pa.schema([*(f for f in self.row if f.name not in keys), *self.extra])

    @property
    def traces(self) -> Mapping[str, TraceSchema]:
        """The rows that show; with retractions also all rows."""
        rank = [pa.field(self.rank, pa.int32())] if self.rank is not None else []
        found = {self.name: TraceSchema.bag(self.keys, pa.schema([*self._values, *rank]))}
        if self.changes:
            found[f"{self.name}.rows"] = TraceSchema.bag(self.keys, self._values)
        return found

    def process(
        self, rows: pa.RecordBatch, traces: Mapping[str, Any], context: EpochContext
    ) -> TaskResult:
        """The best rows of touched keys, before and after."""
        del context
        if not rows.num_rows:
            return TaskResult(pa.RecordBatch.from_pylist([], schema=self.output))
        groups, key_columns = group_by_key(rows, self.keys.names)
        first = pa.array(groups.first())
        probe = pa.RecordBatch.from_arrays(
            [rows.column(HASH).take(first), *(c.take(first) for c in key_columns)],
            names=[HASH, *self.keys.names],
        )
        names = self._values.names
        came = ZSet(
            group_numbers(groups, rows.num_rows),
            [normalise(rows.column(n)) for n in names],
            weights_of(rows),
        )
        if self.changes:
            came = came.consolidate()
        answer = traces[self.name].lookup(probe)
        shown = ZSet(answer.probes, [answer.rows.column(n) for n in names], answer.weights)
        whole = shown.concat(came).consolidate()
        if self.changes:
            whole = self._with_hidden(whole, shown, came, probe, traces)
        after = self._best(whole)
        before = shown
        if self.rank is not None:
            ranks = answer.rows.column(self.rank)
            before = ZSet(shown.numbers, [*shown.columns, ranks], shown.weights)
        return self._finish(probe, before, after, came)

    def _with_hidden(
        self, whole: ZSet, shown: ZSet, came: ZSet, probe: pa.RecordBatch, traces: Mapping[str, Any]
    ) -> ZSet:
        """Where a full key lost a row that showed, take all of its rows instead."""
        count = probe.num_rows
        full = np.bincount(shown.numbers, shown.weights, count).astype(np.int64) >= self.k
        minus = came.take(np.flatnonzero(came.weights < 0))
        lost = np.zeros(count, np.bool_)
        if len(minus.numbers):
            both = shown.concat(minus)
            same = group_rows(both.numbers, both.columns)
            shows = np.maximum.reduceat(both.weights[same.order], same.starts) > 0
            taken = np.minimum.reduceat(both.weights[same.order], same.starts) < 0
            lost[both.numbers[same.first()[shows & taken]]] = True
        wanted = np.flatnonzero(lost & full)
        if not len(wanted):
            return whole
        answer = traces[f"{self.name}.rows"].lookup(probe.take(pa.array(wanted)))
        stored = ZSet(
            wanted[answer.probes],
            [answer.rows.column(n) for n in self._values.names],
            answer.weights,
        )
        mine = np.zeros(count, np.bool_)
        mine[wanted] = True
        fresh = came.take(np.flatnonzero(mine[came.numbers]))
        others = whole.take(np.flatnonzero(~mine[whole.numbers]))
        return others.concat(stored.concat(fresh).consolidate())

    def _best(self, whole: ZSet) -> ZSet:
        """The k first rows of each key, with their ranks if asked for."""
        there = whole.take(np.flatnonzero(whole.weights > 0))
        names = self._values.names
        by_name = dict(zip(names, there.columns, strict=True))
        order_by = [key for key in self.order if key.column in by_name]  # keys do not differ
        used = {key.column for key in order_by}
        order = total_order(
            there.numbers,
            order_by,
            [by_name[key.column] for key in order_by],
            [by_name[n] for n in self.row.names if n in by_name and n not in used],
        )
        ranked = there.take(order)
        ends = np.cumsum(ranked.weights)
        starts = ends - ranked.weights
        new = np.ones(len(order), np.bool_)
        new[1:] = ranked.numbers[1:] != ranked.numbers[:-1]
        base = starts[new][np.cumsum(new) - 1] if len(order) else starts
        place = starts - base  # rows of the same key that come before
        kept = np.flatnonzero(place < self.k)
        best = ranked.take(kept)
        copies = np.minimum(best.weights, self.k - place[kept])
        if self.rank is None:
            return ZSet(best.numbers, best.columns, copies)
        index = np.repeat(np.arange(len(kept)), copies)
        nth = np.arange(len(index)) - np.repeat(np.cumsum(copies) - copies, copies)
        ranks = pa.array((place[kept][index] + nth + 1).astype(np.int32))
        each = best.take(index)
        return ZSet(each.numbers, [*each.columns, ranks], np.ones(len(index), np.int64))

    def _finish(self, probe: pa.RecordBatch, before: ZSet, after: ZSet, came: ZSet) -> TaskResult:
        minus = ZSet(before.numbers, before.columns, -before.weights)
        delta = minus.concat(after).consolidate()
        delta = delta.take(np.argsort(delta.weights, kind="stable"))
        names = [*self._values.names, *([self.rank] if self.rank else [])]
        keys = probe.take(pa.array(delta.numbers))
        update = pa.RecordBatch.from_arrays(
            [*keys.columns, *delta.columns, pa.array(delta.weights)],
            names=[*probe.schema.names, *names, WEIGHT],
        )
        changes = pa.RecordBatch.from_arrays(
            [update.column(f.name) for f in self.output], schema=self.output
        )
        updates = {self.name: update}
        if self.changes:
            keys = probe.take(pa.array(came.numbers))
            updates[f"{self.name}.rows"] = pa.RecordBatch.from_arrays(
                [*keys.columns, *came.columns, pa.array(came.weights)],
                names=[*probe.schema.names, *self._values.names, WEIGHT],
            )
        had = np.bincount(before.numbers, minlength=probe.num_rows) > 0
        has = np.bincount(after.numbers, minlength=probe.num_rows) > 0
        counters = {
            "keys": probe.num_rows,
            "keys_new": int((has & ~had).sum()),
            "keys_gone": int((had & ~has).sum()),
        }
        return TaskResult(changes, updates, counters)
