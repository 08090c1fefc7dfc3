"""One Spark for all tests of the guard."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A local session; workers use the interpreter that runs the tests."""
    pytest.importorskip("pyspark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark import SparkContext

    from tests.helpers.guard_queries import session

    others = SparkContext._active_spark_context is not None  # tests of the pipeline, in one process
    started = session(str(tmp_path_factory.mktemp("warehouse")))
    yield started
    if not others:
        started.stop()
