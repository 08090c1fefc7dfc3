"""A standalone cluster and an S3 server, once for all tests here; skipped with the reason."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.helpers.cluster_world import World
from tests.helpers.servers import UnavailableError
from tests.helpers.spark_cluster import connect_server, spark_cluster


@pytest.fixture(scope="session")
def cluster(true_s3, tmp_path_factory):
    """A master and two workers of one core and 1 GB each; executors find the S3 server."""
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    with ExitStack() as ending:
        try:
            folder = tmp_path_factory.mktemp("spark") / "cluster"
            made = ending.enter_context(spark_cluster(folder, **true_s3.environment))
        except UnavailableError as reason:
            pytest.skip(str(reason))
        yield made


@pytest.fixture
def connect(cluster):
    """Spark Connect as an application on the cluster."""
    with ExitStack() as ending:
        try:
            address = ending.enter_context(connect_server(cluster))
        except UnavailableError as reason:
            pytest.skip(str(reason))
        yield address


@pytest.fixture
def world(cluster, true_s3, tmp_path):
    """A pipeline with a store and outputs of its own."""
    return World(cluster, true_s3, tmp_path / "home")
