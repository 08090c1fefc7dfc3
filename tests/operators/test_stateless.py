"""Joins with a static table and transforms are ordinary code of Spark."""

from __future__ import annotations

import pytest

import holdfast as hf


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
