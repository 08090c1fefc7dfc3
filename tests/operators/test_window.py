"""Windows, watermarks and late rows on Spark, next to Spark's own answers."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import holdfast as hf
from holdfast.state import runs_of
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.pipeline_world import published, text
from tests.helpers.window_world import (
    COLUMNS,
    DELAY,
    SCHEMA,
    SECOND,
    History,
    batch_sessions,
    batch_windows,
    closed,
    texts,
)
from tests.operators.test_aggregate import CRASHES

AGGREGATES = {
    "n": hf.count(), "s": hf.sum("x"), "lo": hf.min("x"), "hi": hf.max("x"),
    "d": hf.count_distinct("x"),
}  # fmt: skip


def declared(home, spark, *, partitions=2):
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    source = hf.sources.Files(str(home / "in"), schema=SCHEMA, weight="w", files_max=1)
    return pipe, pipe.source("in", source, event_time="at", delay=f"{DELAY} seconds")


def sink(pipe, home, name, stream):
    pipe.sink(f"{name}_out", stream, hf.sinks.Parquet(str(home / name)))


def run_with_a_crash(rng, make):
    """Run to the end, most of the time after a crash and with another number of partitions."""
    try:
        with crash_at(rng.choice(CRASHES), nth=rng.randint(1, 2)):
            return make(rng.choice([1, 2, 5])).run()
    except SimulatedCrash:
        return make(rng.choice([1, 2, 5])).run(takeover=True)


@pytest.mark.parametrize("seed", [1])
def test_windows_equal_sparks_own_through_crashes_and_rescales(spark, tmp_path, seed) -> None:
    """Out of order, late and taken back: updates add up to Spark's windows, closed ones come once."""
    from pyspark.sql import functions as F

    rng = random.Random(seed)
    history = History(tmp_path / "in", seed)

    def make(partitions):
        pipe, rows = declared(tmp_path, spark, partitions=partitions)
        hops = rows.group_by(
            "k",
            hf.tumbling(
                "at", size="30 seconds", offset="10 seconds", allowed_lateness="15 seconds"
            ),
        )
        hops = hops.agg(**AGGREGATES, name="hops")
        sink(pipe, tmp_path, "hops", hops)
        sink(pipe, tmp_path, "late", hops.late)
        slides = rows.group_by(
            "k", hf.sliding("at", size="30 seconds", slide="12 seconds", emit="close")
        )
        sink(pipe, tmp_path, "slides", slides.agg(**AGGREGATES, name="slides"))
        sink(pipe, tmp_path, "all", rows.group_by("k").agg(n=hf.count(), name="all"))
        return pipe

    for _ in range(3):
        for _ in range(rng.randint(1, 2)):
            history.random(rng.randint(5, 25))
        run_with_a_crash(rng, make)
        frame = history.frame(spark).cache()
        hops = F.window("at", "30 seconds", "30 seconds", "10 seconds")
        expected = batch_windows(frame, hops, lateness=15)
        assert published(spark, tmp_path / "hops", COLUMNS) == texts(expected)
        slides = batch_windows(frame, F.window("at", "30 seconds", "12 seconds"))
        assert published(spark, tmp_path / "slides", COLUMNS) == texts(closed(slides, history.mark))
        late = (
            frame.where("at IS NOT NULL")
            .select("*", hops.alias("win"))
            .where("win.end + INTERVAL 15 SECONDS <= mark")
        )
        names = ["k", "at", "x"]
        missed: Counter = Counter()
        for row in late.select(*names, "w").collect():
            missed[text(tuple(row[name] for name in names))] += row["w"]
        assert published(spark, tmp_path / "late", names) == Counter(
            {row: n for row, n in missed.items() if n}
        )
        every = frame.groupBy("k").agg(F.sum("w").alias("n")).where("n > 0").collect()
        assert published(spark, tmp_path / "all", ["k", "n"]) == Counter(
            text((row["k"], row["n"])) for row in every
        )  # an operator without windows is not touched by the watermark
        left = make(2).view("hops").to_arrow().to_pylist()
        shown = Counter(
            text((*(r[n].replace(tzinfo=None) if "window" in n else r[n] for n in COLUMNS),))
            for r in left
        )
        open_ = texts(expected) - texts(closed(expected, history.mark, lateness=15))
        assert shown == open_
        frame.unpersist()


@pytest.mark.parametrize("emit", ["update", "close"])
def test_sessions_equal_sparks_own_through_crashes_and_rescales(spark, tmp_path, emit) -> None:
    """Sessions that grow, join and split add up to Spark's; closed ones come exactly once."""
    rng = random.Random(7)
    history = History(tmp_path / "in", 3)

    def make(partitions):
        pipe, rows = declared(tmp_path, spark, partitions=partitions)
        visits = rows.group_by(
            "k", hf.session_window("at", gap="5 seconds", emit=emit, allowed_lateness="4 seconds")
        ).agg(**AGGREGATES, name="visits")
        sink(pipe, tmp_path, "visits", visits)
        return pipe

    for _ in range(3):
        history.random(rng.randint(10, 25), orderly=True)
        run_with_a_crash(rng, make)
        expected = batch_sessions(history.frame(spark), 5, lateness=4)
        if emit == "close":
            expected = closed(expected, history.mark, lateness=4)
        assert published(spark, tmp_path / "visits", COLUMNS) == texts(expected)


def closing(home, spark, *, partitions=2):
    """Counts by ten seconds, when they close, and the rows that came too late."""
    pipe, rows = declared(home, spark, partitions=partitions)
    done = rows.group_by("k", hf.tumbling("at", size="10 seconds", emit="close")).agg(
        n=hf.count(), name="tens"
    )
    sink(pipe, home, "tens", done)
    sink(pipe, home, "late", done.late)
    return pipe


def tens(spark, home) -> list[tuple[str, int, int]]:
    """What was published: key, first second and count, as often as it is there."""
    if not any((home / "tens").glob("hf_epoch=*")):
        return []
    frame = spark.read.parquet(str(home / "tens")).selectExpr(
        "k", "unix_seconds(window_start) AS s", "n"
    )
    return sorted((row["k"], row["s"], row["n"]) for row in frame.collect())


def test_a_crash_at_any_point_neither_repeats_nor_loses_a_closed_window(spark, tmp_path) -> None:
    """Around every point of the epoch protocol each window comes exactly once."""
    history = History(tmp_path / "in", 0)
    for number, point in enumerate(CRASHES):
        start = number * 10
        history.add([("a", start + 1, 1, 1), ("b", start + 5, 1, 1), ("a", start + 9, 1, 1)])
        with pytest.raises(SimulatedCrash), crash_at(point):
            closing(tmp_path, spark, partitions=1 + number % 3).run()
        closing(tmp_path, spark).run(takeover=True)
        mark = history.mark
        assert mark is not None
        whole = [s for s in range(0, start + 1, 10) if s + 10 <= mark]
        assert tens(spark, tmp_path) == sorted(
            [("a", s, 2) for s in whole] + [("b", s, 1) for s in whole]
        )


def test_a_restarted_pipeline_still_knows_what_is_late(spark, tmp_path) -> None:
    """After a restart a row behind the old watermark is late, and no closed window opens again."""
    history = History(tmp_path / "in", 0)
    history.add([("a", 5, 1, 1), ("a", 100, 1, 1)])
    closing(tmp_path, spark).run()
    assert tens(spark, tmp_path) == [("a", 0, 1)]
    history.add([("a", 6, 1, 1), ("a", 85, 1, 1)])
    summary = closing(tmp_path, spark).run()
    assert (summary.late, tens(spark, tmp_path)) == (1, [("a", 0, 1)])
    late = spark.read.parquet(str(tmp_path / "late")).selectExpr(
        "k", "unix_seconds(at) s", "_weight"
    )
    assert [tuple(row)[:3] for row in late.collect()] == [("a", 6, 1)]


def test_one_row_from_the_future_does_not_close_everything(spark, tmp_path) -> None:
    """A row from the year 2999 is counted in its window, and the watermark stays where it was."""
    history = History(tmp_path / "in", 0)
    future = 32_472_144_000
    history.add([("a", 5, 1, 1), ("b", future, 1, 1)])
    history.add([("a", 6, 1, 1), ("a", 45, 1, 1)])
    reports: list = []
    summary = closing(tmp_path, spark).run(on_epoch=reports.append)
    assert summary.late == 0
    assert tens(spark, tmp_path) == [("a", 0, 2)]
    assert [report.future for report in reports] == [1, 0, 0]
    assert [report.watermark_us for report in reports] == [
        None, (5 - DELAY) * SECOND, (45 - DELAY) * SECOND,
    ]  # fmt: skip
    assert reports[-1].lag_us == DELAY * SECOND
    open_ = closing(tmp_path, spark).view("tens").to_arrow()
    assert sorted(row["k"] for row in open_.to_pylist()) == ["a", "b"]


def pair(home, spark, *, idle=None):
    """A fast and a slow source, each with windows of its own, under one watermark."""
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=2)
    seconds = {"k": "'a'", "at": "timestamp_seconds(id)"}
    fast = pipe.source(
        "fast", hf.sources.Generator(seconds, rows=100, rows_per_epoch=50), event_time="at"
    )
    slow = pipe.source(
        "slow", hf.sources.Files(str(home / "slow"), schema=SCHEMA), event_time="at",
        idle_after=idle,
    )  # fmt: skip
    for name, rows in (("tens", fast), ("slow_tens", slow)):
        window = rows.group_by("k", hf.tumbling("at", size="10 seconds", emit="close"))
        sink(pipe, home, name, window.agg(n=hf.count(), name=name))
    return pipe


def test_windows_wait_for_the_slowest_source_unless_it_is_idle(spark, tmp_path) -> None:
    """The watermark is that of the slow source; without its rows all wait, idle it is left out."""
    slow = History(tmp_path / "slow", 0)
    slow.home.mkdir()
    pair(tmp_path, spark).run()
    assert tens(spark, tmp_path) == []
    slow.add([("b", 35, 1, 1)])
    pair(tmp_path, spark).run()
    assert tens(spark, tmp_path) == [("a", s, 10) for s in (0, 10, 20)]

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "slow").mkdir()
    pair(tmp_path / "other", spark, idle="1 millisecond").run()
    assert tens(spark, tmp_path / "other") == [("a", s, 10) for s in range(0, 90, 10)]


def test_one_job_an_epoch_and_times_observed_through_a_diamond(spark, tmp_path) -> None:
    """Windows behind windows, one source in two branches, kept rows: one job, a right watermark."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    source = hf.sources.Generator(
        {"k": "pmod(id, 3)", "at": "timestamp_seconds(id)", "x": "id"}, rows=300,
        rows_per_epoch=100,
    )  # fmt: skip
    rows = pipe.source("in", source, event_time="at")
    minutes = rows.group_by("k", hf.tumbling("at", size="1 minute")).agg(
        n=hf.count(), name="minutes"
    )
    again = minutes.group_by(hf.tumbling("window_start", size="2 minutes", emit="close")).agg(
        n=hf.sum("n"), name="pairs"
    )
    sink(pipe, tmp_path, "pairs", again)
    sink(pipe, tmp_path, "minutes", minutes)
    sink(pipe, tmp_path, "visits", rows.where("x % 50 < 25").group_by(
        "k", hf.session_window("at", gap="10 seconds", emit="close")).agg(n=hf.count(), name="visits"))  # fmt: skip
    nothing = rows.where("false").group_by("k").agg(n=hf.count(), name="nothing")
    sink(pipe, tmp_path, "nothing", nothing)
    jobs: list[int] = []
    reports: list = []
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("windows", "windows")

    def seen(report) -> None:
        jobs.append(len(tracker.getJobIdsForGroup("windows")))
        reports.append(report)

    try:
        pipe.run(on_epoch=seen)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert [after - before for before, after in zip([0, *jobs], jobs, strict=False)] == [1] * 4
    assert [report.watermark_us for report in reports] == [
        None, 99 * SECOND, 199 * SECOND, 299 * SECOND,
    ]  # fmt: skip
    got = published(spark, tmp_path / "pairs", ["n"])
    # A minute may change until 60 seconds behind its end, so two of them close 60 seconds later.
    assert got == Counter({text((120,)): 1})
    visits = spark.read.parquet(str(tmp_path / "visits")).count()
    assert visits == 3 * 6


def test_an_epoch_compiles_no_new_code(spark, tmp_path) -> None:
    """What moves with the clock is no part of the generated code, so the JVM stays warm."""
    metric = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME
    history = History(tmp_path / "in", 1)
    for _ in range(6):
        history.random(10)
    pipe, rows = declared(tmp_path, spark)
    slides = rows.group_by("k", hf.sliding("at", size="30 seconds", slide="12 seconds"))
    slides.agg(**AGGREGATES, name="slides")
    compiled: list[int] = []
    pipe.run(on_epoch=lambda report: compiled.append(metric().getCount()))
    assert len(compiled) == 6
    assert compiled[2:] == [compiled[-1]] * 4, compiled


def test_bytes_of_state_stay_flat_while_windows_come_and_go(spark, tmp_path) -> None:
    """With constant live data the state of the newest checkpoint does not grow with the past."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    source = hf.sources.Generator(
        {"k": "pmod(id, 40)", "at": "timestamp_millis(id * 100)", "x": "pmod(id * 7, 90)"},
        rows=14 * 400, rows_per_epoch=400,
    )  # fmt: skip
    rows = pipe.source("in", source, event_time="at", delay="5 seconds")
    by = rows.group_by("k", hf.sliding("at", size="20 seconds", slide="10 seconds", emit="close"))
    by.agg(n=hf.count(), d=hf.count_distinct("x"), name="slides")
    busy = rows.where("pmod(x, 10) < 5")
    busy.group_by("k", hf.session_window("at", gap="2 seconds")).agg(n=hf.count(), name="visits")
    sizes: dict[str, list[int]] = {}
    counts: list[int] = []

    def seen(_report) -> None:
        try:
            manifest = pipe.reader().manifest("latest")
        except hf.errors.NotFoundError:
            return
        mark = manifest.watermark_us
        for name, resolved in pipe.resolve().items():
            bounds = {} if mark is None else resolved.task.bounds_us(mark)
            for trace in resolved.task.traces:
                runs = runs_of(manifest, trace)
                sizes.setdefault(trace, []).append(sum(run.size for run in runs))
                counts.append(len(runs))
                if trace in bounds:
                    assert all(run.time_max_us >= bounds[trace] for run in runs), name

    pipe.run(on_epoch=seen)
    for trace, series in sizes.items():
        half = len(series) // 2
        assert max(series[half:]) <= 1.5 * max(series[2:half]), (trace, series)
    assert max(counts) <= 24


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_aggregates_that_gather_values_work_in_windows(spark, tmp_path, kind) -> None:
    """Medians, sets, deviations and first values by window are Spark's, also for sessions."""
    from pyspark.sql import functions as F

    columns = {
        "k": "pmod(id, 3)", "at": "timestamp_seconds(pmod(id * 37, 200) * 3)", "x": "pmod(id, 7)"
    }  # fmt: skip
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    rows = pipe.source("in", hf.sources.Generator(columns, rows=90, rows_per_epoch=45))
    window = (
        hf.tumbling("at", size="1 minute")
        if kind == "tumbling"
        else hf.session_window("at", gap="8 seconds")
    )
    rows.group_by("k", window).agg(
        md=hf.median("x"), xs=hf.collect_set("x", limit=100), d=hf.count_distinct("x"),
        sd=hf.stddev("x"), f=hf.first("x", order_by="at"), name="w",
    )  # fmt: skip
    pipe.run()
    got = pipe.view("w").to_spark(spark)
    frame = spark.range(90).selectExpr(*(f"{text} AS {name}" for name, text in columns.items()))
    own = F.window("at", "1 minute") if kind == "tumbling" else F.session_window("at", "8 seconds")
    expected = frame.groupBy("k", own.alias("w")).agg(
        F.median("x").alias("md"), F.collect_set("x").alias("xs"),
        F.count_distinct("x").alias("d"), F.stddev("x").alias("sd"),
        F.expr("min_by(x, at)").alias("f"),
    ).selectExpr("*", "w.start AS window_start", "w.end AS window_end")  # fmt: skip
    names = ["k", "window_start", "window_end", "md", "d", "sd", "f"]
    texts_of = [
        Counter(text((*(row[n] for n in names), str(sorted(row["xs"])))) for row in found.collect())
        for found in (got, expected)
    ]
    assert texts_of[0] == texts_of[1]
