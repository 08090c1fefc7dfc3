"""Few rows and many, few tasks and all of them, restarts and lost compactions: plain Spark's answer."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest

import holdfast as hf
from holdfast.ids import SeededIds
from holdfast.runtime import compaction_work, run_lists, task_counts
from holdfast.runtime import compactor as compacting
from holdfast.runtime.compaction_work import CompactionRunner, CompactionUnit
from holdfast.spark.background import BackgroundJob, spread
from holdfast.state import (
    CompactionPolicy,
    open_trace,
    partition_range,
    plan_full_compaction,
    runs_of,
)
from holdfast.state.partition import layers, run_slices
from holdfast.storage.open import StorageLocation, storage_of
from tests.helpers.paths import PROGRAMS, child_environment
from tests.helpers.pipeline_world import SCHEMA, rows_of, write_rows

POLICY = CompactionPolicy(fanout=2, runs_max=4, run_bytes=20_000)
COLUMNS = ["k", "n", "s", "d"]


@pytest.fixture
def on_a_cluster(monkeypatch):
    """As where sessions are not local and lists are long: jobs compact, documents carry lists."""
    monkeypatch.setattr(compaction_work, "THREAD_RUNS_MAX", 0)
    monkeypatch.setattr(run_lists, "INLINE_BYTES_MAX", 20_000)
    monkeypatch.setattr(compacting, "CompactionPolicy", lambda: POLICY)
    monkeypatch.setattr(task_counts, "ROWS_PER_TASK", 10)
    monkeypatch.setattr(task_counts, "ROWS_PER_TASK_MAX", 10)


def totals(home, spark, partitions: int) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    files = hf.sources.Files(str(home / "in"), schema=SCHEMA, weight="w", files_max=1)
    pipe.source("in", files).group_by("k").agg(
        n=hf.count(), s=hf.sum("x"), d=hf.count_distinct("x"), name="totals"
    )
    return pipe


def expected(home, spark):
    """Plain Spark over all files; every row has weight one."""
    return spark.sql(
        "SELECT k, count(*) n, sum(x) s, count(DISTINCT x) d "
        f"FROM parquet.`{home / 'in'}` GROUP BY k"
    )


def depth(pipe: hf.Pipeline, partitions: int) -> int:
    runs = runs_of(pipe.reader().manifest("latest"), "totals")
    return max(
        len(layers(run_slices(runs, partition_range(n, partitions)))) for n in range(partitions)
    )


def feed(home, first: int, sizes: list[int]) -> None:
    chosen = random.Random(first)
    for number, size in enumerate(sizes, first):
        rows = [(f"k{chosen.randrange(5_000)}", chosen.randrange(9), 1.0, 1) for _ in range(size)]
        write_rows(home / "in", number, rows)


def test_any_number_of_tasks_gives_plain_sparks_answer(spark, tmp_path, on_a_cluster):
    """Epochs of one row and of thousands take turns, and so do numbers of partitions."""
    seen, number, jobs = [], 0, []
    start = BackgroundJob.__init__
    for partitions, sizes in [(64, [400, 1, 5, 1]), (7, [300, 2]), (256, [1, 3_000, 3, 12, 1])]:
        feed(tmp_path, number, sizes)
        number += len(sizes)
        pipe = totals(tmp_path, spark, partitions)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                BackgroundJob, "__init__", lambda *a, **b: (jobs.append(1), start(*a, **b))[1]
            )
            summary = pipe.run(on_epoch=lambda report: seen.append(report.tasks["totals"]))
        assert not summary.notes
        assert depth(pipe, partitions) <= POLICY.runs_max + POLICY.fanout
    assert rows_of(pipe.view("totals").to_spark(spark), COLUMNS) == rows_of(
        expected(tmp_path, spark), COLUMNS
    )
    assert {1, 7, 64, 256} <= {*seen}
    assert jobs
    left = [path.name for path in (tmp_path / "cp").rglob(".hf-tmp-*")]
    assert left == []  # documents with run lists go with their epochs


def test_what_a_dead_driver_leaves_of_a_compaction_changes_nothing(
    spark, tmp_path, monkeypatch, on_a_cluster
):
    """The driver dies while tasks compact: their runs are nobody's, and the next run starts over."""

    class DiedError(BaseException):
        pass

    def die(_report):
        if begun:
            raise DiedError

    begun, begin = [], compacting.Compactor._begin
    feed(tmp_path, 0, [60] * 8)
    with monkeypatch.context() as patch:
        patch.setattr(compacting.Compactor, "stop", lambda self: None)
        patch.setattr(
            compacting.Compactor, "_begin", lambda *args: (begin(*args), begun.append(args[0]))
        )
        with pytest.raises(DiedError):
            totals(tmp_path, spark, 8).run(on_epoch=die)
    for lane in begun[0]._lanes.values():  # the cluster goes on without its driver
        assert lane.running.result().runs
    pipe = totals(tmp_path, spark, 8)
    pipe.run()
    assert rows_of(pipe.view("totals").to_spark(spark), COLUMNS) == rows_of(
        expected(tmp_path, spark), COLUMNS
    )


def test_a_unit_that_fails_in_a_task_leaves_the_others_alone(spark, tmp_path, on_a_cluster):
    """A run is missing: the driver learns what is wrong; the other partitions are compacted."""
    feed(tmp_path, 0, [40] * 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compacting.Compactor, "start", lambda *_: None)
        pipe = totals(tmp_path, spark, 4)
        pipe.run()
    manifest = pipe.reader().manifest("latest")
    place = StorageLocation(str(tmp_path / "cp"))
    trace = open_trace(storage_of(place), manifest, "totals")
    runs = runs_of(manifest, "totals")
    plans = [plan_full_compaction(runs, number, 4) for number in range(4)]
    units = [
        CompactionUnit("totals", plan, (number, 4), manifest.checkpoint, manifest.checkpoint)
        for number, plan in enumerate(plans)
        if plan is not None
    ]
    lost = replace(units[0].plan.runs[0], path=units[0].plan.runs[0].path[:-6] + ".snap")
    units[0] = msgspec.structs.replace(
        units[0], plan=replace(units[0].plan, runs=(lost, *units[0].plan.runs[1:]))
    )
    runner = CompactionRunner(place, "p", spark)
    outcome = runner.begin(units, {"totals": trace.schema}, SeededIds(4), hurry=True).result()
    assert len(units) == 4
    assert [run.vnodes for run in outcome.runs] == [unit.plan.vnodes for unit in units[1:]]
    assert outcome.error.kind == "compaction_failed"
    assert outcome.error.facts["cause"] == "run_missing"


def test_answers_of_a_background_job_come_in_the_order_of_the_pieces(spark):
    """However the pieces were spread, and also when there are fewer than tasks."""
    pieces = [bytes([n]) * (n % 5 + 1) for n in range(11)]
    for tasks in (1, 3, 50):
        groups = spread(pieces, len, tasks)
        job = BackgroundJob(spark, bytes.upper, groups, description="test", ids=SeededIds(1))
        assert job.result() == pieces


def test_a_background_job_can_be_cancelled_and_tells_its_error(spark):
    """Cancelled, it gives nothing, soon; failed, it raises."""
    job = BackgroundJob(spark, _sleeps, [[(0, b"")]], description="test", ids=SeededIds(2))
    job.cancel()
    assert job.result() is None
    job = BackgroundJob(spark, _fails, [[(0, b"")]], description="test", ids=SeededIds(3))
    with pytest.raises(Exception, match="no room"):
        job.result()


def _sleeps(piece: bytes) -> bytes:
    import time

    time.sleep(60)
    return piece


def _fails(piece: bytes) -> bytes:
    raise OSError("no room")


@pytest.mark.soak
def test_many_partitions_over_spark_connect(tmp_path):
    """Numbers of tasks, documents and background jobs need nothing that Connect does not have."""
    for module in ("grpc", "grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(module, reason=f"a client of Spark Connect needs {module}")
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "many_over_connect.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    ids = range(600)
    assert facts["rows"] == [[k, len(ids[k::37]), sum(ids[k::37])] for k in range(37)]
    assert {1, 16} <= {*facts["tasks"]}
    assert facts["jobs"] > 0
