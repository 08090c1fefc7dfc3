"""Rows that are added up by pane first give the windows that single rows would give."""

from __future__ import annotations

import math
from collections import defaultdict
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.operators.aggregate.execute import AggregateTask
from holdfast.operators.aggregate.functions.distinct import DistinctFold
from holdfast.operators.aggregate.functions.min_max import MinMaxFold
from holdfast.operators.aggregate.functions.sums import CountFold, SumFold
from holdfast.operators.aggregate.functions.variance import VarianceFold
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.window import execute as window
from holdfast.operators.window.execute import AT, WindowTask
from holdfast.operators.window.panes import can_add_up
from tests.helpers.effort import examples
from tests.helpers.harness import Harness

TIME = pa.timestamp("us", tz="UTC")
KEYS = pa.schema([("k", pa.string()), ("window_start", TIME), ("window_end", TIME)])
N, NX = CountFold("n", pa.int64()), CountFold("nx", pa.int64(), ("there",))
S = SumFold("s", pa.int64(), ("x", "there"), weighted=True)
LOW = MinMaxFold("lo", pa.float64(), ("f",))
HIGH = MinMaxFold("hi", pa.float64(), ("g",), largest=True)


def hash_of(key: str | None) -> int:
    """Few hashes, so that keys collide all the time."""
    return (hash(key) & 3) << 62


def batch_of(rows: list[tuple]) -> pa.RecordBatch:
    """(key, time, x, f, weight) as the JVM would prepare them."""
    hashes = np.array([hash_of(r[0]) for r in rows], np.uint64).view(np.int64)
    return pa.record_batch(
        {
            HASH: pa.array(hashes),
            "k": pa.array([r[0] for r in rows], pa.string()),
            AT: pa.array([r[1] for r in rows], pa.int64()),
            "x": pa.array([r[2] for r in rows], pa.int64()),
            "there": pa.array([0 if r[2] is None else r[4] for r in rows], pa.int64()),
            "f": pa.array([r[3] for r in rows], pa.float64()),
            "g": pa.array([r[3] for r in rows], pa.float64()),
            WEIGHT: pa.array([r[4] for r in rows], pa.int64()),
        }
    )


def model(rows: list[tuple], size: int, slide: int, offset: int, *, extremes: bool) -> dict:
    """Every row in every window that holds it, by trying all windows."""
    groups = defaultdict(list)
    for row in rows:
        start = (row[1] - offset) // slide * slide + offset
        while start + size > row[1]:
            groups[row[0], start].append(row)
            start -= slide
    found = {}
    for key, members in groups.items():
        count = sum(r[4] for r in members)
        if count <= 0:
            continue
        given_x = [r for r in members if r[2] is not None]
        nx = sum(r[4] for r in given_x)
        total = sum(r[2] * r[4] for r in given_x) if nx else None
        found[key] = (count, nx, total)
        if extremes:
            order = sorted((r[3] for r in members if r[3] is not None), key=_rank)
            found[key] += (_show(order[0]), _show(order[-1])) if order else (None, None)
    return found


def _rank(value: float) -> tuple[bool, float]:
    return math.isnan(value), 0.0 if math.isnan(value) else value


def _show(value: float | None) -> str | float | None:
    return "nan" if value is not None and math.isnan(value) else value


def seen(table: dict, changes: pa.RecordBatch, names: list[str]) -> None:
    """Add changes up: the rows that are there."""
    starts = changes.column("window_start").cast(pa.int64()).to_pylist()
    values = [[_show(v) if isinstance(v, float) else v for v in changes.column(n).to_pylist()]
              for n in names]  # fmt: skip
    weights = changes.column(WEIGHT).to_pylist()
    for i, key in enumerate(changes.column("k").to_pylist()):
        row = (key, starts[i]), tuple(column[i] for column in values)
        table[row] = table.get(row, 0) + weights[i]
        if not table[row]:
            del table[row]


FLOATS = st.sampled_from([None, -1.5, 0.0, 2.0, math.inf, math.nan])


@examples(30)
@given(
    data=st.data(),
    shape=st.sampled_from([(10, 5), (10, 3), (7, 2), (4, 1), (6, 6)]),
    offset=st.integers(0, 5),
    changes=st.booleans(),
)
def test_windows_of_added_up_rows_are_those_of_single_rows(data, shape, offset, changes):
    """Counts, sums and extremes over epochs, also of rows that are taken back, equal the model."""
    size, slide = shape
    folds = (N, NX, S) if changes else (N, NX, S, LOW, HIGH)
    assert can_add_up(folds)
    exact = SumFold("a", pa.float64(), ("x", "there"), mean=True, kept=pa.decimal128(20, 2))
    assert not can_add_up((*folds, exact))
    work = WindowTask(
        "w", AggregateTask("w", KEYS, folds, changes), 0, False, None, size, slide, offset % slide
    )
    harness, all_rows, table = Harness(work), [], {}
    row = st.tuples(
        st.sampled_from(["a", "b", None]), st.integers(-20, 20), st.sampled_from([None, -2, 3]),
        FLOATS, st.integers(1, 2) if changes else st.just(1),
    )  # fmt: skip
    for _ in range(2):
        rows = data.draw(st.lists(row, max_size=12))
        if changes:  # some of what is there is taken back, also what came just now
            there = [r for r in [*all_rows, *rows] if r[4] > 0 and (*r[:4], -r[4]) not in all_rows]
            gone = data.draw(st.lists(st.sampled_from(there), unique_by=repr)) if there else []
            rows = [*rows, *((*r[:4], -r[4]) for r in gone)]
        all_rows += rows
        seen(table, harness.step(batch_of(rows)).changes, [f.name for f in folds])
        want = model(all_rows, size, slide, offset % slide, extremes=not changes)
        assert table == dict.fromkeys(want.items(), 1)


def test_rows_are_added_up_only_where_every_fold_allows_it():
    """Distinct counts, spreads, decimals and extremes under retraction must see single rows."""
    assert can_add_up((N, NX, S, LOW, HIGH))
    assert not can_add_up((LOW, MinMaxFold("hi", pa.float64(), ("f",), largest=True)))
    for fold in (
        DistinctFold("d", pa.int64(), ("x", "h"), "w.distinct"), VarianceFold("sd", pa.float64(), ("f",)),
        MinMaxFold("lo", pa.float64(), ("f",), bag="w.values"),
        SumFold("s", pa.decimal128(20, 2), ("x", "there")),
        MinMaxFold("one", pa.int64(), ("there",)),
    ):  # fmt: skip
        assert not can_add_up((N, S, fold))


def test_one_row_of_a_key_and_pane_reaches_the_windows():
    """What is copied into the windows is as many rows as keys and panes, not as many as came."""
    work = WindowTask("w", AggregateTask("w", KEYS, (N, S), False), 0, False, None, 10, 5, 0)
    sizes = []
    plain = WindowTask._spread

    def spread(self, rows, *more, **named):
        sizes.append(rows.num_rows)
        return plain(self, rows, *more, **named)

    rows = [("a", at, 1, None, 1) for at in range(10)] * 3
    with patch.object(window.WindowTask, "_spread", spread):
        out = Harness(work).step(batch_of(rows)).changes
    assert sizes == [2]  # two panes of five
    assert sorted(out.column("n").to_pylist()) == [15, 15, 30]


def test_a_sum_that_leaves_64_bits_in_a_pane_is_refused_not_wrapped():
    """The guard of the fold sees the single rows where their sum would not fit."""
    work = WindowTask("w", AggregateTask("w", KEYS, (N, S), False), 0, False, None, 10, 5, 0)
    rows = [("a", 1, 2**62, None, 1)] * 5
    with pytest.raises(InvalidInputError) as caught:
        Harness(work).step(batch_of(rows))
    assert caught.value.kind == "sum_overflow"
