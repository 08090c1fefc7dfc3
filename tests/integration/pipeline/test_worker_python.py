"""Executors whose Python cannot run Holdfast are found before the first job of a pipeline."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark
PROGRAM = """
import holdfast as hf
from holdfast.errors import HoldfastError
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
pipe = hf.Pipeline("p", store={store!r}, spark=spark, partitions=1)
rows = pipe.source("n", hf.sources.Generator({{"k": "id"}}, rows=1))
pipe.sink("out", rows, hf.sinks.Parquet({out!r}))
try:
    pipe.run()
except HoldfastError as error:
    print(error.kind, error.facts["python"], error.facts["reason"])
"""


def test_a_python_without_packages_is_named(tmp_path) -> None:
    """The user's session has PYSPARK_PYTHON set to an interpreter without site-packages."""
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    program = PROGRAM.format(store=str(tmp_path / "cp"), out=str(tmp_path / "out"))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYSPARK_PYTHON": str(bare), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert f"worker_python {bare}" in done.stdout, done.stdout + done.stderr[-2000:]
    assert not (tmp_path / "cp").exists(), "nothing was begun"
