"""Windows against a plain model that knows every row, without Spark: real traces, real runs."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.operators.aggregate.execute import AggregateTask
from holdfast.operators.aggregate.functions.distinct import DistinctFold
from holdfast.operators.aggregate.functions.min_max import MinMaxFold
from holdfast.operators.aggregate.functions.sums import CountFold, SumFold
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.window.execute import AT, ROW, WindowTask, window_hash
from holdfast.operators.window.session import ALL, SessionTask
from tests.helpers.effort import examples
from tests.helpers.harness import Harness

TIME = pa.timestamp("us", tz="UTC")
WINDOW = [pa.field("window_start", TIME), pa.field("window_end", TIME)]
KEYS = pa.schema([pa.field("k", pa.string()), *WINDOW])
ROW_SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64()), (WEIGHT, pa.int64())])
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def hash_of(*values) -> int:
    """Few hashes, so that keys collide all the time."""
    return (hash(values) & 7) << 61


def signed(numbers) -> pa.Array:
    return pa.array(np.array(numbers, np.uint64).view(np.int64))


def batch_of(changes, *, unit=False, keyless=False) -> pa.RecordBatch:
    """(key, time, x, weight) as the JVM would prepare them; `unit`: each row counts once."""
    one = [1 if unit else c[3] for c in changes]
    pairs = list(zip(changes, one, strict=True))
    columns = {
        HASH: signed([42 if keyless else hash_of(c[0]) for c in changes]),
        "k": pa.array([c[0] for c in changes], pa.string()),
        "__hf_i0_0": pa.array([None if c[2] is None else c[2] * w for c, w in pairs], pa.int64()),
        "__hf_i0_1": pa.array([0 if c[2] is None else w for c, w in pairs], pa.int64()),
        "__hf_i1_0": pa.array([c[2] for c in changes], pa.int64()),
        "__hf_i2_0": pa.array([c[2] for c in changes], pa.int64()),
        "__hf_i2_1": signed([hash_of(c[0]) | (hash(c[2]) & 3) for c in changes]),
        AT: pa.array([c[1] for c in changes], pa.int64()),
        WEIGHT: pa.array([c[3] for c in changes], pa.int64()),
        ALL: pa.array([0] * len(changes), pa.int8()),
    }
    columns[ROW] = pa.StructArray.from_arrays(
        [columns["k"], columns["__hf_i1_0"]], names=["k", "x"]
    )
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def inner(keys=KEYS, *, changes=True) -> AggregateTask:
    folds = (
        SumFold("s", pa.int64(), ("__hf_i0_0", "__hf_i0_1")),
        MinMaxFold("lo", pa.int64(), ("__hf_i1_0",), bag="t.values" if changes else None),
        DistinctFold("d", pa.int64(), ("__hf_i2_0", "__hf_i2_1"), "t.distinct", pa.int64()),
        CountFold("n", pa.int64()),
    )
    return AggregateTask("t", keys, folds, changes)


def aggregated(rows: Counter):
    """sum, min, distinct and count of some values with their counts."""
    given = [x for x in rows.elements() if x is not None]
    return (
        sum(given) if given else None, min(given, default=None), len(set(given)), rows.total(),
    )  # fmt: skip


def micros(time) -> int:
    return (time - EPOCH) // dt.timedelta(microseconds=1)


def shown(batch, names=("k",)) -> Counter:
    """Changes of a batch: (key, start, end, aggregates) and their weights."""
    found: Counter = Counter()
    for row in batch.to_pylist():
        key = tuple(row[name] for name in names)
        span = (micros(row["window_start"]), micros(row["window_end"]))
        found[(*key, *span, row["s"], row["lo"], row["d"], row["n"])] += row.get(WEIGHT, 1)
    return found


def only(found: Counter) -> Counter:
    return Counter({row: n for row, n in found.items() if n})


HISTORY = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.sampled_from(["a", "b", None]), st.integers(-20, 60),
                st.sampled_from([None, -1, 0, 3, 7]), st.integers(-2, 2),
            ),
            max_size=12,
        ),
        st.integers(0, 15),
    ),
    min_size=1, max_size=7,
)  # fmt: skip


def possible(history):
    """Rows with weights that never take back what is not there, and a watermark an epoch."""
    live: Counter = Counter()
    mark = None
    for number, (rows, step) in enumerate(history):
        batch = []
        for key, at, x, weight in rows:
            there = live[(key, at, x)]
            weight = max(weight, -there)  # noqa: PLW2901
            if weight:
                live[(key, at, x)] += weight
                batch.append((key, at, x, weight))
        mark = (mark if mark is not None else -25) + step if number else None
        yield batch, mark


def windows_of(at, size, slide, offset):
    """All windows that a time lies in, by trying every beginning."""
    return [s for s in range(at - size + 1, at + 1) if (s - offset) % slide == 0]


class WindowModel:
    """Every row that was not too late, by window."""

    def __init__(self, size, slide, offset, lateness) -> None:
        self.shape, self.size, self.lateness = (size, slide, offset), size, lateness
        self.groups: dict = defaultdict(Counter)

    def step(self, batch, mark):
        """Rows in; the rows that missed a window."""
        late = []
        for key, at, x, weight in batch:
            missed = False
            for start in windows_of(at, *self.shape):
                if mark is not None and start + self.size + self.lateness <= mark:
                    missed = True
                else:
                    self.groups[(key, start)][x] += weight
            if missed:
                late.append((key, x, weight))
        return late

    def rows(self, low=None, high=None) -> Counter:
        """Windows whose end lies behind `low` and not behind `high`, both less the lateness."""
        found: Counter = Counter()
        for (key, start), values in self.groups.items():
            end = start + self.size + self.lateness
            if (low is None or end > low) and (high is None or end <= high) and values.total():
                found[(key, start, start + self.size, *aggregated(values))] += 1
        return found


@pytest.mark.parametrize("closing", [False, True])
@given(
    history=HISTORY, shape=st.sampled_from([(10, 10), (10, 5), (10, 4), (7, 3), (1, 1)]),
    offset=st.integers(0, 9), lateness=st.sampled_from([0, 0, 1, 8]),
)  # fmt: skip
@examples(40)
def test_windows_are_those_of_the_model(closing, history, shape, offset, lateness):
    """Late rows, retractions and collisions: updates add up to the model, closed windows come once."""
    size, slide = shape
    work = WindowTask("t", inner(), lateness, closing, ROW_SCHEMA, size, slide, offset % slide)
    harness, model = Harness(work), WindowModel(size, slide, offset % slide, lateness)
    told: Counter = Counter()
    settled, keys = None, 0
    for batch, mark in possible(history):
        result = harness.step(batch_of(batch), mark)
        late = model.step(batch, mark)
        assert result.counters["late"] == len(late)
        rows = result.late.to_pylist() if result.late is not None else []
        assert Counter((r["k"], r["x"], r[WEIGHT]) for r in rows) == Counter(late)
        if closing:
            expected = model.rows(settled, mark) if mark is not None else Counter()
            assert shown(result.changes) == expected
        else:
            told.update(shown(result.changes))
            assert only(told) == model.rows()
        keys += result.counters.get("keys_new", 0) - result.counters.get("keys_gone", 0)
        assert keys == model.rows(mark).total()
        settled = mark


@pytest.mark.parametrize("closing", [False, True])
@given(history=HISTORY)
@examples(15)
def test_changes_that_nobody_takes_are_counted_and_the_state_is_the_same(closing, history):
    """Without a taker the same is stored and counted; only the changes may be left out."""
    work = WindowTask("t", inner(), 2, closing, None, 10, 4, 0)
    taken, left = Harness(work), Harness(work, wanted=False)
    for batch, mark in possible(history):
        expected = taken.step(batch_of(batch), mark)
        found = left.step(batch_of(batch), mark)
        assert found.counters == expected.counters
        assert expected.counters.get("changes", 0) == expected.changes.num_rows
        assert found.changes is None or found.changes.equals(expected.changes)
        assert found.updates.keys() == expected.updates.keys()
        for name, update in expected.updates.items():
            assert found.updates[name].equals(update)


def test_nothing_of_a_closed_window_is_visible():
    """Once a window is closed every trace of it is behind its bound, whatever it kept."""
    harness = Harness(WindowTask("t", inner(), 2, False, None, 10, 10, 0))
    harness.step(batch_of([("a", 3, 1, 1), ("a", 14, 2, 1)]))
    harness.step(batch_of([]), 13)
    bounds = harness.work.bounds_us(13)
    assert set(bounds) == set(harness.work.traces) == {"t", "t.values", "t.distinct"}
    for name, schema in harness.work.traces.items():
        run = harness.source.open(harness.runs[name][0], schema)
        ends = [micros(row["window_end"]) for row in run.batch(0).to_pylist()]
        assert {end for end in ends if end >= bounds[name]} == {20}


def test_hashes_of_windows_stay_in_the_vnode_of_their_key():
    """The top eight bits of a window's hash are its key's, and windows differ in the others."""
    hashes = np.full(1000, 0xABCD << 48, np.uint64).view(np.int64)
    mixed = window_hash(hashes, np.arange(1000, dtype=np.int64) * 60_000_000).view(np.uint64)
    assert set((mixed >> np.uint64(56)).tolist()) == {0xAB}
    assert len(np.unique(mixed)) == 1000
    # Part of what is stored: another function would not find windows that are open on disk.
    assert int(mixed[1]) == plain_hash(0xABCD << 48, 60_000_000) == 0xAB1D6072CBD24E86


def plain_hash(key, start):
    """The same with Python's own integers."""
    full = (1 << 64) - 1
    value = key ^ (start * 0x9E3779B97F4A7C15 & full)
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & full
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & full
    value ^= value >> 31
    return (key & (0xFF << 56)) | (value & ((1 << 56) - 1))


class SessionModel:
    """Rows of open sessions by key; sessions by walking over sorted times."""

    def __init__(self, gap, lateness) -> None:
        self.gap, self.lateness = gap, lateness
        self.rows: dict = defaultdict(Counter)
        self.closed: Counter = Counter()
        self.mark = None

    def sessions(self):
        found = []
        for key, rows in self.rows.items():
            last = None
            for at, x in sorted(rows.elements(), key=lambda row: row[0]):
                if last is None or at - last > self.gap:
                    found.append((key, []))
                found[-1][1].append((at, x))
                last = at
        return found

    def step(self, batch, mark):
        """What a watermark that has moved closes, then the rows."""
        closing: Counter = Counter()
        for key, rows in self.sessions() if mark != self.mark else ():
            end = rows[-1][0] + self.gap
            if end + self.lateness <= mark:
                closing[self.row(key, rows)] += 1
                self.rows[key].subtract(rows)
        self.mark = mark
        self.closed.update(closing)
        late = 0
        for key, at, x, weight in batch:
            if mark is not None and at + self.gap + self.lateness <= mark:
                late += 1
            else:
                self.rows[key][(at, x)] += weight
        return late, closing

    def row(self, key, rows):
        values = Counter(x for _, x in rows)
        return (key, rows[0][0], rows[-1][0] + self.gap, *aggregated(values))

    def open(self) -> Counter:
        return Counter(self.row(key, rows) for key, rows in self.sessions())


def session_work(gap, lateness, *, closing, keyless=False):
    keys = pa.schema(WINDOW) if keyless else KEYS
    inputs = pa.schema([(f"_i{n}", pa.int64()) for n in ("0_0", "0_1", "1_0", "2_0", "2_1")])
    own = pa.schema([pa.field(ALL, pa.int8())]) if keyless else pa.schema([("k", pa.string())])
    work = inner(keys, changes=False)
    return SessionTask("t", work, lateness, closing, ROW_SCHEMA, gap, own, inputs)


@pytest.mark.parametrize("closing", [False, True])
@given(history=HISTORY, gap=st.sampled_from([1, 5, 12]), lateness=st.sampled_from([0, 0, 6]))
@examples(40)
def test_sessions_are_those_of_the_model(closing, history, gap, lateness):
    """Sessions grow, join, split when rows are taken back, close once, and are forgotten."""
    harness = Harness(session_work(gap, lateness, closing=closing))
    model = SessionModel(gap, lateness)
    told: Counter = Counter()
    keys = 0
    for batch, mark in possible(history):
        result = harness.step(batch_of(batch, unit=True), mark)
        late, expected = model.step(batch, mark)
        assert result.counters["late"] == late
        if closing:
            assert shown(result.changes) == expected
        else:
            told.update(shown(result.changes))
            assert only(told) == model.open() + model.closed
        keys += result.counters.get("keys_new", 0) - result.counters.get("keys_gone", 0)
        assert keys == model.open().total()
        left = Counter({(k, *row): n for k, rows in model.rows.items() for row, n in rows.items()})
        assert events(harness) == only(left)


def events(harness) -> Counter:
    """What the bag of rows holds, over all its runs."""
    schema = harness.work.traces["t.events"]
    found: Counter = Counter()
    for info in harness.runs["t.events"]:
        run = harness.source.open(info, schema)
        for row in (row for n in range(run.batch_count) for row in run.batch(n).to_pylist()):
            found[(row.get("k"), micros(row["_at"]), row["_i1_0"])] += row[WEIGHT]
    return only(found)


def test_a_part_that_a_delete_leaves_behind_the_watermark_closes_when_that_moves():
    """Until then a row on time may join it again, in the epoch of the delete or in a later one."""
    for cuts in ([[5, 4]], [[5], [4]], [[5], []], [[5]]):
        harness = Harness(session_work(6, 0, closing=True))
        harness.step(batch_of([("a", at, 1, 1) for at in (0, 5, 10)], unit=True))
        assert not harness.step(batch_of([], unit=True), 8).changes.num_rows
        for cut in cuts:
            rows = [("a", at, 1, -1 if at == 5 else 1) for at in cut]
            assert not harness.step(batch_of(rows, unit=True), 8).changes.num_rows
        older = {("a", 0, 6, 1, 1, 1, 1): 1, ("a", 10, 16, 1, 1, 1, 1): 1}
        joined = {("a", 0, 16, 3, 1, 1, 3): 1}
        result = harness.step(batch_of([], unit=True), 16)
        assert shown(result.changes) == Counter(joined if [4] in cuts or [5, 4] in cuts else older)
        assert not events(harness)


def test_a_row_never_extends_a_session_that_its_watermark_has_closed():
    """It begins another one: in the epoch that closes the session as well as in the next."""
    row = ("a", 9, 2, 1)
    for cuts in ([[row]], [[], [row]]):
        harness = Harness(session_work(10, 0, closing=True))
        harness.step(batch_of([("a", 0, 1, 1)], unit=True))
        given = Counter()
        for cut in cuts:
            given += shown(harness.step(batch_of(cut, unit=True), 12).changes)
        assert given == Counter({("a", 0, 10, 1, 1, 1, 1): 1})
        result = harness.step(batch_of([], unit=True), 19)
        assert shown(result.changes) == Counter({("a", 9, 19, 2, 2, 1, 1): 1})


def test_sessions_without_a_key_are_one_series():
    """Without keys all rows are of one session series."""
    harness = Harness(session_work(5, 0, closing=False, keyless=True))
    rows = [("a", 0, 1, 1), ("b", 5, 2, 1), (None, 11, 3, 1)]
    result = harness.step(batch_of(rows, unit=True, keyless=True))
    assert shown(result.changes, names=()) == Counter(
        {(0, 10, 3, 1, 2, 2): 1, (11, 16, 3, 3, 1, 1): 1}
    )


def test_untouched_sessions_of_a_touched_key_are_not_given_again():
    """Only the session that a row lies in changes; others of the key are left alone."""
    harness = Harness(session_work(2, 0, closing=False))
    harness.step(batch_of([("a", 0, 1, 1), ("a", 50, 1, 1)], unit=True))
    result = harness.step(batch_of([("a", 51, 4, 1)], unit=True))
    assert shown(result.changes) == Counter(
        {("a", 50, 52, 1, 1, 1, 1): -1, ("a", 50, 53, 5, 1, 2, 2): 1}
    )


def test_an_operator_without_rows_or_time_says_nothing():
    """An empty epoch without a watermark gives and writes nothing."""
    for work in (
        WindowTask("t", inner(), 0, True, None, 10, 10, 0), session_work(5, 0, closing=True),
    ):  # fmt: skip
        result = Harness(work).step(batch_of([]))
        assert not result.changes.num_rows
        assert not any(update.num_rows for update in result.updates.values())
