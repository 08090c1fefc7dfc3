"""A pipeline whose tasks publish; it kills itself, or one of its workers, at a step of publishing."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import holdfast as hf
from holdfast.failpoints import failpoint_handler

ROWS, EPOCHS, KEYS = 4_000, 8, 300


def pipeline(home: Path) -> hf.Pipeline:
    pipe = hf.Pipeline(
        "p",
        store=home / "cp",
        partitions=2,
        master="local[2,4]",  # tasks are tried again
        settings=hf.Settings(retain=2),
        spark_config={"spark.driver.memory": "1g", "spark.log.level": "OFF"},
    )
    numbers = hf.sources.Generator(
        {"k": f"pmod(id * 7919, {KEYS})", "x": "id"}, rows=ROWS, rows_per_epoch=ROWS // EPOCHS
    )
    sums = pipe.source("n", numbers).group_by("k").agg(n=hf.count(), s=hf.sum("x"), name="sums")
    by_tasks = {"driver_bytes": 0}
    pipe.sink(
        "now", sums, hf.sinks.Parquet(home / "now", mode="upsert", bucket_bytes=1_000, **by_tasks)
    )
    pipe.sink("log", sums, hf.sinks.Parquet(home / "log", compact_after=2, **by_tasks))
    return pipe


def kill_workers(home: Path) -> None:
    """Kill workers while attempts are written: Spark tries their tasks again."""
    killed = 0
    while killed < 3:
        if any(file for tree in home.glob(".*.versions/attempts-*") for file in tree.iterdir()):
            for pid in filter(str.isdecimal, os.listdir("/proc")):
                try:
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if os.getsid(int(pid)) == os.getsid(0) and b"daemon" in command:
                        parent = int(
                            Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
                        )
                        if b"daemon" in Path(f"/proc/{parent}/cmdline").read_bytes():
                            os.kill(int(pid), signal.SIGKILL)
                            killed += 1
                            print("killed a worker", flush=True)
                            break
                except OSError:
                    continue
            time.sleep(1)
        time.sleep(0.002)


def main() -> None:
    home, victim, visit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    visits = 0

    def reached(name: str) -> None:
        nonlocal visits
        visits += name == victim
        if name == victim and visits == visit:
            os.killpg(0, signal.SIGKILL)

    if victim == "worker":
        threading.Thread(target=kill_workers, args=(home,), daemon=True).start()
    with failpoint_handler(reached):
        pipeline(home).run()
    print("done", flush=True)


if __name__ == "__main__":
    main()
