"""upsert against a dict, without Spark: real traces, real runs."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.declaration import SourceNode, StepNode, UnionNode
from holdfast.operators.sort_order import SortKey
from holdfast.operators.upsert.declare import upsert
from holdfast.operators.upsert.execute import ARRIVAL, DELETE, LEFT_OUT, SEQUENCE, UpsertTask
from holdfast.state import TraceReader
from tests.helpers.effort import examples
from tests.helpers.harness import Harness

KEYS = pa.schema([("k", pa.string())])
ROW = pa.schema([("a", pa.int64()), ("k", pa.string()), ("b", pa.string())])
PLACES = pa.schema([(f"{SEQUENCE}0", pa.int64())])
ASCENDING = (SortKey(f"{SEQUENCE}0"),)


@dataclass(frozen=True)
class Event:
    """One row as it comes: `left` says that it leaves `b` out."""

    k: str | None
    a: int | None = None
    b: str | None = None
    at: int | None = 0
    delete: bool = False
    left: bool = False


EVENTS = st.builds(
    Event,
    k=st.sampled_from(["x", "y", None]),
    a=st.one_of(st.none(), st.integers(0, 2)),
    b=st.one_of(st.none(), st.sampled_from("pq")),
    at=st.one_of(st.none(), st.integers(0, 4)),
    delete=st.booleans(),
    left=st.booleans(),
)
EPOCHS = st.lists(st.lists(EVENTS, min_size=1, max_size=6), min_size=1, max_size=5)


def task(*, order=ASCENDING, keep: bool = False, left_out=(), changes: bool = False) -> UpsertTask:
    places = PLACES if order else pa.schema([])
    return UpsertTask("u", KEYS, ROW, places, order, not changes, keep, left_out, changes)


def batch(events: list[Event], work: UpsertTask, first: int = 0) -> pa.RecordBatch:
    columns = {
        HASH: pa.array(
            np.array([zlib.crc32(repr(e.k).encode()) << 31 for e in events], np.uint64).view(
                np.int64
            )
        ),
        "a": pa.array([e.a for e in events], pa.int64()),
        "k": pa.array([e.k for e in events], pa.string()),
        "b": pa.array([e.b for e in events], pa.string()),
    }
    if work.order:
        columns[f"{SEQUENCE}0"] = pa.array([e.at for e in events], pa.int64())
    else:
        columns[ARRIVAL] = pa.array(range(first, first + len(events)), pa.int64())
    if work.deletes:
        columns[DELETE] = pa.array([e.delete for e in events])
    if work.left_out:
        columns[f"{LEFT_OUT}0"] = pa.array([e.left for e in events])
    if work.changes:
        columns[WEIGHT] = pa.array([-1 if e.delete else 1 for e in events], pa.int64())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def shown(harness: Harness) -> dict:
    """The view by key, from the trace."""
    schema = harness.work.traces["u"]
    trace = TraceReader(runs=tuple(harness.runs["u"]), source=harness.source, schema=schema)
    found = {}
    for row in harness.work.visible(trace.table()).to_pylist():
        assert row["k"] not in found
        found[row["k"]] = (row["a"], row["b"])
    return found


@dataclass
class Changelog:
    """What the changes add up to; a change that retracts what is not there is an error."""

    rows: Counter = field(default_factory=Counter)

    def add(self, changes: pa.RecordBatch) -> None:
        for row in changes.to_pylist():
            self.rows[row["k"], row["a"], row["b"]] += row[WEIGHT]
        assert all(count >= 0 for count in self.rows.values())

    def table(self) -> dict:
        there = {row: count for row, count in self.rows.items() if count}
        assert set(there.values()) <= {1}
        return {k: (a, b) for k, a, b in there}


def rank(value) -> tuple:
    return (0, 0) if value is None else (1, value)


@examples(60)
@given(EPOCHS, st.booleans())
def test_by_a_sequence_the_largest_row_of_each_key_counts(epochs, weights):
    """A pure function of all rows, however they came; out-of-order rows and deletes included."""
    work = task(changes=weights)
    harness, log, best = Harness(work), Changelog(), {}
    for events in epochs:
        result = harness.step(batch(events, work))
        log.add(result.changes)
        for e in events:
            row = (rank(e.at), not e.delete, () if e.delete else (rank(e.a), rank(e.b)))
            best[e.k] = max(best.get(e.k, (row, e)), (row, e), key=lambda pair: pair[0])
        expected = {k: (e.a, e.b) for k, (_, e) in best.items() if not e.delete}
        assert log.table() == expected == shown(harness)


@examples(60)
@given(EPOCHS, st.sampled_from(["null", "keep", "left"]), st.booleans())
def test_by_arrival_rows_are_applied_one_after_another(epochs, missing, weights):
    """As a dict would be: puts, deletes, and columns that keep the value that they had."""
    work = task(
        order=(), keep=missing == "keep", left_out=("b",) if missing == "left" else (),
        changes=weights,
    )  # fmt: skip
    harness, log, table = Harness(work), Changelog(), {}
    for events in epochs:
        log.add(harness.step(batch(events, work)).changes)
        for e in events:
            a0, b0 = table.get(e.k, (None, None))
            if e.delete:
                table.pop(e.k, None)
            elif missing == "keep":
                table[e.k] = (a0 if e.a is None else e.a, b0 if e.b is None else e.b)
            else:
                table[e.k] = (e.a, b0 if missing == "left" and e.left else e.b)
        assert log.table() == table == shown(harness)


@examples(40)
@given(st.lists(st.lists(EVENTS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_columns_that_are_left_out_are_filled_in_the_order_of_the_sequence(epochs):
    """With rows in order by their sequence, filling is the same as by arrival."""
    epochs, at = [list(events) for events in epochs], 0
    for events in epochs:
        for index, e in enumerate(events):
            events[index], at = Event(e.k, e.a, e.b, at, e.delete), at + 1
    ordered, arrived = Harness(task(keep=True)), Harness(task(order=(), keep=True))
    for events in epochs:
        mixed = events[::-1]  # within an epoch they come in any order
        ordered.step(batch(mixed, ordered.work))
        arrived.step(batch(events, arrived.work))
        assert shown(ordered) == shown(arrived)


def test_at_one_place_a_put_counts_more_than_a_delete_and_then_the_columns_decide():
    """Whatever came first, in one epoch or in two."""
    rows = [
        Event("x", 1, "p", delete=True),
        Event("x", 1, "p"),
        Event("x", 1, "q"),
        Event("x", 0, "z"),
    ]
    for cut in range(5):
        for events in (rows, rows[::-1]):
            harness = Harness(task())
            for part in (events[:cut], events[cut:]):
                if part:
                    harness.step(batch(part, harness.work))
            assert shown(harness) == {"x": (1, "q")}


def test_a_negative_weight_deletes():
    """As `delete_when` does, where the source says it by a weight."""
    harness = Harness(task(changes=True))
    harness.step(batch([Event("x", 1, at=1), Event("y", 2, at=1)], harness.work))
    harness.step(batch([Event("x", 1, at=2, delete=True)], harness.work))
    assert shown(harness) == {"y": (2, None)}


def test_nothing_is_filled_from_before_a_delete():
    """In one epoch or in two; what came after the delete is."""
    rows = [Event("x", 1, "p"), Event("x", delete=True), Event("x", None, "q"), Event("x", 3, None)]
    for cut in range(1, 5):
        harness = Harness(task(order=(), keep=True))
        for part in (rows[:cut], rows[cut:-1]):
            if part:
                harness.step(batch(part, harness.work))
        if cut < 4:
            assert shown(harness) == {"x": (None, "q")}
            harness.step(batch(rows[-1:], harness.work))
        assert shown(harness) == {"x": (3, "q")}


def test_rows_behind_the_stored_one_are_ignored_and_counted():
    """Also behind a delete: an older row does not bring the key back."""
    harness = Harness(task())
    assert harness.step(batch([Event("x", 1, at=5)], harness.work)).counters["outdated"] == 0
    result = harness.step(batch([Event("x", 2, at=3), Event("x", 3, at=4)], harness.work))
    assert (result.counters["outdated"], result.changes.num_rows) == (2, 0)
    harness.step(batch([Event("x", at=9, delete=True)], harness.work))
    result = harness.step(batch([Event("x", 7, at=8)], harness.work))
    assert (result.counters["outdated"], shown(harness)) == (1, {})
    assert harness.step(batch([Event("x", 8, at=10)], harness.work)).counters["keys_new"] == 1


def test_a_row_that_changes_nothing_writes_nothing():
    """By arrival, the same row again is neither a change nor an update of state."""
    harness = Harness(task(order=()))
    harness.step(batch([Event("x", 1, "p")], harness.work))
    result = harness.step(batch([Event("x", 1, "p")], harness.work))
    assert (result.changes.num_rows, result.updates["u"].num_rows) == (0, 0)
    gone = harness.step(batch([Event("z", delete=True)], harness.work))
    assert (gone.changes.num_rows, gone.updates["u"].num_rows) == (0, 0)


def test_a_key_without_other_columns_comes_and_goes():
    """A table of keys alone."""
    alone = pa.schema([("k", pa.string())])
    work = UpsertTask("u", KEYS, alone, pa.schema([]), (), True, False, (), False)
    harness = Harness(work)
    rows = batch([Event("x"), Event("y")], work).drop_columns(["a", "b"])
    assert harness.step(rows).changes.num_rows == 2
    rows = batch([Event("x", delete=True), Event("y")], work).drop_columns(["a", "b"])
    assert harness.step(rows).changes.to_pylist() == [{"k": "x", WEIGHT: -1}]


class _Connector:
    bad, weight = None, None

    def __init__(self, *, in_order: bool) -> None:
        self.in_order = in_order


def node(*, in_order: bool = True) -> SourceNode:
    connector = _Connector(in_order=in_order)
    return SourceNode(columns=["k", "a"], retracts=False, name="s", connector=connector)


def test_what_can_never_work_is_refused_when_it_is_declared():
    """No key, no order, unknown columns, conditions that are none."""
    plain = {"sequence_by": None, "delete_when": None, "missing": "null", "name": "u"}
    ordered = {**plain, "sequence_by": "a"}
    upsert(node(), ("k",), **plain)
    upsert(node(in_order=False), ("k",), **ordered)
    mixed = UnionNode(columns=["k", "a"], retracts=False, inputs=(node(), node()))
    moved = StepNode(
        columns=None, retracts=False, inputs=(node(),), apply=lambda df: df, text="transform f"
    )
    cases = [
        (node(), (), plain, "no_keys"),
        (node(in_order=False), ("k",), plain, "no_arrival_order"),
        (mixed, ("k",), plain, "no_arrival_order"),
        (moved, ("k",), plain, "no_arrival_order"),
        (upsert(node(), ("k",), **plain), ("k",), plain, "no_arrival_order"),
        (node(), ("nothing",), plain, "unknown_column"),
        (node(), ("k",), {**plain, "sequence_by": "nothing"}, "unknown_column"),
        (node(), ("k",), {**plain, "missing": "sometimes"}, "invalid_option"),
        (node(), ("k",), {**plain, "missing": {"k": "true"}}, "invalid_option"),
        (node(), ("k",), {**plain, "missing": {"nothing": "true"}}, "unknown_column"),
        (node(), ("k",), {**plain, "missing": {"a": "true, false"}}, "invalid_expression"),
        (node(), ("k",), {**plain, "delete_when": 7}, "invalid_expression"),
    ]
    for before, keys, options, kind in cases:
        with pytest.raises(InvalidInputError) as caught:
            upsert(before, keys, **options)
        assert caught.value.kind == kind


def test_the_fingerprint_says_what_counts_and_what_deletes():
    """Another order, another delete or another way of filling is another operator."""
    texts = set()
    for options in (
        {"sequence_by": None, "delete_when": None, "missing": "null"},
        {"sequence_by": "a", "delete_when": None, "missing": "null"},
        {"sequence_by": "a desc", "delete_when": None, "missing": "null"},
        {"sequence_by": None, "delete_when": "a = 1", "missing": "null"},
        {"sequence_by": None, "delete_when": None, "missing": "keep"},
        {"sequence_by": None, "delete_when": None, "missing": {"a": "a = 0"}},
    ):
        texts.add(str(sorted(upsert(node(), ("k",), name="u", **options).fingerprint().items())))
    assert len(texts) == 6
