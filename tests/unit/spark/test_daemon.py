"""Spark's Python daemon, and what a task on an executor has to load."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest

from holdfast.spark import daemon
from holdfast.spark.daemon import without_copies


@pytest.fixture
def site(tmp_path):
    """A directory of packages with a PySpark in it, and its ZIPs."""
    library = tmp_path / "site" / "pyspark" / "python" / "lib"
    library.mkdir(parents=True)
    for package in ("pyspark", "py4j"):
        (tmp_path / "site" / package).mkdir(exist_ok=True)
        (tmp_path / "site" / package / "__init__.py").write_text("")
    for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip", "mine.zip"):
        zipfile.ZipFile(library / name, "w").close()
    return tmp_path / "site"


def test_zips_of_the_installed_packages_are_not_searched(site):
    """What lies beside its ZIP as a package is loaded as a package; anything else stays."""
    library = site / "pyspark" / "python" / "lib"
    zips = [str(library / n) for n in ("pyspark.zip", "py4j-0.10.9.9-src.zip", "mine.zip")]
    assert without_copies([*zips, "/jobs", str(site)]) == [zips[2], "/jobs", str(site)]


def test_zips_of_another_spark_are_searched(site, tmp_path):
    """A Spark that was not installed as a package, or not on the path, keeps its ZIPs."""
    zips = [str(site / "pyspark" / "python" / "lib" / "pyspark.zip")]
    assert without_copies(zips) == zips
    own = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python/lib/py4j-src.zip", str(site)]
    assert without_copies(own) == own
    (site / "py4j" / "__init__.py").unlink()
    half = [str(site / "pyspark" / "python" / "lib" / "py4j-0.10.9.9-src.zip"), str(site)]
    assert without_copies(half) == half


def loaded(code: str) -> tuple[str, set[str]]:
    """What some code prints, and which modules it leaves loaded."""
    end = "\nimport sys; sys.stderr.write('|'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code + end], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout, set(done.stderr.split("|"))


def test_the_daemon_has_loaded_what_tasks_need_and_says_nothing():
    """Workers find the stage and every operator there; standard output belongs to the protocol."""
    said, modules = loaded("from holdfast.spark.daemon import load; load()")
    assert said == ""
    operators = {f"operators.{name}.execute" for name in ("aggregate", "join", "window")}
    assert {f"holdfast.{name}" for name in {"runtime.task", *operators}} <= modules
    assert {"pyspark.worker", "pyarrow.compute", "pyarrow.parquet"} <= modules


def test_what_is_loaded_works_in_the_workers_that_are_forked():
    """Threads of pyarrow and numpy in the daemon do no harm behind a fork: several, one by one."""
    code = """
import os
from holdfast.spark.daemon import load
load()
for _ in range(3):
    child = os.fork()
    if child == 0:
        import numpy as np, pyarrow as pa, pyarrow.parquet as pq
        table = pa.table({"k": np.arange(200_000) % 7, "x": np.ones(200_000)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        back = pq.read_table(pa.BufferReader(sink.getvalue()), use_threads=True)
        sums = back.group_by("k", use_threads=True).aggregate([("x", "sum")])
        product = np.ones((200, 200)) @ np.ones((200, 200))
        os._exit(0 if sums.num_rows == 7 and product[0, 0] == 200 else 1)
    assert os.waitpid(child, 0)[1] == 0
"""
    loaded(code)


def test_a_task_does_not_load_what_plans_epochs():
    """On a cluster every worker loads this by itself: neither sources nor the engine nor pyspark.sql."""
    _, modules = loaded("import holdfast.runtime.task, holdfast.operators.aggregate.execute")
    heavy = (
        "api.pipeline",
        "runtime.engine",
        "runtime.analysis",
        "sources",
        "sinks",
        "spark.session",
    )
    assert modules.isdisjoint({f"holdfast.{name}" for name in heavy})
    assert "pyspark.sql" not in modules


def test_only_a_python_that_finds_this_very_module_makes_the_daemon(tmp_path, monkeypatch):
    """Not where Holdfast comes with the job, nor another copy of it, nor where there is no Python."""
    assert daemon.found_by(sys.executable)
    assert not daemon.found_by(str(tmp_path / "python"))
    (tmp_path / "holdfast" / "pipeline").mkdir(parents=True)
    for name in ("__init__", "pipeline/__init__", "pipeline/daemon"):
        (tmp_path / "holdfast" / f"{name}.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert not daemon.found_by(sys.executable)


def test_a_module_that_does_not_load_is_left_to_the_tasks(monkeypatch):
    """The daemon serves all tasks; the error belongs to the one that needs the module."""
    tried = []

    def broken(name):
        tried.append(name)
        raise ImportError(name)

    monkeypatch.setattr(daemon.importlib, "import_module", broken)
    monkeypatch.setattr(daemon.gc, "freeze", lambda: None)
    daemon.load()
    assert len(tried) > 10
