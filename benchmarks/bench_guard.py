"""What does the guard cost a running query?

    python benchmarks/bench_guard.py            # about ten minutes
    python benchmarks/bench_guard.py --quick    # about two

One process, one Spark. Pairs of the same query over the same input, alternately without the guard
and with `hf.guard.attach(every=10)`; the median of the ratios of batch times is reported. Then
bytes copied by every savepoint against bytes that Spark had written since the one before, and the
time to restore a savepoint.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration" / "guard"))
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import holdfast as hf

ROWS, KEYS = 20_000, 50_000


def start(spark, location, times):
    """Counts by key from a deterministic source; `times` gets the end of every batch."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

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


def run(spark, place, batches, guarded):
    """Median batch time in ms after ten batches of warm-up, and the savepoints."""
    location, store, times = place / "ck", place / "store", []
    shutil.rmtree(place, ignore_errors=True)
    query = start(spark, location, times)
    attachment = None
    if guarded:
        attachment = hf.guard.attach(query, store, every=10, retain=100, spark=spark)
    while len(times) < batches:
        time.sleep(0.01)
    query.stop()
    if attachment is not None:
        attachment.stop(final=False)
        assert not attachment.errors, attachment.errors
    gaps = [(b - a) * 1_000 for a, b in pairwise(times[10:batches])]
    return statistics.mean(gaps), statistics.median(gaps), attachment.saved if attachment else []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--batches", type=int)
    options = parser.parse_args()
    pairs = options.pairs or (3 if options.quick else 7)
    batches = options.batches or (41 if options.quick else 81)
    from guard_queries import session, use_layout

    with tempfile.TemporaryDirectory() as folder:
        spark = session(folder)
        for layout in ("hdfs", "rocksdb2-changelog"):
            use_layout(spark, layout, retain=100)
            measure(spark, Path(folder) / layout, layout, pairs, batches)
        spark.stop()


def measure(spark, place, layout, pairs, batches):
    run(spark, place / "warm", batches=25, guarded=False)
    means, medians, saved = [], [], []
    for pair in range(pairs):
        order = (False, True) if pair % 2 == 0 else (True, False)
        found = {guarded: run(spark, place / str(guarded), batches, guarded) for guarded in order}
        means.append(found[True][0] / found[False][0])
        medians.append(found[True][1] / found[False][1])
        saved.extend(found[True][2])
    first = [s for s in saved if s.new_files == s.files or s.batch < 12]
    later = [s for s in saved if s not in first] or saved
    print(f"{layout}: {pairs} pairs of {batches} batches of {ROWS} rows, {KEYS} keys")
    print(f"  slowdown, mean batch time:    {statistics.median(means):.3f} "
          f"(all: {' '.join(f'{ratio:.3f}' for ratio in sorted(means))})")  # fmt: skip
    print(f"  slowdown, median batch time:  {statistics.median(medians):.3f}")
    print(f"  one savepoint: {statistics.median(s.millis for s in saved):.0f} ms, "
          f"tries {max(s.tries for s in saved)} at most, {len(saved)} savepoints")  # fmt: skip
    size = statistics.median(s.bytes for s in later)
    copied = statistics.median(s.new_bytes for s in later)
    stored = statistics.median(s.stored_bytes for s in later)
    print(f"  bytes: closure {size:,.0f}, copied {copied:,.0f} ({copied / size:.0%}), "
          f"store grew by {stored:,.0f}")  # fmt: skip
    restoring(place, saved[-1])


def restoring(place, last):
    location, store = place / "True" / "ck", place / "True" / "store"
    times = []
    for number in range(5):
        began = time.perf_counter()
        hf.guard.restore(location, store, last.checkpoint, into=place / f"again-{number}")
        times.append((time.perf_counter() - began) * 1_000)
    began = time.perf_counter()
    hf.guard.verify(location, store)
    verified = (time.perf_counter() - began) * 1_000
    print(f"  restore {last.files} files, {last.bytes:,} bytes: {statistics.median(times):.0f} ms; "
          f"verify live and all savepoints: {verified:.0f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
