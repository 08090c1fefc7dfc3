"""Aggregates, distinct and dedupe against a plain model, without Spark: real traces, real runs."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.operators.aggregate.execute import AggregateTask
from holdfast.operators.aggregate.functions.base import Batch
from holdfast.operators.aggregate.functions.distinct import DistinctFold
from holdfast.operators.aggregate.functions.min_max import MinMaxFold, best
from holdfast.operators.aggregate.functions.sums import CountFold, ExactSumFold, SumFold
from holdfast.operators.aggregate.functions.variance import ExactVarianceFold, VarianceFold
from holdfast.operators.base import group_numbers
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.dedupe.execute import DedupeTask, DistinctTask
from holdfast.state.arrow.batches import group_rows
from tests.helpers.effort import examples
from tests.helpers.harness import Harness

KEYS = pa.schema([("k", pa.string())])


def hash_of(*values: object) -> int:
    """Few hashes, so that keys collide all the time."""
    return (hash(values) & 7) << 61


def rows_of(changes: list[tuple], *, weights: bool) -> pa.RecordBatch:
    """(key, integer, double, weight) as the JVM would prepare them."""
    w = [c[3] for c in changes]
    x = [c[1] for c in changes]
    f = [c[2] for c in changes]
    columns = {
        HASH: pa.array(np.array([hash_of(c[0]) for c in changes], np.uint64).view(np.int64)),
        "k": pa.array([c[0] for c in changes], pa.string()),
        "present": pa.array([0 if v is None else s for v, s in zip(x, w, strict=True)], pa.int64()),
        "x": pa.array(x, pa.int64()),
        "h2": pa.array(
            np.array([hash_of(c[0]) | (hash(c[1]) & 3) for c in changes], np.uint64).view(np.int64)
        ),
        "f": pa.array(f, pa.float64()),
        "fpresent": pa.array(
            [0 if v is None else s for v, s in zip(f, w, strict=True)], pa.int64()
        ),
    }
    if weights:
        columns[WEIGHT] = pa.array(w, pa.int64())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def aggregate(*, changes: bool) -> AggregateTask:
    sums = ExactSumFold if changes else SumFold
    inputs = ("f",) if changes else ("f", "fpresent")
    bag = "t.values" if changes else None
    return AggregateTask(
        "t",
        KEYS,
        (
            CountFold("n", pa.int64()),
            CountFold("nx", pa.int64(), ("present",)),
            SumFold("s", pa.int64(), ("x", "present"), weighted=changes),
            sums("fs", pa.float64(), inputs),
            sums("fa", pa.float64(), inputs, mean=True),
            MinMaxFold("lo", pa.int64(), ("x",), bag=bag),
            MinMaxFold(
                "hi", pa.float64(), ("f",), largest=True, bag="t.fvalues" if changes else None
            ),
            (ExactVarianceFold if changes else VarianceFold)("sd", pa.float64(), ("f",)),
            DistinctFold("d", pa.int64(), ("x", "h2"), "t.distinct", pa.int64()),
        ),
        changes,
    )


def expected(live: Counter) -> dict[str, dict]:
    """What plain Python says about the rows that are there."""
    groups = defaultdict(list)
    for (key, x, f), weight in live.items():
        groups[key].extend([(x, f)] * weight)
    found = {}
    for key, rows in groups.items():
        if not rows:
            continue
        xs = [x for x, _ in rows if x is not None]
        fs = [f for _, f in rows if f is not None]
        odd = [f for f in fs if not math.isfinite(f)]
        found[key] = {
            "n": len(rows),
            "nx": len(xs),
            "s": sum(xs) if xs else None,
            "fs": sum(fs) if fs else None,
            "fa": sum(fs) / len(fs) if fs else None,
            "lo": min(xs) if xs else None,
            "hi": (math.nan if any(math.isnan(f) for f in fs) else max(fs)) if fs else None,
            "sd": None if len(fs) < 2 else math.nan if odd else statistics.stdev(fs),
            "d": len(set(xs)),
        }
    return found


def same(left, right) -> bool:
    if left is None or right is None:
        return left is right
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right or math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-6)
    return left == right


DOUBLES = st.one_of(
    st.none(), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0]),
    st.integers(-40, 40).map(lambda n: n / 4),
)  # fmt: skip
ROW = st.tuples(
    st.one_of(st.none(), st.sampled_from(["a", "b", "c", "dd", ""])),
    st.one_of(st.none(), st.integers(-5, 5)),
    DOUBLES,
)


def canonical(row):
    """NaN is one value, and -0.0 is 0.0, as Spark groups them."""
    key, x, f = row
    return (
        key,
        x,
        "nan" if f is not None and math.isnan(f) else (f + 0.0 if f is not None else None),
    )


@examples(60)
@given(st.data())
def test_aggregates_with_retractions_equal_a_model(data) -> None:
    """After every epoch of inserts and deletes, state and summed changes equal what Python computes."""
    harness = Harness(aggregate(changes=True))
    live: Counter = Counter()
    shown: dict = {}
    for _ in range(data.draw(st.integers(1, 5))):
        changes = [(*row, w) for row, w in data.draw(
            st.lists(st.tuples(ROW, st.sampled_from([1, 1, 2])), max_size=12))]  # fmt: skip
        there = sorted(live, key=repr)
        for row in data.draw(
            st.lists(st.sampled_from(there), max_size=6) if there else st.just([])
        ):
            if live[row] > sum(-c[3] for c in changes if canonical(c[:3]) == row and c[3] < 0):
                f = math.nan if row[2] == "nan" else row[2]
                changes.append((row[0], row[1], f, -1))
        for *row, weight in changes:
            live[canonical(row)] += weight
        live = +live
        result = harness.step(rows_of(changes, weights=True))
        apply_changes(shown, result.changes)
        model = expected(
            Counter({(k, x, math.nan if f == "nan" else f): n for (k, x, f), n in live.items()})
        )
        assert shown.keys() == model.keys()
        for key, row in model.items():
            assert all(same(shown[key][name], value) for name, value in row.items()), (
                key,
                row,
                shown[key],
            )


def apply_changes(shown: dict, changes: pa.RecordBatch) -> None:
    """Take changes into a view: each key is taken back before it is given anew."""
    rows = changes.to_pylist()
    for row in [r for r in rows if r[WEIGHT] == -1]:
        key = row["k"]
        old = shown.pop(key)
        assert all(same(old[name], row[name]) for name in old), "took back a row that was not there"
    for row in [r for r in rows if r[WEIGHT] == 1]:
        assert row["k"] not in shown
        shown[row["k"]] = {name: value for name, value in row.items() if name not in ("k", WEIGHT)}


@examples(40)
@given(st.lists(st.lists(ROW, max_size=15), min_size=1, max_size=5))
def test_aggregates_of_growing_streams_equal_a_model(epochs) -> None:
    """Streams that only add rows carry no weights, and give the same answers."""
    harness = Harness(aggregate(changes=False))
    live: Counter = Counter()
    shown: dict = {}
    for rows in epochs:
        live.update(rows)
        apply_changes(shown, harness.step(rows_of([(*r, 1) for r in rows], weights=False)).changes)
    model = expected(live)
    assert shown.keys() == model.keys()
    for key, row in model.items():
        assert all(same(shown[key][name], value) for name, value in row.items()), (
            key,
            row,
            shown[key],
        )


ORDERED = {
    pa.timestamp("us", tz="UTC"): [1, 5], pa.timestamp("us"): [1, 5], pa.date32(): [1, 5],
    pa.string(): ["a", "b"], pa.bool_(): [False, True], pa.int8(): [1, 5], pa.float32(): [1, 5],
    pa.decimal128(10, 2): [Decimal(1), Decimal(5)],
}  # fmt: skip


@pytest.mark.parametrize("kind", ORDERED, ids=str)
@pytest.mark.parametrize("changes", [False, True])
def test_min_and_max_take_every_type_that_has_an_order(kind, changes) -> None:
    """Times with a zone and booleans too, over several epochs and when the best value goes."""
    folds = [
        MinMaxFold(name, kind, ("x",), largest=name == "hi", bag="t.b" if changes else None)
        for name in ("lo", "hi")
    ]
    harness = Harness(AggregateTask("t", KEYS, tuple(folds), changes=changes))
    low, high = pa.array(ORDERED[kind], kind).to_pylist()

    def step(value, weight=1):
        columns = {
            HASH: pa.array([5], pa.int64()), "k": pa.array(["a"]), "x": pa.array([value], kind),
            **({WEIGHT: pa.array([weight], pa.int64())} if changes else {}),
        }  # fmt: skip
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        row = harness.step(batch).changes.to_pylist()[-1]
        return row["lo"], row["hi"]

    assert step(low) == (low, low)
    assert step(high) == (low, high)
    if changes:
        assert step(low, -1) == (high, high)


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us", tz="UTC"), pa.int32()])
@pytest.mark.parametrize("largest", [False, True])
@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), min_size=1, max_size=20))
@examples(20)
def test_extremes_of_plain_numbers_are_those_of_their_groups(kind, largest, rows) -> None:
    """Whether by numpy or by Arrow, each group shows its own smallest or largest value."""
    hashes = np.array([key for key, _ in rows], np.uint64)
    groups = group_rows(hashes, [pa.array(hashes)])
    column = pa.array([None, *(x for _, x in rows)], pa.int32()).cast(pa.int64()).cast(kind)[1:]
    batch = Batch(
        None, groups, group_numbers(groups, len(rows)), np.ones(len(rows), np.int64), changes=False
    )
    found = best(batch, column, largest=largest)
    assert found.type == kind
    values: dict[int, list[int]] = defaultdict(list)
    for key, x in rows:
        values[key].append(x)
    expected = [(max if largest else min)(values[key]) for key in sorted(values)]
    assert found.cast(pa.int64()).to_pylist() == expected


def test_an_update_that_changes_nothing_gives_no_changes() -> None:
    """A row that comes and goes in one epoch leaves no trace in the changes."""
    harness = Harness(aggregate(changes=True))
    harness.step(rows_of([("a", 1, 1.0, 1)], weights=True))
    result = harness.step(rows_of([("a", 2, 2.0, 1), ("a", 2, 2.0, -1)], weights=True))
    assert result.changes.num_rows == 0


def test_a_sum_that_leaves_64_bits_is_an_error() -> None:
    """Integers never wrap around silently, neither in a batch nor across epochs."""
    work = AggregateTask("t", KEYS, (SumFold("s", pa.int64(), ("x", "present")),), changes=False)
    big = 2**62
    with pytest.raises(InvalidInputError) as caught:
        Harness(work).step(rows_of([("a", big, None, 1), ("a", big, None, 1)], weights=False))
    assert caught.value.kind == "sum_overflow"
    harness = Harness(work)
    harness.step(rows_of([("a", big, None, 1)], weights=False))
    with pytest.raises(InvalidInputError):
        harness.step(rows_of([("a", big, None, 1)], weights=False))


def test_decimal_sums_are_exact() -> None:
    """Decimals are added as decimals, and a group without values shows null."""
    kind = pa.decimal128(20, 2)
    work = AggregateTask("t", KEYS, (SumFold("s", kind, ("x", "present")),), changes=False)
    harness = Harness(work)

    def batch(values):
        return pa.RecordBatch.from_arrays(
            [
                pa.array([5] * len(values), pa.int64()), pa.array(["a"] * len(values)),
                pa.array(values, pa.decimal128(20, 2)),
                pa.array([0 if v is None else 1 for v in values], pa.int64()),
            ],
            names=[HASH, "k", "x", "present"],
        )  # fmt: skip

    first = harness.step(batch([None])).changes.to_pylist()
    assert [row["s"] for row in first] == [None]
    second = harness.step(batch([Decimal("0.10"), Decimal("0.20")])).changes.to_pylist()
    assert [(row["s"], row[WEIGHT]) for row in second] == [(None, -1), (Decimal("0.30"), 1)]


@examples(40)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, -1])), max_size=8),
        max_size=6,
    )
)
def test_distinct_shows_a_row_while_its_weights_sum_to_more_than_zero(epochs) -> None:
    """distinct equals the set of rows with a positive count, after every epoch."""
    harness = Harness(DistinctTask("t", KEYS, changes=True))
    live: Counter = Counter()
    shown: Counter = Counter()
    for changes in epochs:
        rows = [(hash_of(k), k, w) for k, w in changes]
        for k, w in changes:
            live[k] += w
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(np.array([r[0] for r in rows], np.uint64).view(np.int64)),
                pa.array([r[1] for r in rows], pa.string()), pa.array([r[2] for r in rows], pa.int64()),
            ],
            names=[HASH, "k", WEIGHT],
        )  # fmt: skip
        for row in harness.step(batch).changes.to_pylist():
            shown[row["k"]] += row[WEIGHT]
        assert {k for k, n in shown.items() if n} == {k for k, n in live.items() if n > 0}
        assert set(shown.values()) <= {0, 1}


def test_dedupe_takes_the_earliest_row_and_forgets_keys_behind_the_bound() -> None:
    """Late rows are counted and dropped; a key behind the bound may come again."""
    row = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    work = DedupeTask("t", KEYS, row, "at", 5_000_000)
    harness = Harness(work)

    def batch(*rows):
        return pa.RecordBatch.from_arrays(
            [
                pa.array(np.array([hash_of(k) for k, _ in rows], np.uint64).view(np.int64)),
                pa.array([k for k, _ in rows]), pa.array([t for _, t in rows], row.field("at").type),
            ],
            names=[HASH, "k", "at"],
        )  # fmt: skip

    def times(result):
        return sorted((r["k"], r["at"].second) for r in result.changes.to_pylist())

    first = harness.step(batch(("a", 9_000_000), ("a", 3_000_000), ("b", 5_000_000)))
    assert times(first) == [("a", 3), ("b", 5)]
    again = harness.step(batch(("a", 10_000_000)), 7_000_000)
    assert times(again) == []
    harness.step(batch(), 9_000_000)
    later = harness.step(batch(("a", 11_000_000), ("b", 1_000_000)), 9_000_000)
    assert times(later) == [("a", 11)]
    assert later.counters["late"] == 1
