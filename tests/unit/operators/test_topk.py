"""top_k and latest against a plain model, without Spark: real traces, real runs."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.row_order import total_order
from holdfast.operators.sort_order import SortKey, parse_order
from holdfast.operators.topk.execute import TopKTask
from tests.helpers.effort import examples
from tests.helpers.harness import Harness

KEYS = pa.schema([("k", pa.string())])
ROW = pa.schema([("x", pa.float64()), ("k", pa.string()), ("t", pa.string())])
ORDERS = {
    "x desc": (SortKey("x", descending=True, nulls_first=False),),
    "x, t desc": (SortKey("x"), SortKey("t", descending=True, nulls_first=False)),
    "x nulls last": (SortKey("x", nulls_first=False),),
}
ROWS = st.tuples(
    st.sampled_from(["nan", None, math.inf, -math.inf, 0.0, 1.5, -2.0, 3.0]),
    st.one_of(st.none(), st.sampled_from("ab")),
    st.one_of(st.none(), st.sampled_from(["", "p", "q", "é"])),
)


def work_of(order: str, k: int, rank: str | None, *, changes: bool) -> TopKTask:
    return TopKTask("t", KEYS, ROW, pa.schema([]), ORDERS[order], k, rank, changes)


def batch_of(changes: list[tuple], *, weights: bool) -> pa.RecordBatch:
    columns = {
        HASH: pa.array(
            np.array([(hash(c[1]) & 1) << 63 for c in changes], np.uint64).view(np.int64)
        ),
        "x": pa.array([math.nan if c[0] == "nan" else c[0] for c in changes], pa.float64()),
        "k": pa.array([c[1] for c in changes], pa.string()),
        "t": pa.array([c[2] for c in changes], pa.string()),
    }
    if weights:
        columns[WEIGHT] = pa.array([c[3] for c in changes], pa.int64())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def number(x) -> tuple:
    """Where a double stands: null, then numbers, then NaN."""
    return (0, 0.0) if x is None else (2, 0.0) if x == "nan" else (1, x)


def text(t) -> tuple:
    return (0, b"") if t is None else (1, t.encode())


class Down:
    """The reverse of an order."""

    def __init__(self, value) -> None:
        self.value = value

    def __lt__(self, other) -> bool:
        return other.value < self.value

    def __eq__(self, other) -> bool:
        return self.value == other.value

    __hash__ = None


SORTS = {
    "x desc": lambda r: (Down(number(r[0])), text(r[2])),
    "x, t desc": lambda r: (number(r[0]), Down(text(r[2]))),
    "x nulls last": lambda r: (r[0] is None, number(r[0]), text(r[2])),
}


def expected(live: Counter, order: str, k: int, rank: str | None) -> Counter:
    found: Counter = Counter()
    for key in {row[1] for row in live}:
        rows = [row for row, n in live.items() if row[1] == key for _ in range(n)]
        for place, row in enumerate(sorted(rows, key=SORTS[order])[:k]):
            found[(*row, place + 1) if rank else row] += 1
    return found


def take_in(shown: Counter, changes: pa.RecordBatch) -> None:
    seen = set()
    for row in changes.to_pylist():
        weight = row.pop(WEIGHT)
        row["x"] = "nan" if row["x"] is not None and math.isnan(row["x"]) else row["x"]
        values = tuple(row.values())
        assert values not in seen and weight, "a change that is not minimal"
        seen.add(values)
        shown[values] += weight


@examples(80)
@given(st.data(), st.sampled_from(sorted(ORDERS)), st.integers(1, 4), st.sampled_from([None, "r"]))
def test_top_rows_with_retractions_equal_a_sorted_list(data, order, k, rank) -> None:
    """After every epoch of inserts and deletes, the summed changes are the first k of each key."""
    harness = Harness(work_of(order, k, rank, changes=True))
    live: Counter = Counter()
    shown: Counter = Counter()
    for _ in range(data.draw(st.integers(1, 6))):
        changes = [
            (*row, w)
            for row, w in data.draw(
                st.lists(st.tuples(ROWS, st.sampled_from([1, 1, 3])), max_size=8)
            )
        ]
        pool = live + Counter([c[:3] for c in changes])
        for row in (
            data.draw(st.lists(st.sampled_from(sorted(pool, key=repr)), max_size=8)) if pool else []
        ):
            if pool[row] > 0:
                pool[row] -= 1
                changes.append((*row, -1))
        for *row, weight in changes:
            live[tuple(row)] += weight
        live = +live
        take_in(shown, harness.step(batch_of(changes, weights=True)).changes)
        assert +shown == expected(live, order, k, rank)
        assert not -shown


@examples(60)
@given(st.lists(st.lists(ROWS, max_size=10), min_size=1, max_size=5), st.sampled_from(sorted(ORDERS)),
       st.integers(1, 4), st.sampled_from([None, "r"]))  # fmt: skip
def test_top_rows_of_growing_streams_equal_a_sorted_list(epochs, order, k, rank) -> None:
    """Streams that only add rows keep at most k rows a key, and give the same answers."""
    harness = Harness(work_of(order, k, rank, changes=False))
    assert list(harness.work.traces) == ["t"]
    live: Counter = Counter()
    shown: Counter = Counter()
    for rows in epochs:
        live.update(rows)
        take_in(shown, harness.step(batch_of(rows, weights=False)).changes)
        assert +shown == expected(live, order, k, rank)
        assert not -shown


class Counting(TopKTask):
    """The same work, which notes how many keys it asks the trace of all rows for."""

    asked: list[int] = []

    def process(self, rows, traces, context):
        whole, asked = traces["t.rows"], self.asked

        class Trace:
            def lookup(self, keys):
                asked.append(keys.num_rows)
                return whole.lookup(keys)

        return super().process(rows, {**traces, "t.rows": Trace()}, context)


def test_all_rows_are_read_only_for_full_keys_that_lost_a_row_that_showed() -> None:
    """Hidden rows that go, and keys with fewer than k rows, never touch the trace of all rows."""
    work = Counting("t", KEYS, ROW, pa.schema([]), ORDERS["x desc"], 2, None, changes=True)
    harness = Harness(work)
    first = [(x, "a", "", 1) for x in (3.0, 2.0, 1.0, 0.0)]
    harness.step(batch_of([*first, (1.0, "b", "", 1)], weights=True))
    for changes, asked in [
        ([(0.0, "a", "", -1), (1.0, "b", "", -1)], 0),
        ([(9.0, "a", "", 1), (1.0, "b", "", 1)], 0),
        ([(9.0, "a", "", -1), (1.0, "b", "", -1)], 1),
    ]:
        work.asked.clear()
        harness.step(batch_of(changes, weights=True))
        assert sum(work.asked) == asked, changes


VALUES = {
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [None, {"a": None, "b": "x"}, {"a": -3, "b": None}, {"a": -3, "b": "a"}, {"a": -3, "b": "a\0"},
         {"a": -3, "b": "ab"}, {"a": 7, "b": ""}],
    ),
    "list": (pa.list_(pa.float64()), [None, [], [None], [-2.0], [1.0], [1.0, None], [1.0, 3.0], [math.nan]]),
    "decimal": (pa.decimal128(20, 2), [None, Decimal("-7.25"), Decimal("-0.01"), Decimal("0.10"), Decimal(9)]),
    "list of decimals": (
        pa.list_(pa.decimal128(38, 0)), [[Decimal(-(10**30))], [Decimal(-1)], [Decimal(0)], [Decimal(10**30)]],
    ),
    "list of texts": (pa.list_(pa.string()), [["a"], ["a", "b"], ["a\0"], ["a\0", ""], ["ab"]]),
    "bytes": (pa.binary(), [None, b"", b"\0", b"\0\1", b"a", b"\xff"]),
    "bool": (pa.bool_(), [None, False, True]),
    "date": (pa.date32(), [None, -5, 0, 9]),
    "time": (pa.timestamp("us", tz="UTC"), [None, -5, 0, 9]),
    "double": (pa.float64(), [None, -math.inf, -1e300, -1.0, 0.0, 5e-324, 1.0, math.inf, math.nan]),
    "float": (pa.float32(), [None, -math.inf, -1.5, 0.0, 2.5, math.nan]),
    "small": (pa.int8(), [None, -128, 0, 127]),
    "long": (pa.int64(), [None, -(2**63), -1, 0, 2**63 - 1]),
    "text": (pa.string(), [None, "", "A", "a", "é", "\U0001f600"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(VALUES))
def test_every_type_sorts_as_in_spark(kind) -> None:
    """Nulls first, NaN last, bytes as bytes, nested values part by part; descending is the reverse."""
    type_, values = VALUES[kind]
    column = pa.array(values, type_)
    shuffled = np.random.default_rng(7).permutation(len(values))
    mixed = column.take(pa.array(shuffled))
    one = np.zeros(len(values), np.int64)
    up = total_order(one, [SortKey("x")], [mixed], [])
    assert shuffled[up].tolist() == list(range(len(values)))
    down = total_order(one, [SortKey("x").reversed()], [mixed], [])
    assert shuffled[down].tolist() == list(range(len(values)))[::-1]
    tie = total_order(one, [], [], [mixed])
    assert tie.tolist() == up.tolist()


def test_terms_are_read_as_in_sql() -> None:
    """Column, direction and place of nulls; nulls follow the direction unless they are placed."""
    texts = ["a", "b DESC", "abs(c) desc nulls first", "d asc NULLS LAST"]
    assert parse_order(texts, "t") == (
        SortKey("a", descending=False, nulls_first=True),
        SortKey("b", descending=True, nulls_first=False),
        SortKey("abs(c)", descending=True, nulls_first=True),
        SortKey("d", descending=False, nulls_first=False),
    )
    for bad, kind in ([[], "no_order"], [[3], "invalid_order"]):
        with pytest.raises(InvalidInputError) as caught:
            parse_order(bad, "t")
        assert caught.value.kind == kind
