"""What operators forget goes by the watermark alone, not by how epochs were cut."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from test_apply_work import HASHES, ROW, SECOND, STAMP, batch_of, work_of
from work_harness import Harness

from holdfast.pipeline.operators.unique import DedupeWork
from holdfast.pipeline.operators.work import HASH, WEIGHT

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
    harness = Harness(DedupeWork("t", KEYS, SEEN, "at", WITHIN * SECOND))
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


@settings(max_examples=80, deadline=None, print_blob=True)
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
