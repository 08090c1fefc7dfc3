"""One toy pipeline, for tests that need just any. The toy store is `rig.Rig`, which needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf

KEYS = 3


def toy_pipeline(
    home: Path, spark, *, rows: int = 30, rows_per_epoch: int = 30, partitions: int = 2, **options
) -> tuple[hf.Pipeline, hf.Stream, hf.Stream]:
    """Numbers counted by their remainder, published in `home/out`; also its rows and its totals."""
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions, **options)
    numbers = hf.sources.Generator(
        {"k": f"id % {KEYS}", "x": "id"}, rows=rows, rows_per_epoch=rows_per_epoch
    )
    stream = pipe.source("n", numbers)
    totals = stream.group_by("k").agg(n=hf.count(), s=hf.sum("x"), name="totals")
    pipe.sink("out", totals, hf.sinks.Parquet(str(home / "out")))
    return pipe, stream, totals


def own_aggregate():
    """An aggregate of the user: rows less twice the smallest value, of each group; sent to workers by value."""

    def width(rows: pa.Table, count: int) -> pa.Array:
        done = rows.group_by("group").aggregate([("twice", "min"), ("weight", "sum")])
        done = done.sort_by("group")
        assert done.num_rows == count
        return pc.subtract(done.column("weight_sum"), pc.fill_null(done.column("twice_min"), 0))

    return width
