"""apply on Spark: equal to a batch answer, timers and TTL by watermark, and failures that harm nothing."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.pipeline_world import SCHEMA, published, rows_of, write_rows


def totals(divide: bool = False):
    """Count and largest value by key, told as changes; sent to workers by value."""

    def function(changes, state, context):
        if divide:
            return 1 / 0
        came = pa.table({"k": changes["k"], "n": changes["_weight"], "s": pc.multiply(
            pc.fill_null(changes["x"], 0), changes["_weight"])})  # fmt: skip
        both = pa.concat_tables([came, state])
        new = (
            both.group_by("k")
            .aggregate([("n", "sum"), ("s", "sum")])
            .rename_columns(["k", "n", "s"])
        )
        new = new.filter(pc.not_equal(new["n"], 0))
        minus = state.append_column("_weight", pa.array([-1] * len(state), pa.int64()))
        plus = new.append_column("_weight", pa.array([1] * len(new), pa.int64()))
        return pa.concat_tables([minus, plus]), new

    return function


def build(home, spark, function, partitions: int = 2) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    source = hf.sources.Files(str(home / "in"), schema=SCHEMA, weight="w", files_max=1)
    own = pipe.source("s", source).apply(
        function, key="k", state_schema="n long, s long", output_schema="k string, n long, s long",
        name="own", changes=True, text="totals",
    )  # fmt: skip
    best = own.top_k(2, order_by="s desc", name="best")
    pipe.sink("out", own, hf.sinks.Parquet(str(home / "out")))
    pipe.sink("best_out", best, hf.sinks.Parquet(str(home / "best")))
    return pipe


def batch(spark, live: Counter):
    from pyspark.sql import functions as F

    rows = [row for row, n in live.items() for _ in range(n)]
    frame = spark.createDataFrame(rows, "k string, x long, f double")
    return frame.groupBy("k").agg(
        F.count("*").alias("n"), F.sum(F.coalesce("x", F.lit(0))).alias("s")
    )


def test_random_histories_equal_the_batch_answer(spark, tmp_path) -> None:
    """State, output and what follows equal plain PySpark, over crashes and other partitions."""
    rng = random.Random(5)
    live: Counter = Counter()
    for turn in range(3):
        for number in range(2):
            changes = []
            for _ in range(rng.randint(5, 20)):
                there = sorted(live, key=repr)
                row, weight = (rng.choice(["a", "b", "c", None]), rng.choice([None, 1, 5]), 1.0), 1
                if there and rng.random() < 0.4:
                    row, weight = rng.choice(there), -1
                live[row] += weight
                live = +live
                changes.append((*row, weight))
            write_rows(tmp_path / "in", 2 * turn + number, changes)
        try:
            with crash_at(
                ["epoch.after_execute", "commit.after_record", "epoch.after_publish"][turn]
            ):
                build(tmp_path, spark, totals(), rng.choice([1, 2, 7])).run()
        except SimulatedCrash:
            build(tmp_path, spark, totals(), rng.choice([1, 2, 7])).run(takeover=True)
        wanted = rows_of(batch(spark, live), ["k", "n", "s"])
        assert published(spark, tmp_path / "out", ["k", "n", "s"]) == wanted
        best = batch(spark, live).orderBy("s", ascending=False).select("s").limit(2)
        assert published(spark, tmp_path / "best", ["s"]) == rows_of(best, ["s"])
    view = build(tmp_path, spark, totals()).view("own").to_spark(spark)
    assert rows_of(view, ["k", "n", "s"]) == wanted


def test_a_failing_function_leaves_the_last_checkpoint_and_can_be_mended(spark, tmp_path) -> None:
    """The error names operator, epoch and key; nothing is committed; mended, the result is right."""
    write_rows(tmp_path / "in", 0, [("a", 1, 1.0, 1), ("b", 2, 1.0, 1)])
    build(tmp_path, spark, totals()).run()
    before = build(tmp_path, spark, totals()).reader().manifest("latest")
    out = published(spark, tmp_path / "out", ["k", "n", "s"])
    write_rows(tmp_path / "in", 1, [("a", 5, 1.0, 1)])
    with pytest.raises(hf.errors.InvalidInputError) as caught:
        build(tmp_path, spark, totals(divide=True)).run()
    assert caught.value.kind == "apply_failed"
    text = str(caught.value)
    for fact in ("operator=own", "epoch=1", "sample_key=k:'a'", "ZeroDivisionError"):
        assert fact in text
    pipe = build(tmp_path, spark, totals())
    after = pipe.reader().manifest("latest")
    assert (after.checkpoint, after.epoch) == (before.checkpoint, before.epoch)
    assert published(spark, tmp_path / "out", ["k", "n", "s"]) == out
    pipe.run()
    wanted = Counter({("a", 2, 6): 1, ("b", 1, 2): 1})
    found = Counter((r["k"], r["n"], r["s"]) for r in pipe.view("own").to_arrow().to_pylist())
    assert found == wanted
    assert hf.checkpoint.verify_store(pipe.reader(), deep=True).ok


def closing():
    """Sessions: a timer five seconds after the newest row closes one and tells its size."""

    def function(changes, state, context):
        gap = pa.scalar(5_000_000, pa.duration("us"))
        due = set(context.due["k"].to_pylist())
        rows = pa.table({"k": changes["k"], "n": pa.array([1] * len(changes), pa.int64()),
                         "wake": pc.add(changes["at"], gap)})  # fmt: skip
        both = pa.concat_tables([rows, state.select(["k", "n", "wake"])])
        new = (
            both.group_by("k")
            .aggregate([("n", "sum"), ("wake", "max")])
            .rename_columns(["k", "n", "wake"])
        )
        closed = pc.and_(pc.is_in(new["k"], pa.array(list(due), pa.int64())),
                         pc.less_equal(new["wake"].cast(pa.int64()), context.watermark_us or 0))  # fmt: skip
        return new.filter(closed).select(["k", "n"]), new.filter(pc.invert(closed))

    return function


def test_timers_close_what_the_watermark_has_passed_and_nothing_is_left(spark, tmp_path) -> None:
    """Every key but those near the end is told once, by time alone; the state holds the rest."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=3)
    source = hf.sources.Generator(
        {"k": "id div 10", "at": "timestamp_seconds(id)"}, rows=300, rows_per_epoch=60
    )
    rows = pipe.source("n", source, event_time="at", delay="1 second")
    done = rows.apply(
        closing(), key="k", state_schema="n long, wake timestamp", output_schema="k long, n long",
        name="sessions", timers="wake",
    )  # fmt: skip
    pipe.sink("out", done, hf.sinks.Parquet(str(tmp_path / "out")))
    pipe.run()
    out = {row["k"]: row["n"] for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    # The watermark ends at 298 s; key 28 ends at 289 s and is due at 294 s, key 29 at 304 s.
    assert out == dict.fromkeys(range(29), 10)
    left = pipe.view("sessions").to_arrow().to_pylist()
    assert [(r["k"], r["n"], r["wake"]) for r in left] == [
        (29, 10, datetime(1970, 1, 1, 0, 5, 4, tzinfo=UTC))
    ]


def test_state_is_forgotten_with_a_ttl(spark, tmp_path) -> None:
    """Keys that are not touched any more leave the view, and late rows are counted."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    source = hf.sources.Generator(
        {"k": "CASE WHEN id % 50 = 49 THEN -1 ELSE id div 20 END",
         "at": "timestamp_seconds(CASE WHEN id = 390 THEN 5 ELSE id END)"}, rows=400, rows_per_epoch=50,
    )  # fmt: skip
    rows = pipe.source("n", source, event_time="at")

    def keep(changes, state, context):
        return None, context.keys.append_column("n", pa.array([1] * len(context.keys), pa.int64()))

    rows.apply(keep, key="k", state_schema="n long", output_schema="k long", name="own", time="at",
               ttl="60 seconds")  # fmt: skip
    summary = pipe.run()
    shown = {row["k"] for row in pipe.view("own").to_arrow().to_pylist()}
    # The last epoch ran with the watermark of the one before, 349 s: what was touched before 289 s is gone.
    assert shown == {-1, *range(14, 20)}
    assert summary.late == 1
