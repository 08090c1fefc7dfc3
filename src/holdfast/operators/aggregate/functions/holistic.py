"""Holistic aggregates, which must see the values of a group: percentiles, collections, first, own.

All of them share one mechanism: a bag trace of (keys, values) for each distinct set of inputs,
from which touched groups are computed from scratch. Folds that can resume from what they show
(collections, first and last) read the bag only for groups that lost a value; on streams that only
add rows they keep no bag at all.

Invariants:
- What a group shows depends on the rows that are there alone, not on how or when they came.
- A row is given before it is retracted, epoch by epoch; a group never holds fewer than none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidInputError
from holdfast.operators.aggregate.functions import selection
from holdfast.operators.aggregate.functions.base import Batch, Fold, GroupState
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.row_order import total_order
from holdfast.operators.sort_order import SortKey
from holdfast.operators.udf import REMEDY, called, key_text
from holdfast.operators.zset import ZSet
from holdfast.state import TraceSchema
from holdfast.state.arrow.row_equality import normalise

GATHERED_ROWS_MAX = 1 << 20
"""Values of a group beyond this many are counted instead of gathered, where that is enough."""


@dataclass(frozen=True)
class HolisticFold(Fold):
    """`fields` are the values that the bag keeps, one for each of `inputs`."""

    fields: Any = None
    bag: str | None = None

    def traces(self, keys: pa.Schema) -> Mapping[str, TraceSchema]:
        """All values of a group; folds with the same inputs share the bag."""
        return {} if self.bag is None else {self.bag: TraceSchema.bag(keys, self.fields)}

    @property
    def skips_null(self) -> bool:
        """Whether rows without a value do not count."""
        return True

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """All values of a group are needed, and they are in a trace."""
        raise NotImplementedError

    def update(self, state: GroupState) -> dict[str, Any]:
        """From all values of the groups that need them; of the others, from what they show.

        A bag is read for the groups that one of its folds needs, once, and written once an epoch.
        """
        shared = None if self.bag is None else state.shared.get(self.bag)
        if shared is None:
            shared = self._read(state)
            if self.bag is not None:
                state.shared[self.bag] = shared
                state.updates[self.bag] = self._bag_update(shared[0], state.probe)
        came, needed, rows = shared
        kept = self.kept(state.old, state.found)
        if kept is not None and not needed.all():
            rows = rows.concat(kept.concat(came).for_keys(~needed))
        return self.compute(rows, state.probe)

    def _read(self, state: GroupState) -> tuple[ZSet, np.ndarray, ZSet]:
        """What came; the groups that must be computed from all of their values; those values."""
        came = self.came(state.batch)
        needed = self.needs(state.batch, came)
        for other in state.folds:
            if isinstance(other, HolisticFold) and self.bag is not None and other.bag == self.bag:
                needed |= other.needs(state.batch, came)
        gathered = needed & ~self.streamed(state)
        fresh = came.for_keys(gathered)
        if self.bag is None or not gathered.any():
            return came, needed, fresh
        groups = np.flatnonzero(gathered)
        answer = state.traces[self.bag].lookup(state.probe.take(pa.array(groups)))
        columns = [answer.rows.column(name) for name in self.fields.names]
        stored = ZSet(groups[answer.probes], columns, answer.weights)
        return came, needed, stored.concat(fresh).consolidate().positive()

    def streamed(self, state: GroupState) -> np.ndarray:
        """Groups with so many values that they are not gathered: `update` passes over them."""
        return np.zeros(state.batch.count, np.bool_)

    def _bag_update(self, came: ZSet, probe: pa.RecordBatch) -> Any:
        keys = probe.take(pa.array(came.numbers))
        return pa.RecordBatch.from_arrays(
            [*keys.columns, *came.columns, pa.array(came.weights)],
            names=[*probe.schema.names, *self.fields.names, WEIGHT],
        )

    def came(self, batch: Batch) -> ZSet:
        """The values of a batch."""
        columns = [normalise(batch.rows.column(name)) for name in self.inputs]
        rows = ZSet(batch.numbers, columns, batch.weights)
        if self.skips_null and columns[0].null_count:
            rows = rows.take(np.flatnonzero(columns[0].is_valid().to_numpy(zero_copy_only=False)))
        return rows.consolidate()

    def needs(self, batch: Batch, came: ZSet) -> np.ndarray:
        """Groups that must be computed from all of their values."""
        del came
        return np.ones(batch.count, np.bool_)

    def kept(self, old: dict[str, Any], found: np.ndarray) -> ZSet | None:
        """What earlier epochs left of groups that need not be computed from scratch."""
        del old, found
        return None

    def compute(self, rows: ZSet, keys: pa.RecordBatch) -> dict[str, Any]:
        """Result and helpers from the values that count, one for each of the keys."""
        raise NotImplementedError


@dataclass(frozen=True)
class ResumingFold(HolisticFold):
    """One that needs all values of a group only when it lost some."""

    def needs(self, batch: Batch, came: ZSet) -> np.ndarray:
        """Groups that lost a value."""
        lost = np.zeros(batch.count, np.bool_)
        if self.bag is not None:
            lost[came.numbers[came.weights < 0]] = True
        return lost


@dataclass(frozen=True)
class PercentileFold(HolisticFold):
    """percentile(x, p), exact, between two values as far as p lies between them."""

    points: tuple[float, ...] = (0.5,)
    several: bool = False

    def streamed(self, state: GroupState) -> np.ndarray:
        """Where only ranks are asked of a bag, values are counted instead of gathered."""
        bag = str(self.bag)
        known: np.ndarray | None = state.shared.get(f"{bag}, streamed")
        if known is not None:
            return known
        found = super().streamed(state)
        users = [f for f in state.folds if isinstance(f, HolisticFold) and f.bag == bag]
        trace = state.traces[bag]
        ranks_only = all(isinstance(fold, PercentileFold) for fold in users)
        if ranks_only and trace.rows_stored > GATHERED_ROWS_MAX:
            hashes = state.probe.column(HASH).to_numpy(zero_copy_only=False).view(np.uint64)
            found = trace.stored_counts(hashes) > GATHERED_ROWS_MAX
        state.shared[f"{bag}, streamed"] = found
        return found

    def update(self, state: GroupState) -> dict[str, Any]:
        """As always; groups with very many values one after the other, in passes."""
        columns = super().update(state)
        heavy = np.flatnonzero(self.streamed(state))
        if not len(heavy):
            return columns
        results = [self._selected(state, int(group)) for group in heavy]
        shown = columns[self.name]
        index = np.arange(len(shown))
        index[heavy] = len(shown) + np.arange(len(heavy))
        both = pa.concat_arrays([shown, pa.array(results, self.type)])
        return {**columns, self.name: both.take(pa.array(index))}

    def _selected(self, state: GroupState, group: int) -> Any:
        """The percentiles of one group: stored values and those of the batch."""
        mine = np.zeros(state.batch.count, np.bool_)
        mine[group] = True
        came = state.shared[str(self.bag)][0].for_keys(mine)
        key, trace = state.probe.slice(group, 1), state.traces[str(self.bag)]

        def values() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for rows, weights in trace.stream(key):
                yield rows.column(0).to_numpy(zero_copy_only=False), weights
            yield came.columns[0].to_numpy(zero_copy_only=False), came.weights

        count = selection.total(values)
        if not count:
            return None
        places = (count - 1) * np.array(self.points)
        low, high = np.floor(places).astype(np.int64), np.ceil(places).astype(np.int64)
        below, above = np.split(selection.at_ranks(values, np.concatenate([low, high])), 2)
        with np.errstate(invalid="ignore"):
            mixed = below + (places - low) * (above - below)
        found = np.where((low == high) | (below == above), below, mixed).tolist()
        return found if self.several else found[0]

    def compute(self, rows: ZSet, keys: pa.RecordBatch) -> dict[str, Any]:
        """By position among the sorted values, each as often as it is there."""
        count = keys.num_rows
        order = total_order(rows.numbers, [SortKey("x")], rows.columns, [])
        numbers, weights = rows.numbers[order], rows.weights[order]
        values = rows.columns[0].take(pa.array(order)).to_numpy(zero_copy_only=False)
        ends = np.cumsum(weights)
        totals = np.zeros(count, np.int64)
        np.add.at(totals, numbers, weights)
        base = np.cumsum(totals) - totals
        empty = totals == 0
        found = []
        for point in self.points:
            place = np.where(empty, 0.0, (totals - 1) * point)
            low, high = np.floor(place), np.ceil(place)
            at = [self._value(values, ends, base, n.astype(np.int64), empty) for n in (low, high)]
            with np.errstate(invalid="ignore"):
                mixed = at[0] + (place - low) * (at[1] - at[0])
                same = (low == high) | (at[0] == at[1])
            found.append(np.where(same, at[0], mixed))
        if not self.several:
            return {self.name: pa.array(found[0], mask=empty)}
        flat = pa.array(np.stack(found, axis=1).reshape(-1))
        offsets = np.arange(count + 1, dtype=np.int32) * len(self.points)
        lists = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), flat, type=self.type, mask=pa.array(empty, pa.bool_())
        )
        return {self.name: lists}

    @staticmethod
    def _value(
        values: np.ndarray, ends: np.ndarray, base: np.ndarray, place: np.ndarray, empty: np.ndarray
    ) -> np.ndarray:
        if not len(values):
            return np.zeros(len(base))
        index = np.searchsorted(ends, base + place, side="right")
        found: np.ndarray = values[np.where(empty, 0, np.minimum(index, len(values) - 1))]
        return found


@dataclass(frozen=True)
class CollectFold(ResumingFold):
    """collect_list(x) and collect_set(x): sorted, and no more than the `limit` smallest values."""

    limit: int = 0
    unique: bool = False

    def kept(self, old: dict[str, Any], found: np.ndarray) -> ZSet | None:
        """The lists as they show."""
        lists = old[self.name]
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        numbers = np.repeat(np.arange(len(lists)), lengths)
        rows = ZSet(numbers, [normalise(lists.flatten())], np.ones(len(numbers), np.int64))
        return rows.for_keys(found)

    def compute(self, rows: ZSet, keys: pa.RecordBatch) -> dict[str, Any]:
        """Sorted lists."""
        summed = rows.consolidate().positive()
        copies = np.ones(len(summed.weights), np.int64) if self.unique else summed.weights
        order = total_order(summed.numbers, [SortKey("x")], summed.columns, [])
        numbers, copies = summed.numbers[order], np.minimum(copies[order], self.limit)
        ends = np.cumsum(copies)
        totals = np.zeros(keys.num_rows, np.int64)
        np.add.at(totals, numbers, copies)
        base = (np.cumsum(totals) - totals)[numbers]
        copies = np.clip(self.limit - (ends - copies - base), 0, copies)
        index = np.repeat(order, copies)
        sizes = np.minimum(totals, self.limit)
        offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
        values = summed.columns[0].take(pa.array(index))
        return {
            self.name: pa.ListArray.from_arrays(
                pa.array(offsets, pa.int32()), values, type=self.type
            )
        }


@dataclass(frozen=True)
class FirstFold(ResumingFold):
    """first(x) and last(x) by an ordering: the value of the first row, ties by the value itself."""

    order: tuple[SortKey, ...] = ()

    @property
    def skips_null(self) -> bool:
        """A row counts also when its value is null."""
        return False

    @property
    def helpers(self) -> list[pa.Field[Any]]:
        """Where in the ordering the value that shows stands."""
        fields = [self.fields.field(i) for i in range(1, len(self.fields))]
        return [pa.field(f"_{self.name}_{f.name}", f.type) for f in fields]

    def kept(self, old: dict[str, Any], found: np.ndarray) -> ZSet | None:
        """The row that shows."""
        index = np.flatnonzero(found)
        names = [self.name, *(f.name for f in self.helpers)]
        columns = [normalise(old[name].take(pa.array(index))) for name in names]
        return ZSet(index, columns, np.ones(len(index), np.int64))

    def compute(self, rows: ZSet, keys: pa.RecordBatch) -> dict[str, Any]:
        """The first row of each group."""
        there = rows.consolidate().positive()
        order = total_order(there.numbers, self.order, there.columns[1:], there.columns[:1])
        numbers = there.numbers[order]
        head = np.ones(len(order), np.bool_)
        head[1:] = numbers[1:] != numbers[:-1]
        index = np.full(keys.num_rows, -1)
        index[numbers[head]] = order[head]
        picks = pa.array(index, mask=index < 0)
        names = [self.name, *(f.name for f in self.helpers)]
        return {n: c.take(picks) for n, c in zip(names, there.columns, strict=True)}


@dataclass(frozen=True)
class UserFold(HolisticFold):
    """A user function: an Arrow function over all touched groups at once."""

    function: Callable[..., Any] = print
    columns: tuple[str, ...] = ()

    @property
    def skips_null(self) -> bool:
        """The function decides what null means."""
        return False

    def compute(self, rows: ZSet, keys: pa.RecordBatch) -> dict[str, Any]:
        """Groups without rows are not asked for; they are about to go."""
        ties = list(rows.columns)
        rows = rows.take(total_order(rows.numbers, [], [], ties))
        there, numbers = np.unique(rows.numbers, return_inverse=True)
        if not len(there):
            return {self.name: pa.nulls(keys.num_rows, cast("Any", self.type))}
        table = pa.table(
            [pa.array(numbers), pa.array(rows.weights), *rows.columns],
            names=["group", "weight", *self.columns],
        )
        asked = keys.take(pa.array(there))
        answer = called(
            self.function, table, len(there), kind="udaf_failed", keys=asked, column=self.name
        )
        values = self._checked(answer, asked)
        index = np.full(keys.num_rows, -1)
        index[there] = np.arange(len(there))
        return {self.name: values.take(pa.array(index, mask=index < 0))}

    def _checked(self, answer: Any, keys: pa.RecordBatch) -> Any:
        if isinstance(answer, pa.ChunkedArray):
            answer = answer.combine_chunks()
        try:
            values = answer if isinstance(answer, pa.Array) else pa.array(answer, self.type)
            values = values.cast(self.type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise self._refused(f"cannot be read as {self.type}: {error}", keys) from error
        if len(values) != keys.num_rows:
            raise self._refused(f"{len(values)} values for {keys.num_rows} groups", keys)
        return values

    def _refused(self, reason: str, keys: pa.RecordBatch) -> InvalidInputError:
        return InvalidInputError(
            "an aggregate of the user gave something else than one value a group",
            kind="udaf_result",
            cause="udaf_result",
            column=self.name,
            sample_key=key_text(keys),
            reason=" ".join(reason.split())[:300],
            remedy=REMEDY,
        )
