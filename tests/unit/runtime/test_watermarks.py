"""Watermarks: by source and for the pipeline, without Spark, on a clock that moves when told to."""

from __future__ import annotations

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import InvalidInputError
from holdfast.operators.declaration import SourceNode
from holdfast.runtime.watermarks import Observed, Watermarks

SECOND = 1_000_000


def source(name, *, delay=0, idle=None, event_time="at"):
    return SourceNode(
        columns=["at"], retracts=False, name=name, connector=None, event_time=event_time,
        delay_us=delay * SECOND, idle_us=None if idle is None else idle * SECOND,
    )  # fmt: skip


def marks(*sources):
    clock = ManualClock()
    return Watermarks(sources, clock), clock


def test_a_watermark_is_the_newest_time_less_the_delay_and_never_goes_back():
    """Older rows, rows without a time and settled epochs never move it back."""
    watermarks, _ = marks(source("a", delay=10))
    assert watermarks.now_us() is None
    for newest, expected in ((100, 90), (50, 90), (None, 90), (101, 91)):
        watermarks.seen("a", None if newest is None else newest * SECOND)
        assert watermarks.now_us() == expected * SECOND
    watermarks.previous_watermark_us = 95 * SECOND
    assert watermarks.now_us() == 95 * SECOND


def test_the_slowest_source_decides_and_a_silent_one_holds_all_back():
    """Nothing is known before every source has spoken, and then the smallest mark counts."""
    watermarks, _ = marks(source("fast"), source("slow"), source("untimed", event_time=None))
    watermarks.seen("fast", 100 * SECOND)
    assert watermarks.now_us() is None
    watermarks.seen("slow", 20 * SECOND)
    assert watermarks.now_us() == 20 * SECOND
    assert watermarks.lag_us(20 * SECOND) == 80 * SECOND


def test_an_idle_source_is_not_waited_for_until_it_speaks_again():
    """After its time without rows a source is left out; back again it cannot turn time back."""
    watermarks, clock = marks(source("fast"), source("slow", idle=30))
    watermarks.seen("slow", 20 * SECOND)
    watermarks.seen("fast", 100 * SECOND)
    clock.advance_ms(29_999)
    assert watermarks.now_us() == 20 * SECOND
    clock.advance_ms(1)
    assert watermarks.is_idle("slow")
    assert watermarks.now_us() == 100 * SECOND
    watermarks.previous_watermark_us = watermarks.now_us()
    watermarks.seen("slow", 30 * SECOND)
    assert watermarks.now_us() == 100 * SECOND
    watermarks.seen("fast", 200 * SECOND)
    assert watermarks.now_us() == 100 * SECOND  # held by the slow one again
    watermarks.seen("slow", 150 * SECOND)
    assert watermarks.now_us() == 150 * SECOND


def test_an_idle_source_that_never_spoke_is_left_out_too():
    """A source without any row is waited for as long as it may still begin."""
    watermarks, clock = marks(source("a"), source("empty", idle=5))
    watermarks.seen("a", 50 * SECOND)
    assert watermarks.now_us() is None
    clock.advance_ms(5_000)
    assert watermarks.now_us() == 50 * SECOND


def test_when_all_sources_are_idle_time_stands_still():
    """Silence alone closes nothing."""
    watermarks, clock = marks(source("a", idle=5))
    watermarks.seen("a", 50 * SECOND)
    watermarks.previous_watermark_us = 40 * SECOND
    clock.advance_ms(60_000)
    assert watermarks.now_us() == 40 * SECOND


def test_watermarks_restart_where_the_checkpoint_stood():
    """Marks of sources and of the pipeline come back, so that late rows stay late."""
    watermarks, _ = marks(source("a"), source("b"))
    watermarks.restore(70 * SECOND, {"a": 90 * SECOND, "b": 70 * SECOND})
    assert watermarks.now_us() == 70 * SECOND
    watermarks.seen("b", 80 * SECOND)
    assert watermarks.now_us() == 80 * SECOND


def test_a_metric_that_spark_left_out_is_no_time():
    """Where Spark's optimiser drops the rows of a source, there is nothing to read, and no error."""

    class Broken:
        @property
        def get(self):
            raise RuntimeError("assertion failed")

    assert Observed(Broken()).read().newest_us is None


def declared():
    import holdfast as hf

    pipe = hf.Pipeline("p", store="unused")
    rows = hf.sources.Files("unused", schema="k string, at timestamp, x long")
    return (
        hf,
        pipe.source("in", rows, event_time="at"),
        hf.Pipeline("q", store="unused").source("in", rows),
    )


def refused(kind, call):
    with pytest.raises(InvalidInputError) as caught:
        call()
    assert caught.value.kind == kind


def test_windows_that_cannot_work_are_refused_before_spark_starts():
    """Each wrong declaration has an error of its own."""
    hf, rows, untimed = declared()
    hour = hf.tumbling("at", size="1 hour")
    n = hf.count()
    refused("invalid_window", lambda: hf.tumbling("at", size="0 seconds"))
    refused("invalid_window", lambda: hf.sliding("at", size="1 minute", slide="2 minutes"))
    refused("invalid_window", lambda: hf.sliding("at", size="1 hour", slide="1 second"))
    refused("invalid_window", lambda: hf.session_window("at", gap="0 seconds"))
    refused("invalid_duration", lambda: hf.session_window("at", gap="a while"))
    refused("several_windows", lambda: rows.group_by(hour, hour).agg(n=n, name="a"))
    refused("unknown_column", lambda: rows.group_by("y", hour).agg(n=n, name="a"))
    refused(
        "unknown_column", lambda: rows.group_by(hf.tumbling("y", size="1 hour")).agg(n=n, name="a")
    )
    refused("unknown_emit", lambda: hf.tumbling("at", size="1 hour", emit="never"))
    closing = hf.tumbling("at", size="1 hour", emit="close")
    waiting = hf.tumbling("at", size="1 hour", allowed_lateness="1 hour")
    refused("no_watermark", lambda: untimed.group_by(closing).agg(n=n, name="a"))
    refused("no_watermark", lambda: untimed.group_by(waiting).agg(n=n, name="a"))
    refused("old_spelling", lambda: rows.group_by(hour).agg(n=n, name="a", emit="close"))
    refused("old_spelling", lambda: rows.group_by(hour).agg(n=n, name="a", lateness="1 hour"))
    refused("no_window", lambda: rows.group_by("k").agg(n=n, name="a", emit="close"))
    refused("duplicate_column", lambda: rows.group_by(hour).agg(window_end=n, name="a"))
    refused("no_late_rows", lambda: rows.late)
    refused("no_late_rows", lambda: rows.group_by("k").agg(n=n, name="plain").late)
    done = rows.group_by("k", hour).agg(n=n, name="a")
    tight = rows.group_by("k", closing).agg(n=n, name="tight")
    visits = rows.group_by("k", hf.session_window("at", gap="1 minute")).agg(n=n, name="visits")
    late = hf.tumbling("window_end", size="1 day")
    for before in (tight, visits):
        refused("time_behind_window", lambda b=before: b.group_by(late).agg(n=n, name="c"))
    refused(
        "time_behind_window",
        lambda: tight.dedupe("k", name="c", time="window_end", within="1 day"),
    )
    late = hf.tumbling("window_end", size="1 day", allowed_lateness="5 minutes")
    day = done.group_by(late).agg(n=n, name="day")
    assert day.node.fingerprint()["lateness_us"] == str(65 * 60 * SECOND)
    assert done.columns == ["k", "window_start", "window_end", "n"]
    assert done.node.retracts
    assert not rows.group_by(closing).agg(n=n, name="b").node.retracts


def test_late_rows_go_into_a_sink_and_nowhere_else():
    """A step behind late rows is refused when the pipeline is checked."""
    hf, rows, _ = declared()
    done = rows.group_by(hf.tumbling("at", size="1 hour", emit="close")).agg(n=hf.count(), name="a")
    late = done.late
    assert late.columns == ["k", "at", "x"]
    graph = rows._graph
    late.group_by("k").agg(n=hf.count(), name="b")
    refused("late_not_into_sink", graph.check)
