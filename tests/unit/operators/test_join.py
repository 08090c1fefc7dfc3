"""Joins and set operations against a plain model, without Spark: real traces, real runs."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.operators.base import EpochContext
from holdfast.operators.columns import HASH, SIDE, WEIGHT
from holdfast.operators.join import execute
from holdfast.operators.join.execute import JoinSide, JoinTask, OutColumn
from holdfast.operators.join.matching import Reach, by_group
from holdfast.operators.setops.execute import SetTask
from holdfast.state import BagPartition
from tests.helpers.effort import examples
from tests.helpers.harness import Harness

NULLS = (None, None)
HOWS = ["inner", "left", "right", "full", "semi", "anti"]
TIME = pa.timestamp("us", tz="UTC")
SHOWS = {
    "inner": (None, None), "left": (False, None), "right": (None, False), "full": (False, False),
    "semi": (True, None), "anti": (False, None),
}  # fmt: skip


def hash_of(*values: object) -> int:
    """Few hashes, so that keys collide all the time."""
    return (hash(values) & 3) << 62


def join_work(how: str, *, changes: bool, within: tuple[int, int] | None = None) -> JoinTask:
    """`l(k, t, x)` with `r(k, t, y)`; with `within` an interval join by t."""
    exists = how in ("semi", "anti")
    sides = []
    for number, (name, value) in enumerate((("left", "x"), ("right", "y"))):
        slim = exists and number == 1
        values = [("t", TIME), (value, pa.float64())]
        slots = ["__hf_c0", "__hf_c1"]
        if slim:
            values, slots = (values[:1], slots[:1]) if within else ([], [])
        counted = within is None and SHOWS[how][1 - number] is not None
        reach, keep = None, 0
        if within:
            before, after = within
            reach = Reach(before, after) if number == 0 else Reach(after, before)
            keep = after if number == 0 else before
            if SHOWS[how][1 - number] is not None:
                keep = before + after
        sides.append(
            JoinSide(
                trace=f"j.{name}", slots=tuple(slots), keys=pa.schema([("k", pa.string())]),
                values=pa.schema(values), shows=SHOWS[how][number],
                counts=(f"j.{name}" if slim else f"j.{name}-keys") if counted else None,
                time=0 if within else None, keep_us=keep, reach=reach,
            )
        )  # fmt: skip
    columns = [OutColumn("k", pa.string(), 0 if exists else None, key=0)]
    columns += [OutColumn("t", TIME, 0, value=0), OutColumn("x", pa.float64(), 0, value=1)]
    if not exists:
        columns += [OutColumn("u", TIME, 1, value=0), OutColumn("y", pa.float64(), 1, value=1)]
    late = tuple(columns) if within else ()
    return JoinTask(
        "j", ("__hf_k0",), (sides[0], sides[1]), tuple(columns), pairs=not exists,
        changes=changes or how not in ("inner", "semi"), late_columns=late,
    )  # fmt: skip


def batch(changes: list[tuple], *, weights: bool) -> pa.RecordBatch:
    """(side, key, time, value, weight) as the JVM would prepare them."""
    hashes = [hash_of(c[1]) if c[1] is not None else hash_of(*c[1:4]) for c in changes]
    columns = {
        HASH: pa.array(np.array(hashes, np.uint64).view(np.int64)),
        SIDE: pa.array([c[0] for c in changes], pa.int32()),
        "__hf_k0": pa.array([c[1] for c in changes], pa.string()),
        "__hf_c0": pa.array([c[2] for c in changes], TIME),
        "__hf_c1": pa.array([c[3] for c in changes], pa.float64()),
    }
    if weights:
        columns[WEIGHT] = pa.array([c[4] for c in changes], pa.int64())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def plain(value):
    """One NaN, one zero: as Spark compares."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def expected(how: str, left: Counter, right: Counter, within=None) -> Counter:
    """The join by nested loops."""

    def meets(a, b) -> bool:
        if a[0] is None or a[0] != b[0]:
            return False
        if within is None:
            return True
        if a[1] is None or b[1] is None:
            return False
        return a[1] - within[0] <= b[1] <= a[1] + within[1]

    out: Counter = Counter()
    for a, m in left.items():
        partners = [(b, n) for b, n in right.items() if meets(a, b)]
        if how == "semi" and partners:
            out[a] += m
        if how == "anti" and not partners:
            out[a] += m
        if how in ("inner", "left", "right", "full"):
            for b, n in partners:
                out[(*a, *b[1:])] += m * n
        if how in ("left", "full") and not partners:
            out[(*a, None, None)] += m
    for b, n in right.items():
        if how in ("right", "full") and not any(meets(a, b) for a in left):
            out[(b[0], None, None, *b[1:])] += n
    return out


def rows_of(result, *, times: bool = True) -> list[tuple]:
    columns = []
    for name in result.changes.schema.names:
        column = result.changes.column(name)
        columns.append(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column)
    return [
        tuple(plain(v) for v in row) for row in zip(*(c.to_pylist() for c in columns), strict=True)
    ]


KEY = st.one_of(st.none(), st.sampled_from(["a", "b", "cc", ""]))
VALUE = st.one_of(st.none(), st.sampled_from([math.nan, 0.0, -0.0, 1.5, 2.5]))
STAMP = st.one_of(st.none(), st.integers(0, 3))


@st.composite
def histories(draw, *, weights: bool):
    """Epochs of changes of both sides that never delete what is not there."""
    live = (Counter(), Counter())
    epochs = []
    for _ in range(draw(st.integers(1, 4))):
        changes = []
        for _ in range(draw(st.integers(0, 8))):
            side = draw(st.integers(0, 1))
            there = sorted(live[side], key=repr)
            if weights and there and draw(st.integers(0, 2)) == 0:
                row = draw(st.sampled_from(there))
                weight = -draw(st.integers(1, live[side][row]))
            else:
                row = (draw(KEY), draw(STAMP), draw(VALUE))
                weight = draw(st.integers(1, 3)) if weights else 1
            row = (row[0], row[1], plain(row[2]))
            live[side][row] += weight
            if not live[side][row]:
                del live[side][row]
            value = math.nan if row[2] == "nan" else row[2]
            changes.append((side, row[0], row[1], value, weight))
        epochs.append((changes, (live[0].copy(), live[1].copy())))
    return epochs


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("weights", [True, False])
@given(data=st.data())
@examples(20)
def test_a_join_equals_nested_loops_after_every_epoch(how, weights, data) -> None:
    """Whatever comes and goes on both sides, the changes add up to the join of what is there."""
    work = join_work(how, changes=weights)
    harness = Harness(work)
    shown: Counter = Counter()
    for changes, (left, right) in data.draw(histories(weights=weights)):
        result = harness.step(batch(changes, weights=weights))
        _add_up(shown, work, result, minimal=weights)
        assert shown == expected(how, left, right)


def _add_up(shown: Counter, work, result, *, minimal: bool) -> None:
    rows = rows_of(result)
    if work.changes:
        assert all(row[-1] for row in rows)
        if minimal:  # a pair of nulls looks like a row without a partner
            whole = [row for row in rows if row[1:3] != NULLS and row[3:5] != NULLS]
            signs = {(row[:-1], row[-1] > 0) for row in whole}
            assert len({row for row, _ in signs}) == len(signs), "nothing comes and goes at once"
    for row in rows:
        key, weight = (row[:-1], row[-1]) if work.changes else (row, 1)
        shown[key] += weight
        if not shown[key]:
            del shown[key]


@pytest.mark.parametrize("how", HOWS)
@given(data=st.data())
@examples(40)
def test_an_interval_join_equals_nested_loops_and_forgets_only_what_is_done(how, data) -> None:
    """With a watermark that moves on, all rows that came on time are joined as if all were kept."""
    within = (data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4)))
    weights = data.draw(st.booleans())
    work = join_work(how, changes=weights, within=within)
    harness = Harness(work)
    live = (Counter(), Counter())
    shown: Counter = Counter()
    mark: int | None = None
    for _ in range(data.draw(st.integers(1, 6))):
        changes, late = [], 0
        for _ in range(data.draw(st.integers(0, 6))):
            side = data.draw(st.integers(0, 1))
            base = mark or 0
            time = data.draw(st.one_of(st.none(), st.integers(base - 2, base + 6)))
            row, weight = (data.draw(st.sampled_from(["a", "b", None])), time, 1.0), 1
            there = [r for r in live[side] if r[1] is None or mark is None or r[1] >= mark]
            if weights and there and data.draw(st.booleans()):
                row = data.draw(st.sampled_from(sorted(there, key=repr)))
                weight = -data.draw(st.integers(1, live[side][row]))
            changes.append((side, *row, weight))
            if mark is not None and row[1] is not None and row[1] < mark:
                late += 1
                continue
            live[side][row] += weight
            if not live[side][row]:
                del live[side][row]
        result = harness.step(batch(changes, weights=weights), mark)
        assert result.counters["late"] == late
        assert (result.late.num_rows if result.late is not None else 0) == late
        _add_up(shown, work, result, minimal=weights)
        assert shown == expected(how, *live, within)
        if data.draw(st.booleans()):
            mark = max(mark or 0, data.draw(st.integers(0, 12)))


def test_an_interval_join_forgets_rows_that_nothing_on_time_can_meet() -> None:
    """Bounds follow the watermark; a left join keeps partners until what they met is forgotten."""
    inner = join_work("inner", changes=False, within=(10, 5))
    assert inner.bounds_us(100) == {"j.left": 95, "j.right": 90}
    left = join_work("left", changes=False, within=(10, 5))
    assert left.bounds_us(100) == {"j.left": 95, "j.right": 85}
    assert join_work("full", changes=False, within=(10, 5)).bounds_us(100) == {
        "j.left": 85,
        "j.right": 85,
    }


def test_a_row_without_key_or_time_is_never_kept() -> None:
    """What can meet nothing leaves no state, whether it shows or not."""
    for how in HOWS:
        harness = Harness(join_work(how, changes=True, within=(5, 5)))
        result = harness.step(
            batch([(0, None, 1, 1.0, 1), (1, "a", None, 1.0, 1)], weights=True), None
        )
        assert not any(harness.runs.values())
        shows = {"left": 1, "right": 1, "full": 2, "anti": 1}.get(how, 0)
        assert result.changes.num_rows == shows


def test_only_touched_keys_are_read() -> None:
    """A change of the left side reads no row of the left side; counts are not rows."""
    harness = Harness(join_work("left", changes=True))
    harness.step(batch([(1, "a", n % 3, float(n), 1) for n in range(50)], weights=True))
    asked: Counter = Counter()

    class Spy:
        def __init__(self, name, trace) -> None:
            self.name, self.trace = name, trace

        def lookup(self, keys):
            answer = self.trace.lookup(keys)
            asked[self.name] += answer.rows.num_rows
            return answer

    original = harness.work.process

    class Watched:
        traces, bounds_us = harness.work.traces, harness.work.bounds_us

        def process(self, rows, traces, context):
            return original(rows, {n: Spy(n, t) for n, t in traces.items()}, context)

    traces = {}
    from holdfast.operators.base import EpochContext
    from holdfast.state import BagPartition

    for name, schema in harness.work.traces.items():
        traces[name] = BagPartition.open(harness.runs[name], harness.source, schema)
    rows = batch([(1, "a", 1, 99.0, 1)], weights=True)
    Watched().process(rows, traces, EpochContext(1))
    assert asked == {"j.left": 0, "j.right-keys": 1}


SET_ROW = pa.schema([("k", pa.string()), ("f", pa.float64())])
SET_RULES = {
    "except": lambda a, b: 1 if a and not b else 0,
    "except all": lambda a, b: max(a - b, 0),
    "intersect": lambda a, b: 1 if a and b else 0,
    "intersect all": min,
    "matched": lambda a, b: a if b else 0,
    "unmatched": lambda a, b: 0 if b else a,
}


@pytest.mark.parametrize("rule", SET_RULES)
@pytest.mark.parametrize("weights", [True, False])
@given(data=st.data())
@examples(20)
def test_set_operations_equal_counters(rule, weights, data) -> None:
    """By whole rows, nulls and NaN equal to themselves, each side counted."""
    grows = rule in ("intersect", "intersect all", "matched")
    work = SetTask("s", SET_ROW, rule, weights or not grows)
    harness = Harness(work)
    shown: Counter = Counter()
    for changes, live in data.draw(histories(weights=weights)):
        columns = {
            HASH: pa.array(
                np.array([hash_of(c[1], plain(c[3])) for c in changes], np.uint64).view(np.int64)
            ),
            SIDE: pa.array([c[0] for c in changes], pa.int32()),
            "k": pa.array([c[1] for c in changes], pa.string()),
            "f": pa.array([c[3] for c in changes], pa.float64()),
        }
        if weights:
            columns[WEIGHT] = pa.array([c[4] for c in changes], pa.int64())
        rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        result = harness.step(rows)
        _add_up(shown, work, result, minimal=True and work.changes)
        counts = [Counter(), Counter()]
        for side in (0, 1):
            for (key, _, value), n in live[side].items():
                counts[side][(key, value)] += n
        rule_of = SET_RULES[rule]
        want = {row: rule_of(counts[0][row], counts[1][row]) for row in counts[0]}
        assert shown == Counter({row: n for row, n in want.items() if n})


@given(
    st.lists(st.integers(0, 3), max_size=12),
    st.lists(st.integers(0, 3), max_size=12),
    st.integers(1, 9),
)
def test_pairs_are_the_same_however_many_come_at_once(group, other, most) -> None:
    """Also where one row meets more than come at once."""
    ranges = by_group(np.array(group, np.int64), np.array(other, np.int64), 4)
    parts = list(ranges.pairs(most))
    assert all(0 < len(mine) == len(yours) <= most for mine, yours in parts)
    found = [
        pair for mine, yours in parts for pair in zip(mine.tolist(), yours.tolist(), strict=True)
    ]
    assert Counter(found) == Counter(
        (i, j) for i, a in enumerate(group) for j, b in enumerate(other) if a == b
    )


@pytest.mark.parametrize("how", ["inner", "full"])
def test_a_join_gives_its_pairs_in_batches(monkeypatch, how) -> None:
    """A hundred rows on each side of one key make ten thousand pairs, never in one batch."""
    monkeypatch.setattr(execute, "_PAIRS_FIRST", 500)
    monkeypatch.setattr(execute, "_PAIRS_MOST", 1_000)
    rows = [(side, "k", None, float(n), 1) for side in (0, 1) for n in range(100)]
    result = join_work(how, changes=False).process(
        batch(rows, weights=False), Opened(), EpochContext(0)
    )
    sizes = [result.changes.num_rows, *(more.num_rows for more in result.more)]
    assert sizes == [1_000] * 10


class Opened(dict):
    """Traces without rows."""

    def __missing__(self, name: str):
        schema = {
            n: s
            for how in ("inner", "full")
            for n, s in join_work(how, changes=False).traces.items()
        }
        return BagPartition.open([], None, schema[name])
