"""Session windows: rows of a key that are not further apart than a gap.

The view holds one row for each open session; a bag next to it holds the rows that sessions are made
of. Of every key that got rows or whose session closes, the sessions are computed again from its
rows, and what differs is said: so a retraction can split a session.

Invariants:
- What is retracted is what was given, to the last bit: it comes from the view, not from adding up
  again. A session that no row of the epoch touches is left as it is.
- Sessions close first, then rows come, and nothing closes while the watermark stays: how the rows
  of one watermark are cut into epochs makes no difference. A session that a delete cuts back behind
  the watermark stays open until the watermark moves.
- A closed session and its rows leave view and bag in the epoch in which it closes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.base import (
    EpochContext,
    TaskResult,
    changes_batch,
    group_by_key,
    group_numbers,
)
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.window.declare import END, START
from holdfast.operators.window.execute import AT, ROW, TimedTask
from holdfast.state import BagPartition, LatestPartition, TraceKind, TraceSchema
from holdfast.state.arrow.batches import group_rows
from holdfast.state.arrow.row_equality import normalise, rows_equal

ALL = "_all"
TIME = "_at"


@dataclass(frozen=True)
class _Events:
    """Rows of probed keys, in order of key and time. `probe`: the number of the key."""

    probe: np.ndarray
    at: np.ndarray
    weight: np.ndarray
    rows: pa.RecordBatch

    def pick(self, index: np.ndarray) -> _Events:
        """Some of them."""
        return _Events(
            self.probe[index], self.at[index], self.weight[index], self.rows.take(pa.array(index))
        )


@dataclass(frozen=True)
class _Sessions:
    """Sessions in order of key and time, and their columns as they show."""

    probe: np.ndarray
    start: np.ndarray
    end: np.ndarray
    columns: list[Any]

    def pick(self, index: np.ndarray) -> _Sessions:
        """Some of them."""
        picks = pa.array(index)
        columns = [column.take(picks) for column in self.columns]
        return _Sessions(self.probe[index], self.start[index], self.end[index], columns)


@dataclass(frozen=True)
class SessionTask(TimedTask):
    """`inputs`: what is kept of a row for the aggregates, under the names of the trace.

    `keys` are those of the traces: the user's, or one constant column where there are none.
    """

    gap_us: int
    keys: pa.Schema
    inputs: Any

    @property
    def events(self) -> str:
        """Name of the bag of rows."""
        return f"{self.name}.events"

    @property
    def _results(self) -> list[str]:
        return list(self.inner.results.names)

    @property
    def traces(self) -> Mapping[str, TraceSchema]:
        """Open sessions, and the rows that they are made of."""
        shown = [field for field in self.inner.results if field.name not in self.keys.names]
        values = [pa.field(TIME, self.inner.keys.field(START).type), *self.inputs]
        return {
            self.name: TraceSchema.bag(self.keys, pa.schema(shown), time_column=END),
            self.events: TraceSchema.bag(self.keys, pa.schema(values)),
        }

    def bounds_us(self, watermark_us: int) -> Mapping[str, int]:
        """Far enough behind for a session that a delete has cut back; closed ones are taken out."""
        return {self.name: watermark_us - self.lateness_us + 1 - self.gap_us}

    def process(
        self, rows: pa.RecordBatch, traces: Mapping[str, Any], context: EpochContext
    ) -> TaskResult:
        """What a new watermark closes; then sessions of touched keys, and what differs."""
        closed = self.closed_us(context.watermark_us)
        at = rows.column(AT).to_numpy(zero_copy_only=False).astype(np.int64)
        missed = np.zeros(len(at), np.bool_) if closed is None else at + self.gap_us < closed
        late = self.late_rows(rows, missed)
        came = self._stored(rows, at)
        if missed.any():
            came = came.filter(pa.array(~missed))
        closes = None if context.watermark_us == context.previous_watermark_us else closed
        probe, numbers = self._probe(came, traces, closes)
        counters = {"late": int(missed.sum()), "keys": probe.num_rows}
        if not probe.num_rows:
            return TaskResult(
                pa.RecordBatch.from_pylist([], schema=self.output), {}, counters, late
            )
        standing = self._standing(traces[self.events], probe)
        spans = _spans(standing, self.gap_us)
        before = self._before(traces[self.name], probe)
        known = _known(before, spans)
        shut = np.zeros(len(spans.end), np.bool_) if closes is None else spans.end < closes
        gives = np.zeros(len(known), np.bool_) if closes is None else before.end < closes
        leaves = self._leaving(standing, spans, shut, closed)
        kept = standing.pick(np.flatnonzero(~leaves))
        stays = before.pick(np.flatnonzero(known & ~gives))
        after_rows = self._after(kept, came, numbers)
        after = self._computed(after_rows, _spans(after_rows, self.gap_us), probe)
        touched = (numbers, _micros(came.column(TIME)))
        gone, born = _differences(stays, after, _touched(after, touched, self.gap_us))
        shuts = before.pick(np.flatnonzero(known & gives))
        if self.closing:
            out = changes_batch(
                self.output, None, gone, shuts.columns, np.ones(len(shuts.end), np.bool_)
            )
        else:
            out = changes_batch(self.output, stays.columns, gone, after.columns, born)
        # What the bound of this watermark hides need not be taken out.
        seen = before.end >= (self.bounds_us(context.watermark_us or 0)[self.name])
        removed = before.pick(np.flatnonzero(gives & seen))
        updates = {
            self.name: self._view_update(
                probe, [removed, stays.pick(np.flatnonzero(gone))], after.pick(np.flatnonzero(born))
            ),
            self.events: _joined(came, self._removal(standing.pick(np.flatnonzero(leaves)), probe)),
        }
        counters["keys_new"] = int(born.sum())
        counters["keys_gone"] = int(gone.sum()) + len(shuts.end)
        return TaskResult(out, updates, counters, late)

    def _stored(self, rows: pa.RecordBatch, at: np.ndarray) -> Any:
        """Rows as the bag keeps them, with hash and weight."""
        names = {HASH: HASH, WEIGHT: WEIGHT, **{name: name for name in self.keys.names}}
        names |= {field.name: "__hf" + field.name for field in self.inputs}
        columns = {name: rows.column(found) for name, found in names.items()}
        columns[TIME] = pa.array(at).cast(self.inner.keys.field(START).type)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _probe(
        self, came: Any, traces: Mapping[str, Any], closed_us: int | None
    ) -> tuple[Any, np.ndarray]:
        """Keys that got rows or have a session that closes; for each new row its key's number."""
        names = [HASH, *self.keys.names]
        mine = came.select(names)
        if closed_us is not None:
            due = traces[self.name].due(None, closed_us).select(names)
            signed = pa.array(due.column(0).to_numpy().view(np.int64))
            due = due.set_column(0, HASH, signed)
            parts = [pa.Table.from_batches([part.cast(due.schema)]) for part in (mine, due)]
            joined = pa.concat_tables(parts).combine_chunks().to_batches()
            mine = joined[0] if joined else mine
        if not mine.num_rows:
            return mine, np.zeros(0, np.int64)
        groups, _ = group_by_key(mine, self.keys.names)
        numbers = group_numbers(groups, mine.num_rows)
        return mine.take(pa.array(groups.first())), numbers[: came.num_rows]

    def _before(self, trace: Any, probe: pa.RecordBatch) -> _Sessions:
        """What was given and still counts."""
        answer = trace.lookup(probe)
        columns = [answer.rows.column(name) for name in self._results]
        start, end = (_micros(answer.rows.column(name)) for name in (START, END))
        return _Sessions(answer.probes, start, end, columns)

    def _standing(self, trace: Any, probe: pa.RecordBatch) -> _Events:
        """The rows of the probed keys as they were before the epoch."""
        answer = trace.lookup(probe)
        rows = answer.rows.select([*self.keys.names, TIME, *self.inputs.names])
        events = _Events(answer.probes, _micros(rows.column(TIME)), answer.weights, rows)
        return events.pick(np.lexsort((events.at, events.probe)))

    def _after(self, kept: _Events, came: Any, numbers: np.ndarray) -> _Events:
        """What was there and stays, with what came, summed up."""
        names = [*self.keys.names, TIME, *self.inputs.names]
        schema = kept.rows.schema
        tables = [
            pa.Table.from_batches([part.select(names).cast(schema)]) for part in (kept.rows, came)
        ]
        rows = pa.concat_tables(tables).combine_chunks()
        columns = [normalise(_flat(rows.column(name))) for name in names]
        probes = np.concatenate([kept.probe, numbers])
        added = came.column(WEIGHT).to_numpy(zero_copy_only=False).astype(np.int64)
        weights = np.concatenate([kept.weight, added])
        groups = group_rows(probes, columns[len(self.keys.names) :])
        first = groups.first()
        summed = groups.sums(weights)
        there = np.flatnonzero(summed)
        batch = pa.RecordBatch.from_arrays(columns, names=names).take(pa.array(first[there]))
        events = _Events(probes[first[there]], _micros(batch.column(TIME)), summed[there], batch)
        return events.pick(np.lexsort((events.at, events.probe)))

    def _computed(self, events: _Events, spans: _Spans, probe: pa.RecordBatch) -> _Sessions:
        """The sessions of some rows, aggregated from nothing."""
        there = events.pick(spans.present)
        repeat = np.repeat(np.arange(len(there.at)), there.weight)
        number = spans.number[repeat]
        rows = there.rows.take(pa.array(repeat))
        # The aggregate sees sessions as groups; a number is the shortest key for that.
        hashes = probe.column(HASH).take(pa.array(there.probe[repeat]))
        kinds = {name: self.inner.keys.field(name).type for name in (START, END)}
        columns = {
            HASH: hashes,
            **{name: rows.column(name) for name in self.keys.names},
            **{"__hf" + name: rows.column(name) for name in self.inputs.names},
            START: pa.array(spans.start[number]).cast(kinds[START]),
            END: pa.array(spans.end[number]).cast(kinds[END]),
        }
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        empty = {}
        for name, schema in self.inner.traces.items():
            kind = LatestPartition if schema.kind is TraceKind.LATEST else BagPartition
            empty[name] = kind.open([], None, schema)  # type: ignore[arg-type]
        made = cast("pa.RecordBatch", self.inner.process(batch, empty, EpochContext(0)).changes)
        names = [*self.inner.keys.names]
        owner = _match(made, names, batch, number)
        order = np.argsort(owner, kind="stable")
        made = made.take(pa.array(order))
        columns_made = [normalise(made.column(name)) for name in self._results]
        return _Sessions(spans.probe, spans.start, spans.end, columns_made)

    def _view_update(self, probe: pa.RecordBatch, old: list[_Sessions], new: _Sessions) -> Any:
        """Sessions that are no more, and those that are new."""
        names = [*self.keys.names, *(n for n in self._results if n not in self.keys.names)]
        parts = []
        for side, weight in (*((side, -1) for side in old), (new, 1)):
            owners = probe.take(pa.array(side.probe))
            shown = dict(zip(self._results, side.columns, strict=True))
            shown |= {name: owners.column(name) for name in self.keys.names}
            columns = [owners.column(HASH), *(shown[name] for name in names)]
            columns.append(pa.array(np.full(len(side.probe), weight, np.int64)))
            parts.append(pa.RecordBatch.from_arrays(columns, names=[HASH, *names, WEIGHT]))
        return _joined(*parts)

    def _leaving(
        self, events: _Events, spans: _Spans, shut: np.ndarray, closed_us: int | None
    ) -> np.ndarray:
        """Which rows are of sessions that close; and deletes that will not meet their row."""
        leaves = np.zeros(len(events.at), np.bool_)
        leaves[spans.present[shut[spans.number]]] = True
        if closed_us is not None:
            leaves |= (events.weight < 0) & (events.at + self.gap_us < closed_us)
        return leaves

    def _removal(self, events: _Events, probe: pa.RecordBatch) -> Any:
        """Rows of the bag, taken out."""
        hashes = probe.column(HASH).take(pa.array(events.probe))
        return pa.RecordBatch.from_arrays(
            [hashes, *events.rows.columns, pa.array(-events.weight)],
            names=[HASH, *events.rows.schema.names, WEIGHT],
        )


@dataclass(frozen=True)
class _Spans:
    """Where sessions begin and end. `present`: rows that are there; `number`: their session."""

    present: np.ndarray
    number: np.ndarray
    probe: np.ndarray
    start: np.ndarray
    end: np.ndarray


def _spans(events: _Events, gap_us: int) -> _Spans:
    """Rows in order of key and time: a session begins at a new key or behind a gap."""
    present = np.flatnonzero(events.weight > 0)
    probe, at = events.probe[present], events.at[present]
    head = np.ones(len(present), np.bool_)
    head[1:] = (probe[1:] != probe[:-1]) | (at[1:] - at[:-1] > gap_us)
    firsts = np.flatnonzero(head)
    lasts = np.append(firsts[1:], len(present))[: len(firsts)] - 1
    number = np.cumsum(head) - 1
    return _Spans(present, number, probe[firsts], at[firsts], at[lasts] + gap_us)


def _match(made: Any, names: list[str], rows: pa.RecordBatch, number: np.ndarray) -> np.ndarray:
    """The number of the session of each aggregated row; both sides name it by key and window."""
    if not made.num_rows:
        return np.zeros(0, np.int64)
    first = np.zeros(int(number.max()) + 1, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    left = [normalise(made.column(name)) for name in names]
    right = [normalise(rows.column(name).take(pa.array(first))) for name in names]
    joined = [pa.concat_arrays([a, b.cast(a.type)]) for a, b in zip(left, right, strict=True)]
    at = pc.cast(joined[names.index(START)], pa.int64()).to_numpy().view(np.uint64)
    groups = group_rows(at, joined)
    owner = np.zeros(made.num_rows, np.int64)
    owner[groups.first()] = groups.last() - made.num_rows
    return owner


def _touched(after: _Sessions, came: tuple[np.ndarray, np.ndarray], gap_us: int) -> np.ndarray:
    """Sessions that a row of this epoch lies in, or lay in before it was retracted."""
    touched = np.zeros(len(after.start), np.bool_)
    probe, at = came
    if not len(touched) or not len(probe):
        return touched
    order = np.lexsort((at, probe))
    probe, at = probe[order], at[order]
    # The session of a row, if any, is the last one of its key that begins at or before it.
    keys = np.concatenate([after.probe, probe])
    times = np.concatenate([after.start, at])
    later = np.concatenate([np.zeros(len(after.start)), np.ones(len(at))])
    place = np.lexsort((later, times, keys))
    session = np.cumsum(place < len(after.start)) - 1
    is_row = place >= len(after.start)
    found, row = session[is_row], place[is_row] - len(after.start)
    valid = found >= 0
    found, row = found[valid], row[valid]
    inside = (after.probe[found] == probe[row]) & (at[row] <= after.end[found] - gap_us)
    touched[found[inside]] = True
    return touched


def _known(before: _Sessions, spans: _Spans) -> np.ndarray:
    """Which sessions of the view have rows. Older versions left closed ones to the bound alone."""
    known = np.ones(len(before.end), np.bool_)
    if len(known) == len(spans.end):
        return known
    sides = (before, spans)
    probes, *columns = (
        np.concatenate([getattr(side, name) for side in sides])
        for name in ("probe", "start", "end")
    )
    groups = group_rows(probes, [pa.array(column) for column in columns])
    known[groups.first()] = groups.ends - groups.starts == 2
    return known


def _differences(
    before: _Sessions, after: _Sessions, fresh: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which old sessions are no more as they were, and which new ones are not as before."""
    gone = np.ones(len(before.start), np.bool_)
    born = np.ones(len(after.start), np.bool_)
    if not len(gone) or not len(born):
        return gone, born
    probes = np.concatenate([before.probe, after.probe])
    spans = [
        pa.array(np.concatenate([getattr(side, name) for side in (before, after)]))
        for name in ("start", "end")
    ]
    groups = group_rows(probes, spans)
    pairs = np.flatnonzero(groups.ends - groups.starts == 2)  # one of each side
    old, new = groups.first()[pairs], groups.last()[pairs] - len(gone)
    a, b = pa.array(old), pa.array(new)
    same = rows_equal(
        [column.take(a) for column in before.columns],
        [column.take(b).cast(column.type) for column in after.columns],
    )
    same |= ~fresh[new]
    gone[old[same]] = False
    born[new[same]] = False
    return gone, born


def _joined(*batches: Any) -> Any:
    """Batches of the same columns as one, in the columns' order of the first."""
    names = batches[0].schema.names
    schema = batches[0].schema
    tables = [pa.Table.from_batches([b.select(names).cast(schema)]) for b in batches if b.num_rows]
    if not tables:
        return batches[0]
    return pa.concat_tables(tables).combine_chunks().to_batches()[0]


def _micros(column: Any) -> np.ndarray:
    micros: np.ndarray = pc.cast(column, pa.int64()).to_numpy(zero_copy_only=False)
    return micros


def _flat(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


__all__ = ["ALL", "ROW", "SessionTask"]
