"""Joining two streams on the same files: Holdfast and Structured Streaming, in turns.

Run: python benchmarks/bench_join.py [--quick] [--rows 1000000]

Loads so many rows on each side, then runs batches of 50,000 rows (25,000 on each side) against
them: an inner join by key, 1.0 rows a key on average. Both take turns in blocks inside one session,
so that noise and the JVM's warm-up hit both; medians and the ratio are what counts. Structured
Streaming runs with RocksDB and changelog checkpointing. Its first batch of a block pays for starting
the query again, and so does the first epoch of ours: neither is counted.
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

LEFT, RIGHT = "k long, x long", "k long, y long"
BATCH = 25_000


def write(directory: Path, number: int, keys: np.ndarray, value: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    table = pa.table({"k": keys.astype(np.int64), value: (keys * 7 % 1000).astype(np.int64)})
    temporary = directory / f".tmp-{number}"
    pq.write_table(table, temporary)
    temporary.rename(directory / f"part-{number:06d}.parquet")


class Holdfast:
    """The pipeline under test."""

    def __init__(self, home: Path, spark, partitions: int) -> None:
        self.spark = spark
        self.pipe = hf.Pipeline("bench", store=home / "cp", spark=spark, partitions=partitions)
        files = hf.sources.Files
        left = self.pipe.source("a", files(str(home / "a"), schema=LEFT, files_max=1))
        right = self.pipe.source("b", files(str(home / "b"), schema=RIGHT, files_max=1))
        joined = left.join(right, "k", name="j")
        self.pipe.sink("out", joined, hf.sinks.Parquet(str(home / "out")))
        self.bytes: list[int] = []
        self.phases: dict[str, list[float]] = {}
        self.jobs: list[int] = []
        self.changes = 0

    def run(self, epochs: int) -> list[float]:
        times, last = [], time.perf_counter()
        tracker = self.spark.sparkContext.statusTracker()
        before = len(tracker.getJobIdsForGroup(None))

        def seen(report) -> None:
            nonlocal last
            now = time.perf_counter()
            times.append((now - last) * 1e3)
            last = now
            self.bytes.append(report.bytes_new)
            self.changes += report.changes
            for name, ms in report.phases_ms.items():
                self.phases.setdefault(name, []).append(ms)

        self.pipe.run(epochs=epochs, on_epoch=seen)
        self.jobs.append((len(tracker.getJobIdsForGroup(None)) - before) / max(1, len(times)))
        return times[1:] if len(times) > 1 else times


class Streaming:
    """Structured Streaming doing the same."""

    def __init__(self, home: Path, spark) -> None:
        self.spark, self.home = spark, home
        provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        prefix = "spark.sql.streaming.stateStore"
        spark.conf.set(f"{prefix}.providerClass", provider)
        spark.conf.set(f"{prefix}.rocksdb.changelogCheckpointing.enabled", "true")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        self.rows = 0

    def run(self) -> list[float]:
        def side(name: str, schema: str):
            stream = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            return stream.parquet(str(self.home / name))

        frame = side("ss-a", LEFT).join(side("ss-b", RIGHT), "k")
        query = (
            frame.writeStream.outputMode("append").format("parquet")
            .option("checkpointLocation", str(self.home / "ss-cp"))
            .option("path", str(self.home / "ss-out")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        done = [p for p in query.recentProgress if p["numInputRows"]]
        times = [p["durationMs"]["triggerExecution"] for p in done]
        return times[1:] if len(times) > 1 else times


def both(home: Path, number: int, keys: tuple[np.ndarray, np.ndarray]) -> None:
    for prefix in ("", "ss-"):
        write(home / f"{prefix}a", number, keys[0], "x")
        write(home / f"{prefix}b", number, keys[1], "y")


def bench(home: Path, spark, rows: int, batches: int, block: int) -> None:
    rng = np.random.default_rng(1)
    ours, theirs = Holdfast(home, spark, 2), Streaming(home, spark)
    both(home, 0, (rng.permutation(rows), rng.permutation(rows)))
    loads = sum(ours.run(1)), sum(theirs.run())
    own, other, number = [], [], 1
    for _ in range(max(1, batches // block)):
        for _ in range(block + 1):
            both(home, number, (rng.integers(0, rows, BATCH), rng.integers(0, rows, BATCH)))
            number += 1
        own += ours.run(block + 1)
        other += theirs.run()
    out = spark.read.parquet(str(home / "out")).count()
    same = spark.read.parquet(str(home / "ss-out")).count()
    a, b = statistics.median(own), statistics.median(other)
    size = statistics.median(ours.bytes[-block:])
    print(f"| {rows} | {a:.0f} | {b:.0f} | {b / a:.1f} | {loads[0]:.0f} | {loads[1]:.0f} "
          f"| {statistics.median(ours.jobs):.1f} | {size:.0f} |", flush=True)  # fmt: skip
    phases = {name: statistics.median(ms[-block:]) for name, ms in ours.phases.items()}
    print("  where the milliseconds go:", ", ".join(f"{n} {ms:.1f}" for n, ms in phases.items()))
    print(f"  rows out: Holdfast {out}, Structured Streaming {same}"
          f"{'' if out == same else ' (DIFFERENT)'}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, nargs="*", default=None)
    parser.add_argument("--dir", default=".bench")
    args = parser.parse_args()
    spark = open_session(
        app="bench",
        master="local[2]",
        config={"spark.driver.memory": "4g", "spark.log.level": "ERROR"},
    )
    print("| rows a side | Holdfast ms | Streaming ms | times faster | load ms "
          "| streaming load ms | Spark jobs an epoch | state bytes an epoch |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for rows in args.rows or ([200_000] if args.quick else [1_000_000]):
        home = Path(args.dir).absolute() / f"join-{rows}"
        shutil.rmtree(home, ignore_errors=True)
        bench(home, spark, rows, 10 if args.quick else 30, 5 if args.quick else 10)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
