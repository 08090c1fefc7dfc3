"""Executors whose Python cannot run Holdfast are found before the first job of a pipeline."""

from __future__ import annotations

import sys

import pytest

from holdfast.errors import HoldfastError
from tests.helpers.toys import toy_pipeline


def test_a_python_without_packages_is_named(spark, tmp_path, monkeypatch) -> None:
    """The user's session has PYSPARK_PYTHON set to an interpreter without site-packages."""
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))  # what the variable sets
    pipe, _, _ = toy_pipeline(tmp_path, spark)
    with pytest.raises(HoldfastError) as caught:
        pipe.run()
    assert (caught.value.kind, caught.value.facts["python"]) == ("worker_python", str(bare))
    assert caught.value.facts["reason"]
    assert not (tmp_path / "cp").exists(), "nothing was begun"
