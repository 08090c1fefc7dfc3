"""One aggregation on the same files: Holdfast, Structured Streaming, and Spark with no state at all.

Run: python benchmarks/bench_pipeline.py [--quick] [--keys 1000000] [--jvm plain]

Loads so many keys, then runs batches of 50,000 rows over them. The three sides take turns in blocks
inside one session, so that noise and the JVM's warm-up hit all of them; medians and ratios are what
counts. Structured Streaming runs with RocksDB and changelog checkpointing. Loading takes a million
keys an epoch; all epochs with their commits count, also the first, on both sides; starting the run
or the query counts on neither.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from side_by_side import PARTITIONS, Epochs, arguments, put, session, streamed

import holdfast as hf

SCHEMA = "k long, x long"
BATCH = 50_000
WARM_UP = 30


def write(directory: Path, number: int, keys: np.ndarray) -> Path:
    x = (keys * 7 % 1000).astype(np.int64)
    return put(directory, number, pa.table({"k": keys.astype(np.int64), "x": x}))


class Holdfast(Epochs):
    """The pipeline under test."""

    def __init__(self, home: Path, spark) -> None:
        pipe = hf.Pipeline("bench", store=home / "cp", spark=spark, partitions=PARTITIONS)
        files = hf.sources.Files(str(home / "in"), schema=SCHEMA, files_max=1)
        pipe.source("in", files).group_by("k").agg(n=hf.count(), s=hf.sum("x"), name="t")
        super().__init__(pipe)


class Streaming:
    """Structured Streaming doing the same."""

    def __init__(self, home: Path, spark) -> None:
        self.spark, self.home = spark, home

    def run(self) -> list[float]:
        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        frame = (
            stream.parquet(str(self.home / "ss-in")).groupBy("k").agg({"*": "count", "x": "sum"})
        )
        writer = frame.writeStream.outputMode("update").format("noop")
        return streamed(writer, self.home / "ss-cp")


def stateless(spark, paths: list[Path]) -> list[float]:
    """The same Spark job with no state and no checkpoint: the floor."""
    from pyspark.sql import functions as F

    def count(batches):
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_arrays([pa.array([rows])], names=["n"])

    times = []
    for path in paths:
        began = time.perf_counter()
        frame = spark.read.schema(SCHEMA).parquet(str(path)).selectExpr("xxhash64(k) h", "k", "x")
        place = F.expr(f"cast(((shiftrightunsigned(h, 56) + 1) * {PARTITIONS} - 1) div 256 AS int)")
        frame.repartitionById(PARTITIONS, place).mapInArrow(count, "n long").collect()
        times.append((time.perf_counter() - began) * 1e3)
    return times


def warm_up(home: Path, spark) -> None:
    """Classes loaded, code compiled, workers started: for all sides alike, before anything counts."""
    rng = np.random.default_rng(2)
    ours, theirs = Holdfast(home, spark), Streaming(home, spark)
    paths = []
    for number in range(WARM_UP):
        rows = rng.integers(0, 300_000, 300_000 if number < 3 else BATCH)
        write(home / "ss-in", number, rows)
        paths.append(write(home / "in", number, rows))
    ours.run(WARM_UP)
    theirs.run()
    stateless(spark, paths)


def bench(home: Path, spark, keys: int, batches: int, block: int) -> dict[str, float]:
    rng = np.random.default_rng(1)
    ours, theirs = Holdfast(home, spark), Streaming(home, spark)
    number = 0
    for start in range(0, keys, 1_000_000):
        chunk = rng.permutation(np.arange(start, min(start + 1_000_000, keys)))
        for side in ("in", "ss-in"):
            write(home / side, number, chunk)
        number += 1
    ours.run(number)
    la, lb = ours.whole_ms / number, statistics.mean(theirs.run())
    own, other, floor, restarts, blocks = [], [], [], [], []
    for _ in range(batches // block):
        paths = []
        for _ in range(block + 1):  # the first of a block pays for starting again: not counted
            rows = rng.integers(0, keys, BATCH)
            write(home / "ss-in", number, rows)
            paths.append(write(home / "in", number, rows))
            number += 1
        sides = ours.run(block + 1), theirs.run()[1:], stateless(spark, paths[1:])
        restarts.append(ours.first_commit_ms)
        for side, times in zip((own, other, floor), sides, strict=True):
            side.extend(times)
        blocks.append("/".join(f"{statistics.median(times):.0f}" for times in sides))
    a, b, c = (statistics.median(side) for side in (own, other, floor))
    size = statistics.median(report.bytes_new for report in ours.reports[-block:])
    restart = statistics.median(restarts)
    print(f"| {keys} | {a:.0f} | {b:.0f} | {c:.0f} | {b / a:.1f} | {a / c:.2f} | {la:.0f} | {lb:.0f} "
          f"| {lb / la:.1f} | {size:.0f} | {restart:.0f} |", flush=True)  # fmt: skip
    phases = ours.phases(block)
    share = (phases.get("wait", 0) + phases.get("draft", 0)) / sum(phases.values())
    print("  medians by block, Holdfast/Streaming/stateless:", ", ".join(blocks))
    print("  where the milliseconds go:", ", ".join(f"{n} {ms:.1f}" for n, ms in phases.items()),
          f"; checkpoint's share of the epoch {share:.1%}", flush=True)  # fmt: skip
    return {"epoch": a, "restart": restart}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--keys", type=int, nargs="*", default=None)
    args = parser.parse_args()
    spark = session(args, "6g")
    print("| keys | Holdfast ms | Streaming ms | stateless ms | times faster | over stateless "
          "| load 1 M ms | streaming load ms | times faster | run bytes an epoch | restart to commit ms |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    warm = Path(args.dir).absolute() / "pipeline-warm"
    shutil.rmtree(warm, ignore_errors=True)
    warm_up(warm, spark)
    shutil.rmtree(warm, ignore_errors=True)
    found = {}
    for keys in args.keys or ([200_000] if args.quick else [1_000_000, 10_000_000]):
        home = Path(args.dir).absolute() / f"pipeline-{keys}"
        shutil.rmtree(home, ignore_errors=True)
        found[keys] = bench(home, spark, keys, 10 if args.quick else 30, 5 if args.quick else 10)
        shutil.rmtree(home, ignore_errors=True)
    if len(found) > 1:
        small, large = found[min(found)], found[max(found)]
        print(f"from {min(found)} to {max(found)} keys: epoch {large['epoch'] / small['epoch']:.2f} "
              f"times, restart to first commit {large['restart'] / small['restart']:.2f} times")  # fmt: skip
    spark.stop()  # RocksDB's threads must not outlive the JVM


if __name__ == "__main__":
    main()
