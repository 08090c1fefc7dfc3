"""One aggregation on the same files: Holdfast, Structured Streaming, and Spark with no state at all.

Run: python benchmarks/bench_pipeline.py [--quick] [--keys 1000000]

Loads so many keys, then runs batches of 50,000 rows over them. The three sides take turns in blocks
inside one session, so that noise and the JVM's warm-up hit all of them; medians and ratios are what
counts. Structured Streaming runs with RocksDB and changelog checkpointing.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf
from holdfast.pipeline.session import open_session

SCHEMA = "k long, x long"
BATCH = 50_000


def write(directory: Path, number: int, keys: np.ndarray) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    table = pa.table({"k": keys.astype(np.int64), "x": (keys * 7 % 1000).astype(np.int64)})
    temporary = directory / f".tmp-{number}"
    pq.write_table(table, temporary)
    temporary.rename(directory / f"part-{number:06d}.parquet")


class Holdfast:
    """The pipeline under test."""

    def __init__(self, home: Path, spark, partitions: int) -> None:
        self.pipe = hf.Pipeline("bench", store=home / "cp", spark=spark, partitions=partitions)
        rows = self.pipe.source(
            "in", hf.sources.Files(str(home / "in"), schema=SCHEMA, files_max=1)
        )
        rows.group_by("k").agg(n=hf.count(), s=hf.sum("x"), name="t")
        self.phases: dict[str, list[float]] = {}
        self.bytes: list[int] = []

    def run(self, epochs: int) -> list[float]:
        times, last = [], time.perf_counter()

        def seen(report) -> None:
            nonlocal last
            now = time.perf_counter()
            times.append((now - last) * 1e3)
            last = now
            self.bytes.append(report.bytes_new)
            for name, ms in report.phases_ms.items():
                self.phases.setdefault(name, []).append(ms)

        began = time.perf_counter()
        self.pipe.run(epochs=epochs, on_epoch=seen)
        self.first_ms = times[0] if times else (time.perf_counter() - began) * 1e3
        return times[1:] if len(times) > 1 else times


class Streaming:
    """Structured Streaming doing the same."""

    def __init__(self, home: Path, spark) -> None:
        self.spark, self.home = spark, home
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        spark.conf.set(
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true"
        )
        spark.conf.set("spark.sql.shuffle.partitions", "2")

    def run(self, files: int) -> list[float]:
        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        frame = (
            stream.parquet(str(self.home / "ss-in")).groupBy("k").agg({"*": "count", "x": "sum"})
        )
        query = (
            frame.writeStream.outputMode("update").format("noop")
            .option("checkpointLocation", str(self.home / "ss-cp")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        times = [
            p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]
        ]
        return times[1:] if len(times) > 1 else times


def stateless(spark, paths: list[Path], partitions: int) -> list[float]:
    """The same Spark job with no state and no checkpoint: the floor."""
    from pyspark.sql import functions as F

    def count(batches):
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_arrays([pa.array([rows])], names=["n"])

    times = []
    for path in paths:
        began = time.perf_counter()
        frame = spark.read.schema(SCHEMA).parquet(str(path)).selectExpr("xxhash64(k) h", "k", "x")
        place = F.expr(f"cast(((shiftrightunsigned(h, 56) + 1) * {partitions} - 1) div 256 AS int)")
        frame.repartitionById(partitions, place).mapInArrow(count, "n long").collect()
        times.append((time.perf_counter() - began) * 1e3)
    return times


def warm_up(home: Path, spark) -> None:
    """Classes loaded, code compiled, Python workers started: for both sides, before anything counts."""
    rng = np.random.default_rng(2)
    ours, theirs = Holdfast(home, spark, 2), Streaming(home, spark)
    for number in range(6):
        for side in ("in", "ss-in"):
            write(home / side, number, rng.integers(0, 300_000, 300_000))
    ours.run(6)
    theirs.run(6)


def bench(home: Path, spark, keys: int, batches: int, block: int) -> dict[str, float]:
    partitions = 2
    rng = np.random.default_rng(1)
    ours, theirs = Holdfast(home, spark, partitions), Streaming(home, spark)
    number = 0
    load_ours, load_theirs = [], []
    for start in range(0, keys, 1_000_000):
        chunk = np.arange(start, min(start + 1_000_000, keys))
        for side in ("in", "ss-in"):
            write(home / side, number, rng.permutation(chunk))
        number += 1
        load_ours += ours.run(1)
        load_theirs += theirs.run(1)
    own, other, floor, restarts, blocks = [], [], [], [], []
    for _ in range(batches // block):
        paths = []
        for _ in range(block + 1):  # the first of a block pays for starting again: not counted
            rows = rng.integers(0, keys, BATCH)
            for side in ("in", "ss-in"):
                write(home / side, number, rows)
            paths.append(home / "in" / f"part-{number:06d}.parquet")
            number += 1
        began = time.perf_counter()
        ours.run(1)
        restarts.append((time.perf_counter() - began) * 1e3)
        sides = ours.run(block), theirs.run(block + 1), stateless(spark, paths[1:], partitions)
        for side, times in zip((own, other, floor), sides, strict=True):
            side.extend(times)
        blocks.append("/".join(f"{statistics.median(times):.0f}" for times in sides))
    a, b, c = (statistics.median(side) for side in (own, other, floor))
    la, lb = statistics.median(load_ours[-3:]), statistics.median(load_theirs[-3:])
    size = statistics.median(ours.bytes[-block:])
    print(f"| {keys} | {a:.0f} | {b:.0f} | {c:.0f} | {b / a:.1f} | {a / c:.2f} | {la:.0f} | {lb:.0f} "
          f"| {lb / la:.1f} | {size} | {statistics.median(restarts):.0f} |", flush=True)  # fmt: skip
    phases = {name: statistics.median(ms[-block:]) for name, ms in ours.phases.items()}
    total = sum(phases.values())
    share = (phases.get("wait", 0) + phases.get("draft", 0)) / total
    print("  medians by block, Holdfast/Streaming/stateless:", ", ".join(blocks))
    print("  where the milliseconds go:", ", ".join(f"{n} {ms:.1f}" for n, ms in phases.items()),
          f"; checkpoint's share of the epoch {share:.1%}")  # fmt: skip
    return {"epoch": a, "restart": statistics.median(restarts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keys", type=int, nargs="*", default=None)
    parser.add_argument("--dir", default=".bench")
    args = parser.parse_args()
    spark = open_session(
        app="bench",
        master="local[2]",
        config={"spark.driver.memory": "6g", "spark.log.level": "ERROR"},
    )
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


if __name__ == "__main__":
    main()
