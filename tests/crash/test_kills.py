"""kill -9 of the driver and loss of executors: 0 duplicates, 0 gaps. Each in a process of its own.

The series belong to the soak; `test_kills_all_sinks.py` has the short one, with both sources.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import holdfast as hf
from tests.helpers.paths import PROGRAMS
from tests.helpers.programs.killed_driver import EVENTS, EVENTS_MAX, ROWS

pytestmark = pytest.mark.spark
SCRIPT = PROGRAMS / "killed_driver.py"


def start(home: Path, kind: str, partitions: int, master: str = "local[2]", *more: str):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(home), kind, str(partitions), master, *more],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip


def kill(process) -> None:
    """The whole session at once: driver, JVM and workers, as when a machine dies."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_until(process, epochs: int, delay_s: float) -> bool:
    """Let it run for some epochs and a moment more; True if it ended by itself."""
    seen = 0
    for line in process.stdout:
        if line.startswith("done"):
            process.wait()
            return True
        if line.startswith("epoch"):
            seen += 1
            if seen >= epochs:
                time.sleep(delay_s)
                return False
    process.wait()
    raise AssertionError(f"the pipeline failed with {process.returncode}")


def expected(rows: list[tuple[int, int]]) -> dict:
    found: dict = {}
    for k, x in rows:
        n, s, d = found.get(k, (0, 0, frozenset()))
        found[k] = (n + 1, s + x, d | {x})
    return {k: (n, s, len(d)) for k, (n, s, d) in found.items()}


def check(home: Path, count: int) -> None:
    """Published rows are dense and single; totals and state are those of the published rows."""
    raw = ds.dataset(home / "rows", partitioning="hive", exclude_invalid_files=False).to_table()
    assert sorted(raw["id"].to_pylist()) == list(range(count))
    want = expected(list(zip(raw["k"].to_pylist(), raw["x"].to_pylist(), strict=True)))
    changes = ds.dataset(home / "totals", partitioning="hive").to_table().to_pylist()
    net: Counter = Counter()
    for row in changes:
        net[(row["k"], row["n"], row["s"], row["d"])] += row["_weight"]
    assert {row: n for row, n in net.items() if n} == {(k, *v): 1 for k, v in want.items()}
    assert hf.checkpoint.verify_store(hf.checkpoint.read_store(home / "cp", "p"), deep=True).ok


def series(home: Path, kind: str, rounds: int, seed: int) -> None:
    """Kill it so many times, and let it finish; too few epochs for that are an error."""
    rng = random.Random(seed)
    print(f"seed {seed}")
    for kills in range(1, rounds + 1):
        process = start(home, kind, rng.choice([1, 2, 7]))
        try:
            ended = run_until(process, rng.randint(1, 3), rng.random() * 0.4)
            assert not ended, "it ended before it was killed often enough"
        finally:
            kill(process) if process.poll() is None else None
        print(f"killed {kills} of {rounds}", flush=True)
    process = start(home, kind, 2)
    assert run_until(process, 10**9, 0)


@pytest.mark.soak
def test_killed_again_and_again_gives_exact_results(tmp_path) -> None:
    """kill -9 at random moments, restarts with 1, 2 and 7 partitions: dense, no duplicate, no gap."""
    series(tmp_path, "generator", 25, seed=int(time.time()))
    check(tmp_path, ROWS)


@pytest.mark.soak
def test_a_pipeline_that_reads_the_journal_and_is_killed_gives_exact_results(tmp_path) -> None:
    """The journal as a source, killed again and again: each event exactly once."""
    from holdfast.journal import Event, JournalWriter

    with JournalWriter(tmp_path / "journal") as journal:
        for start_at in range(0, EVENTS, EVENTS_MAX):
            journal.append(
                [
                    Event(entity="e", kind="k", payload=f'{{"k": {n % 31}, "x": {n % 7}}}')
                    for n in range(start_at, start_at + EVENTS_MAX)
                ]
            )
    series(tmp_path, "journal", 25, seed=int(time.time()))
    check(tmp_path, EVENTS)


def test_a_lost_executor_and_speculation_do_not_change_the_result(tmp_path) -> None:
    """local-cluster with speculation: one executor process is killed in mid-run, the result is exact."""
    process = start(tmp_path, "generator", 2, "local-cluster[2,1,1024]", "true")
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)
    reader.start()
    try:
        deadline = time.monotonic() + 240
        while not any(line.startswith("epoch 1") for line in lines):
            assert time.monotonic() < deadline, lines
            assert process.poll() is None, "the pipeline failed"
            time.sleep(0.1)
        executors = [
            int(pid)
            for pid in os.listdir("/proc")
            if pid.isdecimal() and b"CoarseGrainedExecutorBackend" in _command(pid)
            and os.getpgid(int(pid)) == process.pid
        ]  # fmt: skip
        assert executors, "no executor process was found"
        os.kill(executors[0], signal.SIGKILL)
        process.wait(timeout=400)
        reader.join(timeout=10)
        assert any(line.startswith("done") for line in lines), lines[-3:]
    finally:
        if process.poll() is None:
            kill(process)
    check(tmp_path, ROWS)


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


if not hasattr(os, "killpg"):
    pytest.skip("needs process groups", allow_module_level=True)
