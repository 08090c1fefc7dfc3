"""Operator state next to RocksDB: one question for each function, answers as ratios.

    python benchmarks/bench_state.py [--quick] [--only NAME ...]

Read-modify-write of a batch: look up the batch's keys, add to their values, store the result
durably. Both sides alternate batch by batch in one process, on the same directory's disk.

Holdfast is charged for everything from an Arrow table to a run behind a barrier (fsync of file
and directories). Its merges are run between batches and shown apart; `with merges` adds them.
RocksDB (rocksdict, raw mode, WAL, `sync=True` on each write, bloom filter, 512 MiB block cache,
fully compacted after loading) is charged for multi-get and for filling and writing one
WriteBatch. Turning columns into Python bytes and back is not charged to it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ids import RandomIds, SeededIds
from holdfast.state import (
    HASH,
    CompactionPolicy,
    LatestPartition,
    RunInfo,
    RunSource,
    RunTarget,
    TraceReader,
    TraceSchema,
    plan_compaction,
    plan_full_compaction,
    replace,
    run_compaction,
)
from holdfast.storage.local.storage import LocalStorage

SCHEMA = TraceSchema.latest(
    pa.schema([("key", pa.int64())]), pa.schema([("total", pa.float64()), ("orders", pa.int64())])
)
SEED = 20240101


def mix(keys: np.ndarray) -> np.ndarray:
    """A 64-bit mix of int64 keys, in place of Spark's xxhash64."""
    x = keys.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def batch_of(keys: np.ndarray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(mix(keys)), pa.array(keys)], names=[HASH, "key"])


class Ours:
    """A latest trace on local disk, one partition."""

    def __init__(self, root: Path) -> None:
        self.storage = LocalStorage(root)
        self.source = RunSource(self.storage)
        self.ids = RandomIds()
        self.checkpoint = SeededIds(SEED).checkpoint_id(1_700_000_000_000_000)
        self.runs: list[RunInfo] = []
        self.epoch = 0
        self.bytes_merged = self.bytes_written = 0
        self.merge_s = 0.0

    def target(self) -> RunTarget:
        return RunTarget(
            checkpoint=self.checkpoint, operator="totals", partition=0, partitions=1,
            attempt=self.ids.token(), epoch=self.epoch,
        )  # fmt: skip

    def load(self, count: int) -> None:
        """Fill with keys 0..count-1 and compact."""
        for start in range(0, count, 2_000_000):
            keys = np.arange(start, min(count, start + 2_000_000))
            self.epoch += 1
            rows = pa.RecordBatch.from_arrays(
                [pa.array(mix(keys)), pa.array(keys), pa.array(keys * 0.5), pa.array(keys)],
                names=[HASH, "key", "total", "orders"],
            )
            with LatestPartition.open(self.runs, self.source, SCHEMA) as part:
                self.runs.append(part.apply(rows, self.storage, self.target()))
        plan = plan_full_compaction(self.runs, 0, 1)
        if plan:
            merged = run_compaction(plan, self.storage, self.source, SCHEMA, self.target())
            old, self.runs = self.runs, replace(self.runs, merged)
            self.forget(old)

    def forget(self, old: list[RunInfo]) -> None:
        kept = {run.path for run in self.runs}
        self.storage.delete_many([run.path for run in old if run.path not in kept])

    def step(self, keys: np.ndarray, amounts: np.ndarray) -> float:
        """One read-modify-write; seconds."""
        begin = time.perf_counter()
        self.epoch += 1
        probe = batch_of(keys)
        with LatestPartition.open(self.runs, self.source, SCHEMA) as part:
            old = part.lookup(probe).values
            total = pc.add(pc.fill_null(old.column(0), 0.0), pa.array(amounts))
            orders = pc.add(pc.fill_null(old.column(1), 0), 1)
            rows = pa.RecordBatch.from_arrays(
                [*probe.columns, total, orders], names=[HASH, "key", "total", "orders"]
            )
            info = part.apply(rows, self.storage, self.target())
        self.storage.barrier([info.path])
        took = time.perf_counter() - begin
        self.runs.append(info)
        self.bytes_written += info.size
        return took

    def tidy(self) -> float:
        """Carry out all merges that are due; seconds."""
        begin = time.perf_counter()
        while plan := plan_compaction(self.runs, 0, 1, CompactionPolicy()):
            merged = run_compaction(plan, self.storage, self.source, SCHEMA, self.target())
            self.storage.barrier([merged.path])
            self.bytes_merged += merged.size
            old, self.runs = self.runs, replace(self.runs, merged)
            self.forget(old)
        return time.perf_counter() - begin


class Rocks:
    """The same totals in RocksDB."""

    def __init__(self, root: Path) -> None:
        import rocksdict  # the other questions need no RocksDB

        self.rocksdict = rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.increase_parallelism(os.cpu_count() or 2)
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(rocksdict.Cache(512 << 20))
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        self.db = rocksdict.Rdict(str(root), options)
        self.sync = rocksdict.WriteOptions()
        self.sync.sync = True
        self.loose = rocksdict.WriteOptions()

    def load(self, count: int) -> None:
        for start in range(0, count, 200_000):
            keys = np.arange(start, min(count, start + 200_000))
            names, values = self.names(keys), self.values(keys * 0.5, keys)
            batch = self.rocksdict.WriteBatch(raw_mode=True)
            for name, value in zip(names, values, strict=True):
                batch.put(name, value)
            self.db.write(batch, self.loose)
        self.db.flush()
        self.db.compact_range(None, None)

    @staticmethod
    def names(keys: np.ndarray) -> list[bytes]:
        raw = keys.astype(">i8").tobytes()
        return [raw[i : i + 8] for i in range(0, len(raw), 8)]

    @staticmethod
    def values(totals: np.ndarray, orders: np.ndarray) -> list[bytes]:
        both = np.empty(len(totals), [("t", "f8"), ("o", "i8")])
        both["t"], both["o"] = totals, orders
        raw = both.tobytes()
        return [raw[i : i + 16] for i in range(0, len(raw), 16)]

    def step(self, keys: np.ndarray, amounts: np.ndarray) -> float:
        # Sorted keys are the kindest to RocksDB: neighbouring blocks are read once.
        order = np.argsort(keys)
        keys, amounts = keys[order], amounts[order]
        names = self.names(keys)
        begin = time.perf_counter()
        found = self.db.get(names)
        took = time.perf_counter() - begin
        old = np.frombuffer(b"".join(found), [("t", "f8"), ("o", "i8")])
        values = self.values(old["t"] + amounts, old["o"] + 1)
        begin = time.perf_counter()
        batch = self.rocksdict.WriteBatch(raw_mode=True)
        put = batch.put
        for name, value in zip(names, values, strict=True):
            put(name, value)
        self.db.write(batch, self.sync)
        return took + time.perf_counter() - begin


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(str(r[i])) for r in [head, *rows]) for i in range(len(head))]
    print(f"\n### {title}\n")
    for row in [head, ["-" * w for w in widths], *rows]:
        print("| " + " | ".join(str(c).rjust(w) for c, w in zip(row, widths, strict=True)) + " |")
    sys.stdout.flush()


def scratch() -> Path:
    base = Path(os.environ.get("HOLDFAST_BENCH_DIR", tempfile.gettempdir()))
    return Path(tempfile.mkdtemp(prefix="bench-state-", dir=base))


def rounds_for(size: int, *, quick: bool) -> int:
    rounds = {1_000: 60, 50_000: 24, 500_000: 6}[size]
    return max(3, rounds // 6) if quick else rounds


def read_modify_write(counts: list[int], *, quick: bool) -> None:
    """How fast is a batch against RocksDB, and against ten times the keys?

    All four (two sizes, two sides) take turns batch by batch, so that noise meets all alike.
    """
    root = scratch()
    rows = []
    try:
        ours = {count: Ours(root / f"ours-{count}") for count in counts}
        rocks = {count: Rocks(root / f"rocks-{count}") for count in counts}
        for count in counts:
            ours[count].load(count)
            rocks[count].load(count)
        rng = np.random.default_rng(SEED)
        for size in (1_000, 50_000, 500_000):
            mine: dict[int, list[float]] = {count: [] for count in counts}
            theirs: dict[int, list[float]] = {count: [] for count in counts}
            merging = dict.fromkeys(counts, 0.0)
            for _ in range(rounds_for(size, quick=quick)):
                for count in counts:
                    keys = rng.choice(count, size, replace=False)
                    amounts = rng.random(size)
                    mine[count].append(ours[count].step(keys, amounts))
                    theirs[count].append(rocks[count].step(keys, amounts))
                    merging[count] += ours[count].tidy()
            for count in counts:
                a, b = statistics.median(mine[count]), statistics.median(theirs[count])
                full = (sum(mine[count]) + merging[count]) / len(mine[count])
                rows.append([
                    f"{count:,}", f"{size:,}", f"{a * 1e3:.1f}", f"{b * 1e3:.1f}", f"{b / a:.1f}x",
                    f"{full * 1e3:.1f}", f"{statistics.mean(theirs[count]) / full:.1f}x",
                    f"{a / statistics.median(mine[counts[0]]):.2f}", len(ours[count].runs),
                ])  # fmt: skip
        for count in counts:
            check_equal(ours[count], rocks[count], count)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    head = ["keys", "batch", "ours", "rocks", "ratio", "ours+merges (mean)", "ratio (means)"]
    table(
        "Read-modify-write of a batch (median ms; ratio: RocksDB / Holdfast)",
        [*head, f"vs {counts[0]:,} keys", "runs"],
        rows,
    )


def check_equal(ours: Ours, rocks: Rocks, count: int) -> None:
    """Both sides must have computed the same totals."""
    keys = np.random.default_rng(1).choice(count, 2_000, replace=False)
    with LatestPartition.open(ours.runs, ours.source, SCHEMA) as part:
        answer = part.lookup(batch_of(keys))
    old = np.frombuffer(b"".join(rocks.db.get(rocks.names(keys))), [("t", "f8"), ("o", "i8")])
    assert answer.found.all()
    assert np.array_equal(answer.values.column(0).to_numpy(), old["t"])
    assert np.array_equal(answer.values.column(1).to_numpy(), old["o"])


def bytes_written(count: int, *, quick: bool) -> None:
    """How many bytes does a batch write, before and with merging?"""
    rows = []
    for size in (1_000, 50_000, 500_000):
        root = scratch()
        try:
            ours = Ours(root / "ours")
            ours.load(count)
            rng = np.random.default_rng(SEED)
            batches = {1_000: 200, 50_000: 60, 500_000: 12}[size] // (4 if quick else 1)
            for _ in range(batches):
                ours.step(rng.choice(count, size, replace=False), rng.random(size))
                ours.tidy()
            own = size * (8 + 8 + 8 + 8)
            per_batch = ours.bytes_written / batches
            total = (ours.bytes_written + ours.bytes_merged) / batches
            rows.append([
                f"{size:,}", batches, f"{own:,}", f"{per_batch:,.0f}", f"{per_batch / own:.2f}",
                f"{total / own:.1f}", len(ours.runs),
            ])  # fmt: skip
        finally:
            shutil.rmtree(root, ignore_errors=True)
    table(
        f"Bytes written, {count:,} keys (a row's own bytes: hash, key, two values = 32)",
        ["batch", "batches", "own bytes", "written", "ratio", "with merging", "runs at end"], rows,
    )  # fmt: skip


def evict(runs: list[RunInfo], storage: LocalStorage) -> None:
    """Push the runs out of the page cache."""
    for run in runs:
        descriptor = os.open(storage.local_path(run.path), os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def restore_and_rescale(counts: list[int], *, quick: bool) -> None:
    """How long until the first lookup, cold, and with another number of partitions?"""
    rows = []
    for count in counts:
        root = scratch()
        try:
            ours = Ours(root / "ours")
            ours.load(count)
            rng = np.random.default_rng(SEED)
            for _ in range(6):
                ours.step(rng.choice(count, 50_000, replace=False), rng.random(50_000))
            cold, opened, rescaled = [], [], []
            before = ours.storage.usage_bytes()
            for _ in range(5 if quick else 15):
                evict(ours.runs, ours.storage)
                source = RunSource(ours.storage)  # a new process has nothing open
                begin = time.perf_counter()
                with LatestPartition.open(ours.runs, source, SCHEMA) as part:
                    opened.append(time.perf_counter() - begin)
                    part.lookup(batch_of(np.array([7])))
                cold.append(time.perf_counter() - begin)
                source = RunSource(ours.storage, open_max=0)  # as if in 16 processes
                begin = time.perf_counter()
                for p in range(16):
                    LatestPartition.open(
                        ours.runs, source, SCHEMA, partition=p, partitions=16
                    ).close()
                rescaled.append(time.perf_counter() - begin)
            size = sum(run.size for run in ours.runs)
            fresh = LocalStorage(root / "ours")
            rows.append([
                f"{count:,}", f"{size / 1e6:,.0f}", len(ours.runs),
                f"{statistics.median(opened) * 1e3:.2f}", f"{statistics.median(cold) * 1e3:.2f}",
                f"{statistics.median(rescaled) * 1e3:.2f}", fresh.usage_bytes() - before,
            ])  # fmt: skip
        finally:
            shutil.rmtree(root, ignore_errors=True)
    table(
        "Restore (page cache dropped) and rescale from 1 to 16 partitions (median ms)",
        ["keys", "MB", "runs", "open", "open + first lookup", "open all 16", "bytes rewritten"],
        rows,
    )


def peak_memory(count: int, *, quick: bool) -> None:
    """How much memory does a large trace need?"""
    root = scratch()
    try:
        base = memory_child(root / "none", 0, 0)
        result = memory_child(root / "ours", count, 4 if quick else 12)
        size = result["disk"]
        rows = [
            [
                what,
                f"{(result[key] - base[key]) / 1e6:,.0f}",
                f"{(result[key] - base[key]) / size:.2f}",
            ]
            for what, key in (
                ("private memory, peak, batches of 50 k and their merges", "steps"),
                ("private memory, peak, streaming the whole trace", "scan"),
                ("private memory, peak, full compaction", "compact"),
            )
        ]
        table(
            f"Memory of a {count:,}-key trace of {size / 1e6:,.0f} MB (above a bare process)",
            ["what", "MB", "of its size"], rows,
        )  # fmt: skip
    finally:
        shutil.rmtree(root, ignore_errors=True)


def memory_child(root: Path, count: int, batches: int) -> dict[str, int]:
    """Run in a process of its own, so that peaks are its own."""
    call = [sys.executable, __file__, "--memory-child", str(root), str(count), str(batches)]
    out = subprocess.run(call, check=True, capture_output=True, text=True, env=os.environ).stdout
    return {k: int(v) for k, v in (line.split("=") for line in out.split())}


def private_bytes() -> int:
    """Anonymous memory: what cannot be given back by dropping clean file pages."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


class PeakWatch:
    """Samples private memory every 2 ms in a thread."""

    def __enter__(self) -> Self:
        self.peak, self._stop = private_bytes(), threading.Event()

        def watch() -> None:
            while not self._stop.wait(0.002):
                self.peak = max(self.peak, private_bytes())

        self._thread = threading.Thread(target=watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def run_memory_child(root: Path, count: int, batches: int) -> None:
    ours = Ours(root)
    if not count:
        for key in ("steps", "scan", "compact"):
            print(f"{key}={private_bytes()}")
        print("disk=1")
        return
    if not (root / "loaded").exists():
        # Loaded by a child of its own: its peak does not count here.
        pid = os.fork()
        if pid == 0:
            ours.load(count)
            (root / "loaded").write_text(repr_runs(ours.runs))
            os._exit(0)
        os.waitpid(pid, 0)
    ours.runs = parse_runs((root / "loaded").read_text())
    ours.epoch = max(run.epoch_high for run in ours.runs)
    print(f"disk={sum(run.size for run in ours.runs)}")
    rng = np.random.default_rng(SEED)
    with PeakWatch() as watch:
        for _ in range(batches):
            ours.step(rng.integers(0, count, 50_000), rng.random(50_000))
            ours.tidy()
    print(f"steps={watch.peak}")
    reader = TraceReader(runs=tuple(ours.runs), source=ours.source, schema=SCHEMA)
    with PeakWatch() as watch:
        total = sum(batch.num_rows for batch in reader.batches())
    assert total == count
    print(f"scan={watch.peak}")
    plan = plan_full_compaction(ours.runs, 0, 1)
    with PeakWatch() as watch:
        run_compaction(plan, ours.storage, ours.source, SCHEMA, ours.target())
    print(f"compact={watch.peak}")


def repr_runs(runs: list[RunInfo]) -> str:
    return msgspec.json.encode(runs).decode()


def parse_runs(text: str) -> list[RunInfo]:
    return msgspec.json.decode(text.encode(), type=list[RunInfo])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1 M keys only, fewer rounds")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--memory-child", nargs=3)
    args = parser.parse_args()
    if args.memory_child:
        root, count, batches = args.memory_child
        run_memory_child(Path(root), int(count), int(batches))
        return
    counts = [600_000, 1_000_000] if args.quick else [1_000_000, 10_000_000]
    questions = {
        "rmw": lambda: read_modify_write(counts, quick=args.quick),
        "bytes": lambda: bytes_written(counts[0], quick=args.quick),
        "restore": lambda: restore_and_rescale(counts, quick=args.quick),
        "memory": lambda: peak_memory(counts[-1], quick=args.quick),
    }
    for name, ask in questions.items():
        if not args.only or name in args.only:
            ask()


if __name__ == "__main__":
    main()
