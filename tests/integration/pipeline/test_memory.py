"""Memory is bounded by settings: files in parts, tasks in pieces, and both across kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from tests.helpers.paths import PROGRAMS, child_environment
from tests.helpers.programs.spilling import SCHEMA, pipeline


def write(path, rows: int, *, group: int, seed: int = 1) -> pa.Table:
    """Few keys, one of them with half of all rows."""
    rng = np.random.default_rng(seed)
    keys = np.where(rng.random(rows) < 0.5, 7, rng.integers(0, 200, rows))
    table = pa.table(
        {
            "k": keys,
            "x": rng.integers(-50, 50, rows),
            "s": [f"text {n}" for n in rng.integers(0, 999, rows)],
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group)
    return table


def totals(spark, home) -> list[tuple]:
    rows = spark.read.schema(SCHEMA).parquet(str(home / "in"))
    want = rows.groupBy("k").agg({"x": "count", "s": "max"}).collect()
    sums = dict(rows.groupBy("k").sum("x").collect())
    return sorted((r["k"], r["count(x)"], sums[r["k"]], r["max(s)"]) for r in want)


def shown(spark, home) -> list[tuple]:
    found = hf.read_changelog(spark, home / "out").collect()
    return sorted((r["k"], r["n"], r["x"], r["s"]) for r in found)


def test_a_large_file_in_parts_through_tasks_in_pieces_equals_batch(spark, tmp_path) -> None:
    """Three epochs of one file, a restart in its middle, and keys that are cut in tasks."""
    write(tmp_path / "in" / "a.parquet", 40_000, group=9_000)
    first = small(tmp_path, spark).run(epochs=1)
    assert 0 < first.rows < 40_000
    rest = small(tmp_path, spark).run()
    assert first.rows + rest.rows == 40_000
    assert rest.epochs == 2
    assert shown(spark, tmp_path) == totals(spark, tmp_path)


def small(home, spark) -> hf.Pipeline:
    pipe = hf.Pipeline(
        "small", store=home / "store", spark=spark, settings=hf.Settings(task_bytes_max=60_000)
    )
    source = hf.sources.Files(home / "in", schema=SCHEMA, min_age_ms=0, rows_max=18_000)
    rows = pipe.source("rows", source).where("x > -1000")
    result = rows.group_by("k").agg(n=hf.count(), x=hf.sum("x"), s=hf.max("s"), name="totals")
    pipe.sink("out", result, hf.sinks.Parquet(home / "out"))
    return pipe


def test_epochs_follow_a_target_and_say_so(spark, tmp_path) -> None:
    """The first one is small; later ones grow by at most twice, and reports tell why."""
    reports: list = []
    pipe = hf.Pipeline(
        "paced", store=tmp_path, spark=spark, settings=hf.Settings.of(epoch_target="1 minute")
    )
    source = pipe.source(
        "n", hf.sources.Generator({"k": "id % 9"}, rows=65_000, rows_per_epoch=10**6)
    )
    source.group_by("k").agg(n=hf.count(), name="counts")
    pipe.run(on_epoch=reports.append)
    assert [report.rows for report in reports][:2] == [10_000, 10_000]  # one is planned ahead
    assert [report.rows for report in reports][2] == 20_000
    assert reports[1].rows_next == 40_000
    assert "rows/ms" in reports[0].rows_next_why
    assert sum(report.rows for report in reports) == 65_000


def _members(session: int) -> list[int]:
    """All processes of a session: driver, Java and Python workers."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.getsid(int(name)) == session:
                found.append(int(name))
        except OSError:
            continue
    return found


def _spills(session: int) -> bool:
    """Whether a process has a file open that has no name any more, in Spark's directory."""
    for member in _members(session):
        try:
            links = [
                os.readlink(f"/proc/{member}/fd/{n}") for n in os.listdir(f"/proc/{member}/fd")
            ]
        except OSError:
            continue
        if any("blockmgr" in link and "(deleted)" in link for link in links):
            return True
    return False


@pytest.mark.soak
@pytest.mark.spark
def test_a_kill_in_the_middle_of_a_spill_leaves_and_loses_nothing(spark, tmp_path) -> None:
    """Every process is killed while a task has rows on disk; the next run is exact."""
    for number in range(3):
        write(tmp_path / "in" / f"{number}.parquet", 200_000, group=50_000, seed=number)
    (tmp_path / "local").mkdir()
    command = [sys.executable, str(PROGRAMS / "spilling.py"), str(tmp_path)]
    child = subprocess.Popen(
        command, env=child_environment(), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    spilled = False
    try:
        while child.poll() is None and not spilled:
            spilled = _spills(child.pid)
            time.sleep(0.01)
    finally:
        for member in _members(child.pid):
            os.kill(member, signal.SIGKILL)
        child.wait()
    assert spilled
    names = [name for _, _, files in os.walk(tmp_path / "local") for name in files]
    assert [name for name in names if "holdfast" in name] == []
    pipeline(tmp_path, spark=spark).run(takeover=True)
    assert shown(spark, tmp_path) == totals(spark, tmp_path)
