"""What does the guard cost a running query?

    python benchmarks/bench_guard.py               # less than four minutes, whatever the load
    python benchmarks/bench_guard.py --seconds 60  # a first look
    python benchmarks/bench_guard.py --block 10    # one savepoint in ten batches, measured as such

One process, one Spark, one query for each state layout, with Spark's own settings for clean-up and
snapshots. The query is not instrumented: when a batch has ended is read off its commit file.
Batches are taken in blocks of five, one batch between blocks left out. In one block of each pair
the query is attached (listener and all) and saved once, in the other it runs alone; which comes
first changes from pair to pair, so that a machine or a JVM that gets slower or faster falls on
both sides alike. A block counts as a whole: a median of its batches would not see the savepoint.

A savepoint in five batches is twice what the goal speaks of, and is measured since a short block
holds less noise beside the same savepoint. For one in ten batches the time that was added to a
block is set against ten batches; the listener is then counted for five of them only.

Reported as the middle of the pairs (median of the means of any two), with quartiles and the
interval that holds 95 % of the middles when the pairs are drawn again: the ratio of block times, the
same for blocks that were both alone (what the machine does by itself), and the ratio of CPU
time (this process and the JVM). Then the savepoint's own times, the bytes that it copied against
the bytes that Spark wrote since the one before, and the time to restore.
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
from holdfast.guard.checkpoint_location import CheckpointLocation

ROWS, KEYS = 20_000, 50_000
LAYOUTS = ("hdfs", "rocksdb2-changelog")
WARM_SHARE = 0.3
PAIRS_MIN = 3
_TICK_MS = 1_000 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Block:
    """Some batches: wall time, CPU time of both processes, and what was saved meanwhile."""

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


def block(spark, running, store, size, *, guarded):
    """Some batches, attached with one savepoint or alone."""
    running.newest()
    attachment = None
    if guarded:
        attachment = hf.guard.attach(running.query, store, every=1_000, retain=1_000, spark=spark)
    began = running.next()
    python, jvm = time.process_time(), running.cpu_ms()
    if attachment is not None:
        attachment.save_now()
    ended = running.next(size)
    python, jvm = (time.process_time() - python) * 1_000, running.cpu_ms() - jvm
    saved = None
    if attachment is not None:
        attachment.stop(final=False)
        assert not attachment.errors, attachment.errors
        (saved,) = attachment.saved
        assert not saved.reused
        assert saved.millis < ended - began, "the savepoint was not inside of its block"
    return Block(ended - began, python + jvm, python, saved)


def measure(spark, place, layout, *, size, until):
    """One query, alternately attached and alone, until it is time to stop."""
    print(f"{layout}: load average {os.getloadavg()[0]:.1f} before", flush=True)
    running = Running(spark, place / "ck")
    warm_until = time.perf_counter() + (until - time.perf_counter()) * WARM_SHARE
    while time.perf_counter() < warm_until:
        running.next()
    with_guard, alone, written, seen = [], [], [], set()
    warmed = running.batch
    while len(alone) < PAIRS_MIN or time.perf_counter() < until:
        for guarded in (True, False) if len(alone) % 2 == 0 else (False, True):
            done = block(spark, running, place / "store", size, guarded=guarded)
            (with_guard if guarded else alone).append(done)
            if guarded:
                with CheckpointLocation.open(place / "ck") as live:
                    entries = live.list().entries
                written.append(sum(e.size for p, e in entries.items() if p not in seen))
                seen = set(entries)
    running.query.stop()
    print(f"  {len(alone)} pairs of blocks of {size} batches of {ROWS} rows, {KEYS} keys, "
          f"after {warmed} batches; load average {os.getloadavg()[0]:.1f} after")  # fmt: skip
    report(with_guard, alone, written, size)
    restoring(place, with_guard[-1].saved)


def middle(values):
    """Median of the means of any two (Hodges and Lehmann): steadier than the median, as robust."""
    return statistics.median(
        (one + two) / 2 for one, two in itertools.combinations_with_replacement(values, 2)
    )


def interval(values):
    """Where 95 % of the middles of redrawn samples lie."""
    draw = random.Random(7)
    found = sorted(middle(draw.choices(values, k=len(values))) for _ in range(1_000))
    return found[25], found[-26]


def spread(values):
    """The middle, the quartiles, and the interval of the middle."""
    low, _, high = statistics.quantiles(values, n=4)
    least, most = interval(values)
    return (f"{middle(values):.3f}, quartiles {low:.3f} to {high:.3f}, "
            f"95 % interval {least:.3f} to {most:.3f}")  # fmt: skip


def report(with_guard, alone, written, size):
    """Slowdown, CPU, the savepoint itself, bytes."""
    pairs = list(zip(with_guard, alone, strict=True))
    both_alone = [after.wall_ms / before.wall_ms for before, after in itertools.pairwise(alone)]
    wall = statistics.median(b.wall_ms for b in alone)
    added = [g.wall_ms - a.wall_ms for g, a in pairs]
    ten = wall / size * 10
    print(f"  a batch alone {wall / size:,.0f} ms; a savepoint adds {middle(added):+,.0f} ms, "
          f"95 % interval {' to '.join(f'{ms:+,.0f}' for ms in interval(added))} ms")  # fmt: skip
    print(f"  one savepoint in ten batches:   {1 + middle(added) / ten:.3f}, 95 % interval "
          f"{' to '.join(f'{1 + ms / ten:.3f}' for ms in interval(added))}")  # fmt: skip
    print(
        f"  one in {size}, with / alone:         {spread([g.wall_ms / a.wall_ms for g, a in pairs])}"
    )
    print(f"  the machine's own, alone/alone: {spread(both_alone)}")
    print(f"  CPU of driver and JVM:          {spread([g.cpu_ms / a.cpu_ms for g, a in pairs])}")
    saved = [b.saved for b in with_guard]
    python = middle([g.python_cpu_ms - a.python_cpu_ms for g, a in pairs])
    millis = statistics.median(s.millis for s in saved)
    print(f"  one savepoint: median {millis:.0f} ms ({millis / ten:.1%} of ten batches), at most "
          f"{max(s.millis for s in saved)} ms; tries at most {max(s.tries for s in saved)}; CPU of "
          f"the driver's Python for it and the listener {python:.0f} ms ({python / ten:.1%})")  # fmt: skip
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
    parser.add_argument("--seconds", type=float, default=190, help="for all layouts together")
    parser.add_argument("--block", type=int, default=5, help="batches of a block")
    parser.add_argument("--layout", choices=LAYOUTS, action="append")
    options = parser.parse_args()
    from guard_queries import use_layout

    began = time.perf_counter()
    layouts = options.layout or LAYOUTS
    with tempfile.TemporaryDirectory() as folder:
        spark = spark_as_it_comes(folder)
        for number, layout in enumerate(layouts):
            use_layout(spark, layout, retain=100)
            now = time.perf_counter()
            left = options.seconds - (now - began)
            until = now + left / (len(layouts) - number)
            measure(spark, Path(folder) / layout, layout, size=options.block, until=until)
        spark.stop()
    print(f"took {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
