"""Real Structured Streaming queries, as users write them, for every state layout."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
_STORE = "spark.sql.streaming.stateStore"
LAYOUTS = {
    # provider, changelog, format: what the guard calls it
    "hdfs": ("HDFSBackedStateStoreProvider", "false", "1", "hdfs"),
    "rocksdb1": ("RocksDBStateStoreProvider", "false", "1", "rocksdb-1"),
    "rocksdb1-changelog": ("RocksDBStateStoreProvider", "true", "1", "rocksdb-1"),
    "rocksdb2": ("RocksDBStateStoreProvider", "false", "2", "rocksdb-2"),
    "rocksdb2-changelog": ("RocksDBStateStoreProvider", "true", "2", "rocksdb-2"),
}


_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.pollingDelay": "5ms",
    f"{_STORE}.maintenanceInterval": "300ms",
    f"{_STORE}.minDeltasForSnapshot": "3",
}


def session(warehouse: str) -> SparkSession:
    """A session of its own in the one local Spark of this process."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.warehouse.dir", warehouse)
        .config(f"{_STORE}.maintenanceInterval", "300ms")
    )
    spark = builder.getOrCreate().newSession()
    for key, value in _SETTINGS.items():
        spark.conf.set(key, value)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def use_layout(spark: SparkSession, layout: str, *, retain: int = 5) -> None:
    """Queries that start from now on keep their state like this."""
    provider, changelog, version, _ = LAYOUTS[layout]
    spark.conf.set(f"{_STORE}.providerClass", f"{_PACKAGE}.{provider}")
    spark.conf.set(f"{_STORE}.rocksdb.changelogCheckpointing.enabled", changelog)
    spark.conf.set(f"{_STORE}.checkpointFormatVersion", version)
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", str(retain))


def write_input(folder: Path, files: int, rows: int = 30) -> None:
    """Files in order of time: events of one minute each, some keys again and again."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        lines = [
            json.dumps(
                {
                    "k": (number * 7 + row) % 11,
                    "v": row,
                    "at": f"2024-01-01 00:{number:02}:{row:02}",
                }
            )
            for row in range(rows)
        ]
        # Every third row again: what a dedupe is for.
        path = folder / f"part-{number:03}.json"
        path.write_text("\n".join(lines + lines[::3]) + "\n")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _events(spark: SparkSession, folder: Path):
    return (
        spark.readStream.schema("k int, v int, at timestamp")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder))
    )


def aggregation(spark: SparkSession, folder: Path):
    """Sums by window and key."""
    return (
        _events(spark, folder)
        .withWatermark("at", "1 minute")
        .groupBy(F.window("at", "1 minute"), "k")
        .agg(F.sum("v").alias("total"), F.count("*").alias("rows"))
        .select(F.col("window.start").cast("string").alias("start"), "k", "total", "rows")
    )


def dedupe(spark: SparkSession, folder: Path):
    """Each event once."""
    events = _events(spark, folder).withWatermark("at", "1 minute").dropDuplicates(["k", "at"])
    return events.select("k", "v", F.col("at").cast("string").alias("at"))


def join(spark: SparkSession, folder: Path):
    """A stream with itself, one minute later: four state stores."""
    left = _events(spark, folder).withWatermark("at", "1 minute")
    right = (
        _events(spark, folder)
        .selectExpr("k as k2", "v as v2", "at as at2")
        .withWatermark("at2", "1 minute")
    )
    on = F.expr("k = k2 and at2 >= at and at2 <= at + interval 1 minute")
    return left.join(right, on).select("k", "v", "v2", F.col("at2").cast("string").alias("at2"))


def custom_state(spark: SparkSession, folder: Path):
    """`transformWithState` in Python, with a value, a list and a map."""
    from pyspark.sql.streaming import StatefulProcessor

    number = StructType([StructField("n", LongType())])
    value = StructType([StructField("v", IntegerType())])

    class Running(StatefulProcessor):
        def init(self, handle):
            self.count = handle.getValueState("count", number)
            self.seen = handle.getMapState("seen", value, number)
            self.recent = handle.getListState("recent", value)

        def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - Spark's names
            count = self.count.get()[0] if self.count.exists() else 0
            for row in rows:
                count += 1
                self.seen.updateValue((row["v"],), (count,))
                self.recent.appendValue((row["v"],))
            self.count.update((count,))
            distinct = sum(1 for _ in self.seen.keys())  # noqa: SIM118 - not a dict
            yield Row(k=key[0], n=count, distinct=distinct, kept=sum(1 for _ in self.recent.get()))

        def close(self):
            pass

    schema = StructType(
        [
            StructField("k", IntegerType()),
            StructField("n", LongType()),
            StructField("distinct", IntegerType()),
            StructField("kept", IntegerType()),
        ]
    )
    return (
        _events(spark, folder).groupBy("k").transformWithState(Running(), schema, "Update", "None")
    )


def stateless(spark: SparkSession, folder: Path):
    """No state at all."""
    return _events(spark, folder).where("v % 2 = 0").select("k", "v")


QUERIES = {
    "aggregation": (aggregation, "append"),
    "dedupe": (dedupe, "append"),
    "join": (join, "append"),
    "custom_state": (custom_state, "update"),
    "stateless": (stateless, "append"),
}


class Collected:
    """What a query has given out, batch by batch; a batch that runs again replaces itself."""

    def __init__(self, on_batch=None):
        self.batches: dict[int, list[tuple]] = {}
        self._on_batch = on_batch
        self._lock = threading.Lock()

    def __call__(self, frame, batch: int) -> None:
        rows = sorted(tuple(row) for row in frame.collect())
        with self._lock:
            self.batches[batch] = rows
        if self._on_batch is not None:
            self._on_batch(batch)


def run_to_end(spark, query: str, folder: Path, location, collected, *, mode=None):
    """Start a query, let it take all input, and stop."""
    build, output = QUERIES[query]
    started = (
        build(spark, folder)
        .writeStream.option("checkpointLocation", str(location))
        .outputMode(mode or output)
        .trigger(availableNow=True)
        .foreachBatch(collected)
        .start()
    )
    started.awaitTermination()
    return started
