"""apply without Spark: what the function is given, what it may answer, timers and forgetting."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.operators.apply.execute import ApplyTask
from holdfast.operators.columns import HASH, WEIGHT
from tests.helpers.effort import examples
from tests.helpers.harness import Harness

STAMP = pa.timestamp("us", tz="UTC")
KEYS = pa.schema([("k", pa.string())])
ROW = pa.schema([("k", pa.string()), ("x", pa.int64()), ("at", STAMP)])
STATE = pa.schema([("n", pa.int64()), ("wake", STAMP)])
OUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
SECOND = 1_000_000
HASHES = {"a": 1 << 63, "b": 1 << 63, "c": 5, None: 7}
"""Two keys share one, and it is negative to Spark."""


def work_of(function, **more) -> ApplyTask:
    given = {"weighted": False, "changes": False, **more}
    return ApplyTask("t", KEYS, ROW, STATE, OUT, function, **given)


def batch_of(rows: list[tuple], *, weights: bool = False) -> pa.RecordBatch:
    """(key, integer, second, weight)."""
    columns = {
        HASH: pa.array(np.array([HASHES.get(r[0], 1) for r in rows], np.uint64).view(np.int64)),
        "k": pa.array([r[0] for r in rows], pa.string()),
        "x": pa.array([r[1] for r in rows], pa.int64()),
        "at": pa.array([None if r[2] is None else r[2] * SECOND for r in rows], STAMP),
    }
    if weights:
        columns[WEIGHT] = pa.array([r[3] for r in rows], pa.int64())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def counting(changes: pa.Table, state: pa.Table, context):
    """How many rows a key has; keys that come to zero are deleted, every change is told."""
    weight = (
        changes["_weight"]
        if "_weight" in changes.column_names
        else pa.array([1] * len(changes), pa.int64())
    )
    came = pa.table({"k": changes["k"], "n": weight})
    both = pa.concat_tables([came, state.select(["k", "n"])])
    total = both.group_by("k").aggregate([("n", "sum")]).rename_columns(["k", "n"])
    output = total.append_column("_weight", pa.array([1] * len(total), pa.int64()))
    before = state.select(["k", "n"]).append_column(
        "_weight", pa.array([-1] * len(state), pa.int64())
    )
    left = total.filter(pc.not_equal(total["n"], 0))
    output = output.filter(pc.not_equal(output["n"], 0))
    new = left.append_column("wake", pa.nulls(len(left), STAMP))
    return pa.concat_tables([before, output]), new


KEY = st.one_of(st.none(), st.sampled_from("abc"))


@examples(40)
@given(st.lists(st.lists(st.tuples(KEY, st.integers(0, 2), st.just(0), st.sampled_from([1, -1, 2])), max_size=8),
                max_size=5))  # fmt: skip
def test_state_and_weighted_output_follow_the_rows(epochs) -> None:
    """A function that counts gives the counts of a plain Counter, with rows taken back and cancelled."""
    harness = Harness(work_of(counting, weighted=True, changes=True))
    live: Counter = Counter()
    shown: Counter = Counter()
    for rows in epochs:
        for row in rows:
            live[row[0]] += row[3]
        for row in harness.step(batch_of(rows, weights=True)).changes.to_pylist():
            shown[row["k"], row["n"]] += row[WEIGHT]
        assert +shown == Counter({(k, n): 1 for k, n in live.items() if n})
        assert not -shown


def test_rows_come_in_order_and_those_that_cancel_out_do_not_come() -> None:
    """By time, then by all columns, whatever the order of arrival; weights are summed."""
    seen: list = []

    def note(changes, state, context):
        seen.append(changes.to_pylist())
        assert context.keys.num_rows == len({r["k"] for r in seen[-1]})
        return None, state

    rows = [
        ("a", 3, 9, 1),
        ("a", 1, 5, 1),
        ("a", 2, 5, 2),
        ("b", 1, 1, 1),
        ("b", 1, 1, -1),
        ("a", 0, None, 1),
    ]
    for order in (rows, rows[::-1]):
        Harness(work_of(note, weighted=True, time="at")).step(batch_of(order, weights=True))
    assert seen[0] == seen[1]
    assert [(r["k"], r["x"], r["_weight"]) for r in seen[0]] == [
        ("a", 0, 1),
        ("a", 1, 1),
        ("a", 2, 2),
        ("a", 3, 1),
    ]


def remember(wake_s: int | None):
    """A function that keeps one row a key, with a timer."""

    def function(changes, state, context):
        keys = context.keys
        wake = pa.array([None if wake_s is None else wake_s * SECOND] * len(keys), STAMP)
        due = context.due.append_column(
            "n", pa.array([len(changes)] * len(context.due), pa.int64())
        )
        return due, keys.append_column("n", pa.array([1] * len(keys), pa.int64())).append_column(
            "wake", wake
        )

    return function


def test_a_timer_fires_once_when_the_watermark_reaches_it() -> None:
    """Not before, without rows, once; a function that leaves the timer as it was is not called again."""
    calls: list = []
    inner = remember(10)

    def function(changes, state, context):
        calls.append((len(changes), context.due.to_pylist(), context.watermark))
        return inner(changes, state, context)

    harness = Harness(work_of(function, timers="wake"))
    assert harness.work.timed
    harness.step(batch_of([("a", 1, 1), ("b", 1, 1)]), None)
    harness.step(batch_of([]), 10 * SECOND - 1)
    assert len(calls) == 1
    fired = harness.step(batch_of([]), 10 * SECOND)
    assert sorted(r["k"] for r in fired.changes.to_pylist()) == ["a", "b"]
    assert calls[1][0] == 0 and len(calls[1][1]) == 2 and calls[1][2].second == 10
    harness.step(batch_of([]), 11 * SECOND)
    harness.step(batch_of([]), 12 * SECOND)
    assert len(calls) == 2


def test_a_timer_that_is_set_to_another_past_time_fires_in_the_next_epoch() -> None:
    """A function that works through a list of times is called for each, however far time has come."""
    calls: list = []

    def function(changes, state, context):
        calls.append(context.due.num_rows)
        wake = pa.array([min(len(calls), 3) * SECOND] * len(context.keys), STAMP)
        n = pa.array([1] * len(context.keys), pa.int64())
        return None, context.keys.append_column("n", n).append_column("wake", wake)

    harness = Harness(work_of(function, timers="wake"))
    harness.step(batch_of([("a", 1, 1)]), None)
    for second in range(50, 56):
        harness.step(batch_of([]), second * SECOND)
    assert calls == [0, 1, 1, 1], "at 1, 2 and 3 seconds; then 3 is given back as it was"


def test_rows_that_are_taken_back_and_given_again_are_no_change() -> None:
    """Weighted output is netted: only what differs goes on."""

    def answer(changes, state, context):
        rows = {"k": ["a", "a", "b"], "n": [1, 1, 2], "_weight": [-1, 1, 1]}
        return pa.table(rows), GOOD

    result = Harness(work_of(answer, changes=True)).step(batch_of([("a", 1, 1)]))
    assert result.changes.to_pylist() == [{"k": "b", "n": 2, WEIGHT: 1}]


def test_a_timer_that_is_moved_or_whose_key_is_deleted_does_not_fire() -> None:
    """Only the timer that the state holds now counts."""
    wakes = {"a": 10, "b": 10}
    fired: list = []

    def function(changes, state, context):
        fired.extend(r["k"] for r in context.due.to_pylist())
        keys = [k for k in context.keys["k"].to_pylist() if k in wakes]
        return None, pa.table({
            "k": pa.array(keys, pa.string()), "n": pa.array([1] * len(keys), pa.int64()),
            "wake": pa.array([wakes[k] * SECOND for k in keys], STAMP),
        })  # fmt: skip

    harness = Harness(work_of(function, timers="wake"))
    harness.step(batch_of([("a", 1, 1), ("b", 1, 1)]), None)
    wakes.pop("b")
    wakes["a"] = 20
    harness.step(batch_of([("a", 1, 1), ("b", 1, 1)]), 5 * SECOND)
    harness.step(batch_of([]), 15 * SECOND)
    assert fired == []
    harness.step(batch_of([]), 25 * SECOND)
    assert fired == ["a"]


def test_keys_are_forgotten_a_while_after_they_were_touched() -> None:
    """With a TTL, old keys have no state and no timer any more, and older rows are late."""
    seen: dict = {}
    inner = remember(1000)

    def function(changes, state, context):
        seen["state"] = sorted(state["k"].to_pylist())
        seen["due"] = context.due["k"].to_pylist()
        return inner(changes, state, context)

    work = work_of(function, time="at", ttl_us=10 * SECOND, timers="wake")
    harness = Harness(work)
    harness.step(batch_of([("a", 1, 100), ("b", 1, 105)]), None)
    harness.step(batch_of([("b", 1, 103)]), 112 * SECOND)  # an older row does not make b older
    assert seen["state"] == ["b"]
    result = harness.step(batch_of([("a", 1, 113), ("b", 2, 111), ("c", 1, 50)]), 113 * SECOND)
    assert seen["state"] == ["b"]
    assert result.counters["late"] == 1
    assert result.late.to_pylist()[0]["k"] == "c"
    harness.step(batch_of([("z", 1, 2000)]), 2000 * SECOND)
    assert seen["due"] == [], "keys that are gone have no timers"
    harness.step(batch_of([("y", 1, 3000)]), 2000 * SECOND)
    assert seen["due"] == [], "nothing fires while the watermark stays"
    harness.step(batch_of([]), 2001 * SECOND)
    assert sorted(seen["due"]) == ["y", "z"], (
        "a timer that is set in the past fires when the watermark moves"
    )
    assert harness.step(batch_of([]), 2002 * SECOND).updates == {}


def test_only_state_that_differs_is_written() -> None:
    """A function that returns the state as it was writes nothing."""
    harness = Harness(work_of(lambda c, s, x: (None, s)))
    assert harness.step(batch_of([("a", 1, 1)])).updates["t"].num_rows == 0
    harness.work = work_of(remember(None))
    assert harness.step(batch_of([("a", 1, 1)])).updates["t"].num_rows == 1
    assert harness.step(batch_of([("a", 2, 1)])).updates["t"].num_rows == 0


def keyed(keys: list, **columns) -> pa.Table:
    size = len(keys)
    whole = {
        "k": pa.array(keys, pa.string()),
        "n": pa.array([1] * size, pa.int64()),
        "wake": pa.nulls(size, STAMP),
    }
    return pa.table({**whole, **columns})


GOOD = keyed(["a"])
WRONG = {
    "exception": (lambda c, s, x: {}["no"], "apply_failed", "KeyError"),
    "exception of many lines": (lambda c, s, x: int("a\nb"), "apply_failed", "ValueError"),
    "no pair": (lambda c, s, x: GOOD, "apply_result", "(output, new state)"),
    "no table": (lambda c, s, x: (None, None), "apply_result", "NoneType"),
    "missing column": (lambda c, s, x: (None, GOOD.drop_columns("n")), "apply_result", "missing=n"),
    "unknown column": (lambda c, s, x: (None, keyed(["a"], z=pa.array([1]))), "apply_result", "unknown=z"),
    "wrong type": (lambda c, s, x: (None, keyed(["a"], n=pa.array(["x"]))), "apply_result", "column=n"),
    "wrong output": (lambda c, s, x: (pa.table({"k": ["a"]}), GOOD), "apply_result", "missing=n"),
    "unknown key": (lambda c, s, x: (None, keyed(["a", "q"])), "apply_unknown_key", "key=k:'q'"),
    "duplicate key": (lambda c, s, x: (None, keyed(["a", "a"])), "apply_duplicate_key", "key=k:'a'"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(WRONG))
def test_a_wrong_answer_is_refused_by_name(case) -> None:
    """Every wrong answer has its kind, says what is wrong, and names a key, in one line."""
    function, kind, says = WRONG[case]
    with pytest.raises(InvalidInputError) as caught:
        Harness(work_of(function)).step(batch_of([("a", 1, 1)]))
    assert caught.value.kind == kind
    assert says in str(caught.value)
    assert caught.value.facts["sample_key"] == "k:'a'"
    assert "\n" not in str(caught.value)


def test_weights_of_the_output_must_be_given() -> None:
    """With changes=True a row without a weight is refused, and one of weight zero is nothing."""

    def answer(weights):
        return pa.table(
            {"k": ["a"] * 2, "n": [1, 2], "_weight": pa.array(weights, pa.int64())}
        ), GOOD

    result = Harness(work_of(lambda c, s, x: answer([0, -3]), changes=True)).step(
        batch_of([("a", 1, 1)])
    )
    assert result.changes.to_pylist() == [{"k": "a", "n": 2, WEIGHT: -3}]
    with pytest.raises(InvalidInputError):
        Harness(work_of(lambda c, s, x: answer([1, None]), changes=True)).step(
            batch_of([("a", 1, 1)])
        )
