"""The guard beside a query that reads Kafka: needs the connector's jars and a broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.paths import PROGRAMS, child_environment

PROGRAM = PROGRAMS / "over_kafka.py"
JARS, BROKER = os.environ.get("HOLDFAST_KAFKA_JARS"), os.environ.get("HOLDFAST_KAFKA_BROKER")


@pytest.mark.soak
@pytest.mark.skipif(
    not (JARS and BROKER),
    reason="HOLDFAST_KAFKA_JARS (a directory) and HOLDFAST_KAFKA_BROKER (host:port) are not set",
)
def test_kafka_offsets_are_restored_and_every_batch_holds_the_same_messages(tmp_path):
    """From each savepoint on, batches have the boundaries that they had, on every layout."""
    pytest.importorskip("pyspark")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), JARS, BROKER], capture_output=True, text=True,
        timeout=600, check=False, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for facts in json.loads(done.stdout.splitlines()[-1]):
        straight, again = facts["straight"], facts["again"]
        last = {
            key: (count, total)
            for n in sorted(straight, key=int)
            for key, count, total in straight[n]
        }
        numbers = {str(key): range(key, 120, 9) for key in range(9)}
        assert last == {key: (len(found), sum(found)) for key, found in numbers.items()}
        assert sorted(again) == ["2", "4"]
        for batch, batches in again.items():
            rest = {n: rows for n, rows in straight.items() if int(n) >= int(batch)}
            assert batches == rest, (facts["layout"], batch)
        assert facts["ok"], facts["layout"]
