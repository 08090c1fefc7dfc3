"""From starting a run to its first durable checkpoint, with little and with much state.

Run: python benchmarks/bench_restart.py [--quick] [--keys 1000000 10000000]

Loads so many keys, runs some epochs of 50,000 rows so that there are runs to look into, and then
starts the pipeline again and again for one epoch each: opening and recovery, restoring, planning, the
epoch and its commit. The sizes take turns, so that a JVM that grows warm is no advantage of either.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

import numpy as np
from bench_pipeline import BATCH, Holdfast, write
from side_by_side import arguments, session


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--keys", type=int, nargs="*", default=None)
    args = parser.parse_args()
    sizes = args.keys or ([100_000, 1_000_000] if args.quick else [1_000_000, 10_000_000])
    spark = session(args, "6g")
    rng = np.random.default_rng(1)
    pipes: dict[int, Holdfast] = {}
    files: dict[int, int] = {}
    homes = {keys: Path(args.dir).absolute() / f"restart-{keys}" for keys in sizes}

    def more(keys: int, rows: np.ndarray) -> None:
        write(homes[keys] / "in", files[keys], rows)
        files[keys] += 1

    for keys, home in homes.items():
        shutil.rmtree(home, ignore_errors=True)
        pipes[keys], files[keys] = Holdfast(home, spark), 0
        for start in range(0, keys, 1_000_000):
            more(keys, rng.permutation(np.arange(start, min(start + 1_000_000, keys))))
        for _ in range(12):
            more(keys, rng.integers(0, keys, BATCH))
        pipes[keys].run(files[keys])
    found: dict[int, list[float]] = {keys: [] for keys in sizes}
    for _ in range(5 if args.quick else 15):
        for keys, pipe in pipes.items():
            more(keys, rng.integers(0, keys, BATCH))
            pipe.run(1)
            found[keys].append(pipe.first_commit_ms)
    print("| keys | restart to the first commit, ms: median | fastest | slowest |")
    print("|---|---|---|---|")
    for keys, times in found.items():
        print(f"| {keys} | {statistics.median(times):.0f} | {min(times):.0f} | {max(times):.0f} |")
        shutil.rmtree(homes[keys], ignore_errors=True)
    spark.stop()


if __name__ == "__main__":
    main()
