"""From starting a process to its first durable checkpoint, in new processes each time.

Run: python benchmarks/bench_start.py [--quick] [--rounds 5]

A small pipeline (generated rows, an aggregate, two Parquet sinks), started as a user does. The sides
take turns: Spark's own Python daemon, Holdfast's, and Holdfast's after `holdfast warmup`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from side_by_side import arguments

import holdfast as hf
from holdfast.spark import class_archive as classes
from holdfast.spark.java import require_java


def started(home: Path, daemon: str) -> None:
    """The process that is measured: prints what it has reached."""
    config = {"spark.driver.memory": "1g", "spark.log.level": "OFF"}
    if daemon != "holdfast":
        config["spark.python.daemon.module"] = daemon
    pipe = hf.Pipeline(
        "start", store=home / "cp", partitions=2, master="local[2]", spark_config=config
    )
    columns = {"k": "pmod(xxhash64(id, seed), 50)", "x": "id % 7", "id": "id"}
    rows = pipe.source("in", hf.sources.Generator(columns, rows=3_000, rows_per_epoch=1_000))
    totals = rows.group_by("k").agg(n=hf.count(), s=hf.sum("x"), name="totals")
    pipe.sink("totals_out", totals, hf.sinks.Parquet(str(home / "totals")))
    pipe.sink("rows_out", rows, hf.sinks.Parquet(str(home / "rows")))
    pipe.session()
    print("session", flush=True)
    pipe.run(on_epoch=lambda _: print("epoch", flush=True))


def measure(home: Path, cache: Path, daemon: str) -> tuple[float, float]:
    """Seconds until the session is there, and until the first epoch is reported."""
    shutil.rmtree(home, ignore_errors=True)
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, __file__, "--child", str(home), daemon],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, classes.CACHE_VARIABLE: str(cache)},
    )  # fmt: skip
    assert process.stdout is not None
    reached: dict[str, float] = {}
    for line in process.stdout:
        reached.setdefault(line.strip(), time.perf_counter() - began)
    process.wait()
    return reached["session"], reached["epoch"]


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        started(Path(sys.argv[2]), sys.argv[3])
        return
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=None)
    args = parser.parse_args()
    home = Path(args.dir).absolute() / "start"
    full, empty = home / "cache", home / "no-cache"
    os.environ[classes.CACHE_VARIABLE] = str(full)
    made = classes.prepare(require_java())
    print(f"prepared in {made.seconds:.0f} s, {made.size / 1e6:.0f} MB")
    sides = {
        "Spark's own daemon": (empty, "pyspark.daemon"),
        "Holdfast": (empty, "holdfast"),
        "Holdfast, prepared": (full, "holdfast"),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(args.rounds or (2 if args.quick else 5)):
        for name, (cache, daemon) in sides.items():
            found[name].append(measure(home / "run", cache, daemon))
    print("| | session, s | first epoch, s: median | fastest | slowest |")
    print("|---|---|---|---|---|")
    for name, times in found.items():
        sessions, firsts = zip(*times, strict=True)
        print(f"| {name} | {statistics.median(sessions):.1f} | {statistics.median(firsts):.1f} "
              f"| {min(firsts):.1f} | {max(firsts):.1f} |")  # fmt: skip
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
