"""Watermarks of sources and of the pipeline, with a clock that moves when told to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.clock import ManualClock
from holdfast.pipeline.graph import SourceNode
from holdfast.pipeline.watermarks import Watermarks

SECOND = 1_000_000


def source(name: str, *, delay_s: int = 0, idle_s: int | None = None, timed: bool = True):
    return SourceNode(
        columns=["at"], changes=False, name=name, connector=SimpleNamespace(),
        event_time="at" if timed else None, delay_us=delay_s * SECOND, future_us=None,
        idle_us=None if idle_s is None else idle_s * SECOND,
    )  # fmt: skip


def test_the_delay_is_taken_off_the_newest_time():
    """A source's mark is the newest time that was seen, less its delay."""
    marks = Watermarks([source("a", delay_s=10)], ManualClock())
    assert marks.now_us() is None
    marks.seen("a", 100 * SECOND)
    assert marks.now_us() == 90 * SECOND


def test_the_slowest_source_decides():
    """Nothing is known until every source was seen; then the least mark counts."""
    marks = Watermarks([source("fast"), source("slow", delay_s=5)], ManualClock())
    marks.seen("fast", 100 * SECOND)
    assert marks.now_us() is None
    marks.seen("slow", 50 * SECOND)
    assert marks.now_us() == 45 * SECOND
    marks.seen("slow", 500 * SECOND)
    assert marks.now_us() == 100 * SECOND


def test_a_source_without_event_time_is_not_waited_for():
    """Only sources that tell the time take part."""
    marks = Watermarks([source("a"), source("b", timed=False)], ManualClock())
    marks.seen("b", None)
    marks.seen("a", 7 * SECOND)
    assert marks.now_us() == 7 * SECOND


def test_an_idle_source_is_not_waited_for_until_it_wakes():
    """Silence longer than idle_after lets the others go on; the mark does not fall back after."""
    clock = ManualClock()
    marks = Watermarks([source("a"), source("b", idle_s=30)], clock)
    marks.seen("b", 10 * SECOND)
    marks.seen("a", 100 * SECOND)
    assert marks.now_us() == 10 * SECOND
    clock.advance_ms(29_999)
    marks.seen("a", 200 * SECOND)
    assert marks.now_us() == 10 * SECOND
    clock.advance_ms(1)
    assert marks.is_idle("b")
    assert marks.now_us() == 200 * SECOND
    marks.settled_us = marks.now_us()
    marks.seen("b", 20 * SECOND)
    assert not marks.is_idle("b")
    assert marks.now_us() == 200 * SECOND


def test_a_source_that_never_spoke_is_idle_after_a_while():
    """A source from which no row ever came does not hold the others up for good."""
    clock = ManualClock()
    marks = Watermarks([source("a"), source("mute", idle_s=5)], clock)
    marks.seen("a", 100 * SECOND)
    assert marks.now_us() is None
    clock.advance_ms(5_000)
    assert marks.now_us() == 100 * SECOND


def test_when_all_are_idle_time_stands_still():
    """Silence of everybody is no reason to close anything."""
    clock = ManualClock()
    marks = Watermarks([source("a", idle_s=1), source("b", idle_s=1)], clock)
    marks.seen("a", 100 * SECOND)
    marks.seen("b", 50 * SECOND)
    marks.settled_us = marks.now_us()
    clock.advance_ms(60_000)
    assert marks.now_us() == 50 * SECOND


def test_watermarks_do_not_restart_at_minus_infinity():
    """Defect 21: after a restart the marks go on from the checkpoint, also of a silent source."""
    before = Watermarks([source("a"), source("b")], ManualClock())
    before.seen("a", 100 * SECOND)
    before.seen("b", 80 * SECOND)
    before.settled_us = before.now_us()
    after = Watermarks([source("a"), source("b")], ManualClock())
    after.restore(before.settled_us, before.marks_us)
    assert after.now_us() == 80 * SECOND
    after.seen("b", 90 * SECOND)  # `a` says nothing: its mark of before still counts
    assert after.now_us() == 90 * SECOND


@settings(deadline=None, max_examples=50, print_blob=True)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from("ab"), st.integers(-50, 50)),
            st.just(("restart", 0)),
            st.tuples(st.just("pass"), st.integers(0, 20_000)),
        ),
        max_size=30,
    )
)
@pytest.mark.parametrize("idle_s", [None, 5])
def test_a_watermark_never_goes_back(idle_s, steps):
    """Whatever comes, in whatever order, over restarts and idle times."""
    clock = ManualClock()
    sources = [source("a", idle_s=idle_s), source("b", delay_s=3)]
    marks = Watermarks(sources, clock)
    last = None
    for what, number in steps:
        if what == "restart":
            again = Watermarks(sources, clock)
            again.restore(marks.settled_us, marks.marks_us)
            marks = again
        elif what == "pass":
            clock.advance_ms(number)
        else:
            marks.seen(what, number * SECOND)
        now = marks.now_us()
        assert last is None or (now is not None and now >= last)
        marks.settled_us = last = now
