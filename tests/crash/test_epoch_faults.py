"""A crash at every point of an epoch in turn, tasks that fail once, S3, Connect and the command."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import holdfast as hf
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.paths import PROGRAMS, child_environment
from tests.helpers.pipeline_world import write_rows

EPOCH_POINTS = [
    "epoch.after_plan", "epoch.after_execute", "epoch.after_draft", "commit.before_manifest",
    "commit.after_manifest", "commit.after_barrier", "commit.after_record", "commit.after_hint",
    "epoch.after_commit", "outcome.before_record", "outcome.after_record", "epoch.after_publish",
    "gc.before_record", "gc.after_record", "gc.after_first_delete", "gc.after_sweep",
]  # fmt: skip
SCRIPT = PROGRAMS / "faulty_pipeline.py"


def totals_pipeline(home: Path, spark, **more) -> hf.Pipeline:
    """Rows by key, and the raw rows, both published."""
    options = {"settings": hf.Settings(epochs_max=1, log_bytes_min=0, retain=2), **more}
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=2, **options)
    source = hf.sources.Files(str(home / "in"), schema="k string, x long, f double, w long",
                              weight="w", files_max=1)  # fmt: skip
    rows = pipe.source("in", source)
    totals = rows.group_by("k").agg(n=hf.count(), s=hf.sum("x"), hi=hf.max("x"), name="totals")
    pipe.sink("out", totals, hf.sinks.Parquet(str(home / "out")))
    pipe.sink("now", totals, hf.sinks.Parquet(str(home / "now"), mode="upsert"))
    return pipe


def changelog(path: Path) -> Counter:
    """The published changelog, added up."""
    net: Counter = Counter()
    for row in ds.dataset(path, partitioning="hive").to_table().to_pylist():
        net[(row["k"], row["n"], row["s"], row["hi"])] += row["_weight"]
    return Counter({row: n for row, n in net.items() if n})


def model(rows: Counter) -> Counter:
    """What SQL says of the rows that are there."""
    keys = {k for (k, _), n in rows.items() if n}
    return Counter(
        (
            key,
            sum(n for (k, _), n in rows.items() if k == key),
            sum(x * n for (k, x), n in rows.items() if k == key),
            max(x for (k, x), n in rows.items() if k == key and n),
        )
        for key in keys
    )


def test_a_crash_at_every_point_of_the_epoch_in_turn_changes_nothing(spark, tmp_path) -> None:
    """After a crash at each named point the next run has published every row exactly once."""
    live: Counter = Counter()
    reached = []
    for number, point in enumerate(EPOCH_POINTS):
        key, other = "abc"[number % 3], "abc"[(number + 1) % 3]
        rows = [(key, number, None, 1), (other, number, None, 1), (key, number, None, 1)]
        live.update({(key, number): 2, (other, number): 1})
        if number > 2:
            old = next(row for row in sorted(live) if live[row] > 0)
            rows.append((*old, None, -1))
            live[old] -= 1
        write_rows(tmp_path / "in", number, rows)
        try:
            with crash_at(point):
                totals_pipeline(tmp_path, spark).run()
        except SimulatedCrash:
            reached.append(point)
        totals_pipeline(tmp_path, spark).run(takeover=True)
        wanted = model(live)
        assert changelog(tmp_path / "out") == wanted, point
        now = ds.dataset(tmp_path / "now").to_table().to_pylist()
        assert Counter((r["k"], r["n"], r["s"], r["hi"]) for r in now) == wanted, point
    assert set(EPOCH_POINTS) - set(reached) <= {"gc.after_first_delete"}
    assert hf.checkpoint.verify_store(hf.checkpoint.read_store(tmp_path / "cp", "p"), deep=True).ok


def test_a_pipeline_with_store_and_output_on_s3_survives_a_crash(
    spark, tmp_path, s3_url, s3_options
) -> None:
    """Runs, catalog and output on S3 over real HTTP; executors keep runs in a cache by digest."""
    from holdfast.storage import open_storage

    def declare() -> hf.Pipeline:
        pipe = hf.Pipeline(
            "p", store=f"{s3_url}/store", storage_options=s3_options, spark=spark, partitions=2,
            cache=str(tmp_path / "cache"),
        )  # fmt: skip
        columns = {"k": "id % 5", "x": "id"}
        rows = pipe.source("n", hf.sources.Generator(columns, rows=300, rows_per_epoch=100))
        totals = rows.group_by("k").agg(n=hf.count(), s=hf.sum("x"), name="totals")
        out = hf.sinks.Parquet(f"{s3_url}/out", storage_options=s3_options)
        pipe.sink("out", totals, out)
        return pipe

    with pytest.raises(SimulatedCrash), crash_at("epoch.after_commit", nth=2):
        declare().run()
    pipe = declare()
    pipe.run(takeover=True)
    wanted = {k: (60, sum(range(k, 300, 5))) for k in range(5)}
    rows = pipe.view("totals").to_spark(spark).collect()
    assert {row["k"]: (row["n"], row["s"]) for row in rows} == wanted
    storage = open_storage(f"{s3_url}/out", options=s3_options)
    net: Counter = Counter()
    import pyarrow as pa
    import pyarrow.parquet as pq

    for entry in storage.list(""):
        if entry.path == "_holdfast.json":
            continue
        assert re.match(r"hf_epoch=\d+/part-", entry.path), "only published epochs are left"
        for row in pq.read_table(pa.BufferReader(storage.get(entry.path))).to_pylist():
            net[(row["k"], row["n"], row["s"])] += row["_weight"]
    assert {row for row, n in net.items() if n} == {(k, *v) for k, v in wanted.items()}
    assert any((tmp_path / "cache").rglob("*")), "the executors cached no run"
    assert hf.checkpoint.verify_store(pipe.reader(), deep=True).ok


def run_script(*arguments: str, timeout: int = 240) -> list[str]:
    """Run the script in a process of its own; its lines."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False,
        timeout=timeout, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """What the script found out: Spark starts once for all that needs tasks to be tried again."""
    return json.loads(run_script("flaky", str(tmp_path_factory.mktemp("flaky")))[-1])


@pytest.mark.spark
def test_a_task_that_fails_once_in_every_stage_is_tried_again_without_a_trace(faulty) -> None:
    """Sources, operators and sinks whose tasks die at their first try: the same output."""
    assert faulty["failed_tasks"] >= 6, "the tasks were meant to fail"
    assert faulty["view"] == faulty["batch"] == faulty["published"]
    assert faulty["big"] == faulty["batch_big"]
    assert faulty["verified"]


@pytest.mark.spark
def test_functions_of_a_script_reach_the_workers(faulty) -> None:
    """Functions and lambdas of __main__ are sent by value."""
    assert faulty["own"] == [[0, 1, 2], [10, 10, 10]]


@pytest.mark.spark
def test_the_same_pipeline_runs_over_spark_connect(tmp_path) -> None:
    """A client without a JVM: the same result, and it goes on where the classic one stopped."""
    for module in ("grpc", "grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(module, reason=f"a client of Spark Connect needs {module}")
    facts = json.loads(run_script("connect", str(tmp_path))[-1])
    assert facts["session"].startswith("pyspark.sql.connect")
    assert facts["view"] == facts["batch"] == facts["published"]
    assert facts["epochs"] == [3, 3]


FILE = """
import holdfast as hf
pipe = hf.Pipeline("p", store={store!r}, master="local[2]", partitions=2,
                   spark_config={{"spark.log.level": "OFF", "spark.driver.memory": "1g"}})
rows = pipe.source("n", hf.sources.Generator({{"k": "id % 7"}}, rows_per_epoch=10))
rows.group_by("k").agg(n=hf.count(), name="totals")
"""


@pytest.mark.spark
def test_metrics_logs_and_ctrl_c_of_the_command(tmp_path) -> None:
    """`holdfast run --forever` serves metrics; Ctrl-C finishes the epoch, commits it, and ends well."""
    pytest.importorskip("prometheus_client", reason="the extra metrics is not installed")
    (tmp_path / "file.py").write_text(FILE.format(store=str(tmp_path / "cp")))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", str(tmp_path / "file.py"), "--forever",
         "--plain", "--log-json", "--metrics-port", str(port)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=child_environment(),
    )  # fmt: skip
    try:
        values = _scrape(port, process, epochs=3)
        assert values["holdfast_rows_total"] == 10 * values["holdfast_epochs_total"]
        assert values['holdfast_phase_seconds_count{phase="job"}'] >= 3
        assert values['holdfast_checkpoints_total{pipeline="p"}'] >= 2
        assert values['holdfast_checkpoint_age_seconds{pipeline="p"}'] < 120
        assert values['holdfast_pending_sinks{pipeline="p"}'] == 0
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, err[-2000:]
    records = [json.loads(line) for line in err.splitlines() if line.startswith('{"time"')]
    assert {"recovery", "epoch", "checkpoint"} <= {record.get("event") for record in records}
    epochs = int(re.search(r"(\d+) epochs, (\d+) rows", out).group(1))
    manifest = hf.checkpoint.read_store(tmp_path / "cp", "p").manifest("latest")
    assert manifest.epoch == epochs - 1, "the last epoch was finished and committed"
    assert manifest.processed == 10 * epochs


def _scrape(port: int, process, *, epochs: int) -> dict[str, float]:
    """Metrics over HTTP, as soon as some epochs are done."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()[-2000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            time.sleep(0.2)
            continue
        values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                  for line in lines if line and not line.startswith("#")}  # fmt: skip
        if values.get("holdfast_epochs_total", 0) >= epochs:
            return values
        time.sleep(0.1)
    raise AssertionError("no metrics came")
