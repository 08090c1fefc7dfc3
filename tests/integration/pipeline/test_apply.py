"""apply on Spark: state, timers, forgetting, and errors that leave the last checkpoint as it was."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pipeline_world import SCHEMA, published, rows_of, write_rows

import holdfast as hf
from holdfast.state import runs_of
from holdfast.testing import SimulatedCrash, crash_at

CRASHES = ["epoch.after_execute", "commit.after_record", "epoch.after_publish"]
STAMP = pa.timestamp("us", tz="UTC")
START = datetime(2026, 1, 1, tzinfo=UTC)
GAP = timedelta(seconds=10.5)


def totals_of():
    """Rows and the sum of x of each key; what was shown is taken back. Sent to workers by value."""

    def totals(changes: pa.Table, state: pa.Table, context):
        weight = changes["_weight"]
        came = pa.table({
            "k": changes["k"], "n": weight,
            "s": pc.multiply(pc.fill_null(changes["x"], 0), weight),
        })  # fmt: skip
        before = state.select(["k", "n", "s"])
        both = pa.concat_tables([before, came])
        summed = both.group_by("k").aggregate([("n", "sum"), ("s", "sum")])
        summed = summed.rename_columns(["k", "n", "s"])
        after = summed.filter(pc.greater(summed["n"], 0))
        minus = before.append_column("_weight", pa.array([-1] * len(before), pa.int64()))
        plus = after.append_column("_weight", pa.array([1] * len(after), pa.int64()))
        return pa.concat_tables([minus, plus]), after

    return totals


def totals_pipeline(home, spark, partitions: int) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    source = hf.sources.Files(str(home / "in"), schema=SCHEMA, weight="w", files_max=2)
    totals = pipe.source("changes", source).apply(
        totals_of(), key="k", state_schema="n long, s long", changes=True, name="totals",
        output_schema="k string, n long, s long",
    )  # fmt: skip
    pipe.sink("totals_out", totals, hf.sinks.Parquet(str(home / "totals")))
    best = totals.top_k(2, order_by="s desc", name="best")
    pipe.sink("best_out", best, hf.sinks.Parquet(str(home / "best")))
    return pipe


def test_a_random_history_equals_the_batch_answer(spark, tmp_path) -> None:
    """Own state with deletes, crashes and rescales shows Spark's own groups, also to what follows."""
    rng, live = random.Random(5), Counter()
    for turn in range(3):
        changes = []
        for _ in range(25):
            there = sorted(live, key=repr)
            if there and rng.random() < 0.45:
                row, weight = rng.choice(there), -1
            else:
                row, weight = (rng.choice(["a", "b", None]), rng.choice([None, 1, 7]), 0.0), 1
            live[row] += weight
            live += Counter()
            changes.append((*row, weight))
        write_rows(tmp_path / "in", turn, changes)
        try:
            with crash_at(CRASHES[turn]):
                totals_pipeline(tmp_path, spark, rng.choice([1, 2, 5])).run()
        except SimulatedCrash:
            totals_pipeline(tmp_path, spark, rng.choice([1, 2, 5])).run(takeover=True)
        rows = [row for row, n in live.items() for _ in range(n)]
        spark.createDataFrame(rows, "k string, x long, f double").createOrReplaceTempView("live")
        text = "SELECT k, count(*) AS n, coalesce(sum(x), 0L) AS s FROM live GROUP BY k"
        columns = ["k", "n", "s"]
        wanted = rows_of(spark.sql(text), columns)
        assert published(spark, tmp_path / "totals", columns) == wanted
        best = rows_of(spark.sql(f"{text} ORDER BY s DESC, k, n LIMIT 2"), columns)
        assert published(spark, tmp_path / "best", columns) == best
    view = totals_pipeline(tmp_path, spark, 2).view("totals")
    assert rows_of(view.dataframe(spark), columns) == wanted, "the view is keys and state"


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
    left = sessions_pipeline(tmp_path, spark, 2).view("sessions").arrow().to_pylist()
    assert [row["k"] for row in left] == ["end"]


def test_a_failing_function_leaves_the_last_checkpoint_and_goes_on_when_it_is_mended(
    spark, tmp_path
) -> None:
    """The error names operator, epoch and key; the store is as it was; mended, nothing is missing."""

    def build(broken: str | None) -> hf.Pipeline:
        def count(changes, state, context):
            if broken == "raises" and "bad" in changes["k"].to_pylist():
                message = "first line\nsecond line"
                raise RuntimeError(message)
            done = changes.select(["k"]).append_column(
                "n", pa.array([1] * len(changes), pa.int64())
            )
            done = pa.concat_tables([done, state]).group_by("k").aggregate([("n", "sum")])
            done = done.rename_columns(["k", "n"])
            if broken == "twice":
                done = pa.concat_tables([done, done])
            if broken == "foreign":
                done = pa.concat_tables([done, pa.table({"k": ["who"], "n": [1]})])
            return done.rename_columns(["k", "m"]), done

        pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
        rows = pipe.source("s", hf.sources.Files(str(tmp_path / "in"), schema=SCHEMA))
        out = rows.select("k", "x").apply(
            count, key="k", state_schema="n long", output_schema="k string, m long", name="mine",
        )  # fmt: skip
        pipe.sink("out", out, hf.sinks.Parquet(str(tmp_path / "out")))
        return pipe

    write_rows(tmp_path / "in", 0, [("a", 1, 0.0, 1), ("b", 1, 0.0, 1), ("a", 2, 0.0, 1)])
    build(None).run()
    write_rows(tmp_path / "in", 1, [("bad", 1, 0.0, 1), ("a", 2, 0.0, 1)])
    before = build(None).reader().manifest("latest")
    shown = published(spark, tmp_path / "out", ["k", "m"])
    kinds = {
        "raises": "apply_failed",
        "twice": "apply_duplicate_key",
        "foreign": "apply_unknown_key",
    }
    for broken, kind in kinds.items():
        with pytest.raises(hf.errors.InvalidInputError) as caught:
            build(broken).run(takeover=True)
        text = str(caught.value)
        assert caught.value.kind == kind
        assert "operator=mine" in text and "sample_key=k:" in text
        assert "epoch=1" in text and "correct the function" in text
        after = build(None).reader().manifest("latest")
        assert after == before
        assert published(spark, tmp_path / "out", ["k", "m"]) == shown
    pipe = build(None)
    pipe.run(takeover=True)
    rows = pipe.view("mine").arrow().to_pylist()
    assert {row["k"]: row["n"] for row in rows} == {"a": 3, "b": 1, "bad": 1}
    assert hf.verify_store(pipe.reader(), deep=True).ok


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
    source = hf.sources.Generator(columns, rows=24_000, rows_per_epoch=1_000)
    rows = pipe.source("s", source, event_time="at", delay="0 seconds")
    rows.apply(
        keep, key="k", state_schema="n long, wake timestamp", output_schema="k long", name="mine",
        time="at", ttl="3 seconds", timers="wake",
    )  # fmt: skip
    sizes = []
    pipe.run(epochs=1)
    for _ in range(3):
        pipe.run(epochs=8)
        manifest = pipe.reader().manifest("latest")
        sizes.append(sum(r.size for n in ("mine", "mine.timers") for r in runs_of(manifest, n)))
    print("bytes of live runs after 9, 17 and 25 epochs:", sizes)
    assert sizes[-1] <= 1.6 * sizes[0]
    assert pipe.view("mine").arrow().num_rows <= 5_000
