"""Joining two streams on the same files: Holdfast and Structured Streaming, in turns.

Run: python benchmarks/bench_join.py [--quick] [--rows 1000000] [--jvm plain]

Loads so many rows on each side, then runs batches of 50,000 rows (25,000 on each side) against
them: an inner join by key, 1.0 rows a key on average. Both take turns in blocks inside one session,
so that noise and the JVM's warm-up hit both; medians and the ratio are what counts. Structured
Streaming runs with RocksDB and changelog checkpointing. Its first batch of a block pays for starting
the query again, and so does the first epoch of ours: neither is counted.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

import numpy as np
import pyarrow as pa
from side_by_side import PARTITIONS, Epochs, arguments, jobs, put, session, streamed

import holdfast as hf

LEFT, RIGHT = "k long, x long", "k long, y long"
BATCH = 25_000


class Holdfast(Epochs):
    """The pipeline under test."""

    def __init__(self, home: Path, spark) -> None:
        pipe = hf.Pipeline("bench", store=home / "cp", spark=spark, partitions=PARTITIONS)
        files = hf.sources.Files
        left = pipe.source("a", files(str(home / "a"), schema=LEFT, files_max=1))
        right = pipe.source("b", files(str(home / "b"), schema=RIGHT, files_max=1))
        pipe.sink("out", left.join(right, "k", name="j"), hf.sinks.Parquet(str(home / "out")))
        super().__init__(pipe)


class Streaming:
    """Structured Streaming doing the same."""

    def __init__(self, home: Path, spark) -> None:
        self.spark, self.home = spark, home

    def run(self) -> list[float]:
        def side(name: str, schema: str):
            stream = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            return stream.parquet(str(self.home / name))

        frame = side("ss-a", LEFT).join(side("ss-b", RIGHT), "k")
        writer = frame.writeStream.outputMode("append").format("parquet")
        return streamed(writer.option("path", str(self.home / "ss-out")), self.home / "ss-cp")


def both(home: Path, number: int, keys: tuple[np.ndarray, np.ndarray]) -> None:
    for side, value, of_side in zip("ab", "xy", keys, strict=True):
        values = (of_side * 7 % 1000).astype(np.int64)
        table = pa.table({"k": of_side.astype(np.int64), value: values})
        for prefix in ("", "ss-"):
            put(home / f"{prefix}{side}", number, table)


def bench(home: Path, spark, rows: int, batches: int, block: int) -> None:
    rng = np.random.default_rng(1)
    ours, theirs = Holdfast(home, spark), Streaming(home, spark)
    both(home, 0, (rng.permutation(rows), rng.permutation(rows)))
    ours.run(1)
    loads = ours.whole_ms, sum(theirs.run())
    own, other, counts, blocks, number = [], [], [], [], 1
    for _ in range(max(1, batches // block)):
        for _ in range(block + 1):
            both(home, number, (rng.integers(0, rows, BATCH), rng.integers(0, rows, BATCH)))
            number += 1
        before = jobs(spark)
        mine = ours.run(block + 1)
        counts.append((jobs(spark) - before) / (block + 1))
        its = theirs.run()[1:]
        own += mine
        other += its
        blocks.append(f"{statistics.median(mine):.0f}/{statistics.median(its):.0f}")
    out = spark.read.parquet(str(home / "out")).count()
    same = spark.read.parquet(str(home / "ss-out")).count()
    a, b = statistics.median(own), statistics.median(other)
    size = statistics.median(report.bytes_new for report in ours.reports[-block:])
    print(f"| {rows} | {a:.0f} | {b:.0f} | {b / a:.1f} | {loads[0]:.0f} | {loads[1]:.0f} "
          f"| {statistics.median(counts):.1f} | {size:.0f} |", flush=True)  # fmt: skip
    phases = ours.phases(block)
    print("  medians by block, Holdfast/Streaming:", ", ".join(blocks))
    print("  where the milliseconds go:", ", ".join(f"{n} {ms:.1f}" for n, ms in phases.items()))
    print(f"  rows out: Holdfast {out}, Structured Streaming {same}"
          f"{'' if out == same else ' (DIFFERENT)'}")  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=None)
    args = parser.parse_args()
    spark = session(args)
    print("| rows a side | Holdfast ms | Streaming ms | times faster | load ms "
          "| streaming load ms | Spark jobs an epoch | state bytes an epoch |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for rows in args.rows or ([200_000] if args.quick else [1_000_000]):
        home = Path(args.dir).absolute() / f"join-{rows}"
        shutil.rmtree(home, ignore_errors=True)
        bench(home, spark, rows, 10 if args.quick else 30, 5 if args.quick else 10)
        shutil.rmtree(home, ignore_errors=True)
    spark.stop()  # RocksDB's threads must not outlive the JVM


if __name__ == "__main__":
    main()
