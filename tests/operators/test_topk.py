"""top_k and latest, next to holistic aggregates, give plain PySpark's answers after every epoch."""

from __future__ import annotations

import json
import random
from collections import Counter
from math import isfinite

import pytest

import holdfast as hf
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.pipeline_world import SCHEMA, published, rows_of, write_rows
from tests.helpers.toys import own_aggregate

CRASHES = [
    "epoch.after_plan", "epoch.after_execute", "commit.after_manifest", "commit.after_record",
    "epoch.after_commit", "epoch.after_publish",
]  # fmt: skip
TOP = ["k", "x", "f", "place"]
LATEST = ["k", "x", "f"]
HOLISTIC = ["k", "p", "m", "l", "s", "a", "z", "u"]
BUSY = ["k", "n"]


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


def near(spark, rows: Counter) -> Counter:
    """Before 4.3 Spark interpolates percentiles by another formula: compared to 12 decimals there."""
    if spark.version >= "4.3":
        return rows
    place, result = HOLISTIC.index("p"), Counter()
    for row, count in rows.items():
        values = json.loads(row)
        if values[place] is not None:
            percentiles = [float(v) for v in values[place].strip("[]").split(", ")]
            values[place] = str([round(v, 12) + 0.0 if isfinite(v) else v for v in percentiles])
        result[json.dumps(values)] += count
    return result


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
        "gathered": near(spark, rows_of(gathered, HOLISTIC)),
        "busy": rows_of(busy.orderBy(F.desc("n"), "k").limit(2), BUSY),
    }


def check(spark, home, live: Counter) -> None:
    wanted = batch(spark, live)
    for name, columns in {"top": TOP, "last": LATEST, "gathered": HOLISTIC, "busy": BUSY}.items():
        rows = published(spark, home / name, columns)
        assert (near(spark, rows) if name == "gathered" else rows) == wanted[name], name


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
    for turn in range(3):
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
    gathered = rows_of(pipe.view("gathered").to_spark(spark), HOLISTIC)
    assert near(spark, gathered) == wanted["gathered"]
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
