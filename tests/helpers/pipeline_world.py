"""Small pipelines, their inputs, and how outputs are compared."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf

SCHEMA = "k string, x long, f double, w long"


def write_rows(directory: Path, number: int, rows: list[tuple]) -> None:
    """One file of changes: (k, x, f, weight)."""
    directory.mkdir(parents=True, exist_ok=True)
    columns = list(zip(*rows, strict=True)) if rows else [[], [], [], []]
    kinds = [pa.string(), pa.int64(), pa.float64(), pa.int64()]
    table = pa.table(
        {n: pa.array(list(c), t) for n, c, t in zip("kxfw", columns, kinds, strict=True)}
    )
    temporary = directory / f".tmp-{number}"
    pq.write_table(table, temporary)
    temporary.rename(directory / f"part-{number:05d}.parquet")


def published(spark, path: Path, columns: list[str]) -> Counter:
    """The published changelog added up: rows that are there, with their counts."""
    if not any(path.glob("hf_epoch=*")):
        return Counter()
    frame = spark.read.parquet(str(path))
    weight = "_weight" if "_weight" in frame.columns else None
    total: Counter = Counter()
    for row in frame.select(*columns, *([weight] if weight else [])).collect():
        total[text(tuple(row[name] for name in columns))] += row[weight] if weight else 1
    return Counter({row: n for row, n in total.items() if n})


def rows_of(frame, columns: list[str]) -> Counter:
    return Counter(
        text(tuple(row[name] for name in columns)) for row in frame.select(*columns).collect()
    )


def text(row: tuple) -> str:
    """Rows as text, floating-point numbers rounded, so that they can be counted."""
    return json.dumps(
        [
            float(f"{v:.9g}") + 0.0
            if isinstance(v, float)
            else (v if isinstance(v, (int, str, type(None))) else str(v))
            for v in row
        ]
    )


def pipeline(
    home: Path, spark, *, partitions: int = 2, weighted: bool = True, **more
) -> hf.Pipeline:
    """Every aggregate over a directory of changes, and a distinct, each into a sink."""
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions, **more)
    source = hf.sources.Files(
        str(home / "in"), schema=SCHEMA, weight="w" if weighted else None, files_max=2
    )
    rows = pipe.source("changes", source)
    totals = rows.group_by("k").agg(
        n=hf.count(), nx=hf.count("x"), s=hf.sum("x"), fs=hf.sum("f"), fa=hf.avg("x"), lo=hf.min("x"),
        hi=hf.max("f"), sd=hf.stddev("f"), d=hf.count_distinct("x"), name="totals",
    )  # fmt: skip
    pipe.sink("totals_out", totals, hf.sinks.Parquet(str(home / "totals")))
    unique = rows.select("k", "x").distinct(name="unique")
    pipe.sink("unique_out", unique, hf.sinks.Parquet(str(home / "unique")))
    busy = totals.where("n >= 3").select("k", "n")
    pipe.sink("busy_out", busy, hf.sinks.Parquet(str(home / "busy")))
    return pipe


TOTALS = ["k", "n", "nx", "s", "fs", "fa", "lo", "hi", "sd", "d"]


def batch_totals(spark, rows: list[tuple]):
    """Plain PySpark's answer over the rows that are there."""
    from pyspark.sql import functions as F

    frame = spark.createDataFrame(rows, "k string, x long, f double")
    return frame.groupBy("k").agg(
        F.count("*").alias("n"), F.count("x").alias("nx"), F.sum("x").alias("s"),
        F.sum("f").alias("fs"), F.avg("x").alias("fa"), F.min("x").alias("lo"),
        F.max("f").alias("hi"), F.stddev("f").alias("sd"), F.countDistinct("x").alias("d"),
    )  # fmt: skip


def check_all(spark, home: Path, live: Counter) -> None:
    """View and published output equal plain PySpark over the rows that are there."""
    rows = [row for row, n in live.items() for _ in range(n)]
    expected = rows_of(batch_totals(spark, rows), TOTALS) if rows else Counter()
    assert published(spark, home / "totals", TOTALS) == expected
    frame = spark.createDataFrame(rows, "k string, x long, f double")
    assert published(spark, home / "unique", ["k", "x"]) == rows_of(
        frame.select("k", "x").distinct(), ["k", "x"]
    )
    assert published(spark, home / "busy", ["k", "n"]) == rows_of(
        frame.groupBy("k").count().where("count >= 3").withColumnRenamed("count", "n"), ["k", "n"]
    )
