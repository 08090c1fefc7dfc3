"""Every test of an operator again, on the cluster, with the stores on the S3 server."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.soak]
CHOSEN = os.environ.get("HOLDFAST_CLUSTER_OPERATORS", "").split() or ["tests/operators"]


@pytest.mark.timeout(7_200)
def test_operators_equal_plain_spark_on_the_cluster(cluster, true_s3) -> None:
    """The suite that compares each operator with plain Spark is green there, and was not skipped."""
    environment = {
        **cluster.environment,
        **true_s3.environment,
        "SPARK_CONF_DIR": str(cluster.conf_dir),
        "HOLDFAST_TEST_MASTER": cluster.url,
        "HOLDFAST_TEST_STORE": f"{true_s3.url}/operators",
        "HOLDFAST_SOAK": "0",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.integration.cluster.elsewhere", "-m", "not soak",
         "-p", "no:cacheprovider", *CHOSEN],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout[-6000:])
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
