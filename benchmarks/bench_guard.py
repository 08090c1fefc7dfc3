"""What does the guard cost a running query?

    python benchmarks/bench_guard.py            # about five minutes on a quiet machine
    python benchmarks/bench_guard.py --quick    # about two

One process, one Spark, one query for each state layout. Its batches are taken in blocks of ten:
in every other block the query is attached (listener and all) and one savepoint is made, in the
rest it runs alone. Order of the two changes from pair to pair, so that warming up and noise of
the machine fall on both sides. Reported: the ratio of block times (median of the pairs), bytes
that each savepoint copied against bytes that Spark wrote since the one before and against the whole
closure, and the time to restore.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration" / "guard"))
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import holdfast as hf
from holdfast.guard.live import Live

ROWS, KEYS, BLOCK = 20_000, 50_000, 10


def start(spark, location, times):
    """Counts by key from a deterministic source; `times` gets the end of every batch."""
    from pyspark.sql import functions as F

    frame = (
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
        .groupBy((F.col("value") * 7919 % KEYS).alias("k")).agg(F.count("*"), F.max("value"))
    )  # fmt: skip

    def end(batch_frame, _batch):
        batch_frame.write.format("noop").mode("overwrite").save()
        times.append(time.perf_counter())

    return (
        frame.writeStream.option("checkpointLocation", str(location)).outputMode("update")
        .trigger(processingTime="0 seconds").foreachBatch(end).start()
    )  # fmt: skip


def wait(times, count):
    while len(times) < count:
        time.sleep(0.002)


def block(spark, query, place, times, *, guarded):
    """Seconds of ten batches, CPU ms of this (Python) process, and the savepoint of the block."""
    first = len(times)
    wait(times, first + 1)  # begin at the end of a batch
    cpu = time.process_time()
    attachment = None
    if guarded:
        attachment = hf.guard.attach(query, place / "store", every=1000, retain=1000, spark=spark)
        attachment.save_now()
    wait(times, first + 1 + BLOCK)
    took = times[first + BLOCK] - times[first]
    if attachment is not None:
        attachment.stop(final=False)
        assert not attachment.errors, attachment.errors
    cpu = (time.process_time() - cpu) * 1_000
    return took, cpu, attachment.saved[0] if attachment is not None else None


def measure(spark, place, layout, pairs):
    """One query, alternately attached and alone."""
    times, ratios, cpus, saved, written, seen = [], [], [], [], [], set()
    query = start(spark, place / "ck", times)
    wait(times, 3 * BLOCK)
    for pair in range(pairs):
        took, spent = {}, {}
        for guarded in (pair % 2 == 0, pair % 2 != 0):
            took[guarded], spent[guarded], savepoint = block(
                spark, query, place, times, guarded=guarded
            )
            if savepoint is not None:
                saved.append(savepoint)
                with Live.open(place / "ck") as live:
                    entries = live.list().entries
                written.append(sum(e.size for p, e in entries.items() if p not in seen))
                seen = set(entries)
        ratios.append(took[True] / took[False])
        cpus.append(spent[True] - spent[False])
    query.stop()
    span = (times[-1] - times[3 * BLOCK]) / (len(times) - 3 * BLOCK - 1) * 1_000
    print(
        f"{layout}: {pairs} pairs of {BLOCK} batches of {ROWS} rows, {KEYS} keys, {span:.0f} ms a batch"
    )
    print(f"  slowdown by one savepoint in {BLOCK} batches: median {statistics.median(ratios):.3f}, "
          f"quartiles {' '.join(f'{q:.3f}' for q in statistics.quantiles(ratios, n=4))}")  # fmt: skip
    print(f"  one savepoint: median {statistics.median(s.millis for s in saved):.0f} ms, "
          f"at most {max(s.millis for s in saved)} ms; tries at most {max(s.tries for s in saved)}")  # fmt: skip
    print(
        f"  CPU of the driver's Python process for it: median {statistics.median(cpus):.0f} ms, "
        f"{statistics.median(cpus) / (span * BLOCK):.1%} of the block's time on one core"
    )
    later = list(zip(saved[1:], written[1:], strict=True))
    print(f"  bytes, median of a savepoint: closure {statistics.median(s.bytes for s, _ in later):,.0f}, "
          f"copied {statistics.median(s.new_bytes for s, _ in later):,.0f}, "
          f"stored {statistics.median(s.stored_bytes for s, _ in later):,.0f}, "
          f"written by Spark meanwhile {statistics.median(w for _, w in later):,.0f}")  # fmt: skip
    restoring(place, saved[-1])


def restoring(place, last):
    location, store = place / "ck", place / "store"
    times = []
    for number in range(5):
        began = time.perf_counter()
        hf.guard.restore(location, store, last.checkpoint, into=place / f"again-{number}")
        times.append((time.perf_counter() - began) * 1_000)
    began = time.perf_counter()
    report = hf.guard.verify(location, store)
    verified = (time.perf_counter() - began) * 1_000
    assert report.ok, report.findings
    print(
        f"  restore of {last.files} files, {last.bytes:,} bytes: {statistics.median(times):.0f} ms"
    )
    print(f"  verify of {report.files} live files, {report.bytes:,} bytes, and all savepoints: "
          f"{verified:.0f} ms", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--pairs", type=int)
    options = parser.parse_args()
    pairs = options.pairs or (8 if options.quick else 24)
    from guard_queries import session, use_layout

    with tempfile.TemporaryDirectory() as folder:
        spark = session(folder)
        spark.conf.set("spark.sql.streaming.minBatchesToRetain", "100")
        for layout in ("hdfs", "rocksdb2-changelog"):
            use_layout(spark, layout, retain=100)
            measure(spark, Path(folder) / layout, layout, pairs)
        spark.stop()


if __name__ == "__main__":
    main()
