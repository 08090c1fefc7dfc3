"""What publishing an epoch to an upsert output costs: memory of the driver, and time of small epochs.

Run: python benchmarks/bench_upsert.py [--quick] [--rows 5000000] [--against CHECKOUT]

Large: half of the rows are loaded as one epoch, then all of them change in another one, a retraction
and a new row for each. What the driver's memory grows by meanwhile is compared with the changes as
Arrow holds them. The tasks' workers are watched from outside.

Small: epochs of 20,000 changes against an output of 200,000 rows. Staging counts, too: tasks do a
part of the work there. CPU seconds of the process are compared, wall time is told.

With `--against`, another checkout takes turns with this one, each in processes of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

ROWS_A_FILE = 500_000
SMALL_ROWS, SMALL_CHANGES, SMALL_EPOCHS = 200_000, 20_000, 12


def table(first: int, count: int, version: int, weight: int) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table(
        {
            "customer": pa.array([f"customer-{number:08d}" for number in ids]),
            "orders": pa.array(ids * 7919 % 1000 + version),
            "total": pa.array((ids * 31 % 10_007) / 7.0 + version),
            "_weight": pa.array(np.full(count, weight, np.int64)),
        }
    )


class Output:
    """An upsert output, and the staging area of its tasks."""

    def __init__(self, home: Path, spark) -> None:
        from holdfast.connectors.parquet.sink import Parquet
        from holdfast.connectors.staging import Target
        from holdfast.storage.open import StorageLocation

        self.place = StorageLocation(str(home / "store"))
        self.writer = Parquet(str(home / "out"), mode="upsert").open("out", "p", self.place, spark)
        slots = (
            {"by_slot": True} if "by_slot" in {f.name for f in dataclasses.fields(Target)} else {}
        )
        self.target = Target("out", self.place, **slots)

    def stage(self, epoch: int, tables) -> tuple[object, int]:
        """A token, and the bytes of its changes in memory."""
        from holdfast.checkpoint import PendingToken
        from holdfast.connectors.base import token_text
        from holdfast.connectors.staging import stage_rows
        from holdfast.ids import Epoch, RandomIds, SeededIds

        checkpoint = SeededIds(epoch).checkpoint_id(0)
        _, directory = self.writer.staging(checkpoint)
        ids, files, size = RandomIds(), [], 0
        for number, rows in enumerate(tables):
            size += rows.nbytes
            files.append(stage_rows(self.target, directory, number, rows, ids=ids, durable=False))
        text = token_text(directory, files)
        return PendingToken(checkpoint, Epoch(epoch), "out", text, "retracts", "pending"), size


def large(home: Path, rows: int) -> dict[str, float]:
    from holdfast.spark.session import open_session

    config = {"spark.driver.memory": "1g", "spark.log.level": "ERROR"}
    spark = open_session(app="bench", master="local[2]", config=config)
    spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
    output, half = Output(home, spark), rows // 2
    blocks = [(first, min(ROWS_A_FILE, half - first)) for first in range(0, half, ROWS_A_FILE)]
    found: dict[str, float] = {}

    def publish(name: str, epoch: int, tables) -> None:
        token, size = output.stage(epoch, tables)
        pa.default_memory_pool().release_unused()
        before = memory_kb("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        with Workers() as workers:
            began = time.perf_counter()
            output.writer.commit(token)
            found[f"{name}_s"] = time.perf_counter() - began
        found[f"{name}_mb"] = (memory_kb("VmHWM") - before) / 1e3
        found[f"{name}_worker_mb"] = workers.peak_kb / 1e3
        found[f"{name}_changes_mb"] = size / 1e6

    publish("load", 1, (table(*block, 0, 1) for block in blocks))
    both = ((block, weight) for block in blocks for weight in (-1, 1))
    publish("change", 2, (table(*block, max(0, weight), weight) for block, weight in both))
    found["files"] = len(os.listdir(home / "out"))
    spark.stop()
    return found


def small(home: Path) -> dict[str, float]:
    output = Output(home, None)
    output.writer.commit(output.stage(1, [table(0, SMALL_ROWS, 0, 1)])[0])
    times, cpu = [], []
    for epoch in range(2, 2 + SMALL_EPOCHS):
        first, count = (epoch * SMALL_CHANGES // 2) % SMALL_ROWS, SMALL_CHANGES // 4
        seen = epoch // (2 * SMALL_ROWS // SMALL_CHANGES)
        rows = [
            pa.concat_tables([table(at, count, seen, -1), table(at, count, seen + 1, 1)])
            for at in (first, first + count)
        ]
        began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        output.writer.commit(output.stage(epoch, rows)[0])
        now = resource.getrusage(resource.RUSAGE_SELF)
        times.append(time.perf_counter() - began)
        cpu.append(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)
    return {"cpu_ms": 1e3 * statistics.median(cpu[2:]), "ms": 1e3 * statistics.median(times[2:])}


def memory_kb(name: str, process: str = "self") -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


class Workers:
    """The largest of Spark's Python workers while it lasts."""

    def __enter__(self) -> Self:
        self.peak_kb, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        session = os.getsid(0)
        while not self._over.wait(0.05):
            for name in filter(str.isdecimal, os.listdir("/proc")):
                try:
                    ours = os.getsid(int(name)) == session and int(name) != os.getpid()
                    if ours and b"java" not in Path(f"/proc/{name}/cmdline").read_bytes()[:200]:
                        self.peak_kb = max(self.peak_kb, memory_kb("VmRSS", name))
                except OSError:
                    continue


def child(kind: str, rows: int, source: Path, scratch: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    with tempfile.TemporaryDirectory(dir=scratch) as home:
        environment = {**os.environ, "PYTHONPATH": str(source / "src")}
        command = [sys.executable, __file__, "--child", kind, "--rows", str(rows), "--dir", home]
        done = subprocess.run(
            command,
            check=False,
            env=environment,
            capture_output=True,
            text=True,
            start_new_session=True,
        )
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        return json.loads(done.stdout.splitlines()[-1])


def show(name: str, found: dict[str, float]) -> None:
    print(f"{name:8}" + "  ".join(f"{key}={value:,.1f}" for key, value in found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, fewer turns")
    parser.add_argument("--rows", type=int, default=5_000_000, help="changes of the large epoch")
    parser.add_argument("--against", type=Path, help="another checkout, which takes turns")
    parser.add_argument("--only", choices=["large", "small"])
    parser.add_argument("--dir", default=".bench", help="where files and stores go")
    parser.add_argument("--child", choices=["large", "small"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    home = Path(args.dir).absolute()
    if args.child:
        print(json.dumps(large(home, args.rows) if args.child == "large" else small(home)))
        return
    home.mkdir(parents=True, exist_ok=True)
    rows, turns = (args.rows // 10, 3) if args.quick else (args.rows, 5)
    sides = {"here": Path(__file__).resolve().parent.parent}
    if args.against:
        sides["against"] = args.against.absolute()
    if args.only != "small":
        print(f"an epoch of {rows:,} changes: what the driver's memory grows by")
        for name, source in sides.items():
            found = child("large", rows, source, str(home))
            show(name, found)
            for epoch in ("load", "change"):
                share = found[f"{epoch}_mb"] / found[f"{epoch}_changes_mb"]
                print(f"         {epoch}: {share:.2f} times the changes")
    if args.only != "large":
        print(f"epochs of {SMALL_CHANGES:,} changes, {SMALL_ROWS:,} rows, staging and publishing")
        seen: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(turns):
            for name, source in sides.items():
                found = child("small", rows, source, str(home))
                seen[name].append(found["cpu_ms"])
                show(name, found)
        for name, times in seen.items():
            ratio = statistics.median(times) / statistics.median(seen["here"])
            print(f"{name:8}{statistics.median(times):.1f} ms of CPU, {ratio:.2f} times here")


if __name__ == "__main__":
    main()
