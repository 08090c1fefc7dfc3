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

from holdfast.operators.aggregate.functions.base import (
    Batch,
    CountFold,
    DistinctFold,
    ExtremeFold,
    Fold,
    best,
)
from holdfast.operators.aggregate.functions.holistic import GatherFold
from holdfast.operators.aggregate.holistic_update import gather
from holdfast.operators.base import (
    DELETED,
    HASH,
    WEIGHT,
    EpochContext,
    Result,
    WorkBase,
    changes_batch,
    group_by_key,
    group_numbers,
    units_of,
    weights_of,
)
from holdfast.state import TraceSchema
from holdfast.state.arrow.batches import Groups, group_rows
from holdfast.state.arrow.row_equality import normalise, rows_equal

ROWS = "_rows"


@dataclass(frozen=True)
class AggregateWork(WorkBase):
    """Folds a batch into all touched groups at once."""

    name: str
    keys: Any
    folds: tuple[Fold, ...]
    changes: bool

    @property
    def complete(self) -> bool:
        """The view is the output."""
        return True

    @property
    def results(self) -> Any:
        """The columns that the user sees."""
        return pa.schema([*self.keys, *(pa.field(f.name, f.type) for f in self.folds)])

    @property
    def output(self) -> Any:
        """Results and a weight: an update takes the old row back."""
        return self.results.append(pa.field(WEIGHT, pa.int64()))

    @property
    def traces(self) -> Mapping[str, TraceSchema]:
        """The view, and the values that some aggregates need beside it."""
        values = [pa.field(f.name, f.type) for f in self.folds]
        values += [helper for fold in self.folds for helper in fold.helpers]
        main = TraceSchema.latest(self.keys, pa.schema([*values, pa.field(ROWS, pa.int64())]))
        found = {self.name: main}
        for fold in self.folds:
            if isinstance(fold, DistinctFold):
                keys = pa.schema([*self.keys, pa.field("_value", self._input_type(fold))])
                found[fold.trace] = TraceSchema.latest(keys, pa.schema([("_count", pa.int64())]))
            if isinstance(fold, ExtremeFold) and fold.bag:
                found[fold.bag] = TraceSchema.bag(self.keys, pa.schema([("_value", fold.type)]))
            if isinstance(fold, GatherFold) and fold.bag:
                found[fold.bag] = TraceSchema.bag(self.keys, fold.fields)
        return found

    def _input_type(self, fold: DistinctFold) -> Any:
        return dict(self.input_types)[fold.inputs[0]]

    input_types: tuple[tuple[str, Any], ...] = ()

    def process(self, rows: Any, traces: Mapping[str, Any], context: EpochContext) -> Result:
        """Look the touched groups up, fold, and say what changed."""
        if not rows.num_rows:
            return Result(pa.RecordBatch.from_pylist([], schema=self.output))
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
        new, updates = self._fold(batch, old, answer.found, traces, probe)
        return self._finish(batch, probe, old, answer.found, new, updates, wanted=context.wanted)

    def _fold(
        self, batch: Batch, old: dict[str, Any], found: np.ndarray, traces: Mapping[str, Any],
        probe: Any,
    ) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
        gathered = [fold for fold in self.folds if isinstance(fold, GatherFold)]
        new, updates = gather(gathered, batch, old, found, traces, probe)
        for fold in self.folds:
            if isinstance(fold, GatherFold):
                continue
            if isinstance(fold, DistinctFold):
                values, update = self._distinct(fold, batch, old, found, traces[fold.trace])
                new[fold.name], updates[fold.trace] = values, update
                continue
            new.update(fold.fold(batch, old, found))
            if isinstance(fold, ExtremeFold) and fold.bag:
                if fold.bag not in updates:
                    updates[fold.bag] = self._values(batch, fold)
                new[fold.name] = self._extreme(fold, batch, new[fold.name], traces[fold.bag], probe)
        rows = CountFold(name=ROWS, type=pa.int64()).fold(batch, old, found)
        return {**new, **rows}, updates

    def _distinct(
        self, fold: DistinctFold, batch: Batch, old: dict[str, Any], found: np.ndarray, trace: Any
    ) -> tuple[Any, Any]:
        """Values that came into a group for the first time, minus those that left for good."""
        column = batch.rows.column(fold.inputs[0])
        given = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        picks = pa.array(given)
        hashes = batch.rows.column(fold.inputs[1]).take(picks)
        columns = [normalise(batch.rows.column(n).take(picks)) for n in self.keys.names]
        columns.append(normalise(column.take(picks)))
        pairs = group_rows(hashes.to_numpy(zero_copy_only=False).view(np.uint64), columns)
        came = pairs.sums(batch.weights[given])
        first = pa.array(pairs.first() if len(given) else np.zeros(0, np.int64))
        names = [*self.keys.names, "_value"]
        probe = pa.RecordBatch.from_arrays(
            [hashes.take(first), *(c.take(first) for c in columns)], names=[HASH, *names]
        )
        answer = trace.lookup(probe)
        counts = answer.values.column(0)
        before = np.where(answer.found, pc.fill_null(counts, 0).to_numpy(zero_copy_only=False), 0)
        after = before + came
        owner = batch.numbers[given[first.to_numpy()]] if len(given) else np.zeros(0, np.int64)
        delta = np.zeros(batch.count, np.int64)
        np.add.at(delta, owner, (after > 0).astype(np.int64) - (before > 0).astype(np.int64))
        update = probe.append_column("_count", pa.array(after))
        update = update.append_column(DELETED, pa.array(after == 0))
        if not self.changes:  # only the first sight of a value matters
            update = update.filter(pa.array(before == 0))
        previous = fold._old(old, fold.name, found)  # noqa: SLF001 - one family
        return pa.array(previous + delta), update

    def _values(self, batch: Batch, fold: ExtremeFold) -> Any:
        column = batch.rows.column(fold.inputs[0])
        names = [HASH, *self.keys.names]
        table = pa.RecordBatch.from_arrays(
            [*(batch.rows.column(n) for n in names), column, pa.array(batch.weights)],
            names=[*names, "_value", WEIGHT],
        )
        return table.filter(column.is_valid())

    def _extreme(self, fold: ExtremeFold, batch: Batch, shown: Any, trace: Any, probe: Any) -> Any:
        """Groups that lost a value: the best of what is left, from the bag and this batch."""
        lost = np.zeros(batch.count, np.bool_)
        lost[batch.numbers[batch.weights < 0]] = True
        if not lost.any():
            return shown
        groups = np.flatnonzero(lost)
        answer = trace.lookup(probe.take(pa.array(groups)))
        column = batch.rows.column(fold.inputs[0])
        mine = np.flatnonzero(
            lost[batch.numbers] & column.is_valid().to_numpy(zero_copy_only=False)
        )
        numbers = np.concatenate([groups[answer.probes], batch.numbers[mine]])
        values = pa.concat_arrays(
            [normalise(answer.rows.column("_value")), normalise(column.take(pa.array(mine)))]
        )
        weights = np.concatenate([answer.weights, batch.weights[mine]])
        same = group_rows(numbers, [values])
        sums = same.sums(weights)
        kept = same.first()[sums > 0] if len(numbers) else np.zeros(0, np.int64)
        left = Batch(
            None, Groups(np.arange(0), np.arange(batch.count)), numbers[kept],
            np.ones(len(kept), np.int64), changes=False,
        )  # fmt: skip
        found = best(left, values.take(pa.array(kept)), largest=fold.largest)
        return pc.if_else(pa.array(lost), found, shown)

    def _finish(
        self, batch: Batch, probe: Any, old: dict[str, Any], found: np.ndarray,
        new: dict[str, Any], updates: dict[str, Any], *, wanted: bool,
    ) -> Result:  # fmt: skip
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
        updates[self.name] = update
        counters = {
            "keys": batch.count,
            "keys_new": int((~was & now).sum()),
            "keys_gone": int((was & ~now).sum()),
            "changes": int(gone.sum()) + int(born.sum()),
        }
        return Result(out, updates, counters)


def _flat(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
