"""kill -9 of the driver at each step of publishing by tasks, and of workers in the middle of it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import duckdb
import pytest

from tests.helpers.paths import PROGRAMS, child_environment
from tests.helpers.programs.killed_publisher import KEYS, ROWS

pytestmark = [pytest.mark.spark, pytest.mark.soak]
SCRIPT = PROGRAMS / "killed_publisher.py"
STEPS = [
    ("output.after_attempts", 1),
    ("output.after_attempts", 3),
    ("output.after_version", 2),
    ("output.after_rows", 3),
    ("fold.after_attempts", 1),
    ("fold.after_tree", 1),
]


def run(home, victim: str, visit: int = 0) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(home), victim, str(visit)],
        env=child_environment(), capture_output=True, text=True, start_new_session=True, check=False,
    )  # fmt: skip


def check(home) -> None:
    """Every sum is there once, in the upsert output and in the changelog added up."""
    sums: dict[int, list[int]] = {}
    for number in range(ROWS):
        sums.setdefault(number * 7919 % KEYS, []).append(number)
    wanted = Counter((k, len(xs), sum(xs)) for k, xs in sums.items())
    now = duckdb.sql(f"SELECT k, n, s FROM '{home}/now/*.parquet'").fetchall()
    log = duckdb.sql(
        f"SELECT k, n, s FROM '{home}/log/hf_epoch=*/*.parquet' GROUP BY ALL HAVING sum(_weight) <> 0"
    ).fetchall()
    assert Counter(now) == wanted
    assert Counter(log) == wanted
    assert not [*home.glob(".*.versions/attempts-*")]


@pytest.mark.timeout(3_000)
def test_a_driver_killed_at_every_step_publishes_each_epoch_once(tmp_path) -> None:
    """One output through all kills, each at another step; the last run goes to the end."""
    for victim, visit in STEPS:
        assert run(tmp_path, victim, visit).returncode == -9, victim
    last = run(tmp_path, "none")
    assert "done" in last.stdout, last.stderr[-2_000:]
    check(tmp_path)


@pytest.mark.timeout(1_000)
def test_workers_killed_while_they_write_buckets_change_nothing(tmp_path) -> None:
    """Spark tries their tasks again; what the dead ones wrote is nobody's."""
    done = run(tmp_path, "worker")
    assert "done" in done.stdout, done.stderr[-2_000:]
    assert "killed a worker" in done.stdout
    check(tmp_path)
