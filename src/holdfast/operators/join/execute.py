"""Joins of two streams: pairs by key, and rows that have, or have not, a partner.

Invariants:
- What is shown is a function of both sides' rows as they are; a change of a side gives exactly the
  difference. Of one pair, one change at most comes out of an epoch.
- A row without a key (or, in an interval join, without a time) meets nothing, ever: it is not kept.
- Rows of a key are read only when the other side has rows of that key in this epoch, or when rows
  within an interval must be counted; how many rows a key has stands in a trace of its own.
- In an interval join a row is forgotten when no row that is on time can still change what is shown
  of it: rows that others were counted with stay until those others are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.base import (
    EpochContext,
    OperatorTask,
    TaskResult,
    group_by_key,
    group_numbers,
    retyped,
    weights_of,
)
from holdfast.operators.columns import HASH, SIDE, WEIGHT
from holdfast.operators.join.matching import (
    Entries,
    Ranges,
    Reach,
    by_group,
    by_time,
    multiplied,
)
from holdfast.state import TraceSchema
from holdfast.state.arrow.batches import empty_batch, group_rows
from holdfast.state.arrow.row_equality import normalise

LATE_SIDE = "_side"
LEFT, RIGHT = 0, 1
_NAMES = ("left", "right")
_BLOCK_BYTES = 32 << 20
_PAIRS_LEAST, _PAIRS_FIRST, _PAIRS_MOST = 1_000, 1 << 16, 1 << 20


@dataclass(frozen=True)
class OutColumn:
    """A column of the result: of a side, or (`side` None) the key that both sides share.

    It is key number `key`, or value number `value` of its side.
    """

    name: str
    type: pa.DataType
    side: int | None
    key: int | None = None
    value: int | None = None


@dataclass(frozen=True)
class JoinSide:
    """One input.

    slots: which columns of the shuffled rows are its values. keys, values: Arrow schemas of the
    trace. shows: None, or whether rows show while they have a partner (True) or none (False).
    counts: a trace of how many rows each key has. time: which value is the event time.
    """

    trace: str
    slots: tuple[str, ...]
    keys: pa.Schema
    values: pa.Schema
    shows: bool | None = None
    counts: str | None = None
    time: int | None = None
    keep_us: int = 0
    reach: Reach | None = None
    late_slots: tuple[str, ...] = ()
    late_types: tuple[pa.DataType, ...] = ()
    """Columns that are sent for late rows alone, and not kept."""

    @property
    def schema(self) -> TraceSchema:
        """The trace of its rows."""
        time = None if self.time is None else self.values.names[self.time]
        return TraceSchema.bag(self.keys, self.values, time_column=time)

    def times_us(self, values: Sequence[Any]) -> np.ndarray:
        """Event times of rows that have one."""
        column = values[self.time or 0]
        zone = getattr(column.type, "tz", None)
        times = column.cast(pa.timestamp("us", tz=zone), safe=False).cast(pa.int64())
        array: np.ndarray = times.to_numpy(zero_copy_only=False)
        return array


@dataclass(frozen=True)
class JoinTask(OperatorTask):
    """Both sides of a join in one task."""

    name: str
    key_names: tuple[str, ...]
    sides: tuple[JoinSide, JoinSide]
    columns: tuple[OutColumn, ...]
    pairs: bool
    changes: bool
    late_columns: tuple[OutColumn, ...] = ()

    @property
    def output(self) -> pa.Schema:
        """The columns of both sides, and a weight in a changelog."""
        fields = [pa.field(c.name, c.type) for c in self.columns]
        return pa.schema([*fields, *([pa.field(WEIGHT, pa.int64())] if self.changes else [])])

    @property
    def late(self) -> pa.Schema | None:
        """Rows of both sides that came too late, and which side they are of."""
        if not self.late_columns:
            return None
        fields = [pa.field(c.name, c.type) for c in self.late_columns]
        return pa.schema([*fields, pa.field(LATE_SIDE, pa.string()), pa.field(WEIGHT, pa.int64())])

    @property
    def traces(self) -> Mapping[str, TraceSchema]:
        """The rows of both sides; where needed, how many rows each key has."""
        found = {}
        for side in self.sides:
            found[side.trace] = side.schema
            if side.counts is not None and side.counts != side.trace:
                found[side.counts] = TraceSchema.bag(side.keys, pa.schema([]))
        return found

    @property
    def replayable(self) -> bool:
        """Where no row is ever forgotten."""
        return all(side.time is None for side in self.sides)

    def bounds_us(self, watermark_us: int) -> Mapping[str, int]:
        """Rows are forgotten when nothing on time can meet them."""
        timed = [side for side in self.sides if side.time is not None]
        return {side.trace: watermark_us - side.keep_us for side in timed}

    def process(
        self, rows: pa.RecordBatch, traces: Mapping[str, Any], context: EpochContext
    ) -> TaskResult:
        """The difference that the rows of both sides make."""
        rows = retyped(rows, self._types)
        timed = self.sides[LEFT].time is not None
        counters = {"late": 0} if timed else {}
        late = None
        if timed and context.watermark_us is not None and rows.num_rows:
            rows, gone = self._on_time(rows, context.watermark_us)
            if gone is not None:
                counters["late"] = gone.num_rows
                late = self._late(gone) if self.late_columns else None
        if not rows.num_rows:
            return TaskResult(empty_batch(self.output), {}, counters, late)
        usable = self._usable(rows)
        blocks = []
        if not usable.all():
            blocks += self._loose(rows.filter(pa.array(~usable)))
            rows = rows.filter(pa.array(usable))
        updates: dict[str, Any] = {}
        pairs: Iterator[_Block] = iter(())
        if rows.num_rows:
            epoch = _Epoch(self, rows, traces)
            blocks += epoch.alone()
            pairs = epoch.pairs()
            blocks += _first_blocks(pairs)
            updates = epoch.updates()
        more = (self._assembled([block]) for block in pairs)
        return TaskResult(self._assembled(blocks), updates, counters, late, more)

    @property
    def _types(self) -> dict[str, pa.DataType]:
        """Types of the shuffled columns."""
        types = dict(zip(self.key_names, self.sides[LEFT].keys.types, strict=True))
        for side in self.sides:
            types |= dict(zip(side.slots, side.values.types, strict=True))
            types |= dict(zip(side.late_slots, side.late_types, strict=True))
        return types

    def _on_time(
        self, rows: pa.RecordBatch, watermark_us: int
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """Rows that are not too late, and those that are."""
        numbers = rows.column(SIDE).to_numpy(zero_copy_only=False)
        late = np.zeros(rows.num_rows, np.bool_)
        for number, side in enumerate(self.sides):
            column = rows.column(side.slots[side.time or 0])
            zone = getattr(column.type, "tz", None)
            times = column.cast(pa.timestamp("us", tz=zone), safe=False).cast(pa.int64())
            old = pc.fill_null(pc.less(times, watermark_us), False)  # noqa: FBT003
            late |= old.to_numpy(zero_copy_only=False) & (numbers == number)
        if not late.any():
            return rows, None
        return rows.filter(pa.array(~late)), rows.filter(pa.array(late))

    def _late(self, gone: pa.RecordBatch) -> pa.RecordBatch:
        """Late rows of both sides as they came."""
        blocks = []
        numbers = gone.column(SIDE).to_numpy(zero_copy_only=False)
        for number, name in enumerate(_NAMES):
            mine = gone.filter(pa.array(numbers == number))
            columns = self._raw(mine, number, self.late_columns)
            which = pa.array([name], pa.string()).take(pa.array(np.zeros(mine.num_rows, np.int64)))
            blocks.append([*columns, which, pa.array(weights_of(mine))])
        joined = [pa.concat_arrays(pieces) for pieces in zip(*blocks, strict=True)]
        return pa.RecordBatch.from_arrays(joined, schema=self.late)

    def _usable(self, rows: pa.RecordBatch) -> np.ndarray:
        """Rows that can meet others: their keys, and their times where they count, are given."""
        usable = np.ones(rows.num_rows, np.bool_)
        for name in self.key_names:
            column = rows.column(name)
            if column.null_count:
                usable &= column.is_valid().to_numpy(zero_copy_only=False)
        numbers = rows.column(SIDE).to_numpy(zero_copy_only=False)
        for number, side in enumerate(self.sides):
            if side.time is not None:
                given = rows.column(side.slots[side.time]).is_valid()
                usable &= given.to_numpy(zero_copy_only=False) | (numbers != number)
        return usable

    def _loose(self, rows: pa.RecordBatch) -> list[_Block]:
        """Rows that meet nothing: they show where rows without a partner do, and are not kept."""
        numbers = rows.column(SIDE).to_numpy(zero_copy_only=False)
        blocks = []
        for number, side in enumerate(self.sides):
            mine = rows.filter(pa.array(numbers == number))
            if side.shows is not False or not mine.num_rows:
                continue
            weights = weights_of(mine)
            if (weights < 0).any():
                hashes = mine.column(HASH).to_numpy(zero_copy_only=False).view(np.uint64)
                names = [*self.key_names, *side.slots]
                groups = group_rows(hashes, [normalise(mine.column(n)) for n in names])
                weights = groups.sums(weights)
                mine = mine.take(pa.array(groups.first()))
            blocks.append(_Block(self._raw(mine, number, self.columns), weights))
        return blocks

    def _raw(self, rows: pa.RecordBatch, number: int, columns: Sequence[OutColumn]) -> list[Any]:
        """Shuffled rows of one side as columns of the result, with nulls for the other side."""
        keys = [normalise(rows.column(name)) for name in self.key_names]
        side = self.sides[number]
        values = [normalise(rows.column(name)) for name in (*side.slots, *side.late_slots)]
        sides = [values, None] if number == LEFT else [None, values]
        return shaped(columns, keys, sides, rows.num_rows)

    def _assembled(self, blocks: list[_Block]) -> pa.RecordBatch:
        """All blocks as one batch of changes; repeated rows where there are no weights."""
        schema = self.output
        done = []
        for block in blocks:
            weights = block.weights
            if self.changes:
                columns = [*block.columns, pa.array(weights)]
                if not weights.all():
                    picks = pa.array(np.flatnonzero(weights))
                    columns = [column.take(picks) for column in columns]
            else:
                columns = block.columns
                if len(weights) and (weights != 1).any():
                    many = np.maximum(weights, 0)
                    picks = pa.array(np.repeat(np.arange(len(weights)), many))
                    columns = [column.take(picks) for column in columns]
            if len(columns[0]):
                done.append(columns)
        if not done:
            return empty_batch(schema)
        joined = [pa.concat_arrays(pieces) for pieces in zip(*done, strict=True)]
        return pa.RecordBatch.from_arrays(joined, schema=schema)


@dataclass(frozen=True, slots=True)
class _Block:
    """Some changes: columns of the result and weights."""

    columns: list[Any]
    weights: np.ndarray


class _Epoch:
    """The rows of one partition of an epoch that have a key, and what was there before."""

    def __init__(self, work: JoinTask, rows: pa.RecordBatch, traces: Mapping[str, Any]) -> None:
        self.work, self.rows, self.traces = work, rows, traces
        self.groups, columns = group_by_key(rows, list(work.key_names))
        self.count = len(self.groups.starts)
        first = pa.array(self.groups.first())
        self.keys = [column.take(first) for column in columns]
        self.hashes = rows.column(HASH).take(first)
        numbers = group_numbers(self.groups, rows.num_rows)
        sides = rows.column(SIDE).to_numpy(zero_copy_only=False)
        self.weights = weights_of(rows)
        self.signed = bool((self.weights < 0).any())
        self.places = [np.flatnonzero(sides == number) for number in (LEFT, RIGHT)]
        self.group = [numbers[places] for places in self.places]
        self.touched = [np.bincount(group, minlength=self.count) > 0 for group in self.group]
        self._entries: dict[int, Entries] = {}

    def updates(self) -> dict[str, pa.RecordBatch]:
        """The rows of both sides for their traces."""
        found = {}
        for number, side in enumerate(self.work.sides):
            picks = pa.array(self.places[number])
            if not len(picks):
                continue
            names = [HASH, *self.work.key_names]
            head = [self.rows.column(name).take(picks) for name in names]
            weights = pa.array(self.weights[self.places[number]])
            values = [self.rows.column(name).take(picks) for name in side.slots]
            found[side.trace] = pa.RecordBatch.from_arrays(
                [*head, *values, weights],
                names=[HASH, *side.keys.names, *side.values.names, WEIGHT],
            )
            if side.counts is not None and side.counts != side.trace:
                found[side.counts] = pa.RecordBatch.from_arrays(
                    [*head, weights], names=[HASH, *side.keys.names, WEIGHT]
                )
        return found

    def alone(self) -> list[_Block]:
        """Rows that came to have a partner or lost the last one."""
        return [
            self._alone(number, shows=side.shows)
            for number, side in enumerate(self.work.sides)
            if side.shows is not None
        ]

    # What is there

    def entries(self, number: int) -> Entries:
        """The rows of a side that can make a difference: new ones, and old ones of their keys."""
        found = self._entries.get(number)
        if found is None:
            found = self._entries[number] = self._read(number)
        return found

    def _read(self, number: int) -> Entries:
        side, other = self.work.sides[number], self.work.sides[1 - number]
        places = self.places[number]
        picks = pa.array(places)
        values = [normalise(self.rows.column(name).take(picks)) for name in side.slots]
        weights = self.weights[places]
        came = Entries(self.group[number], values, np.zeros(len(places), np.int64), weights)
        if side.time is not None and other.shows is not None:
            wanted = np.arange(self.count)
        else:
            wanted = np.flatnonzero(self.touched[1 - number])
        if len(wanted):
            answer = self.traces[side.trace].lookup(self._probe(side, wanted))
            kept = [answer.rows.column(name) for name in side.values.names]
            zeros = np.zeros(len(answer.weights), np.int64)
            came = Entries(wanted[answer.probes], kept, answer.weights, zeros).joined(came)
        return came.merged() if self.signed else came

    def _probe(self, side: JoinSide, wanted: np.ndarray) -> pa.RecordBatch:
        picks = pa.array(wanted)
        columns = [self.hashes.take(picks), *(key.take(picks) for key in self.keys)]
        return pa.RecordBatch.from_arrays(columns, names=[HASH, *side.keys.names])

    def _counts(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """How many rows of a side each key had before, and has now."""
        side = self.work.sides[number]
        answer = self.traces[side.counts or side.trace].lookup(
            self._probe(side, np.arange(self.count))
        )
        before = np.zeros(self.count, np.int64)
        before[answer.probes] = answer.weights
        after = before.copy()
        np.add.at(after, self.group[number], self.weights[self.places[number]])
        return before, after

    # What changes

    def _ranges(self, number: int, mine: Entries, other: Entries) -> Ranges:
        """Which rows of the other side each row of this one meets."""
        side, others = self.work.sides[number], self.work.sides[1 - number]
        if side.reach is None:
            return by_group(mine.group, other.group, self.count)
        return by_time(
            mine.group,
            side.times_us(mine.values),
            other.group,
            others.times_us(other.values),
            side.reach,
        )

    def pairs(self) -> Iterator[_Block]:
        """Changed rows with all of the other side, and unchanged ones with its changed rows.

        A block at a time: a few rows may meet very many.
        """
        if not self.work.pairs:
            return
        left, right = self.entries(LEFT), self.entries(RIGHT)
        most = _pairs_at_once(left, right)
        changed = np.flatnonzero(left.delta)
        for mine, yours in self._ranges(LEFT, left.take(changed), right).pairs(most):
            yield self._pair_block(left, right, changed[mine], yours)
        still = np.flatnonzero(left.delta == 0)
        moved = np.flatnonzero(right.delta)
        if len(still) and len(moved):
            ranges = self._ranges(LEFT, left.take(still), right.take(moved))
            for mine, yours in ranges.pairs(most):
                yield self._pair_block(left, right, still[mine], moved[yours])

    def _pair_block(
        self, left: Entries, right: Entries, mine: np.ndarray, yours: np.ndarray
    ) -> _Block:
        weights = multiplied(left, right, mine, yours)
        if not weights.all():
            kept = np.flatnonzero(weights)
            mine, yours, weights = mine[kept], yours[kept], weights[kept]
        return self._block(left.group[mine], (left, mine), (right, yours), weights)

    def _alone(self, number: int, *, shows: bool) -> _Block:
        """Rows of a side that show by whether they have a partner: where that has changed."""
        mine = self.entries(number)
        if self.work.sides[number].reach is None:
            before, after = (counts[mine.group] for counts in self._counts(1 - number))
        else:
            other = self.entries(1 - number)
            ranges = self._ranges(number, mine, other)
            before, after = ranges.sums(other.old), ranges.sums(other.new)
        was, now = (before > 0) == shows, (after > 0) == shows
        weights = np.where(now, mine.new, 0) - np.where(was, mine.old, 0)
        kept = np.flatnonzero(weights)
        picked = (mine, kept)
        left, right = (picked, None) if number == LEFT else (None, picked)
        return self._block(mine.group[kept], left, right, weights[kept])

    def _block(
        self,
        group: np.ndarray,
        left: tuple[Entries, np.ndarray] | None,
        right: tuple[Entries, np.ndarray] | None,
        weights: np.ndarray,
    ) -> _Block:
        used = {column.key for column in self.work.columns if column.key is not None}
        picks = pa.array(group)
        keys = [key.take(picks) if n in used else None for n, key in enumerate(self.keys)]
        sides: list[list[Any] | None] = []
        for number, side in enumerate((left, right)):
            if side is None:
                sides.append(None)
                continue
            needed = {c.value for c in self.work.columns if c.side == number}
            entries, rows = side
            index = pa.array(rows)
            sides.append(
                [v.take(index) if n in needed else None for n, v in enumerate(entries.values)]
            )
        return _Block(shaped(self.work.columns, keys, sides, len(group)), weights)


def _first_blocks(blocks: Iterator[_Block]) -> Iterator[_Block]:
    """As many blocks as make one batch."""
    count = 0
    for block in blocks:
        yield block
        count += len(block.weights)
        if count >= _PAIRS_FIRST:
            return


def _pairs_at_once(left: Entries, right: Entries) -> int:
    """How many pairs fit into one block, by how large rows of both sides are."""
    width = 1
    for side in (left, right):
        width += int(sum(column.nbytes for column in side.values)) // max(1, len(side))
    return max(_PAIRS_LEAST, min(_PAIRS_MOST, _BLOCK_BYTES // width))


def shaped(
    columns: Sequence[OutColumn], keys: Sequence[Any], sides: Sequence[list[Any] | None], count: int
) -> list[Any]:
    """Columns of the result from keys and values; nulls for a side that is not there."""
    found = []
    for column in columns:
        values = None if column.side is None else sides[column.side]
        if column.side is not None and values is None:
            found.append(pa.nulls(count, cast("Any", column.type)))
            continue
        array = keys[column.key] if column.key is not None else values[column.value]  # type: ignore[index]
        found.append(array.cast(column.type) if array.type != column.type else array)
    return found
