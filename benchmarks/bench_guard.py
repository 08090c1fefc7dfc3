"""What does the guard cost a running query?

    python benchmarks/bench_guard.py              # less than four minutes, whatever the load
    python benchmarks/bench_guard.py --seconds 30 # of measuring for each layout, instead of 85
    python benchmarks/bench_guard.py --pairs 40   # as many pairs as that, however long it takes

One process, one Spark, one query for each state layout, with Spark's own settings for clean-up and
snapshots. The query is not instrumented: when a batch has ended is read off its commit file.
Batches are taken in blocks of ten, one batch between blocks left out. In one block of each pair
the query is attached (listener and all) and saved once, in the other it runs alone; which comes
first changes from pair to pair, so that a machine or a JVM that gets slower or faster falls on
both sides alike. A block counts as a whole: a median of its batches would not see the savepoint.

Reported: the ratio of block times (median of the pairs, quartiles, and the interval that holds 95 %
of the medians when the pairs are drawn again), the same for blocks that were both alone (what the
machine does by itself), the ratio of CPU time (this process and the JVM, which other work on the
machine disturbs least), the savepoint's own times, bytes that each savepoint copied against
bytes that Spark wrote since the one before, and the time to restore.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration" / "guard"))
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import holdfast as hf
from holdfast.guard.live import Live

ROWS, KEYS, BLOCK = 20_000, 50_000, 10
LAYOUTS = ("hdfs", "rocksdb2-changelog")
WARM_BATCHES, WARM_SECONDS = 60, 20
PAIRS_MIN = 4
_TICK_MS = 1_000 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Block:
    """Ten batches: wall time, CPU time of both processes, and what was saved meanwhile."""

    wall_ms: float
    cpu_ms: float
    python_cpu_ms: float
    saved: hf.guard.Savepoint | None = None


class Running:
    """A query that counts by key, and the moments at which its batches were committed."""

    def __init__(self, spark, location):
        from pyspark.sql import functions as F

        self._commits = Path(location) / "commits"
        self._jvm = spark.sparkContext._gateway.proc.pid
        self.batch = -1
        frame = (
            spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
            .groupBy((F.col("value") * 7919 % KEYS).alias("k")).agg(F.count("*"), F.max("value"))
        )  # fmt: skip
        self.query = (
            frame.writeStream.option("checkpointLocation", str(location)).outputMode("update")
            .trigger(processingTime="0 seconds").format("noop").start()
        )  # fmt: skip

    def next(self, count=1):
        """The moment (ms) at which so many more batches have been committed."""
        self.batch += count
        path = self._commits / str(self.batch)
        while True:
            try:
                return path.stat().st_mtime_ns / 1e6
            except FileNotFoundError:
                assert self.query.isActive, self.query.exception()
                time.sleep(0.004)

    def newest(self):
        """Go to the batch that is the newest now."""
        names = [int(path.name) for path in self._commits.iterdir() if path.name.isdecimal()]
        self.batch = max([self.batch, *names])

    def cpu_ms(self):
        """CPU time of the JVM until now."""
        fields = Path(f"/proc/{self._jvm}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_MS


def block(spark, running, store, *, guarded):
    """Ten batches, attached with one savepoint or alone."""
    running.newest()
    attachment = None
    if guarded:
        attachment = hf.guard.attach(running.query, store, every=1_000, retain=1_000, spark=spark)
    began = running.next()
    python, jvm = time.process_time(), running.cpu_ms()
    if attachment is not None:
        attachment.save_now()
    ended = running.next(BLOCK)
    python, jvm = (time.process_time() - python) * 1_000, running.cpu_ms() - jvm
    saved = None
    if attachment is not None:
        attachment.stop(final=False)
        assert not attachment.errors, attachment.errors
        (saved,) = attachment.saved
        assert not saved.reused
        assert saved.millis < ended - began, "the savepoint was not inside of its block"
    return Block(ended - began, python + jvm, python, saved)


def measure(spark, place, layout, *, pairs, seconds):
    """One query, alternately attached and alone."""
    running = Running(spark, place / "ck")
    warm_until = time.perf_counter() + WARM_SECONDS
    while running.batch < WARM_BATCHES or time.perf_counter() < warm_until:
        running.next()
        if time.perf_counter() > warm_until + WARM_SECONDS:
            break
    with_guard, alone, written, seen = [], [], [], set()
    until, began = time.perf_counter() + seconds, running.batch
    while len(alone) < (pairs or PAIRS_MIN) or (not pairs and time.perf_counter() < until):
        for guarded in (True, False) if len(alone) % 2 == 0 else (False, True):
            done = block(spark, running, place / "store", guarded=guarded)
            (with_guard if guarded else alone).append(done)
            if guarded:
                with Live.open(place / "ck") as live:
                    entries = live.list().entries
                written.append(sum(e.size for p, e in entries.items() if p not in seen))
                seen = set(entries)
    running.query.stop()
    print(f"{layout}: {len(alone)} pairs of blocks of {BLOCK} batches of {ROWS} rows, {KEYS} keys, "
          f"after {began} batches; load average {os.getloadavg()[0]:.1f}")  # fmt: skip
    report(with_guard, alone, written)
    restoring(place, with_guard[-1].saved)


def spread(values):
    """Median, quartiles, and where 95 % of the medians of redrawn samples lie."""
    draw = random.Random(7)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2_000))
    low, _, high = statistics.quantiles(values, n=4)
    return (f"median {statistics.median(values):.3f}, quartiles {low:.3f} to {high:.3f}, "
            f"95 % interval {medians[50]:.3f} to {medians[-51]:.3f}")  # fmt: skip


def report(with_guard, alone, written):
    """Slowdown, CPU, the savepoint itself, bytes."""
    pairs = list(zip(with_guard, alone, strict=True))
    both_alone = [after.wall_ms / before.wall_ms for before, after in itertools.pairwise(alone)]
    wall = statistics.median(b.wall_ms for b in alone)
    print(f"  ten batches alone: median {wall:,.0f} ms; with a savepoint: "
          f"{statistics.median(b.wall_ms for b in with_guard):,.0f} ms; pair by pair "
          f"{statistics.median(g.wall_ms - a.wall_ms for g, a in pairs):+,.0f} ms")  # fmt: skip
    print(f"  slowdown, with / alone:         {spread([g.wall_ms / a.wall_ms for g, a in pairs])}")
    print(f"  the machine's own, alone/alone: {spread(both_alone)}")
    print(f"  CPU of driver and JVM:          {spread([g.cpu_ms / a.cpu_ms for g, a in pairs])}")
    saved = [b.saved for b in with_guard]
    python = statistics.median(g.python_cpu_ms - a.python_cpu_ms for g, a in pairs)
    millis = statistics.median(s.millis for s in saved)
    print(f"  one savepoint: median {millis:.0f} ms ({millis / wall:.1%} of the block), at most "
          f"{max(s.millis for s in saved)} ms; tries at most {max(s.tries for s in saved)}; "
          f"CPU of the driver's Python with listener {python:.0f} ms ({python / wall:.1%})")  # fmt: skip
    later = list(zip(saved[1:], written[1:], strict=True))
    print(f"  bytes, median of a savepoint: closure {statistics.median(s.bytes for s, _ in later):,.0f}, "
          f"copied {statistics.median(s.new_bytes for s, _ in later):,.0f}, "
          f"stored {statistics.median(s.stored_bytes for s, _ in later):,.0f}, "
          f"written by Spark meanwhile {statistics.median(w for _, w in later):,.0f}")  # fmt: skip


def restoring(place, last):
    location, store = place / "ck", place / "store"
    times = []
    for number in range(5):
        began = time.perf_counter()
        hf.guard.restore(location, store, last.checkpoint, into=place / f"again-{number}")
        times.append((time.perf_counter() - began) * 1_000)
    began = time.perf_counter()
    found = hf.guard.verify(location, store)
    verified = (time.perf_counter() - began) * 1_000
    assert found.ok, found.findings
    print(
        f"  restore of {last.files} files, {last.bytes:,} bytes: {statistics.median(times):.0f} ms"
    )
    print(f"  verify of {found.files} live files, {found.bytes:,} bytes, and all savepoints: "
          f"{verified:.0f} ms", flush=True)  # fmt: skip


def spark_as_it_comes(warehouse):
    """Spark's own settings for maintenance; two cores and two partitions."""
    from guard_queries import session

    spark = session(warehouse)
    for key in ("maintenanceInterval", "minDeltasForSnapshot"):
        spark.conf.unset(f"spark.sql.streaming.stateStore.{key}")
    return spark


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=85)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--layout", choices=LAYOUTS, action="append")
    options = parser.parse_args()
    from guard_queries import use_layout

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        spark = spark_as_it_comes(folder)
        for layout in options.layout or LAYOUTS:
            use_layout(spark, layout, retain=100)
            measure(
                spark, Path(folder) / layout, layout, pairs=options.pairs, seconds=options.seconds
            )
        spark.stop()
    print(f"took {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
