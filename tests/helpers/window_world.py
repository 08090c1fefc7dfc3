"""Rows with event times in files, one an epoch, and what Spark itself says about their windows."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.pipeline_world import text

SCHEMA = "k string, at timestamp, x long, w long"
SECOND = 1_000_000
DELAY = 20
EPOCH_FILE = "part-{:05d}.parquet"
Row = tuple[str | None, int | None, int | None, int]


class History:
    """Files of (key, second, x, weight), each an epoch, and the watermark that each one meets."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home, self.rng = home, random.Random(seed)
        self.epochs: list[tuple[int | None, list[Row]]] = []
        self.live: Counter = Counter()

    @property
    def mark(self) -> int | None:
        """The watermark after everything so far, in seconds."""
        times = [at for _, rows in self.epochs for _, at, _, _ in rows if at is not None]
        return max(times) - DELAY if times else None

    def add(self, rows: list[Row]) -> None:
        """One more file."""
        self.home.mkdir(parents=True, exist_ok=True)
        number = len(self.epochs)
        self.epochs.append((self.mark, rows))
        columns = list(zip(*rows, strict=True)) if rows else [[], [], [], []]
        times = pa.array([None if at is None else at * SECOND for at in columns[1]], pa.int64())
        table = pa.table(
            {
                "k": pa.array(list(columns[0]), pa.string()),
                "at": times.cast(pa.timestamp("us", tz="UTC")),
                "x": pa.array(list(columns[2]), pa.int64()),
                "w": pa.array(list(columns[3]), pa.int64()),
            }
        )
        temporary = self.home / f".tmp-{number}"
        pq.write_table(table, temporary)
        temporary.rename(self.home / EPOCH_FILE.format(number))

    def random(self, count: int, *, orderly: bool = False) -> None:
        """Inserts out of order, deletes of what is there; `orderly`: on time, or hopelessly late.

        Orderly times are even, so that with an odd gap no two rows are exactly a gap apart.
        """
        now = self.mark if self.mark is not None else 1_000
        rows: list[Row] = []
        for _ in range(count):
            there = [row for row, n in self.live.items() if n > 0 and row[1] is not None]
            if orderly:
                there = [row for row in there if row[1] >= now]
            if there and self.rng.random() < 0.25:
                row, weight = self.rng.choice(there), -1
            else:
                at = now + self.rng.randint(0, 60) // 2 * 2
                if self.rng.random() < 0.15:
                    at = now - (500 if orderly else self.rng.randint(0, 90))
                when = None if self.rng.random() < 0.05 else at
                x = self.rng.choice([None, -2, 0, 1, 5])
                row, weight = (self.rng.choice(["a", "b", None]), when, x), 1
            self.live[row] += weight
            rows.append((*row, weight))
        self.add(rows)

    def frame(self, spark):
        """All rows, each with the watermark of its epoch in seconds."""
        rows = [(*row, mark) for mark, found in self.epochs for row in found]
        given = "k string, s long, x long, w long, mark long"
        return spark.createDataFrame(rows, given).selectExpr(
            "k", "timestamp_seconds(s) AS at", "x", "w", "timestamp_seconds(mark) AS mark"
        )


COLUMNS = ["k", "window_start", "window_end", "n", "s", "lo", "hi", "d"]


def batch_windows(frame, window, *, lateness: int = 0):
    """Spark's own windows over the rows that were not late for them, with weights added up."""
    pairs = (
        frame.where("at IS NOT NULL")
        .select("*", window.alias("win"))
        .where(f"mark IS NULL OR win.end + INTERVAL {lateness} SECONDS > mark")
    )
    left = pairs.groupBy("k", "win", "x").agg({"w": "sum"}).withColumnRenamed("sum(w)", "c")
    return _aggregated(left.where("c > 0"), "win")


def batch_sessions(frame, gap: int, *, lateness: int = 0):
    """Spark's own sessions over the rows that were not late."""
    from pyspark.sql import functions as F

    on_time = frame.where("at IS NOT NULL").where(
        f"mark IS NULL OR at + INTERVAL {gap + lateness} SECONDS > mark"
    )
    left = on_time.groupBy("k", "at", "x").agg(F.sum("w").alias("c")).where("c > 0")
    spread = left.select("k", "at", "x", F.explode(F.expr("sequence(1, c)")).alias("c"))
    win = F.session_window("at", f"{gap} seconds")
    return _results(spread.withColumn("c", F.lit(1)).groupBy("k", win.alias("win")))


def _aggregated(left, win: str):
    return _results(left.groupBy("k", win))


def _results(grouped):
    from pyspark.sql import functions as F

    done = grouped.agg(
        F.sum("c").alias("n"), F.expr("sum(c * x)").alias("s"), F.min("x").alias("lo"),
        F.max("x").alias("hi"), F.countDistinct("x").alias("d"),
    )  # fmt: skip
    return done.selectExpr("k", "win.start AS window_start", "win.end AS window_end", *COLUMNS[3:])


def texts(frame) -> Counter:
    return Counter(text(tuple(row[name] for name in COLUMNS)) for row in frame.collect())


def closed(frame, mark: int | None, *, lateness: int = 0):
    """Of some windows those that a watermark has closed."""
    if mark is None:
        return frame.where("false")
    return frame.where(f"window_end <= timestamp_seconds({mark - lateness})")
