"""Lag: what a source says is kept, the rest is estimated from what the run has seen, nothing is made up."""

from __future__ import annotations

import urllib.request

import pytest

from holdfast.clock import ManualClock
from holdfast.connectors import Backlog, Split
from holdfast.runtime.bad_rows import BadCounts, BadRow, BadRows
from holdfast.runtime.lag import Lag, LagMeter
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.quality import Verdicts
from holdfast.runtime.report import CheckpointState, EpochReport, RunSummary


def split(size: int) -> Split:
    return Split("s", None, size, None)


def test_nothing_left_is_zero_in_every_unit():
    """Whatever the unit, and whether anything is known or not."""
    assert LagMeter(ManualClock()).lag("s", Backlog(7, 7, "pages")) == Lag(0, 0, 0.0)


def test_what_a_source_says_is_kept():
    """Rows, bytes and seconds of its own are no estimates."""
    lag = LagMeter(ManualClock()).lag("s", Backlog(0, 9, "bytes", rows=3, bytes=9, seconds=1.5))
    assert (lag.rows, lag.bytes, lag.seconds, lag.estimated) == (3, 9, 1.5, ())


def test_rows_are_estimated_from_bytes_and_bytes_from_rows():
    """By the average of what was read; without any, the figure stays unknown."""
    meter = LagMeter(ManualClock())
    assert meter.lag("s", Backlog(0, 1_000, "bytes", seconds=0.0)) == Lag(None, 1_000, 0.0)
    meter.read("s", split(200), 10)
    lag = meter.lag("s", Backlog(200, 1_000, "bytes", seconds=0.0))
    assert (lag.rows, lag.bytes, lag.estimated) == (40, 800, ("rows",))
    meter.read("t", split(60), 3)
    lag = meter.lag("t", Backlog(3, 8, "events", seconds=0.0))
    assert (lag.rows, lag.bytes, lag.estimated) == (5, 100, ("bytes",))
    assert str(lag) == "5 rows, about 100 bytes, 0.0 s"
    assert meter.lag("u", Backlog(3, 8, "pages")).facts().keys() == {"seconds"}


def test_seconds_count_from_when_there_was_more_than_is_read_now():
    """Reading on makes the oldest unread row a younger one."""
    clock = ManualClock()
    meter = LagMeter(clock)
    seconds = []
    for done, total in ((0, 10), (0, 20), (10, 20), (10, 30), (20, 30), (30, 30)):
        seconds.append(meter.lag("s", Backlog(done, total, "rows", bytes=0)).seconds)
        clock.sleep_ms(1_000)
    assert seconds == [0.0, 1.0, 1.0, 2.0, 1.0, 0.0]


def test_a_long_run_keeps_a_bounded_number_of_samples():
    """An endless backlog costs no endless memory."""
    meter = LagMeter(ManualClock())
    for total in range(1, 3_000):
        meter.lag("s", Backlog(0, total, "rows"))
    assert len(meter._seen["s"].totals) <= 512


def report(epoch: int) -> EpochReport:
    bad = BadRows(2, 10, (BadRow("s", "raw", "file", "why"),))
    return EpochReport(
        epoch=epoch, rows=10, changes=1, keys=1, late=0, bytes_new=0, phases_ms={},
        backlog={"s": Backlog(1, 4, "rows")}, checkpoint=CheckpointState("c"), outdated=3,
        bad={"s": bad}, expectations={"positive": Verdicts(7, 1, "{}")},
        lag={"s": Lag(3, None, 1.25, ("seconds",))},
    )  # fmt: skip


def test_metrics_show_lag_bad_rows_and_expectations():
    """By source and unit, by source, by expectation and outcome; what is unknown is not there."""
    metrics = Metrics(0, "p")
    for epoch in range(2):
        metrics.add(report(epoch))
    server, _thread = metrics.server
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    with urllib.request.urlopen(url) as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines())
    server.shutdown()
    assert lines['holdfast_source_lag{source="s",unit="rows"}'] == "3.0"
    assert lines['holdfast_source_lag{source="s",unit="seconds"}'] == "1.25"
    assert not any('unit="bytes"' in name for name in lines)
    assert lines['holdfast_bad_rows_total{source="s"}'] == "4.0"
    assert lines["holdfast_outdated_rows_total"] == "6.0"
    name = 'holdfast_expectation_rows_total{expectation="positive",outcome="%s"}'
    assert (lines[name % "passed"], lines[name % "failed"]) == ("14.0", "2.0")


def test_a_summary_adds_up_what_epochs_have_seen():
    """Counts over all epochs, the lag of the last one."""
    summary = RunSummary()
    for epoch in range(3):
        summary.add(report(epoch))
    assert (summary.bad, summary.outdated) == ({"s": 6}, 9)
    assert summary.expectations == {"positive": Verdicts(21, 3, "{}")}
    assert summary.lag["s"].rows == 3


@pytest.mark.parametrize("taken", [True, False])
def test_notes_say_whether_anybody_takes_the_bad_rows(taken):
    """One line for each source, with the first row."""
    counts = BadCounts()
    counts.add(report(0).bad)
    counts.add(report(1).bad)
    (note,) = counts.notes(frozenset({"s"} if taken else ()))
    assert "4 rows" in note
    assert ("nobody takes" in note) != taken
    assert "file: why: raw" in note
