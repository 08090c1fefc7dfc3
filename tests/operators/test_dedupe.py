"""dedupe on Spark: the first row of each key, for as long as it is remembered."""

from __future__ import annotations

import holdfast as hf


def test_dedupe_lets_the_first_row_of_each_key_through(spark, tmp_path) -> None:
    """Keys seen before are dropped, late rows are counted, and forgotten keys leave the state."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    source = hf.sources.Generator(
        {"k": "pmod(id, 50)", "at": "timestamp_seconds(id)"}, rows=400, rows_per_epoch=100
    )
    rows = pipe.source("n", source, event_time="at")
    pipe.sink("out", rows.dedupe("k", name="first", time="at", within="60 seconds"),
              hf.sinks.Parquet(str(tmp_path / "out")))  # fmt: skip
    summary = pipe.run()
    out = [r["k"] for r in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert summary.rows == 400
    assert set(out) == set(range(50))
    assert 50 <= len(out) < 400
