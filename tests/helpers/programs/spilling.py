"""A pipeline whose tasks spill: `python spilling.py HOME`. The parent kills it while they do."""

from __future__ import annotations

import sys
from pathlib import Path

import holdfast as hf

SCHEMA = "k long, x long, s string"


def pipeline(home: Path, spark_config: dict[str, str] | None = None, spark=None) -> hf.Pipeline:
    """An aggregate, and a join of rows with it: rows of an operator that something else needs."""
    pipe = hf.Pipeline(
        "spilling",
        store=home / "store",
        spark=spark,
        settings=hf.Settings(task_bytes_max=60_000),
        spark_config=spark_config,
    )
    source = hf.sources.Files(home / "in", schema=SCHEMA, min_age_ms=0, rows_max=150_000)
    rows = pipe.source("rows", source)
    totals = rows.group_by("k").agg(n=hf.count(), x=hf.sum("x"), s=hf.max("s"), name="totals")
    pipe.sink("totals_out", totals, hf.sinks.Parquet(home / "out"))
    return pipe


if __name__ == "__main__":
    at = Path(sys.argv[1])
    config = {"spark.master": "local[2]", "spark.local.dir": str(at / "local")}
    pipeline(at, config).run()
