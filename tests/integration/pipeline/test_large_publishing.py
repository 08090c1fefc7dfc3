"""Upserts and compactions that tasks carry out, against plain PySpark and DuckDB."""

from __future__ import annotations

import re
from collections import Counter

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.storage import open_storage
from holdfast.testing import SimulatedCrash, crash_at

ROWS, EPOCHS, KEYS = 6_000, 8, 700


def pipeline(home, spark, **more) -> hf.Pipeline:
    """Sums by key: an epoch retracts a row of every key that it meets and gives a new one."""
    pipe = hf.Pipeline(
        "p", store=home / "cp", spark=spark, partitions=3, settings=hf.Settings(retain=2)
    )
    numbers = hf.sources.Generator(
        {"k": f"pmod(id * 7919, {KEYS})", "x": "id", "text": "concat('t', id % 11)"},
        rows=ROWS,
        rows_per_epoch=ROWS // EPOCHS,
    )
    sums = (
        pipe.source("n", numbers)
        .group_by("k")
        .agg(n=hf.count(), s=hf.sum("x"), t=hf.max("text"), d=hf.avg("x"), name="sums")
    )
    by_tasks = {"driver_bytes": 0}
    pipe.sink(
        "now",
        sums,
        hf.sinks.Parquet(home / "now", mode="upsert", bucket_bytes=1_000, **by_tasks),
    )
    pipe.sink("log", sums, hf.sinks.Parquet(home / "log", compact_after=2, **by_tasks, **more))
    return pipe


def test_what_tasks_publish_equals_batch_also_after_crashes(spark, tmp_path) -> None:
    """Plain Spark, DuckDB and `read_changelog` find the rows of a batch, with old epochs compacted."""
    for point, visit in (("output.after_attempts", 2), ("fold.after_attempts", 1)):
        with pytest.raises(SimulatedCrash), crash_at(point, visit):
            pipeline(tmp_path, spark).run()
    pipeline(tmp_path, spark).run()
    batch = spark.range(ROWS).selectExpr(
        f"pmod(id * 7919, {KEYS}) AS k", "id AS x", "concat('t', id % 11) AS text"
    )
    wanted = Counter(
        map(
            tuple,
            batch.groupBy("k")
            .agg({"*": "count", "x": "sum", "text": "max"})
            .selectExpr("k", "`count(1)`", "`sum(x)`", "`max(text)`", "`sum(x)` / `count(1)`")
            .collect(),
        )
    )
    columns = ["k", "n", "s", "t", "d"]
    now = tmp_path / "now"
    by_spark = spark.read.parquet(str(now)).select(*columns).collect()
    by_duckdb = duckdb.sql(f"SELECT {','.join(columns)} FROM '{now}/*.parquet'").fetchall()
    log = hf.read_changelog(spark, tmp_path / "log").select(*columns).collect()
    assert Counter(map(tuple, by_spark)) == Counter(by_duckdb) == Counter(map(tuple, log)) == wanted
    names = [file.name for file in now.iterdir()]
    assert len(names) > 16 and all(re.search(r"-\d+-[0-9a-z]+\.parquet", name) for name in names)
    folded = [f.name for f in (tmp_path / "log").glob("hf_epoch=*/*-folded.parquet")]
    assert folded and all(name.count("-") == 3 for name in folded)  # written by tasks
    for versions in (tmp_path / ".now.versions", tmp_path / ".log.versions"):
        assert not [child for child in versions.iterdir() if child.name.startswith("attempts")]


def test_tasks_publish_to_an_object_store(spark, tmp_path, s3_url, s3_options) -> None:
    """Options reach the tasks, the server copies what they wrote, and nothing else is left."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    numbers = hf.sources.Generator(
        {"k": f"pmod(id * 7919, {KEYS})", "x": "id"}, rows=3_000, rows_per_epoch=1_500
    )
    sums = pipe.source("n", numbers).group_by("k").agg(s=hf.sum("x"), name="sums")
    sink = hf.sinks.Parquet(
        s3_url, mode="upsert", storage_options=s3_options, driver_bytes=0, bucket_bytes=1_000
    )
    pipe.sink("now", sums, sink)
    pipe.run()
    storage = open_storage(s3_url, options=s3_options)
    paths = [e.path for e in storage.list("") if not e.path.startswith("_holdfast")]
    assert len(paths) > 16 and all(path.startswith("part-") for path in paths)
    tables = [pq.read_table(pa.BufferReader(storage.get(path))) for path in paths]
    found = Counter(tuple(row.values()) for table in tables for row in table.to_pylist())
    wanted = Counter()
    for number in range(3_000):
        wanted[number * 7919 % KEYS] += number
    assert found == Counter(wanted.items())


def test_tasks_name_what_differs_and_the_driver_raises_it(spark, tmp_path) -> None:
    """Somebody else removed a row: the error is ours, typed, and nothing was published."""
    pipe = pipeline(tmp_path, spark)
    pipe.run(epochs=1)
    for file in (tmp_path / "now").iterdir():
        empty = duckdb.sql(f"SELECT * FROM '{file}' LIMIT 0").to_arrow_table()
        _overwrite(file.resolve(), empty)
    with pytest.raises(hf.errors.HoldfastError) as caught:
        pipeline(tmp_path, spark).run()
    assert "a row that is retracted is not in the output" in str(caught.value)
    assert duckdb.sql(f"FROM '{tmp_path}/now/*.parquet'").fetchall() == []


def _overwrite(file, table) -> None:
    file.unlink()
    pq.write_table(table, file)
