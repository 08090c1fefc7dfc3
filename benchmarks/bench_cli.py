"""What does the command line cost beside the bare work: verify, state --sql, ls?

Run: python benchmarks/bench_cli.py [--quick] [--write docs/benchmarks/cli.md]

Commands run as processes of their own, start-up included; the bare side does the same work in a
process of its own too. Both sides alternate inside one run; medians and ratios are reported, since
machines are shared and noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

import holdfast as hf
from holdfast.state import (
    HASH,
    LatestPartition,
    RunSource,
    RunTarget,
    TraceKind,
    TraceSchema,
    put_trace,
    runs_of,
)
from holdfast.storage import LocalStorage
from holdfast.storage.local.disk import Disk

SOURCE = Path(__file__).resolve().parents[1] / "src"
TOPOLOGY = hf.checkpoint.topology(
    hf.checkpoint.Part(name="orders", kind="source", what="counter"),
    hf.checkpoint.Part(
        name="totals", kind="operator", what="aggregate", inputs=["orders"], stateful=True
    ),
    hf.checkpoint.Part(name="out", kind="sink", what="memory", inputs=["totals"]),
)
SCHEMA = TraceSchema.latest(
    pa.schema([("customer", pa.int64())]),
    pa.schema([("total", pa.int64()), ("orders", pa.int64())]),
)
QUERY = "SELECT count(*) AS n, sum(total) AS total, max(orders) AS most FROM {table}"
GROUPED = "SELECT customer % 100 AS g, sum(total) AS total FROM {table} GROUP BY g ORDER BY g"


class NoSync(Disk):
    """Building a store to read needs no durability."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass

    def sync_filesystem(self, descriptor: int) -> None:
        pass


def storage_at(root: Path) -> LocalStorage:
    return LocalStorage(root, barrier="fsync", disk=NoSync())


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


class Took(float):
    """Seconds on the wall; `cpu` is what the process used of the processor, system included."""

    cpu: float


def timed(line: list[str]) -> tuple[Took, str]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=environment())
    took = Took(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took.cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return took, done.stdout


def middle(some: list[Took]) -> Took:
    """Medians of both."""
    found = Took(statistics.median(some))
    found.cpu = statistics.median(each.cpu for each in some)
    return found


def holdfast(*args: object) -> list[str]:
    return [sys.executable, "-m", "holdfast", *map(str, args)]


def alternate(rounds: int, *lines: list[str]) -> tuple[list[Took], list[str]]:
    """Median seconds of each command, run in turns."""
    times: list[list[Took]] = [[] for _ in lines]
    out = [""] * len(lines)
    for _ in range(rounds):
        for number, each in enumerate(lines):
            took, out[number] = timed(each)
            times[number].append(took)
    return [middle(some) for some in times], out


# verify --deep


HASHER = """
import hashlib, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
files = sorted(Path(sys.argv[1]).rglob("*.snap"))
start = time.perf_counter()
with ThreadPoolExecutor(2) as pool:
    list(pool.map(digest, files))
print(time.perf_counter() - start)
"""


def bench_verify(work: Path, rounds: int, quick: bool) -> list[str]:
    files, size = (16, 8_000_000) if quick else (32, 64_000_000)
    root = work / "verify"
    with hf.checkpoint.open_store(storage_at(root), "p", topology=TOPOLOGY) as store:
        draft = store.draft()
        block = np.random.default_rng(1).bytes(size)
        runs = [draft.write_run("totals", n, block, snapshot=True, rows=1) for n in range(files)]
        draft.set_operator("totals", trace="latest", files=runs, rows=1, keys=1)
        draft.set_source("orders", hf.checkpoint.CounterPosition(partitions={"0": 1}))
        store.commit(draft)
    inner: list[list[float]] = [[], []]
    whole: list[list[Took]] = [[], []]
    for _ in range(rounds):
        took, out = timed([sys.executable, "-c", HASHER, str(root)])
        inner[0].append(float(out))
        whole[0].append(took)
        took, out = timed(holdfast("verify", "--deep", root, "--json"))
        report = json.loads(out)
        assert report["ok"]
        assert report["bytes"] == files * size
        inner[1].append(report["seconds"])
        whole[1].append(took)
    total = files * size
    bare, ours = (total / statistics.median(some) / 1e9 for some in inner)
    bare_whole, ours_whole = (middle(some) for some in whole)
    return [
        f"| `verify --deep`, {total / 1e9:.2f} GB in {files} files, work alone | {ours:.2f} GB/s "
        f"| {bare:.2f} GB/s, SHA-256 on two threads | {ours / bare:.0%} | | at least 80 % |",
        f"| the same as a process, start-up included | {ours_whole:.2f} s | {bare_whole:.2f} s "
        f"| {bare_whole / ours_whole:.0%} | {bare_whole.cpu / ours_whole.cpu:.0%} | |",
    ]


# state --sql


def build_state(root: Path, keys: int, change: int) -> None:
    """One snapshot of all keys; with `change`, a second run over some of them."""
    rng = np.random.default_rng(2)
    settings = hf.Settings(recovery_verify="shallow")
    with hf.checkpoint.open_store(
        storage_at(root), "p", topology=TOPOLOGY, settings=settings
    ) as store:
        for part in [np.arange(keys, dtype=np.int64), rng.integers(0, keys, change)]:
            if not len(part):
                continue
            draft = store.draft()
            runs = list(runs_of(store.current, "totals")) if store.current else []
            source = RunSource(store.storage, pipeline="p")
            trace = LatestPartition.open(runs, source, SCHEMA)
            target = RunTarget(
                checkpoint=draft.checkpoint, operator="totals", partition=0, partitions=1,
                attempt=f"{draft.epoch:016x}", epoch=draft.epoch, base=draft.parent, pipeline="p",
            )  # fmt: skip
            hashes = (part.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
            rows = pa.table({
                HASH: hashes, "customer": part, "total": rng.integers(0, 1000, len(part)),
                "orders": rng.integers(1, 50, len(part)),
            })  # fmt: skip
            runs.append(trace.apply(rows, store.storage, target))
            put_trace(
                draft,
                "totals",
                TraceKind.LATEST,
                runs,
                partitions=1,
                rows=keys,
                keys=keys,
                counts="live",
            )
            draft.set_source(
                "orders", hf.checkpoint.CounterPosition(partitions={"0": draft.epoch + 1})
            )
            store.commit(draft)


def bench_state(work: Path, rounds: int, quick: bool) -> list[str]:
    keys = 1_000_000 if quick else 10_000_000
    lines = []
    for name, change in (("one run", 0), ("two runs", keys // 10)):
        root = work / f"state-{change}"
        build_state(root, keys, change)
        export = work / f"export-{change}.parquet"
        timed(holdfast("state", root, "totals", "--to", export))
        for title, query in (("count, sum, max", QUERY), ("group by", GROUPED)):
            bare = "import duckdb; print(duckdb.sql(" + repr(
                query.format(table=f"'{export}'")
            ) + ").fetchall())"  # fmt: skip
            (ours, theirs), out = alternate(
                rounds,
                holdfast("state", root, "totals", "--sql", query.format(table="state"), "--json",
                         "--limit", 0),
                [sys.executable, "-c", bare],
            )  # fmt: skip
            rows = [[int(v) for v in row] for row in json.loads(out[0])["rows"]]
            check = {"__builtins__": {}, "Decimal": int}
            assert rows == [[int(v) for v in row] for row in eval(out[1], check)]
            lines.append(
                f"| `state --sql`, {keys / 1e6:.0f} M keys, {name}, {title} | {ours:.2f} s "
                f"| {theirs:.2f} s, DuckDB over Parquet | {ours / theirs:.2f} "
                f"| {ours.cpu / theirs.cpu:.2f} ({ours.cpu:.2f} s to {theirs.cpu:.2f} s) | at most 2 |"
            )
    return lines


# ls


def bench_ls(work: Path, rounds: int, quick: bool) -> list[str]:
    count = 1_000 if quick else 10_000
    root = work / "ls"
    settings = hf.Settings(retain=count * 2, recovery_verify="shallow")
    with hf.checkpoint.open_store(
        storage_at(root), "p", topology=TOPOLOGY, settings=settings
    ) as store:
        for number in range(count):
            draft = store.draft()
            first = number % 10 == 0
            run = draft.write_run("totals", 0, b"%020d" % number, snapshot=first, rows=1)
            if first:
                draft.set_operator("totals", trace="latest", files=[run], rows=1, keys=1)
            else:
                draft.add_file(run)
            draft.set_source("orders", hf.checkpoint.CounterPosition(partitions={"0": number + 1}))
            draft.stage_sink("out", f"t{number}", replay="deduplicates")
            summary = store.commit(draft)
            store.record_outcome(summary.checkpoint, "out", "committed")
            if number % 200 == 0:
                store.retain()
    (table, document), out = alternate(rounds, holdfast("ls", root), holdfast("ls", root, "--json"))
    assert json.loads(out[1])["total"] == count
    (start,), _ = alternate(rounds, holdfast("--version"))
    return [
        f"| `ls`, {count} checkpoints, the newest 50 | {table:.2f} s | | | {table.cpu:.2f} s | below 1 s |",
        f"| `ls --json`, all {count}, with own bytes and health | {document:.2f} s | | "
        f"| {document.cpu:.2f} s | |",
        f"| `--version`: start-up alone | {start * 1e3:.0f} ms | | | {start.cpu * 1e3:.0f} ms "
        "| below 300 ms |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["verify", "state", "ls"])
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    lines = ["| what | holdfast | bare | ratio | ratio or seconds of CPU | goal |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    parts = {"verify": bench_verify, "state": bench_state, "ls": bench_ls}
    for name, part in parts.items():
        if options.only not in (None, name):
            continue
        work = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=os.environ.get("BENCH_DIR")))
        try:
            lines += part(work, options.rounds, options.quick)
        finally:
            shutil.rmtree(work)
    print("\n".join(lines))
    if options.write is not None:
        head = (
            "# The command line, measured\n\n`python benchmarks/bench_cli.py --write "
            "docs/benchmarks/cli.md`, medians of "
            f"{options.rounds} rounds in turns, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}. Commands are timed as processes, start-up included, "
            "unless it says otherwise.\n\n"
        )
        options.write.write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
