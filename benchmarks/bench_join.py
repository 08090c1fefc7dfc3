"""One inner join of two streams on the same files: Holdfast and Structured Streaming.

Run: python benchmarks/bench_join.py [--quick] [--rows 1000000]

Loads so many rows on each side, then runs batches of 50,000 rows, half of them on each side, over
the same keys. Both write the pairs as Parquet. They take turns in blocks inside one session, so that
noise and the JVM's warm-up hit both; medians and the ratio are what counts. Structured Streaming
runs with RocksDB and changelog checkpointing.
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

BATCH = 50_000
PARTITIONS = 2
SIDES = (("a", "k long, x long"), ("b", "k long, y long"))


def write(home: Path, side: str, number: int, keys: np.ndarray) -> None:
    """One file, for both systems."""
    value = {"a": "x", "b": "y"}[side]
    table = pa.table({"k": keys.astype(np.int64), value: (keys * 7 % 1000).astype(np.int64)})
    for owner in ("hf", "ss"):
        directory = home / owner / side
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f".tmp-{number}"
        pq.write_table(table, temporary)
        temporary.rename(directory / f"part-{number:06d}.parquet")


def jobs(spark) -> int:
    """All Spark jobs that the session has run."""
    return spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()


def size(path: Path) -> int:
    """Bytes below a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


class Holdfast:
    """The pipeline under test."""

    def __init__(self, home: Path, spark) -> None:
        self.home, self.spark = home, spark
        self.bytes: list[int] = []
        self.jobs: list[float] = []
        self.phases: dict[str, list[float]] = {}

    def run(self, epochs: int) -> list[float]:
        """So many epochs; the first one pays for starting and is left out."""
        pipe = hf.Pipeline("bench", store=self.home / "cp", spark=self.spark, partitions=PARTITIONS)
        a, b = (
            pipe.source(
                side,
                hf.sources.Files(str(self.home / "hf" / side), schema=schema, files_max=1),
            )
            for side, schema in SIDES
        )
        pipe.sink("out", a.join(b, "k", name="j"), hf.sinks.Parquet(str(self.home / "hf-out")))
        times, last, before = [], time.perf_counter(), jobs(self.spark)

        def seen(report) -> None:
            nonlocal last
            now = time.perf_counter()
            times.append((now - last) * 1e3)
            last = now
            self.bytes.append(report.bytes_new)
            for name, ms in report.phases_ms.items():
                self.phases.setdefault(name, []).append(ms)

        pipe.run(epochs=epochs, on_epoch=seen)
        self.jobs.append((jobs(self.spark) - before) / len(times))
        return times[1:] if len(times) > 1 else times


class Streaming:
    """Structured Streaming doing the same."""

    def __init__(self, home: Path, spark) -> None:
        self.home, self.spark = home, spark
        self.bytes: list[float] = []
        self.jobs: list[float] = []
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        spark.conf.set(
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true"
        )
        spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))

    def run(self) -> list[float]:
        """All files that are there, one of each side a batch; the first batch is left out."""
        a, b = (
            self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            .parquet(str(self.home / "ss" / side))
            for side, schema in SIDES
        )  # fmt: skip
        state, before = self.home / "ss-cp" / "state", jobs(self.spark)
        held = size(state)
        query = (
            a.join(b, "k").writeStream.format("parquet").outputMode("append")
            .option("checkpointLocation", str(self.home / "ss-cp"))
            .trigger(availableNow=True).start(str(self.home / "ss-out"))
        )  # fmt: skip
        query.awaitTermination()
        times = [
            p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]
        ]
        self.jobs.append((jobs(self.spark) - before) / max(1, len(times)))
        self.bytes.append((size(state) - held) / max(1, len(times)))
        return times[1:] if len(times) > 1 else times


def bench(home: Path, spark, rows: int, batches: int, block: int) -> None:
    """Load, then blocks in turns."""
    rng = np.random.default_rng(1)
    ours, theirs = Holdfast(home, spark), Streaming(home, spark)
    for side, _ in SIDES:
        write(home, side, 0, rng.permutation(rows))
    load = ours.run(1)[0], theirs.run()[0]
    own, other, number = [], [], 1
    for turn in range(batches // block):
        for _ in range(block + 1):  # the first of a block pays for starting again: not counted
            for side, _ in SIDES:
                write(home, side, number, rng.integers(0, rows, BATCH // 2))
            number += 1
        order = (lambda: own.extend(ours.run(block + 1)), lambda: other.extend(theirs.run()))
        for go in order if turn % 2 == 0 else reversed(order):
            go()
    pairs = [
        pq.read_table(home / name, columns=["k"]).num_rows for name in ("hf-out", "ss-out")
    ]  # fmt: skip
    if pairs[0] != pairs[1]:
        raise SystemExit(f"the answers differ: {pairs[0]} pairs and {pairs[1]}")
    a, b = statistics.median(own), statistics.median(other)
    print(f"| {rows} | {a:.0f} | {b:.0f} | {b / a:.1f} | {statistics.median(ours.jobs):.1f} "
          f"| {statistics.median(theirs.jobs):.1f} | {statistics.median(ours.bytes[1:]):.0f} "
          f"| {statistics.median(theirs.bytes[1:]):.0f} | {load[0]:.0f} | {load[1]:.0f} "
          f"| {len(own)}/{len(other)} |", flush=True)  # fmt: skip
    phases = {name: statistics.median(ms[1:]) for name, ms in ours.phases.items()}
    print("  where the milliseconds go:", ", ".join(f"{n} {ms:.1f}" for n, ms in phases.items()))
    print(f"  {pairs[0]} pairs on both sides")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--dir", default=".bench")
    args = parser.parse_args()
    spark = open_session(
        app="bench",
        master="local[2]",
        config={"spark.driver.memory": "4g", "spark.log.level": "ERROR"},
    )
    rows = args.rows or (100_000 if args.quick else 1_000_000)
    print("| rows a side | Holdfast ms | Streaming ms | times faster | jobs | streaming jobs "
          "| state bytes | streaming state bytes | load ms | streaming load ms | batches |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    home = Path(args.dir).absolute() / f"join-{rows}"
    shutil.rmtree(home, ignore_errors=True)
    bench(home, spark, rows, 6 if args.quick else 20, 3 if args.quick else 5)
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
