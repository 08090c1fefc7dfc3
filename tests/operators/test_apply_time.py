"""apply by event time on Spark: timers next to session windows, and bytes on disk with a TTL."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.state import runs_of
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.pipeline_world import published, rows_of

STAMP = pa.timestamp("us", tz="UTC")
START = datetime(2026, 1, 1, tzinfo=UTC)
GAP = timedelta(seconds=10.5)


def sessions_of(gap: timedelta):
    """Sessions by a gap: told when the timer fires, or when a row comes after it."""

    def sessions(changes: pa.Table, state: pa.Table, context):
        open_ = {row["k"]: (row["n"], row["wake"]) for row in state.to_pylist()}
        due = set(context.due["k"].to_pylist())
        told = []
        for row in changes.to_pylist():  # in order of time
            count, wake = open_.get(row["k"], (0, None))
            if wake is not None and row["at"] > wake:
                told.append({"k": row["k"], "n": count, "until": wake})
                count = 0
                due.discard(row["k"])
            open_[row["k"]] = (count + 1, row["at"] + gap)
        told += [{"k": k, "n": open_[k][0], "until": open_[k][1]} for k in due]
        left = [{"k": k, "n": n, "wake": w} for k, (n, w) in open_.items() if k not in due]
        output = pa.schema([("k", pa.string()), ("n", pa.int64()), ("until", STAMP)])
        kept = pa.schema([("k", pa.string()), ("n", pa.int64()), ("wake", STAMP)])
        return pa.Table.from_pylist(told, output), pa.Table.from_pylist(left, kept)

    return sessions


def sessions_pipeline(home, spark, partitions: int) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    source = hf.sources.Files(str(home / "in"), schema="k string, at timestamp", files_max=1)
    done = pipe.source("events", source, event_time="at", delay="0 seconds").apply(
        sessions_of(GAP), key=["k"], state_schema="n long, wake timestamp", time="at",
        timers="wake", output_schema="k string, n long, until timestamp", name="sessions",
    )  # fmt: skip
    pipe.sink("out", done, hf.sinks.Parquet(str(home / "out")))
    return pipe


def test_timers_close_sessions_as_spark_would(spark, tmp_path) -> None:
    """Sessions that timers close are Spark's own, over random epochs with a crash and a rescale."""
    rng = random.Random(3)
    (tmp_path / "in").mkdir()
    events, second = [], 0
    for number in range(4):
        came = []
        for _ in range(12):
            second += rng.choice([0, 1, 2, 9, 14])
            came.append((rng.choice("abc"), START + timedelta(seconds=second)))
        if number == 3:  # one that only moves the watermark
            came.append(("end", START + timedelta(seconds=second + 60)))
        events += came
        rng.shuffle(came)
        columns = {"k": [k for k, _ in came], "at": pa.array([at for _, at in came], STAMP)}
        pq.write_table(pa.table(columns), tmp_path / "in" / f"part-{number}.parquet")
        if number == 1:
            with pytest.raises(SimulatedCrash), crash_at("epoch.after_execute"):
                sessions_pipeline(tmp_path, spark, 3).run()
        if number in (1, 3):
            sessions_pipeline(tmp_path, spark, 2 + number).run(takeover=True)
    frame = spark.createDataFrame(events, "k string, at timestamp").where("k != 'end'")
    frame.createOrReplaceTempView("events")
    wanted = spark.sql(
        "SELECT k, count(*) AS n, w.end AS until FROM (SELECT k, at, "
        "session_window(at, '10 seconds 500 milliseconds') AS w FROM events) GROUP BY k, w"
    )
    columns = ["k", "n", "until"]
    found = published(spark, tmp_path / "out", columns)
    assert found == rows_of(wanted, columns)
    assert sum(found.values()) > 6
    left = sessions_pipeline(tmp_path, spark, 2).view("sessions").to_arrow().to_pylist()
    assert [row["k"] for row in left] == ["end"]


def test_keys_that_nobody_touches_leave_the_disk(spark, tmp_path) -> None:
    """With a TTL the bytes of the state stay flat over many epochs of ever new keys."""

    def keep(changes, state, context):
        n = pa.array([1] * len(context.keys), pa.int64())
        wake = pc.add(changes["at"], pa.scalar(timedelta(seconds=1)))
        told = context.due
        fresh = changes.select(["k"]).append_column("n", n.slice(0, len(changes)))
        kept = fresh.append_column("wake", wake)
        again = state.filter(pc.invert(pc.is_in(state["k"], changes["k"])))
        return told, pa.concat_tables([kept, again])

    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=1)
    columns = {"k": "id", "at": "timestamp_micros(id * 1000)"}  # 1000 keys a second
    source = hf.sources.Generator(columns, rows=16_000, rows_per_epoch=1_000)
    rows = pipe.source("s", source, event_time="at", delay="0 seconds")
    rows.apply(
        keep, key="k", state_schema="n long, wake timestamp", output_schema="k long", name="mine",
        time="at", ttl="3 seconds", timers="wake",
    )  # fmt: skip
    sizes = []
    pipe.run(epochs=1)
    for _ in range(3):
        pipe.run(epochs=5)
        manifest = pipe.reader().manifest("latest")
        sizes.append(sum(r.size for n in ("mine", "mine.timers") for r in runs_of(manifest, n)))
    assert sizes[-1] <= 1.6 * sizes[0]
    assert pipe.view("mine").to_arrow().num_rows <= 5_000
