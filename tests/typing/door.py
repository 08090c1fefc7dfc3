"""What a type checker must accept: every public signature has real types. Read by mypy, never run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import assert_type

import duckdb
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.api.graph import PipelineGraph
from holdfast.api.grouped import Grouped
from holdfast.api.view import View
from holdfast.checkpoint import StoreReader
from holdfast.connectors.base import Sink, Source, SourceReader, Split
from holdfast.operators.aggregate.declare import Aggregate
from holdfast.operators.base import OperatorTask
from holdfast.operators.window.declare import Window


def asked(
    changes: pa.Table, state: pa.Table, context: hf.ApplyContext
) -> tuple[pa.Table, pa.Table]:
    """A user function of `apply`."""
    assert_type(context.keys, pa.Table)
    assert_type(context.due, pa.Table)
    return changes, state


def spread(rows: pa.Table, count: int) -> list[float]:
    """A user function of `udaf`."""
    return [float(rows.num_rows)] * count


def connected(source: Source, reader: SourceReader, split: Split, spark: SparkSession) -> None:
    """What the author of a connector is promised."""
    assert_type(source.empty(spark), DataFrame)
    assert_type(reader.read(spark, split), DataFrame)


def declared(spark: SparkSession, folder: Path) -> hf.Pipeline:
    """Declaring."""
    pipe = hf.Pipeline("p", store=folder / "cp", spark=spark, settings=hf.Settings())
    source: Source = hf.sources.Files(folder, schema="k string, x long, at timestamp")
    rows = pipe.source("in", source, event_time="at", delay=timedelta(minutes=1))
    assert_type(rows, hf.Stream)
    assert_type(rows.where("x > 0").filter(F.col("x") > 0), hf.Stream)
    condition: Column = F.col("x") > 1
    assert_type(rows.where(condition).select("k", F.col("x")).selectExpr("k"), hf.Stream)
    assert_type(rows.with_columns(y="x", z=condition).withColumn("w", "1").drop("w"), hf.Stream)
    assert_type(rows.with_columns({"self": "x"}), hf.Stream)
    assert_type(rows.group_by("k"), Grouped)
    assert_type(hf.sum("x"), Aggregate)
    assert_type(hf.tumbling("at", size=timedelta(hours=1), emit="close"), Window)
    hour = hf.sliding("at", size="1 hour", slide="1 minute", allowed_lateness="1 minute")
    assert_type(rows.groupBy("k", hour).agg(hf.sum("x").alias("name"), name="a"), hf.Stream)
    totals = rows.group_by("k").agg(hf.sum("x").alias("t"), n=hf.count(), name="totals")
    assert_type(rows.join(totals, "k", "left", name="j"), hf.Stream)
    assert_type(rows.union(rows).distinct(name="d").late, hf.Stream)
    assert_type(rows.dropDuplicates(["k"], name="once"), hf.Stream)
    assert_type(rows.columns, list[str] | None)
    assert_type(rows.transform(lambda df: df.limit(1)), hf.Stream)
    assert_type(rows.join_static(spark.range(1), "k", name="s"), hf.Stream)
    kept = rows.apply(asked, key="k", state_schema="n long", output_schema="n long", name="own")
    assert_type(kept, hf.Stream)
    assert_type(hf.udaf(spread, inputs=["x"], returns="double"), Aggregate)
    sink: Sink = hf.sinks.Parquet(folder / "out")
    pipe.sink("out", totals, sink)
    return pipe


def looked_at(pipe: hf.Pipeline, spark: SparkSession, folder: Path) -> None:
    """Running and looking."""
    assert_type(pipe.run(from_checkpoint=datetime(2026, 1, 1, tzinfo=UTC), epochs=1), hf.RunSummary)
    assert_type(pipe.run(from_checkpoint="ago:2h"), hf.RunSummary)
    assert_type(pipe.session(), SparkSession)
    view = pipe.view("totals", at=3)
    assert_type(view, View)
    assert_type(view.to_spark(), DataFrame)
    assert_type(view.to_arrow(), pa.Table)
    assert_type(view.to_pandas(), pd.DataFrame)
    assert_type(view.to_duckdb(), duckdb.DuckDBPyRelation)
    assert_type(pipe.graph(), PipelineGraph)
    assert_type(pipe.graph().svg(), str)
    assert_type(pipe.reader(), StoreReader)
    assert_type(pipe.plan_outputs(), list[str])
    assert_type(hf.read_changelog(spark, folder, as_of=1), DataFrame)


def read_without_spark(pipe: hf.Pipeline, folder: Path) -> None:
    """State and journal, in Arrow."""
    state = hf.state.read_state(pipe.reader(), "totals")
    assert_type(state.sql("SELECT 1"), pa.Table)
    reader = hf.journal.JournalReader(folder)
    found = reader.query(hf.journal.Query(kind="paid"))
    assert_type(found.to_table(), pa.Table)
    assert_type(found.batches, list[pa.RecordBatch])
    for batch, _ in reader.follow():
        assert_type(batch, pa.RecordBatch)


def parts(trace: hf.state.TraceReader, answer: hf.state.LatestAnswer, task: OperatorTask) -> None:
    """What the author of an operator works with."""
    assert_type(trace.table(), pa.Table)
    assert_type(next(trace.batches()), pa.RecordBatch)
    assert_type(trace.schema.keys, pa.Schema)
    assert_type(answer.values, pa.RecordBatch)
    assert_type(task.output, pa.Schema)
    assert_type(task.late, pa.Schema | None)
    assert_type(task.visible(trace.table()), pa.Table)
