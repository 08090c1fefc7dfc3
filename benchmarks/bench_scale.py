"""Many partitions: what an epoch costs, how many runs pile up, and what the driver does itself.

Run: python benchmarks/bench_scale.py [--quick] [--partitions 2 64 256] [--rows 20000] [--large 500000]

Each number of partitions gets a pipeline of its own, with the same rows: of ten epochs nine are
small and one is large. The sides take turns in blocks inside one session, so that noise hits all of
them alike. The driver's own CPU is that of its
Python process and of the threads of its JVM that are neither tasks nor compiler nor collector.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from side_by_side import Epochs, arguments, put, session

import holdfast as hf
from holdfast.state import CompactionPolicy, partition_range, runs_of
from holdfast.state.partition import layers, run_slices

SCHEMA = "k long, x long"
TASK_THREADS = (
    "Executor task launch worker",
    "C1 ",
    "C2 ",
    "G1 ",
    "GC ",
    "stdout writer",
    "Idle W",
)
RUNS_MAX = CompactionPolicy().runs_max


def write(directory: Path, number: int, keys: np.ndarray) -> Path:
    x = (keys * 7 % 1000).astype(np.int64)
    return put(directory, number, pa.table({"k": keys.astype(np.int64), "x": x}))


def driver_ms(spark: Any) -> float:
    """Milliseconds of CPU of the driver, in Python and in its threads of the JVM."""
    jvm = spark.sparkContext._jvm
    beans = jvm.java.lang.management.ManagementFactory.getThreadMXBean()
    total = 0
    for number in beans.getAllThreadIds():
        info = beans.getThreadInfo(number)
        if info is not None and not str(info.getThreadName()).startswith(TASK_THREADS):
            total += max(0, beans.getThreadCpuTime(number))
    return time.process_time() * 1e3 + total / 1e6


class Side(Epochs):
    """One pipeline of so many partitions, and what was seen of it."""

    def __init__(self, home: Path, spark: Any, partitions: int) -> None:
        self.home, self.spark, self.partitions = home, spark, partitions
        pipe = hf.Pipeline("scale", store=home / "cp", spark=spark, partitions=partitions)
        files = hf.sources.Files(str(home / "in"), schema=SCHEMA, files_max=1)
        pipe.source("in", files).group_by("k").agg(n=hf.count(), s=hf.sum("x"), name="t")
        self.epoch_ms: list[float] = []
        self.large_ms: list[float] = []
        self.driver_ms: list[float] = []
        self.runs: list[int] = []
        self.number = 0
        super().__init__(pipe)

    def play(self, batches: Sequence[np.ndarray]) -> None:
        """One run over these batches of keys; its first epoch pays for the start and is not counted."""
        for keys in batches:
            write(self.home / "in", self.number, keys)
            self.number += 1
        marks: list[float] = []
        before = self.pipe.run

        def run(**options: Any) -> Any:
            seen = options.pop("on_epoch")

            def marked(report: Any) -> None:
                marks.append(driver_ms(self.spark))
                seen(report)

            return before(on_epoch=marked, **options)

        self.pipe.run = run
        try:
            times = self.run(len(batches))
        finally:
            self.pipe.run = before
        most = max(map(len, batches))
        for ms, driver, keys in zip(times, np.diff(marks).tolist(), batches[1:], strict=True):
            if len(keys) == most:
                self.large_ms.append(ms)
            else:
                self.epoch_ms.append(ms)
                self.driver_ms.append(driver)
        self.runs.append(self.depth())

    def depth(self) -> int:
        """The most layers that a partition looks into, at the newest checkpoint."""
        manifest = self.pipe.reader().manifest("latest")
        runs = runs_of(manifest, "t")
        self.files = len(runs)
        return max(
            len(layers(run_slices(runs, partition_range(p, self.partitions))))
            for p in range(self.partitions)
        )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--partitions", type=int, nargs="*", default=[2, 64, 256])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--large", type=int, default=500_000)
    parser.add_argument("--epochs", type=int, default=None)
    args = parser.parse_args()
    spark = session(args)
    home = Path(args.dir).absolute() / "scale"
    shutil.rmtree(home, ignore_errors=True)
    rng = np.random.default_rng(1)
    sides = [Side(home / str(n), spark, n) for n in args.partitions]
    epochs = args.epochs or (20 if args.quick else 200)
    block = 10
    for _ in range(epochs // block):
        sizes = [args.rows] * (block - 1) + [args.large]
        batches = [rng.integers(0, 1_000_000, size) for size in sizes]
        for side in sides:
            side.play(batches)
    print("| partitions | small epoch ms | large epoch ms | driver CPU ms of a small epoch "
          "| layers of a partition, at most | files | tasks |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    for side in sides:
        small, large = statistics.median(side.epoch_ms), statistics.median(side.large_ms)
        tasks = sorted({report.tasks["t"] for report in side.reports})
        print(f"| {side.partitions} | {small:.0f} | {large:.0f} | {statistics.median(side.driver_ms):.0f} "
              f"| {max(side.runs)} | {side.files} | {', '.join(map(str, tasks))} |", flush=True)  # fmt: skip
    least = sides[0]
    for side in sides[1:]:
        for name in ("epoch_ms", "large_ms", "driver_ms"):
            ratio = statistics.median(getattr(side, name)) / statistics.median(getattr(least, name))
            print(f"  {name} at {side.partitions} over {least.partitions} partitions: {ratio:.2f}")
    if max(max(side.runs) for side in sides) > RUNS_MAX:
        raise SystemExit("a partition has more layers than the policy allows")
    spark.stop()


if __name__ == "__main__":
    main()
