"""The guard beside a query over Spark Connect, where Python has no JVM of its own to ask."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.helpers.paths import PROGRAMS, child_environment

pytestmark = pytest.mark.spark
PROGRAM = PROGRAMS / "over_connect.py"


@pytest.mark.soak
def test_a_query_over_connect_is_saved_checked_restored_and_goes_on(tmp_path):
    """With its location given, attach() counts batches over Connect and every step works."""
    for module in ("pyspark", "grpc", "grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(module, reason=f"a client of Spark Connect needs {module}")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)], capture_output=True, text=True,
        timeout=240, check=False, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["session"].startswith("pyspark.sql.connect")
    assert facts["refused"] == "no_location"
    assert (facts["waited"], facts["errors"], facts["ok"]) == (True, [], True)
    assert facts["covered"] > 0
    assert len(set(facts["batches"])) >= 2  # the last one again when the query ends
    assert facts["batches"] == sorted(facts["batches"])
    # The sink may hold one batch whose commit the stop has cut off.
    total = sum(facts["rows"].values())
    assert total // 10 - 1 in (facts["last"], facts["last"] + 1)
    assert facts["rows"] == {str(g): len(range(g, total, 7)) for g in range(7)}
