"""kill -9 of driver, JVM or worker: generator and journal as sources, 0 duplicates and 0 gaps in every kind of sink."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import holdfast as hf
from holdfast.journal import JournalReader
from tests.helpers.effort import SOAK
from tests.helpers.paths import PROGRAMS
from tests.helpers.programs.killed_all_sinks import PEOPLE, ROWS, write_people

pytestmark = pytest.mark.spark
SCRIPT = PROGRAMS / "killed_all_sinks.py"
KILLS = int(os.environ.get("HOLDFAST_KILLS", "100" if SOAK else "3"))
VICTIMS = ("all", "driver", "jvm", "worker")


class Child:
    """A run in a session of its own, whose lines are read as they come."""

    def __init__(self, home: Path, partitions: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(home), str(partitions)],
            stdout=subprocess.PIPE,
            stderr=(home / "stderr").open("ab"),
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.came = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self.came:
                self.lines.append(line)
                self.came.notify_all()

    def wait_for(self, word: str, times: int, timeout_s: float) -> bool:
        """True when a word has come so often; False when the child ends without."""
        until = time.monotonic() + timeout_s
        while True:
            with self.came:
                self.came.wait(0.2)
                if sum(line.startswith(word) for line in self.lines) >= times:
                    return True
            if not self.reader.is_alive() and self.process.poll() is not None:
                return sum(line.startswith(word) for line in self.lines) >= times
            assert time.monotonic() < until, f"no {word} within {timeout_s} s: {self.lines[-3:]}"

    def others(self) -> dict[int, bytes]:
        """The processes of the session besides the driver, with their commands."""
        found = {}
        for name in os.listdir("/proc"):
            if not name.isdecimal() or int(name) == self.process.pid:
                continue
            try:
                if os.getsid(int(name)) == self.process.pid:
                    found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
        return found

    def kill(self, victim: str, rng: random.Random) -> None:
        """Kill the victim; the rest of the session a moment later, so that it may do harm first."""
        others = self.others()
        chosen = {
            "driver": [self.process.pid],
            "jvm": [pid for pid, command in others.items() if b"java" in command.split(b"\0")[0]],
            "worker": [pid for pid, command in others.items() if b"pyspark" in command],
        }.get(victim, [self.process.pid, *others])
        for pid in chosen if victim != "worker" else rng.sample(chosen, min(1, len(chosen))):
            _kill(pid)
        if victim != "all":
            time.sleep(rng.random() * 1.5)
        self.end()

    def end(self) -> None:
        """Nothing of the session is left."""
        for _ in range(20):
            for pid in [self.process.pid, *self.others()]:
                _kill(pid)
            if not self.others():
                break
            time.sleep(0.05)
        self.process.wait()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def truth() -> list[tuple[int, int, int]]:
    """What the generators give, said again without Spark."""
    return [(i, i * 7919 % PEOPLE, i % 7) for i in range(ROWS)]


def check(home: Path) -> None:
    """Every sink holds each row once and misses none; the totals are those of a dict; verify is ok."""
    rows = truth()
    with sqlite3.connect(home / "base.sqlite") as base:
        assert sorted(base.execute("SELECT id, k, x FROM rows")) == rows
    payloads = [
        json.loads(text)
        for batch, _ in JournalReader(str(home / "events")).follow(timeout_ms=200)
        for text in batch.column("payload").to_pylist()
    ]
    assert sorted((int(p["id"]), int(p["k"]), int(p["x"])) for p in payloads) == rows
    named: Counter = Counter()
    files = ds.dataset(home / "named", partitioning="hive").to_table().to_pylist()
    for row in files:
        named[(row["id"], row["k"], row["x"], row["name"])] += row["_weight"]
    assert {row: n for row, n in named.items() if n} == {(i, k, x, f"p{k}"): 1 for i, k, x in rows}
    want: dict[str, list[int]] = {}
    for _, k, x in rows:
        want.setdefault(f"p{k}", []).append(x)
    totals = [
        f for f in (home / "totals").resolve().rglob("*.parquet") if not f.name.startswith("_")
    ]
    table = ds.dataset([str(f) for f in totals]).to_table().to_pylist()
    assert sorted((r["name"], r["n"], r["s"], r["d"]) for r in table) == sorted(
        (name, len(xs), sum(xs), len(set(xs))) for name, xs in want.items()
    )
    assert hf.checkpoint.verify_store(hf.checkpoint.read_store(home / "cp", "p"), deep=True).ok


@pytest.mark.timeout(7_200 if SOAK else 900)
def test_killed_with_all_sinks_no_sink_has_a_duplicate_or_a_gap(tmp_path) -> None:
    """Driver, JVM, worker or all at random moments, then 1, 2 or 7 partitions: every sink is exact."""
    seed = int(os.environ.get("HOLDFAST_KILLS_SEED", str(int(time.time()))))
    rng = random.Random(seed)
    print(f"HOLDFAST_KILLS_SEED={seed}")
    write_people(tmp_path)
    for number in range(KILLS):
        child = Child(tmp_path, rng.choice([1, 2, 7]))
        victim = rng.choice(VICTIMS)
        try:
            # Some die while they start or recover, the others in mid-epoch or while they publish.
            if rng.random() < 0.15:
                alive = child.wait_for("ready", 1, 240)
                time.sleep(rng.random() * 4)
            else:
                alive = child.wait_for("epoch", rng.randint(1, 3), 240)
                time.sleep(rng.random() * 0.5)
            assert alive, f"it failed by itself: {child.lines[-3:]}"
            ended = any(line.startswith("done") for line in child.lines)
            assert not ended, "it ended before it was killed often enough"
            child.kill(victim, rng)
        finally:
            child.end()
        print(f"killed {victim}, {number + 1} of {KILLS}", flush=True)
    child = Child(tmp_path, 2)
    try:
        assert child.wait_for("done", 1, 1_200), child.lines[-3:]
    finally:
        child.end()
    check(tmp_path)


if not Path("/proc").is_dir():
    pytest.skip("needs /proc to find the processes of a session", allow_module_level=True)
