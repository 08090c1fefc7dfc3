"""The Nexmark queries of `examples/nexmark.py` equal Spark's answers, and go on after a crash."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.paths import ROOT

_SPEC = importlib.util.spec_from_file_location("nexmark", ROOT / "examples" / "nexmark.py")
nexmark = importlib.util.module_from_spec(_SPEC)
sys.modules["nexmark"] = nexmark
_SPEC.loader.exec_module(nexmark)


@pytest.mark.parametrize("name", [*nexmark.QUERIES])
def test_a_query_equals_the_batch_answer(spark, tmp_path, name) -> None:
    """After three epochs with a crash in between the added-up changelog is Spark's answer."""

    def query():
        return nexmark.Nexmark(name, tmp_path, 3_000, 1_000, spark)

    with pytest.raises(SimulatedCrash), crash_at("epoch.after_commit", nth=2):
        query().pipe.run()
    done = query()
    done.pipe.run(takeover=True)
    rows, only_ours, only_spark = done.differences()
    assert (only_ours, only_spark) == (0, 0)
    assert rows > 0
