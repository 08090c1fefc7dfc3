"""What operators forget goes by the watermark alone, not by how epochs were cut."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.dedupe.execute import DedupeTask
from holdfast.operators.window.execute import WindowTask
from tests.helpers.effort import examples
from tests.helpers.harness import Harness
from tests.unit.operators.test_apply import HASHES, ROW, SECOND, STAMP, batch_of, work_of
from tests.unit.operators.test_join import HOWS, join_work
from tests.unit.operators.test_join import batch as sides_of
from tests.unit.operators.test_window import ROW_SCHEMA, inner, session_work
from tests.unit.operators.test_window import batch_of as timed_of

KEYS = pa.schema([("k", pa.string())])
SEEN = pa.schema([("k", pa.string()), ("at", STAMP)])
WITHIN = 5


def rows_of(*rows: tuple) -> pa.RecordBatch:
    hashes = np.array([HASHES.get(k, 1) for k, _ in rows], np.uint64).view(np.int64)
    times = [None if t is None else t * SECOND for _, t in rows]
    return pa.record_batch(
        {
            HASH: pa.array(hashes),
            "k": pa.array([k for k, _ in rows], pa.string()),
            "at": pa.array(times, STAMP),
        }
    )


def deduped(epochs: list[tuple[int | None, list[tuple]]]) -> tuple[Counter, Counter, int]:
    """What goes through, what is late, and how many rows were dropped and counted."""
    harness = Harness(DedupeTask("t", KEYS, SEEN, "at", WITHIN * SECOND))
    passed, late, counted = Counter(), Counter(), 0
    for mark, rows in epochs:
        result = harness.step(rows_of(*rows), None if mark is None else mark * SECOND)
        passed.update(row["k"] for row in result.changes.to_pylist())
        if result.late is not None:
            late.update((row["k"], row["at"].timestamp()) for row in result.late.to_pylist())
        counted += result.counters["late"] + result.counters.get("duplicates", 0)
    return passed, late, counted


def test_a_key_that_is_behind_the_watermark_may_come_again_at_once() -> None:
    """A row on time whose key was seen too long ago is no duplicate in the first epoch after."""
    epochs = [(None, [("a", 0)]), (0, [("b", 1000)]), (1000, [("a", 1001)])]
    assert deduped(epochs)[0] == Counter(a=2, b=1)
    later = [*epochs[:2], (1000, [("c", 1000)]), (1000, [("a", 1001)])]
    assert deduped(later)[0] == Counter(a=2, b=1, c=1)


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=8)


@examples(30)
@given(st.lists(st.tuples(ROWS, st.integers(0, 12)), max_size=4), st.data())
def test_dedupe_does_not_depend_on_how_epochs_are_cut(steps, data) -> None:
    """With the same watermarks, rows in one epoch or in several: as many rows, the same late ones."""
    whole, cut, mark = [], [], 0
    for rows, more in steps:
        ranked = sorted(rows, key=lambda row: row[1])
        place = data.draw(st.integers(0, len(rows)))
        whole.append((mark, rows))
        cut += [(mark, ranked[:place]), (mark, []), (mark, ranked[place:])]
        mark += more
    one, several = deduped(whole), deduped(cut)
    assert one == several
    assert sum(one[0].values()) + one[2] == sum(len(rows) for rows, _ in steps)


def waking(changes, state, context):
    """Remembers when each key wants to be called, and tells which were."""
    wake = dict(zip(state["k"].to_pylist(), state["wake"].to_pylist(), strict=True))
    for key, x in zip(changes["k"].to_pylist(), changes["x"].to_pylist(), strict=True):
        wake[key] = None if x is None else x * SECOND
    keys = context.keys["k"].to_pylist()
    new = {"k": pa.array(keys, pa.string()), "n": pa.array([1] * len(keys), pa.int64())}
    new["wake"] = pa.array([wake.get(key) for key in keys], STAMP)
    due = context.due["k"].to_pylist()
    return pa.table(
        {"k": pa.array(due, pa.string()), "n": pa.array([1] * len(due), pa.int64())}
    ), pa.table(new)


def test_a_key_that_the_ttl_has_forgotten_takes_its_timer_with_it() -> None:
    """A key that comes back without a timer is never called by that of its life before."""
    harness = Harness(work_of(waking, time="at", ttl_us=10 * SECOND, timers="wake"))
    called = []
    steps = [
        (None, [("a", 100, 0), ("c", None, 0)]),
        (0, [("c", None, 20)]),
        (20, [("a", None, 21), ("c", None, 21)]),
        (21, [("a", None, 95)]),
        (95, [("c", None, 101)]),
        (101, [("c", None, 102)]),
        (102, []),
    ]
    for mark, rows in steps:
        result = harness.step(batch_of(rows), None if mark is None else mark * SECOND)
        called += result.changes.column("k").to_pylist()
    assert called == []


def test_a_key_that_comes_back_in_the_epoch_in_which_its_old_timer_is_due_is_not_called() -> None:
    """Neither then nor later; a timer that it sets itself fires once."""
    harness = Harness(work_of(waking, time="at", ttl_us=10 * SECOND, timers="wake"))
    called = []
    for mark, rows in [
        (None, [("a", 50, 0)]),
        (0, [("c", None, 60)]),
        (60, [("a", 70, 61)]),
        (61, [("c", None, 75)]),
        (65, []),
        (70, []),
        (71, []),
    ]:
        result = harness.step(batch_of(rows), None if mark is None else mark * SECOND)
        called += [(mark, key) for key in result.changes.column("k").to_pylist()]
    assert called == [(70, "a")]


def test_rows_too_late_for_a_ttl_keep_their_weight() -> None:
    """Late rows of apply are the rows as they came."""
    work = work_of(waking, time="at", ttl_us=10 * SECOND, weighted=True)
    result = Harness(work).step(
        batch_of([("a", 1, 5, -2), ("a", 2, 50, 1)], weights=True), 40 * SECOND
    )
    assert result.late.schema.names == [*ROW.names, WEIGHT]
    assert [(r["x"], r[WEIGHT]) for r in result.late.to_pylist()] == [(1, -2)]
    assert result.counters["late"] == 1


# Every operator that goes by time: the rows of one watermark in one epoch, or cut into several.


def told(harness: Harness, epochs: list[tuple]) -> tuple[dict, dict]:
    """By watermark, what all its epochs gave together, and which rows were late."""
    given: dict = {}
    late: dict = {}
    for batch, mark in epochs:
        result = harness.step(batch, mark)
        for found, rows in ((given, result.changes), (late, result.late)):
            sums = found.setdefault(mark, Counter())
            for row in rows.to_pylist() if rows is not None else ():
                weight = row.pop(WEIGHT, 1)
                sums[repr(row)] += weight
                if not sums[repr(row)]:
                    del sums[repr(row)]
    return given, late


@st.composite
def cuts(draw, kinds, *, ranked: bool = False):
    """(key, time, value, weight, kind), the watermark of each epoch, and the same in smaller epochs."""
    whole, pieces, mark = [], [], None
    live: Counter = Counter()
    for number in range(draw(st.integers(2, 5))):
        rows = []
        for _ in range(draw(st.integers(0, 5))):
            there = sorted((row for row in live if live[row] > 0), key=repr)
            if there and not ranked and draw(st.integers(0, 2)) == 0:
                row, weight = draw(st.sampled_from(there)), -1
            else:
                at = (mark or 0) + draw(
                    st.integers(-9, 12)
                )  # around the watermark, where it matters
                row, weight = (draw(st.sampled_from("aaab")), at, 1), 1
                row = (*row, draw(st.sampled_from(kinds)))
            live[row] += weight
            rows.append((*row[:3], weight, row[3]))
        if ranked:  # the order in which an epoch takes its rows
            rows.sort(key=lambda row: row[1])
        whole.append((rows, mark))
        ends = sorted(draw(st.lists(st.integers(0, len(rows)), min_size=1, max_size=3)))
        bounds = [0, *ends, len(rows)]
        pieces += [([], mark), *((rows[a:b], mark) for a, b in pairwise(bounds))]
        mark = draw(st.integers(0, 20)) + (mark or 0) if number or draw(st.booleans()) else None
    return whole, pieces


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize("shape", [(10, 10), (10, 4), None], ids=["tumbling", "sliding", "session"])
@examples(20)
@given(history=cuts([0]), gap=st.sampled_from([9, 14]), lateness=st.sampled_from([0, 0, 5]))
def test_windows_do_not_depend_on_how_epochs_are_cut(closing, shape, history, gap, lateness):
    """The same windows at the same watermark, the same late rows; deletes too."""
    work = session_work(gap, lateness, closing=closing)
    if shape is not None:
        work = WindowTask("t", inner(), lateness, closing, ROW_SCHEMA, *shape, 0)
    one, several = (
        told(
            Harness(work), [(timed_of([r[:4] for r in rows], unit=not shape), m) for rows, m in cut]
        )
        for cut in history
    )
    assert one == several


@pytest.mark.parametrize("how", HOWS)
@examples(8)
@given(history=cuts([0, 1]), within=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_interval_joins_do_not_depend_on_how_epochs_are_cut(how, history, within):
    """The same pairs and lone rows at the same watermark, the same late rows."""
    work = join_work(how, changes=True, within=within)
    one, several = (
        told(
            Harness(work),
            [
                (sides_of([(s, k, t, float(x), w) for k, t, x, w, s in rows], weights=True), mark)
                for rows, mark in cut
            ],
        )
        for cut in history
    )
    assert one == several


@pytest.mark.parametrize("ttl", [None, 10])
@examples(25)
@given(history=cuts([None, 0, 5, 12, 20, 31], ranked=True))
def test_timers_and_keys_of_apply_do_not_depend_on_how_epochs_are_cut(ttl, history):
    """With rows in the order of their times, and timers that fire in an epoch without rows."""
    forgets = {} if ttl is None else {"ttl_us": ttl * SECOND}
    one, several = (
        told(
            Harness(work_of(waking, time="at", timers="wake", **forgets)),
            [
                (
                    batch_of([(k, wake, at) for k, at, _, _, wake in _untied(rows)]),
                    None if mark is None else mark * SECOND,
                )
                for rows, mark in _fired_first(cut)
            ],
        )
        for cut in history
    )
    assert one == several


def _fired_first(cut: list[tuple]) -> list[tuple]:
    """A call that gets rows while its timer fires gets both at once: the watermark moves alone."""
    epochs, before = [], None
    for rows, mark in cut:
        epochs += [([], mark), (rows, mark)] if mark != before else [(rows, mark)]
        before = mark
    return epochs


def _untied(rows: list[tuple]) -> list[tuple]:
    """Of rows of one key and time the function could not tell the last: they want the same."""
    return [(*row[:4], None if row[1] % 4 == 0 else row[1] + row[1] % 7 * 3 - 9) for row in rows]
