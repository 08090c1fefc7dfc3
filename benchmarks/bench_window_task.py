"""What a task does for a sliding window, without Spark: where its milliseconds go.

Run: python benchmarks/bench_window_task.py [--profile] [--changes] [--keys 20000] [--rows 50000] [--epochs 12]

The rows of `bench_window.py`, in two partitions, on real runs in a directory, merged between the
epochs as a pipeline would. One process and one thread: the CPU time is what counts on a machine
that others use too. Steps are timed by wrapping the functions that do them; a step that lies inside
another one is counted in both.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import shutil
import statistics
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.ids import CheckpointId, Epoch, SeededIds
from holdfast.operators.aggregate import execute as aggregate
from holdfast.operators.aggregate.execute import AggregateTask
from holdfast.operators.aggregate.functions.min_max import MinMaxFold
from holdfast.operators.aggregate.functions.sums import CountFold, SumFold
from holdfast.operators.base import EpochContext
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.window import execute as window
from holdfast.operators.window import panes
from holdfast.state import (
    CompactionPolicy,
    LatestPartition,
    RunSource,
    RunTarget,
    plan_compaction,
    replace,
    run_compaction,
)
from holdfast.storage import open_storage

TIME = pa.timestamp("us", tz="UTC")
PARTITIONS = 2
STEP_US = 60_000_000
MINUTE_US = 60_000_000
BASE = CheckpointId("0198c0de-0000-7000-8000-000000000000")
IDS = SeededIds(1)


def work_of() -> window.WindowTask:
    """What `bench_window.py` resolves to."""
    keys = pa.schema([("k", pa.int64()), ("window_start", TIME), ("window_end", TIME)])
    folds = (
        CountFold("n", pa.int64()),
        SumFold("s", pa.int64(), ("__hf_i1_0", "__hf_i1_1")),
        MinMaxFold("m", pa.int64(), ("__hf_i2_0",), largest=True),
    )
    inner = AggregateTask("slides", keys, folds, changes=False)
    return window.WindowTask(
        "slides", inner, 0, False, None, size_us=10 * MINUTE_US, slide_us=2 * MINUTE_US
    )


def mixed(keys: np.ndarray) -> np.ndarray:
    """Spread hashes, as the JVM's would be."""
    found = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return found ^ (found >> np.uint64(27))


class Rows:
    """Batches of event time that goes on, by partition."""

    def __init__(self, keys: int, rows: int) -> None:
        self.keys, self.rows, self.number = keys, rows, 0
        self.rng = np.random.default_rng(1)

    def next(self) -> tuple[list[pa.RecordBatch], int]:
        """One batch for each partition, and the largest time."""
        start = 1_700_000_000_000_000 + self.number * STEP_US
        late = self.rng.random(self.rows) < 0.05
        at = start + self.rng.integers(0, STEP_US, self.rows) - late * STEP_US
        keys = self.rng.integers(0, self.keys, self.rows)
        hashes = mixed(keys)
        x = keys * 7 % 1000
        self.number += 1
        found = []
        for part in range(PARTITIONS):
            mine = (hashes >> np.uint64(56)).astype(np.int64) * PARTITIONS // 256 == part
            ones = np.ones(int(mine.sum()), np.int64)
            columns = {
                HASH: hashes[mine].view(np.int64), "k": keys[mine], "__hf_i1_0": x[mine],
                "__hf_i1_1": ones, "__hf_i2_0": x[mine], window.AT: at[mine], WEIGHT: ones,
            }  # fmt: skip
            arrays = [pa.array(column) for column in columns.values()]
            found.append(pa.RecordBatch.from_arrays(arrays, names=list(columns)))
        return found, int(at.max())


class Task:
    """The traces of one operator, epoch after epoch."""

    def __init__(self, home: Path, *, wanted: bool) -> None:
        self.wanted = wanted
        self.work = work_of()
        self.storage = open_storage(str(home))
        self.source = RunSource(self.storage)
        self.runs: list = []
        self.epoch = 0
        self.previous_watermark_us: int | None = None

    def _target(self, partition: int, epoch: int) -> RunTarget:
        return RunTarget(
            checkpoint=IDS.checkpoint_id(self.epoch), operator="slides", partition=partition,
            partitions=PARTITIONS, attempt=IDS.token(), epoch=Epoch(epoch), base=BASE,
        )  # fmt: skip

    def step(self, parts: list[pa.RecordBatch], watermark_us: int | None) -> int:
        """One epoch: what the tasks of all partitions do, one after the other."""
        bounds = (
            {}
            if self.previous_watermark_us is None
            else self.work.bounds_us(self.previous_watermark_us)
        )
        new, changes = [], 0
        for partition, rows in enumerate(parts):
            trace = LatestPartition.open(
                self.runs, self.source, self.work.traces["slides"], partition=partition,
                partitions=PARTITIONS, time_bound_us=bounds.get("slides"),
            )  # fmt: skip
            context = EpochContext(
                self.epoch, watermark_us, self.previous_watermark_us, self.wanted
            )
            result = self.work.process(rows, {"slides": trace}, context)
            changes += result.counters["changes"]
            update = result.updates["slides"]
            new.append(trace.apply(update, self.storage, self._target(partition, self.epoch)))
        self.runs += [run for run in new if run is not None]
        self.epoch += 1
        self.previous_watermark_us = watermark_us
        return changes

    def merge(self) -> None:
        """What happens beside the epochs."""
        for partition in range(PARTITIONS):
            plan = plan_compaction(self.runs, partition, PARTITIONS, CompactionPolicy())
            if plan is None:
                continue
            bound = (
                self.work.bounds_us(self.previous_watermark_us)["slides"]
                if self.previous_watermark_us
                else None
            )
            merged = run_compaction(
                plan, self.storage, self.source, self.work.traces["slides"],
                self._target(partition, plan.epoch_high), time_bound_us=bound,
            )  # fmt: skip
            if merged is not None:
                self.runs = replace(self.runs, merged)


class Steps:
    """Milliseconds of CPU by step."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    def wrap(self, owner: object, name: str, label: str) -> None:
        """Time a function wherever it is called through `owner`."""
        plain = getattr(owner, name)

        def timed(*args, **kwargs):
            begun = time.process_time()
            try:
                return plain(*args, **kwargs)
            finally:
                self.spent[label] += (time.process_time() - begun) * 1e3

        setattr(owner, name, timed)


def watch(steps: Steps) -> None:
    """The steps of one task."""
    steps.wrap(LatestPartition, "due", "due windows")
    steps.wrap(LatestPartition, "lookup", "look-up of old windows")
    steps.wrap(LatestPartition, "apply", "apply: order and write the run")
    steps.wrap(window.WindowTask, "_assign", "rows into panes, panes into windows")
    steps.wrap(window, "added_up", "  rows into panes")
    steps.wrap(aggregate, "group_by_key", "grouping of windows")
    steps.wrap(AggregateTask, "_fold", "fold")
    steps.wrap(AggregateTask, "_finish", "changes and updates")
    steps.wrap(window.WindowTask, "process", "process, all of it")
    steps.wrap(panes, "group_rows", "    grouping of rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--changes", action="store_true", help="as if somebody took the changes")
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--dir", default=".bench")
    args = parser.parse_args()
    pa.set_cpu_count(1)
    home = Path(args.dir).absolute() / "window-task"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    given, task, steps = Rows(args.keys, args.rows), Task(home, wanted=args.changes), Steps()
    profile = cProfile.Profile() if args.profile else None
    if profile is None:
        watch(steps)
    watermark: int | None = None
    cpu, wall, touched = [], [], []
    for number in range(12 + args.epochs):
        parts, latest = given.next()
        if number == 12:  # until windows close as fast as they open
            steps.spent.clear()
        if profile is not None and number >= 12:
            profile.enable()
        begun, clock = time.process_time(), time.perf_counter()
        changes = task.step(parts, watermark)
        spent, passed = time.process_time() - begun, time.perf_counter() - clock
        if profile is not None:
            profile.disable()
        if number >= 12:
            cpu.append(spent * 1e3)
            wall.append(passed * 1e3)
            touched.append(changes)
        task.merge()
        watermark = latest - 2 * MINUTE_US
    print(f"changes an epoch: {statistics.median(touched):.0f}, runs: {len(task.runs)}")
    print(f"an epoch, both tasks: {statistics.median(cpu):.1f} ms of CPU, "
          f"{statistics.median(wall):.1f} ms on the clock")  # fmt: skip
    for label, ms in sorted(steps.spent.items(), key=lambda pair: -pair[1]):
        print(f"| {label} | {ms / args.epochs:.1f} |")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35).print_callers("take")
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
