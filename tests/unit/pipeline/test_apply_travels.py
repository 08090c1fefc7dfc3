"""Functions of the user cross to executors by value when they live in `__main__`."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import pyarrow as pa
from pyspark import cloudpickle
from holdfast.pipeline.operators.apply import ApplyWork

step = 2
text = pa.schema([("k", pa.string())])
number = pa.schema([("n", pa.int64())])
work = ApplyWork("t", text, text, number, text, lambda c, s, x: c + step, False, False)
sys.stdout.buffer.write(cloudpickle.dumps(work))
"""


def test_a_lambda_of_a_script_works_in_another_process() -> None:
    """What a script defines in __main__ is sent whole, with the names that it uses."""
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
    work = pickle.loads(done.stdout)
    assert work.function(40, None, None) == 42
    assert work.traces["t"].values.names == ["n"]
