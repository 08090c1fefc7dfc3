"""min and max.

Invariants:
- Where rows can be retracted, all values of a group are in a bag. It is read only for groups that
  lost a value.
- NaN is larger than every number; null loses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.aggregate.functions.base import Batch, Combination, Fold, GroupState
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.state import TraceSchema
from holdfast.state.arrow.batches import Groups, group_rows
from holdfast.state.arrow.numpy_views import numbers
from holdfast.state.arrow.row_equality import normalise


@dataclass(frozen=True)
class MinMaxFold(Fold):
    """min(x) and max(x); `bag` names the trace of all values where rows can be retracted."""

    largest: bool = False
    bag: str | None = None

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """The better of old and new; those that were retracted are looked at by `update`."""
        column = batch.rows.column(self.inputs[0])
        keep = None
        if batch.changes:
            keep = pa.array(batch.weights > 0)
        came = best(batch, column, largest=self.largest, keep=keep)
        before = pc.if_else(pa.array(found), old[self.name], pa.scalar(None, self.type))
        return {self.name: better(before, came, largest=self.largest)}

    def traces(self, keys: pa.Schema) -> Mapping[str, TraceSchema]:
        """All values, where one may have to take the place of another."""
        if self.bag is None:
            return {}
        return {self.bag: TraceSchema.bag(keys, pa.schema([("_value", self.type)]))}

    @property
    def combination(self) -> Combination | None:
        """The best of several is the best of all, unless one is retracted."""
        if self.bag is not None:
            return None
        return "max" if self.largest else "min"

    def update(self, state: GroupState) -> dict[str, Any]:
        """The better of old and new; what is left, of groups that lost a value."""
        columns = self.fold(state.batch, state.old, state.found)
        if self.bag is not None:
            state.updates[self.bag] = self._values(state)
            columns[self.name] = self._remaining(state, columns[self.name], self.bag)
        return columns

    def _values(self, state: GroupState) -> Any:
        """What the bag gets."""
        rows = state.batch.rows
        column = rows.column(self.inputs[0])
        names = [HASH, *state.keys]
        table = pa.RecordBatch.from_arrays(
            [*(rows.column(n) for n in names), column, pa.array(state.batch.weights)],
            names=[*names, "_value", WEIGHT],
        )
        return table.filter(column.is_valid())

    def _remaining(self, state: GroupState, shown: Any, bag: str) -> Any:
        """Groups that lost a value: the best of what is left, from the bag and this batch."""
        batch = state.batch
        lost = np.zeros(batch.count, np.bool_)
        lost[batch.numbers[batch.weights < 0]] = True
        if not lost.any():
            return shown
        groups = np.flatnonzero(lost)
        answer = state.traces[bag].lookup(state.probe.take(pa.array(groups)))
        column = batch.rows.column(self.inputs[0])
        mine = np.flatnonzero(
            lost[batch.numbers] & column.is_valid().to_numpy(zero_copy_only=False)
        )
        owners = np.concatenate([groups[answer.probes], batch.numbers[mine]])
        values = pa.concat_arrays(
            [normalise(answer.rows.column("_value")), normalise(column.take(pa.array(mine)))]
        )
        weights = np.concatenate([answer.weights, batch.weights[mine]])
        same = group_rows(owners, [values])
        sums = same.sums(weights)
        kept = same.first()[sums > 0] if len(owners) else np.zeros(0, np.int64)
        left = Batch(
            cast("Any", None),  # whose rows nobody reads
            Groups(np.arange(0), np.arange(batch.count)),
            owners[kept],
            np.ones(len(kept), np.int64),
            changes=False,
        )
        remaining = best(left, values.take(pa.array(kept)), largest=self.largest)
        return pc.if_else(pa.array(lost), remaining, shown)


def best(batch: Batch, column: Any, *, largest: bool, keep: Any = None) -> Any:
    """Smallest or largest value of each group; NaN counts as the largest."""
    kind = column.type
    plain = kind == pa.int64() or pa.types.is_timestamp(kind)
    grouped = 0 < len(column) == len(batch.groups.order)
    if plain and grouped and keep is None and not column.null_count:
        ranked = numbers(column.view(pa.int64()))[batch.groups.order]
        if len(ranked) > batch.count:
            extreme = np.maximum if largest else np.minimum
            ranked = extreme.reduceat(ranked, batch.groups.starts)
        return pa.array(ranked).view(kind)
    if not pa.types.is_floating(column.type):
        return batch.by_group(column, "max" if largest else "min", keep)
    nan = pc.fill_null(pc.is_nan(column), False)  # noqa: FBT003
    plain = pc.if_else(nan, pa.scalar(None, column.type), column)
    found = batch.by_group(plain, "max" if largest else "min", keep)
    any_nan = pc.fill_null(batch.by_group(nan, "max", keep), False)  # noqa: FBT003
    wins = any_nan if largest else pc.and_(any_nan, pc.is_null(found))
    return pc.if_else(wins, pa.scalar(float("nan"), column.type), found)


def better(left: Any, right: Any, *, largest: bool) -> Any:
    """The smaller or larger of two columns, row by row; null loses, NaN is largest."""
    if pa.types.is_floating(left.type):
        nan_left, nan_right = (pc.fill_null(pc.is_nan(c), False) for c in (left, right))  # noqa: FBT003
        any_nan = pc.or_(nan_left, nan_right)
        bare = [
            pc.if_else(nan, pa.scalar(None, left.type), c)
            for nan, c in ((nan_left, left), (nan_right, right))
        ]
        plain = (pc.max_element_wise if largest else pc.min_element_wise)(*bare)
        wins = any_nan if largest else pc.and_(any_nan, pc.is_null(plain))
        return pc.if_else(wins, pa.scalar(float("nan"), left.type), plain)
    kind = left.type
    if pa.types.is_boolean(kind) or pa.types.is_timestamp(kind):  # Arrow compares these as numbers
        number = pa.uint8() if pa.types.is_boolean(kind) else pa.int64()
        left, right = left.cast(number), right.cast(number)
    return (pc.max_element_wise if largest else pc.min_element_wise)(left, right).cast(kind)
