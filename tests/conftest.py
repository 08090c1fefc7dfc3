"""Shared by all tests: the Hypothesis profile, a SparkSession, and S3 servers on loopback."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import pytest
from hypothesis import settings

from holdfast.spark import class_archive as classes
from holdfast.spark.java import find_java
from tests.helpers.effort import examples
from tests.helpers.kafka_broker import kafka_broker
from tests.helpers.kafka_world import KafkaWorld
from tests.helpers.servers import UnavailableError, versitygw

# Spark lives for seconds in most tests: the optimising compiler never pays for itself there. Where
# `make ready` has kept Spark's classes, every JVM that a test starts uses them.
if sys.prefix != sys.base_prefix:
    os.environ.setdefault(classes.CACHE_VARIABLE, str(Path(sys.prefix) / "cache"))
if "JDK_JAVA_OPTIONS" not in os.environ:
    java = find_java() if classes.cache_directory().is_dir() else None
    kept = classes.archive_options(java) if java else ""
    os.environ["JDK_JAVA_OPTIONS"] = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {kept}".strip()
settings.register_profile("holdfast", examples(50))
settings.load_profile("holdfast")

# Files that take minutes come first, so that no worker is left alone with one at the end.
_LONGEST = (
    "integration/pipeline/test_outputs.py",
    "crash/test_epoch_faults.py",
    "crash/test_kills_all_sinks.py",
    "crash/test_kafka_kills.py",
    "integration/guard/test_restore_and_continue.py",
    "operators/test_window.py",
    "crash/test_failing_storage.py",
    "property/test_fuzz.py",
    "docs/test_nexmark.py",
    "crash/test_journal_crash.py",
    "integration/cli/test_every_verb.py",
    "integration/pipeline/test_files_in_spark.py",
    "crash/test_crash_matrix.py",
    "integration/regressions/test_input.py",
    "crash/test_kills.py",
    "crash/test_power_cut_outputs.py",
    "crash/test_racing_writers.py",
    "operators/test_join.py",
    "crash/test_sleeping_writers.py",
    "operators/test_interval_join.py",
    "operators/test_chains.py",
    "operators/test_topk.py",
    "integration/pipeline/test_fast_paths.py",
    "integration/pipeline/test_starting.py",
    "docs/test_readme.py",
    "operators/test_apply.py",
    "operators/test_types.py",
    "unit/state/test_partition.py",
    "unit/operators/test_time_bounds.py",
)


def pytest_collection_modifyitems(items):
    """Marks what needs Spark or a server; the longest files first, within a file the order stays."""
    here = Path(__file__).parent
    for item in items:
        needed = set(item.fixturenames)
        if "spark" in needed:
            item.add_marker("spark")
        if needed & {"s3_server", "true_s3", "kafka"}:
            item.add_marker("server")
        if item.path.is_relative_to(here / "crash"):
            item.add_marker("crash")
    rank = {str(here / name): number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: rank.get(str(item.path), len(rank)))


@pytest.fixture(autouse=True)
def few_rows_are_many(request, monkeypatch):
    """Tests with Spark have few rows: they get as many tasks as many rows would, now and then."""
    if "spark" in request.fixturenames:
        from holdfast.runtime import task_counts

        monkeypatch.setattr(task_counts, "ROWS_PER_TASK", 3)
        monkeypatch.setattr(task_counts, "ROWS_PER_TASK_MAX", 3)
        monkeypatch.setattr(task_counts, "ROWS_PER_RUN", 0)


@pytest.fixture
def ram_path(tmp_path):
    """A directory in memory where there is one, for tests that sync nothing for real."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=shared) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def s3_server():
    """Address of an S3 server that speaks real HTTP; requests are taken one at a time, since the
    server's own conditional put is not atomic between its threads and the real one's is."""
    server_module = pytest.importorskip("moto.server")
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = server_module.DomainDispatcherApplication(server_module.create_backend_app)
    lock = threading.Lock()

    def one_at_a_time(environ, start_response):
        with lock:
            return [*app(environ, start_response)]

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


@pytest.fixture(scope="session")
def s3_options(s3_server):
    """Options for `open_storage` that lead to the server."""
    return {
        "endpoint": s3_server,
        "region": "us-east-1",
        "access_key_id": "test",
        "secret_access_key": "test",
        "client_options": {"allow_http": True},
    }


@pytest.fixture(scope="session")
def s3_bucket(s3_server):
    """A bucket of this session."""
    import urllib.request

    name = f"holdfast-{uuid.uuid4().hex[:12]}"
    urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{name}", method="PUT")).close()
    return name


@pytest.fixture
def s3_url(s3_bucket):
    """A fresh prefix in the bucket."""
    return f"s3://{s3_bucket}/{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def true_s3(tmp_path_factory):
    """An S3 server with real conditional puts, built once; slower to begin with than `s3_server`."""
    try:
        with versitygw(tmp_path_factory.mktemp("versitygw")) as server:
            yield server
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory):
    """A Kafka of one node, or the one in HOLDFAST_KAFKA_BROKER; its jars are fetched once."""
    given = os.environ.get("HOLDFAST_KAFKA_BROKER")
    if given:
        yield KafkaWorld(given)
        return
    try:
        with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
            yield KafkaWorld(broker.address, broker)
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def spark():
    """One SparkSession for each test process."""
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master(os.environ.get("HOLDFAST_TEST_MASTER", "local[2]"))
        .appName("holdfast-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
