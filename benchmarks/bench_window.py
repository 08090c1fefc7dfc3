"""A sliding-window aggregate on the same files: Holdfast next to Structured Streaming.

Run: python benchmarks/bench_window.py [--quick] [--keys 20000] [--rows 50000] [--jvm plain]

Ten-minute windows that begin every two minutes, by key: count, sum and maximum. Every batch has so
many rows of about one minute of event time, some of them out of order, and a watermark two minutes
behind, so that windows close and are forgotten all the time. Both sides take turns in blocks inside
one session, so that noise and the JVM's warm-up hit both; medians and the ratio are what counts.
Structured Streaming runs with RocksDB and changelog checkpointing, and throws its updates away; our
result is the view, so that neither side pays for writing an output.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

import numpy as np
import pyarrow as pa
from side_by_side import PARTITIONS, Epochs, arguments, jobs, put, session, streamed

import holdfast as hf

SCHEMA = "k long, x long, at timestamp"
STEP_US = 60_000_000


class Rows:
    """Batches of event time that goes on; the same for both sides."""

    def __init__(self, home: Path, keys: int, rows: int) -> None:
        self.home, self.keys, self.rows = home, keys, rows
        self.rng = np.random.default_rng(1)
        self.number = 0

    def write(self) -> None:
        """One more batch, for both sides."""
        start = 1_700_000_000_000_000 + self.number * STEP_US
        late = self.rng.random(self.rows) < 0.05
        at = start + self.rng.integers(0, STEP_US, self.rows) - late * STEP_US
        keys = self.rng.integers(0, self.keys, self.rows)
        table = pa.table(
            {
                "k": pa.array(keys, pa.int64()),
                "x": pa.array(keys * 7 % 1000, pa.int64()),
                "at": pa.array(at, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            }
        )
        for side in ("in", "ss-in"):
            put(self.home / side, self.number, table)
        self.number += 1


class Holdfast(Epochs):
    """The pipeline under test."""

    def __init__(self, home: Path, spark) -> None:
        pipe = hf.Pipeline("bench", store=home / "cp", spark=spark, partitions=PARTITIONS)
        files = hf.sources.Files(str(home / "in"), schema=SCHEMA, files_max=1)
        rows = pipe.source("in", files, event_time="at", delay="2 minutes")
        window = hf.sliding("at", size="10 minutes", slide="2 minutes")
        rows.group_by("k", window).agg(n=hf.count(), s=hf.sum("x"), m=hf.max("x"), name="slides")
        super().__init__(pipe)


class Streaming:
    """Structured Streaming doing the same."""

    def __init__(self, home: Path, spark) -> None:
        self.spark, self.home = spark, home

    def run(self) -> list[float]:
        from pyspark.sql import functions as F

        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        frame = stream.parquet(str(self.home / "ss-in")).withWatermark("at", "2 minutes")
        window = F.window("at", "10 minutes", "2 minutes")
        done = frame.groupBy("k", window).agg(
            F.count("*").alias("n"), F.sum("x").alias("s"), F.max("x").alias("m")
        )
        return streamed(done.writeStream.outputMode("update").format("noop"), self.home / "ss-cp")


def bench(home: Path, spark, keys: int, rows: int, batches: int, block: int) -> None:
    given = Rows(home, keys, rows)
    ours, theirs = Holdfast(home, spark), Streaming(home, spark)
    for _ in range(12):  # until windows close as fast as they open
        given.write()
    ours.run(12)
    theirs.run()
    own, other, counts, blocks = [], [], [], []
    for _ in range(max(1, batches // block)):
        for _ in range(block + 1):  # the first of a block pays for starting again: not counted
            given.write()
        started = [jobs(spark)]
        mine = ours.run(block + 1)
        started.append(jobs(spark))
        its = theirs.run()[1:]
        started.append(jobs(spark))
        counts.append(np.diff(started) / (block + 1))
        own += mine
        other += its
        blocks.append(f"{statistics.median(mine):.0f}/{statistics.median(its):.0f}")
    a, b = statistics.median(own), statistics.median(other)
    touched = statistics.median(report.keys for report in ours.reports[-block:])
    j = np.median(counts, axis=0)
    print(
        f"| {keys} | {rows} | {touched:.0f} | {a:.0f} | {b:.0f} | {b / a:.1f} | {j[0]:.1f} | {j[1]:.1f} |"
    )
    phases = ours.phases(block)
    print("  medians by block, Holdfast/Streaming:", ", ".join(blocks))
    print("  where the milliseconds go:", ", ".join(f"{n} {ms:.1f}" for n, ms in phases.items()))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=50_000)
    args = parser.parse_args()
    spark = session(args)
    print("| keys | rows a batch | windows touched | Holdfast ms | Streaming ms | times faster "
          "| jobs an epoch | streaming jobs |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    home = Path(args.dir).absolute() / "window"
    shutil.rmtree(home, ignore_errors=True)
    try:
        bench(home, spark, args.keys, args.rows, 5 if args.quick else 20, 5)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    spark.stop()  # RocksDB's threads must not outlive the JVM


if __name__ == "__main__":
    main()
