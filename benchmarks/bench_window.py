"""A sliding-window aggregate on the same files: Holdfast next to Structured Streaming.

Run: python benchmarks/bench_window.py [--quick] [--keys 20000] [--rows 50000]

Ten-minute windows that begin every two minutes, by key: count, sum and maximum. Every batch has so
many rows of about one minute of event time, some of them out of order, and a watermark two minutes
behind, so that windows close and are forgotten all the time. Both sides take turns in blocks inside
one session, so that noise and the JVM's warm-up hit both; medians and the ratio are what counts.
Structured Streaming runs with RocksDB and changelog checkpointing, and throws its updates away; our
result is the view, so that neither side pays for writing an output.
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

SCHEMA = "k long, x long, at timestamp"
PARTITIONS = 2
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
            directory = self.home / side
            directory.mkdir(parents=True, exist_ok=True)
            temporary = directory / f".tmp-{self.number}"
            pq.write_table(table, temporary)
            temporary.rename(directory / f"part-{self.number:06d}.parquet")
        self.number += 1


class Holdfast:
    """The pipeline under test."""

    def __init__(self, home: Path, spark) -> None:
        self.spark = spark
        self.pipe = hf.Pipeline("bench", store=home / "cp", spark=spark, partitions=PARTITIONS)
        rows = self.pipe.source(
            "in", hf.sources.Files(str(home / "in"), schema=SCHEMA, files_max=1),
            event_time="at", delay="2 minutes",
        )  # fmt: skip
        window = hf.sliding("at", "10 minutes", "2 minutes")
        rows.group_by("k", window).agg(n=hf.count(), s=hf.sum("x"), m=hf.max("x"), name="slides")
        self.phases: dict[str, list[float]] = {}
        self.keys: list[int] = []

    def run(self, epochs: int) -> list[float]:
        times, last = [], time.perf_counter()

        def seen(report) -> None:
            nonlocal last
            now = time.perf_counter()
            times.append((now - last) * 1e3)
            last = now
            self.keys.append(report.keys)
            for name, ms in report.phases_ms.items():
                self.phases.setdefault(name, []).append(ms)

        self.pipe.run(epochs=epochs, on_epoch=seen)
        return times[1:] if len(times) > 1 else times


class Streaming:
    """Structured Streaming doing the same."""

    def __init__(self, home: Path, spark) -> None:
        self.spark, self.home = spark, home
        settings = {
            "stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
            "RocksDBStateStoreProvider",
            "stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            "noDataMicroBatches.enabled": "false",
        }
        for name, value in settings.items():
            spark.conf.set(f"spark.sql.streaming.{name}", value)
        spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))

    def run(self) -> list[float]:
        from pyspark.sql import functions as F

        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        frame = stream.parquet(str(self.home / "ss-in")).withWatermark("at", "2 minutes")
        window = F.window("at", "10 minutes", "2 minutes")
        done = frame.groupBy("k", window).agg(
            F.count("*").alias("n"), F.sum("x").alias("s"), F.max("x").alias("m")
        )
        query = (
            done.writeStream.outputMode("update").format("noop")
            .option("checkpointLocation", str(self.home / "ss-cp")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        times = [
            p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]
        ]
        return times[1:] if len(times) > 1 else times


def jobs_by(spark, work) -> int:
    """How many Spark jobs some work starts."""
    before = _jobs(spark)
    work()
    return _jobs(spark) - before


def _jobs(spark) -> int:
    """All jobs that the session's scheduler has numbered so far."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().nextJobId())


def bench(home: Path, spark, keys: int, rows: int, batches: int, block: int) -> None:
    given = Rows(home, keys, rows)
    ours, theirs = Holdfast(home, spark), Streaming(home, spark)
    for _ in range(12):  # until windows close as fast as they open
        given.write()
    ours.run(12)
    theirs.run()
    own: list[float] = []
    other: list[float] = []
    jobs: list[tuple[float, float]] = []
    for _ in range(max(1, batches // block)):
        for _ in range(block + 1):  # the first of a block pays for starting again: not counted
            given.write()
        mine = jobs_by(spark, lambda: own.extend(ours.run(block + 1)))
        its = jobs_by(spark, lambda: other.extend(theirs.run()))
        jobs.append((mine / (block + 1), its / (block + 1)))
    a, b = statistics.median(own), statistics.median(other)
    touched = statistics.median(ours.keys[-block:])
    j = [statistics.median(side) for side in zip(*jobs, strict=True)]
    print(
        f"| {keys} | {rows} | {touched:.0f} | {a:.0f} | {b:.0f} | {b / a:.1f} | {j[0]:.1f} | {j[1]:.1f} |"
    )
    phases = {name: statistics.median(ms[-block:]) for name, ms in ours.phases.items()}
    print("  where the milliseconds go:", ", ".join(f"{n} {ms:.1f}" for n, ms in phases.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--dir", default=".bench")
    args = parser.parse_args()
    spark = open_session(
        app="bench",
        master="local[2]",
        config={"spark.driver.memory": "4g", "spark.log.level": "ERROR"},
    )
    print("| keys | rows a batch | windows touched | Holdfast ms | Streaming ms | times faster "
          "| jobs an epoch | streaming jobs |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    home = Path(args.dir).absolute() / "window"
    shutil.rmtree(home, ignore_errors=True)
    try:
        bench(home, spark, args.keys, args.rows, 5 if args.quick else 20, 5)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
