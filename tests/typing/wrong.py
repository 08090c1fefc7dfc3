"""What a type checker must refuse: each marked line, and no other. Read by mypy, never run."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf


def wrong(pipe: hf.Pipeline, rows: hf.Stream, spark: SparkSession) -> None:
    """Each line is a mistake that only a type checker sees before the program runs."""
    pipe.source("a", "folder")  # wrong: arg-type
    pipe.source("b", hf.sinks.Parquet("a"))  # wrong: arg-type
    pipe.sink("c", rows, hf.sources.Files("a", schema="k string"))  # wrong: arg-type
    pipe.sink("d", "rows", hf.sinks.Parquet("a"))  # wrong: arg-type
    hf.tumbling("at", "1 hour")  # wrong: call-arg
    hf.tumbling("at", size=5)  # wrong: arg-type
    hf.tumbling("at", size="1 hour", emit="never")  # wrong: arg-type
    rows.group_by("k").agg(n=hf.count())  # wrong: call-arg
    rows.group_by("k").agg(n="x", name="a")  # wrong: arg-type
    rows.group_by(3)  # wrong: arg-type
    rows.join(rows, "k", "inner", "j")  # wrong: call-arg
    rows.where(3)  # wrong: arg-type
    rows.transform(lambda df: df.count())  # wrong: arg-type
    pipe.run(resume=3)  # wrong: call-arg
    pipe.run(True)  # wrong: call-arg
    pipe.view("totals").to_spark().no_such_method()  # wrong: operator
    hf.Pipeline(3, store=Path("x"))  # wrong: arg-type
    hf.Pipeline("p", store=3)  # wrong: arg-type
    hf.read_changelog(spark, Path("x"), as_of="newest")  # wrong: arg-type
    hf.no_such_name  # noqa: B018  # wrong: attr-defined
    rows.columns.append("x")  # wrong: union-attr
    rows.orderBy("x")  # wrong: attr-defined
    rows.group_by("k").count()  # wrong: attr-defined
    pipe.view("totals").arrow()  # wrong: attr-defined
    pipe.view("totals").to_arrow().no_such_method()  # wrong: attr-defined
    pipe.view("totals").to_pandas().no_such_method()  # wrong: operator
    pipe.view("totals").to_duckdb().no_such_method()  # wrong: operator
    pipe.session().no_such_method()  # wrong: attr-defined
    shape = "n long"
    rows.apply(len, key="k", state_schema=shape, output_schema=shape, name="a")  # wrong: arg-type
    hf.udaf(len, inputs=["x"], returns="double")  # wrong: arg-type
    hf.sources.Files("a", schema=3)  # wrong: arg-type
    hf.sinks.Function(lambda df, epoch, key: df.no_such_method())  # wrong: operator
    hf.guard.attach(3, "store")  # wrong: arg-type
    hf.guard.protect(3, "checkpoint")  # wrong: arg-type
    hf.state.TraceSchema.latest(3, 4)  # wrong: arg-type
