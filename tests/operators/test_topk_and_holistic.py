"""top_k, latest and the aggregates over bags give plain PySpark's answers, after every epoch."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.pipeline_world import SCHEMA, published, rows_of, write_rows

CRASHES = [
    "epoch.after_plan", "epoch.after_execute", "commit.after_manifest", "commit.after_record",
    "epoch.after_commit", "epoch.after_publish",
]  # fmt: skip
TOP = ["k", "x", "f", "place"]
LATEST = ["k", "x", "f"]
HOLISTIC = ["k", "p", "m", "l", "s", "a", "z", "u"]
BUSY = ["k", "n"]


def own_aggregate():
    """ZSet less twice the smallest value, of each group; sent to workers by value."""

    def width(rows: pa.Table, count: int) -> pa.Array:
        done = rows.group_by("group").aggregate([("twice", "min"), ("weight", "sum")])
        done = done.sort_by("group")
        assert done.num_rows == count
        return pc.subtract(done.column("weight_sum"), pc.fill_null(done.column("twice_min"), 0))

    return width


def build(home, spark, *, partitions: int, weighted: bool) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    source = hf.sources.Files(
        str(home / "in"), schema=SCHEMA, weight="w" if weighted else None, files_max=2
    )
    rows = pipe.source("changes", source)
    if not weighted:
        rows = rows.select("k", "x", "f")
    top = rows.top_k(3, per=["k"], order_by=["abs(f) desc", "x"], rank="place", name="top")
    last = rows.latest("k", order_by="x", name="last")
    gathered = rows.group_by("k").agg(
        p=hf.percentile("f", [0.0, 0.4, 1.0]), m=hf.median("x"), l=hf.collect_list("f", limit=3),
        s=hf.collect_set("x", limit=2), a=hf.first("f", order_by="x"), z=hf.last("f", order_by="x"),
        u=hf.udaf(own_aggregate(), inputs=["x * 2 AS twice"], returns="long"), name="gathered",
    )  # fmt: skip
    counts = rows.group_by("k").agg(n=hf.count(), name="counts")
    busy = counts.top_k(2, order_by="n desc", name="busy")
    for name, stream in {"top": top, "last": last, "gathered": gathered, "busy": busy}.items():
        pipe.sink(f"{name}_out", stream, hf.sinks.Parquet(str(home / name)))
    return pipe


def batch(spark, live: Counter) -> dict[str, Counter]:
    """Plain PySpark's answers over the rows that are there."""
    from pyspark.sql import functions as F

    rows = [row for row, n in live.items() for _ in range(n)]
    spark.createDataFrame(rows, "k string, x long, f double").createOrReplaceTempView("live")
    ranked = spark.sql(
        "SELECT *, row_number() OVER (PARTITION BY k ORDER BY abs(f) DESC, x, f) AS place FROM live"
    )
    last = spark.sql(
        "SELECT *, row_number() OVER (PARTITION BY k ORDER BY x DESC, f) AS r FROM live"
    )
    gathered = spark.sql(
        """SELECT k, percentile(f, array(0.0D, 0.4D, 1.0D)) AS p, percentile(x, 0.5) AS m,
        slice(array_sort(collect_list(f)), 1, 3) AS l, slice(array_sort(collect_set(x)), 1, 2) AS s,
        count(*) - coalesce(min(x * 2), 0) AS u,
        min_by(f, r) AS a, max_by(f, q) AS z FROM (SELECT *,
        row_number() OVER (PARTITION BY k ORDER BY x, f) AS r,
        -row_number() OVER (PARTITION BY k ORDER BY x DESC, f) AS q FROM live) GROUP BY k"""
    )
    busy = spark.table("live").groupBy("k").agg(F.count("*").alias("n"))
    return {
        "top": rows_of(ranked.where("place <= 3"), TOP),
        "last": rows_of(last.where("r = 1"), LATEST),
        "gathered": rows_of(gathered, HOLISTIC),
        "busy": rows_of(busy.orderBy(F.desc("n"), "k").limit(2), BUSY),
    }


def check(spark, home, live: Counter) -> None:
    wanted = batch(spark, live)
    for name, columns in {"top": TOP, "last": LATEST, "gathered": HOLISTIC, "busy": BUSY}.items():
        assert published(spark, home / name, columns) == wanted[name], name


def random_changes(rng: random.Random, live: Counter, count: int, *, deletes: bool) -> list[tuple]:
    changes = []
    for _ in range(count):
        there = sorted(live, key=repr)
        if deletes and there and rng.random() < 0.4:
            row, weight = rng.choice(there), -1
        else:
            f = rng.choice([None, 0.5, -0.5, 8.0, -2.0, float("inf")])
            row, weight = (rng.choice(["a", "b", "c", None]), rng.choice([None, 1, 2, 3]), f), 1
        live[row] += weight
        if not live[row]:
            del live[row]
        changes.append((*row, weight))
    return changes


@pytest.mark.parametrize(("seed", "weighted"), [(1, True), (2, False)])
def test_random_histories_equal_the_batch_answer(spark, tmp_path, seed, weighted) -> None:
    """With deletes or without, crashes and other numbers of partitions: always Spark's own rows."""
    rng = random.Random(seed)
    live: Counter = Counter()
    number = 0
    for turn in range(4):
        for _ in range(rng.randint(1, 2)):
            changes = random_changes(rng, live, rng.randint(5, 30), deletes=weighted)
            write_rows(tmp_path / "in", number, changes)
            number += 1
        try:
            with crash_at(CRASHES[(seed + turn) % len(CRASHES)]):
                build(tmp_path, spark, partitions=rng.choice([1, 2, 7]), weighted=weighted).run()
        except SimulatedCrash:
            build(tmp_path, spark, partitions=rng.choice([1, 2, 7]), weighted=weighted).run(
                takeover=True
            )
        check(spark, tmp_path, live)
    pipe = build(tmp_path, spark, partitions=2, weighted=weighted)
    wanted = batch(spark, live)
    assert rows_of(pipe.view("top").to_spark(spark), TOP) == wanted["top"]
    assert Counter(r["k"] for r in pipe.view("last").to_arrow().to_pylist()) == Counter(
        {row[0] for row in live}
    )
    assert rows_of(pipe.view("gathered").to_spark(spark), HOLISTIC) == wanted["gathered"]
    assert hf.checkpoint.verify_store(pipe.reader(), deep=True).ok


def test_a_view_of_top_rows_shows_equal_rows_as_often_as_they_are_there(spark, tmp_path) -> None:
    """Two equal rows are two rows, in the view as in the changes; k counts both."""
    write_rows(tmp_path / "in", 0, [("a", 1, 1.0, 2), ("a", 2, 1.0, 1), ("a", 0, 1.0, 1)])
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    source = hf.sources.Files(str(tmp_path / "in"), schema=SCHEMA, weight="w")
    pipe.source("s", source).top_k(3, per="k", order_by="x", name="top")
    pipe.run()
    for rows in (
        pipe.view("top").to_arrow().to_pylist(),
        pipe.view("top").to_spark(spark).collect(),
    ):
        assert sorted(row["x"] for row in rows) == [0, 1, 1]


@pytest.mark.parametrize("weighted", [False, True])
def test_approximate_counts_are_near_and_exact_where_rows_can_be_taken_back(
    spark, tmp_path, weighted
) -> None:
    """Sketches are within 5 sigma over any split into epochs; with weights the count is exact."""
    pytest.importorskip("datasketches", reason="the sketch extra is not installed")
    rows = [(None if n % 10 == 0 else f"k{n % 2}", n % 3000, None, 1) for n in range(12_000)]
    for number in range(3):
        write_rows(tmp_path / "in", number, rows[number::3])
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    source = hf.sources.Files(
        str(tmp_path / "in"), schema=SCHEMA, weight="w" if weighted else None, files_max=1
    )
    pipe.source("s", source).group_by("k").agg(
        d=hf.approx_count_distinct("concat('v', x)", rsd=0.02), e=hf.count_distinct("x"), name="t"
    )
    pipe.run()
    found = pipe.view("t").to_arrow().to_pylist()
    assert len(found) == 3
    for row in found:
        assert abs(row["d"] - row["e"]) <= (0 if weighted else 5 * 0.02 * row["e"])


def test_gathered_aggregates_work_inside_windows(spark, tmp_path) -> None:
    """Windows only make keys longer: each window shows what Spark computes from its rows."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    columns = {"k": "id % 2", "x": "pmod(id * 7, 11)", "at": "timestamp_seconds(id)"}
    rows = pipe.source(
        "n", hf.sources.Generator(columns, rows=120, rows_per_epoch=40), event_time="at",
        delay="10 minutes",
    )  # fmt: skip
    rows.group_by("k", hf.sliding("at", size="40 seconds", slide="20 seconds")).agg(
        m=hf.median("x"), l=hf.collect_list("x", limit=4), a=hf.first("x", order_by="at"),
        u=hf.udaf(own_aggregate(), inputs=["x AS twice"], returns="long"), name="w",
    )  # fmt: skip
    pipe.run()
    spark.range(120).selectExpr(
        *(f"{e} AS {n}" for n, e in columns.items())
    ).createOrReplaceTempView("n")
    wanted = spark.sql(
        """SELECT k, window.start AS window_start, percentile(x, 0.5) AS m,
        slice(array_sort(collect_list(x)), 1, 4) AS l, min_by(x, at) AS a, count(*) - min(x) AS u
        FROM (SELECT *, window(at, '40 seconds', '20 seconds') AS window FROM n) GROUP BY k, window"""
    )
    names = ["k", "window_start", "m", "l", "a", "u"]
    assert rows_of(pipe.view("w").to_spark(spark), names) == rows_of(wanted, names)


def test_wrong_types_are_found_before_anything_runs(spark, tmp_path) -> None:
    """Percentiles of text, orders by maps and unknown result types are refused by name."""

    def refused(declare) -> hf.errors.InvalidInputError:
        pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
        columns = {"k": "id", "t": "cast(id AS string)", "m": "map(id, id)"}
        declare(pipe.source("n", hf.sources.Generator(columns, rows=5)))
        with pytest.raises(hf.errors.InvalidInputError) as caught:
            pipe.run()
        assert caught.value.facts["operator"] == "o"
        assert not (tmp_path / "cp").exists()
        return caught.value

    def agg(**aggregates):
        return lambda rows: rows.group_by("k").agg(name="o", **aggregates)

    assert refused(agg(x=hf.median("t"))).kind == "unsupported_type"
    assert refused(agg(x=hf.collect_set("m", limit=2))).kind == "unsupported_type"
    assert refused(agg(x=hf.first("k", order_by="m"))).kind == "unsupported_type"
    assert refused(agg(x=hf.udaf(own_aggregate(), ["k"], "doubble"))).kind == "invalid_schema"
    assert refused(lambda r: r.top_k(1, per="k", order_by="m", name="o")).kind == "unsupported_type"
    assert refused(lambda r: r.top_k(1, order_by="nope(k)", name="o")).kind == "analysis_failed"
