"""What a commit costs with few and with many files: one question, answers as ratios.

    python benchmarks/bench_commit.py [--quick] [--sizes 50 5000] [--commits 40] [--profile N]

For each size one store on local disk, with that many small runs. An epoch brings 4 runs and two
compactions that replace 4 runs each, anywhere. Measured is what the driver does: the draft, the
commit with its barriers, and retention; medians, the stores in turn. Then a store is opened, listed
and verified (presence, sizes and all documents; `shallow`).
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fake_runs import CONTENT, FakePipeline, shape, traces_of

from holdfast import Settings
from holdfast.checkpoint import open_store, read_store, verify_store
from holdfast.state import RunInfo
from holdfast.storage.local.storage import LocalStorage

SIZES = (50, 5_000, 50_000, 100_000)
SETTINGS = Settings(recovery_verify="shallow")


class UnsyncedStorage(LocalStorage):
    """Local disk that does not sync: for filling a store only."""

    def barrier(self, paths: Iterable[str]) -> None:
        """The benchmark survives no power cut."""


def writer(root: Path) -> Callable[[Iterable[RunInfo]], None]:
    """Writes the files of runs, behind the storage's back."""

    def write(runs: Iterable[RunInfo]) -> None:
        made: set[str] = set()
        for run in runs:
            path = root / "p" / run.path
            if str(path.parent) not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(str(path.parent))
            path.write_bytes(CONTENT)

    return write


class Bench:
    """One store, and the times of its commits."""

    def __init__(self, root: Path, files: int) -> None:
        """Fill it."""
        self.root, self.files = root, files
        topology = shape(traces_of(files))
        with open_store(UnsyncedStorage(root), "p", topology=topology, settings=SETTINGS) as store:
            indexes = FakePipeline.filled(store, writer(root), files).indexes
        self.store = open_store(root, "p", topology=topology, settings=SETTINGS)
        self.pipeline = FakePipeline(self.store, writer(root), indexes)
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.sizes: list[int] = []

    def commit(self) -> None:
        """One epoch."""
        checkpoint = self.pipeline.change()
        wall, cpu = time.perf_counter(), time.process_time()
        self.pipeline.commit(checkpoint)
        report = self.store.retain()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)
        assert report.error is None
        written = self.store.storage.list(f"p/checkpoints/{checkpoint}")
        self.sizes.append(sum(e.size for e in written if "/operators/" not in e.path))


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller and shorter")
    parser.add_argument("--sizes", type=int, nargs="+", default=None)
    parser.add_argument("--commits", type=int, default=None)
    parser.add_argument("--profile", type=int, default=0, help="show the N costliest functions")
    args = parser.parse_args()
    sizes = args.sizes or (SIZES[:2] if args.quick else SIZES)
    commits = args.commits or (10 if args.quick else 60)
    work = Path(tempfile.mkdtemp(prefix="bench-commit-", dir=os.environ.get("TMPDIR")))
    try:
        run(sizes, commits, work, args.profile)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run(sizes: Iterable[int], commits: int, work: Path, profile: int) -> None:
    """Commits in turn; then reading."""
    benches = [Bench(work / str(files), files) for files in sizes]
    profiles = [cProfile.Profile() for _ in benches]
    for number in range(commits + 3):
        for bench, profiler in zip(benches, profiles, strict=True):
            if profile and number > 2:
                profiler.runcall(bench.commit)
            else:
                bench.commit()
    first = benches[0]
    for bench, profiler in zip(benches, profiles, strict=True):
        wall, cpu = (statistics.median(times[3:]) for times in (bench.wall, bench.cpu))
        base = statistics.median(first.wall[3:]), statistics.median(first.cpu[3:])
        print(
            f"{bench.files:>7} files: commit {wall * 1e3:7.1f} ms ({wall / base[0]:4.1f}x), cpu "
            f"{cpu * 1e3:6.1f} ms ({cpu / base[1]:4.1f}x), "
            f"{statistics.mean(bench.sizes[3:]) / 1e3:7.1f} kB of documents"
        )
        if profile:
            pstats.Stats(profiler).sort_stats("cumulative").print_stats(profile)
    for bench in benches:
        bench.store.close()
        topology = bench.store.topology
        opened = timed(
            lambda b=bench, t=topology: open_store(  # type: ignore[misc]
                b.root, "p", topology=t, settings=SETTINGS
            ).close()
        )
        reader = read_store(bench.root, "p")
        listed = timed(reader.list)
        verified = timed(lambda r=reader: verify_store(r))  # type: ignore[misc]
        texts = [
            f"{what} {wall * 1e3:8.1f} ms (cpu {cpu * 1e3:8.1f})"
            for what, (wall, cpu) in (("open", opened), ("list", listed), ("verify", verified))
        ]
        print(f"{bench.files:>7} files: {', '.join(texts)}")


if __name__ == "__main__":
    main()
