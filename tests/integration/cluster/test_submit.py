"""`holdfast submit` and `holdfast doctor --master`, used rightly and wrongly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.cluster_world import PROGRAM
from tests.helpers.servers import free_port
from tests.helpers.spark_cluster import spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.server]


def topics(document) -> dict[str, list[str]]:
    """What was found about executors: states by topic."""
    found: dict[str, list[str]] = {}
    for check in document["checks"]:
        if check["name"].startswith("executors"):
            found.setdefault(check["name"], []).append(check["status"])
    return found


def test_doctor_looks_at_every_executor(world) -> None:
    """Python, packages, Holdfast, store with latency, clock and cache of both executors."""
    store = f"{world.root}/fresh"
    done = world.holdfast("doctor", store, "--master", world.cluster.url, "--json", "--wait", "240")
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert set(topics(document)) == {
        "executors", "executors: python", "executors: packages", "executors: holdfast",
        "executors: store", "executors: clock", "executors: cache",
    }  # fmt: skip
    assert all(states == ["ok"] for states in topics(document).values()), document
    assert len(document["executors"]) == 2
    for executor in document["executors"]:
        assert set(executor["store_ms"]) == {"put", "get", "list"}
        assert executor["store_shared"] is True
    from holdfast.storage import open_storage

    assert [*open_storage(store, options=world.s3.options).list("")] == []


@pytest.mark.soak
def test_executors_without_packages_are_named_with_the_remedy(world, true_s3, tmp_path) -> None:
    """A bare Python on the workers: doctor and submit say what is missing; the store is untouched."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True
    )
    world.environment["PYSPARK_PYTHON"] = str(tmp_path / "bare" / "bin" / "python")
    done = world.holdfast(
        "doctor", f"{world.root}/store", "--master", world.cluster.url, "--json", "--wait", "240"
    )
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert topics(document)["executors: packages"] == ["problem"]
    packages = next(c for c in document["checks"] if c["name"] == "executors: packages")
    assert "pyarrow" in packages["found"]
    assert "pip install 'holdfast-spark[spark,object]'" in packages["remedy"]
    run = world.submit()
    assert run.wait() == 1
    assert "executors cannot run the pipeline" in run.text
    assert "cannot import" in run.text
    assert "pyarrow" in run.text
    assert world.holdfast("ls", f"{world.root}/store").returncode == 2


@pytest.mark.soak
def test_executors_get_holdfast_from_submit(world, true_s3, tmp_path) -> None:
    """Workers that cannot import Holdfast: doctor warns, submit ships it, the answer is right."""
    with spark_cluster(tmp_path / "other", **true_s3.environment, PYTHONPATH="") as cluster:
        blocked = tmp_path / "blocked"
        blocked.mkdir()
        # An environment with all packages but Holdfast: the editable install is hidden.
        (blocked / "sitecustomize.py").write_text(
            "import sys\n"
            "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
            "sys.path[:] = [p for p in sys.path if not p.endswith('/src')]\n"
        )
        cluster.stop()
        cluster.workers.clear()
        cluster.environment["PYTHONPATH"] = str(blocked)
        cluster.start_master()
        cluster.start_worker()
        world.cluster = cluster
        done = world.holdfast("doctor", "--master", cluster.url, "--json", "--wait", "240")
        assert topics(json.loads(done.stdout))["executors: holdfast"] == ["warning"], done.stdout
        world.finish()
    world.check()


@pytest.mark.soak
def test_wrong_masters_and_dead_workers_are_said_in_time(world, tmp_path) -> None:
    """Nobody listening, a cluster without workers: an error with a remedy, and no store."""
    run = world.submit(master=f"spark://127.0.0.1:{free_port()}")
    assert run.wait() == 1
    assert "nobody answers at the address of Spark's master" in run.text
    run = world.submit(master=f"sc://127.0.0.1:{free_port()}")
    assert run.wait() == 1
    assert "nobody answers" in run.text
    with spark_cluster(tmp_path / "empty", workers=0) as cluster:
        run = world.submit("--wait", "5", master=cluster.url)
        assert run.wait() == 1
        assert "no executor took a task" in run.text
    assert world.holdfast("ls", f"{world.root}/store").returncode == 2


@pytest.mark.soak
def test_a_store_that_executors_cannot_reach_is_refused(world, tmp_path) -> None:
    """The driver's endpoint is right and the executors' is not: refused before the first epoch."""
    run = world.submit("--conf", "spark.executorEnv.AWS_ENDPOINT_URL=http://127.0.0.1:9")
    assert run.wait() == 1
    assert "executors cannot run the pipeline" in run.text
    assert "every executor must reach the store" in run.text
    assert world.holdfast("ls", f"{world.root}/store").returncode == 2


@pytest.mark.soak
def test_spark_submit_runs_the_same_file_on_the_cluster(world) -> None:
    """Without a master in the file, the one of spark-submit counts; the answer is right."""
    import pyspark

    work = [*world.cluster.home.glob("worker-*/app-*")]
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [str(program), "--master", world.cluster.url, str(PROGRAM)],
        env=world.environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert len([*world.cluster.home.glob("worker-*/app-*")]) > len(work), "it ran elsewhere"
    world.check()
