"""One toy pipeline, for tests that need just any. The toy store is `rig.Rig`, which needs no Spark."""

from __future__ import annotations

from pathlib import Path

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
