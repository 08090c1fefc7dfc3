"""Joins with a static table and transforms are ordinary code of Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.spark import classic


def test_static_joins_and_transforms_are_ordinary_dataframe_code(spark, tmp_path) -> None:
    """Stateless code is Spark's own; a transform that loses weights is refused by name."""
    names = spark.createDataFrame([(0, "zero"), (1, "one")], "k long, name string")
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    rows = pipe.source("n", hf.sources.Generator({"k": "pmod(id, 3)"}, rows=30, rows_per_epoch=10))
    named = rows.join_static(names, "k", name="names").transform(
        lambda df: df.withColumn("y", df.k * 2)
    )
    pipe.sink("out", named, hf.sinks.Parquet(str(tmp_path / "out")))
    pipe.run()
    got = spark.read.parquet(str(tmp_path / "out")).groupBy("name", "y").count().collect()
    assert {(r["name"], r["y"], r["count"]) for r in got} == {("zero", 0, 10), ("one", 2, 10)}

    bad = hf.Pipeline("q", store=tmp_path / "cp", spark=spark, partitions=2)
    totals = (
        bad.source("n", hf.sources.Generator({"k": "id"}, rows=1))
        .group_by("k")
        .agg(n=hf.count(), name="t")
    )
    bad.sink(
        "out", totals.transform(lambda df: df.select("k")), hf.sinks.Parquet(str(tmp_path / "q"))
    )
    with pytest.raises(hf.errors.InvalidInputError) as caught:
        bad.run()
    assert caught.value.kind == "weight_dropped"


def _refused(spark, home, build):
    """The kind of error that analysing a stream gives; None where there is none."""
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=2)
    columns = {"k": "id", "x": "id", "t": "'a'"}
    rows = pipe.source("n", hf.sources.Generator(columns, rows=4))
    pipe.sink("out", build(rows), hf.sinks.Parquet(str(home / "out")))
    try:
        pipe.resolve()
    except hf.errors.InvalidInputError as error:
        assert error.remedy
        return error.kind
    return None


def test_a_step_without_state_sees_one_row_at_a_time(spark, tmp_path, monkeypatch) -> None:
    """What would be taken over each epoch by itself is refused; what treats single rows is not."""
    static = spark.range(9).selectExpr("id AS k", "id AS v")
    few = static.groupBy("k").agg(F.max("v").alias("v")).orderBy("k").limit(5)
    rank = F.row_number().over(Window.partitionBy("k").orderBy("x"))
    wrong = [
        lambda rows: rows.select(F.sum("x").alias("s")),
        lambda rows: rows.select("max(x) AS s"),
        lambda rows: rows.with_columns(r=rank),
        lambda rows: rows.with_columns(r="sum(x) OVER (PARTITION BY k)"),
        lambda rows: rows.transform(lambda df: df.groupBy("k").count()),
        lambda rows: rows.transform(lambda df: df.limit(1)),
        lambda rows: rows.transform(lambda df: df.distinct()),
        lambda rows: rows.transform(lambda df: df.join(df.groupBy("k").count(), "k")),
        lambda rows: rows.transform(lambda df: df.join(static, "k", "right")),
        lambda rows: rows.transform(lambda df: static.join(df, "k", "left")),
        lambda rows: rows.transform(lambda df: df.select("k", "x").union(static)),
        lambda rows: rows.where("abs(x) >= 0").transform(lambda df: df.offset(1)),
    ]
    right = [
        lambda rows: rows.where("t <> 'Aggregate [k] +- Window' AND abs(x) > 0"),
        lambda rows: rows.where("x IN (SELECT max(id) FROM range(5))"),
        lambda rows: rows.where("EXISTS (SELECT 1 FROM range(5) r WHERE r.id = k)"),
        lambda rows: rows.select(F.explode(F.array("k", "x")).alias("e")),
        lambda rows: rows.where(F.rand() < 2).with_columns(at="current_timestamp()"),
        lambda rows: rows.join_static(few, "k", "left", name="few"),
        lambda rows: rows.transform(lambda df: df.join(few, "k")),
        lambda rows: rows.transform(lambda df: few.join(df, "k", "right")),
        lambda rows: rows.transform(
            lambda df: df.union(df).repartition(2).sortWithinPartitions("k")
        ),
        lambda rows: rows.transform(lambda df: df.withColumn("y", df["x"] + 1).fillna(0)),
    ]
    assert [_refused(spark, tmp_path, step) for step in wrong] == ["not_row_wise"] * len(wrong)
    assert [_refused(spark, tmp_path, step) for step in right] == [None] * len(right)
    monkeypatch.setattr(classic, "_off", {"plan text": "as with Spark Connect"})
    assert _refused(spark, tmp_path, wrong[2]) == "not_row_wise"
    assert _refused(spark, tmp_path, right[1]) is None
    assert not [t.name for t in spark.catalog.listTables() if t.name.startswith("__hf")]


def test_a_changelog_is_retracted_by_the_values_it_was_given_with(spark, tmp_path) -> None:
    """Values that differ at every look are refused behind an aggregate, and nowhere else."""

    def counts(rows):
        return rows.group_by("k").agg(n=hf.count(), name="t")

    steps = [
        lambda rows: counts(rows).where("rand() < 0.5"),
        lambda rows: counts(rows).with_columns(at="current_timestamp()"),
        lambda rows: counts(rows).with_columns(day="current_date"),
        lambda rows: counts(rows).withColumn("u", F.expr("uuid()")),
    ]
    assert [_refused(spark, tmp_path, step) for step in steps] == ["unstable_step"] * 4
    early = [
        lambda rows: counts(rows.where("rand() < 0.5")),
        lambda rows: counts(rows.with_columns(at="current_timestamp()")).where("abs(n) > 0"),
    ]
    assert [_refused(spark, tmp_path, step) for step in early] == [None, None]


def test_a_step_of_many_columns_is_looked_at_whole(spark, tmp_path, monkeypatch) -> None:
    """Spark cuts the text of a wide plan short; what it leaves out is found all the same."""
    wide = {f"c{number:03}": "n + 1" for number in range(60)} | {"last": "uuid()"}

    def step(rows):
        return rows.group_by("k").agg(n=hf.count(), name="t").with_columns(**wide)

    assert _refused(spark, tmp_path, step) == "unstable_step"
    monkeypatch.setattr(classic, "_off", {"plan text": "as with Spark Connect"})
    fields = "spark.sql.debug.maxToStringFields"
    before = spark.conf.get(fields)
    assert _refused(spark, tmp_path, step) == "unstable_step"
    assert spark.conf.get(fields) == before


def test_names_and_terms_are_what_spark_makes_of_them(spark, tmp_path) -> None:
    """A name that is told before Spark starts is the one that Spark gives; a term is one term."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark)
    rows = pipe.source("n", hf.sources.Generator({"k": "id", "x": "id"}, rows=4))
    frame = spark.range(1).selectExpr("id AS k", "id AS x")
    for column in [
        (F.col("k") + 1).alias("a as b"),
        F.col("k").alias("x AS y"),
        F.lit("p AS q"),
        (F.col("k") + 1).alias("plain"),
        "k -- comment as z",
        "k /* as z */ + 1 as y",
    ]:
        named = rows.select(column).columns
        text = column if isinstance(column, str) else None
        spark_names = (frame.selectExpr(text) if text else frame.select(column)).columns
        assert named in (None, spark_names)
    assert rows.select((F.col("k") + 1).alias("plain")).columns == ["plain"]
    assert str(hf.count("*")) == str(hf.count())
    for order in ("k desc, x", ["k", "x, k"]):
        with pytest.raises(hf.errors.InvalidInputError) as caught:
            rows.top_k(1, order_by=order, name="t")
        assert caught.value.kind == "invalid_order"
    rows.top_k(1, order_by=["coalesce(k, x) desc", "x = ',' nulls last", "`a,b`"], name="t")
