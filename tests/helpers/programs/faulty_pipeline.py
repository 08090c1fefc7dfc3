"""Pipelines in a process of its own: with tasks that fail once and functions of __main__, or over Connect."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

import holdfast as hf
from holdfast.runtime import task_counts


def fail_once(df, marks: Path):
    """Rows as they are, but the first try of every task dies after it has seen them all."""

    def body(batches):
        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        if task.attemptNumber() == 0:
            (marks / f"{task.taskAttemptId()}").touch()
            raise RuntimeError("this task dies once")

    return df.mapInArrow(body, df.schema)


def declare(home: Path, spark, rows: int, *, flaky: bool) -> hf.Pipeline:
    """Totals by key, and the large ones among them, each published."""
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=2)
    generator = hf.sources.Generator(
        {"k": "pmod(xxhash64(id, seed), 20)", "x": "id"}, rows=rows, rows_per_epoch=100
    )
    numbers = pipe.source("n", generator)
    marks = home / "failed"
    marks.mkdir(exist_ok=True)
    if flaky:
        numbers = numbers.transform(lambda df: fail_once(df, marks), text="numbers")
    totals = numbers.group_by("k").agg(n=hf.count(), s=hf.sum("x"), name="totals")
    pipe.sink("out", totals, hf.sinks.Parquet(str(home / "out")))
    big = totals.transform(lambda df: fail_once(df, marks), text="totals") if flaky else totals
    pipe.sink("big", big.where("n > 10"), hf.sinks.Parquet(str(home / "big")))
    return pipe


def one(changes, state, context):
    """For `apply`: how many rows have come, for every key."""
    counts = pa.array([len(changes)] * len(context.keys), pa.int64())
    return None, context.keys.append_column("n", counts)


def own_functions(home: Path, spark) -> list:
    """A function and a lambda of __main__, sent to the workers by value."""
    pipe = hf.Pipeline("own", store=home / "own", spark=spark, partitions=2)
    rows = pipe.source("n", hf.sources.Generator({"k": "id % 3"}, rows=30))
    rows.apply(one, key="k", state_schema="n long", output_schema="k long", name="own")
    weights = hf.udaf(
        lambda t, n: (
            t.group_by("group").aggregate([("weight", "sum")]).sort_by("group")["weight_sum"]
        ),
        inputs=["k"],
        returns="long",
    )
    rows.group_by("k").agg(n=weights, name="agg")
    pipe.run()
    return [
        sorted(row["k"] for row in pipe.view("own").to_arrow().to_pylist()),
        sorted(row["n"] for row in pipe.view("agg").to_arrow().to_pylist()),
    ]


def net(path: Path) -> list:
    """A published changelog, added up."""
    found: dict = {}
    for row in ds.dataset(path, partitioning="hive").to_table().to_pylist():
        key = (row["k"], row["n"], row["s"])
        found[key] = found.get(key, 0) + row["_weight"]
    assert set(found.values()) <= {0, 1}
    return sorted(list(key) for key, n in found.items() if n)


def listed(rows) -> list:
    return sorted([row["k"], row["n"], row["s"]] for row in rows)


def main() -> None:
    # Epochs of a few rows get one task, larger ones all partitions. Not at import: see killed_driver.
    task_counts.ROWS_PER_TASK = task_counts.ROWS_PER_TASK_MAX = 50
    task_counts.ROWS_PER_RUN = 0
    what, home = sys.argv[1], Path(sys.argv[2])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    facts: dict = {}
    epochs = []
    if what == "connect":
        spark = SparkSession.builder.remote("local[2]").getOrCreate()
        facts["session"] = type(spark).__module__
    else:
        spark = (
            SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
            .config("spark.log.level", "OFF").config("spark.driver.memory", "1g").getOrCreate()
        )  # fmt: skip
    for rows in (300, 600):
        pipe = declare(home, spark, rows, flaky=what == "flaky")
        epochs.append(pipe.run().epochs)
    batch = spark.range(0, 600).selectExpr("pmod(xxhash64(id, 0L), 20) AS k", "id AS x")
    answer = batch.groupBy("k").agg({"*": "count", "x": "sum"})
    answer = answer.selectExpr("k", "`count(1)` AS n", "`sum(x)` AS s")
    facts["batch"] = listed(answer.collect())
    facts["batch_big"] = listed(answer.where("n > 10").collect())
    facts["view"] = listed(pipe.view("totals").to_spark(spark).collect())
    facts["published"], facts["big"] = net(home / "out"), net(home / "big")
    facts["verified"] = hf.checkpoint.verify_store(pipe.reader(), deep=True).ok
    facts["epochs"] = epochs
    facts["failed_tasks"] = len(list((home / "failed").iterdir()))
    if what == "flaky":
        facts["own"] = own_functions(home, spark)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
