"""The connectors of `examples/connectors` work as they are printed: in a pipeline, and installed."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing

import pytest

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.connector_rigs import net
from tests.helpers.examples import example
from tests.helpers.paths import ROOT
from tests.helpers.rest_api import EventsApi

SINK = ROOT / "examples" / "connectors" / "sqlite_sink"


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setenv("EVENTS_TOKEN", "t0p-s3cret")
    server = EventsApi(token="t0p-s3cret")
    yield server
    server.close()


def rest_pipeline(home, spark, api, **options) -> hf.Pipeline:
    rest = example("connectors/rest_source.py")
    pipe = hf.Pipeline("rest", store=home / "cp", spark=spark, partitions=2)
    source = rest.RestEvents(api.url, page_max=4, **{"token": "env:EVENTS_TOKEN", **options})
    events = pipe.source("events", source)
    pipe.sink("bad", events.bad, hf.sinks.Parquet(home / "bad"))
    pipe.sink("seen", events, hf.sinks.Parquet(home / "seen"))
    events.upsert("kind", name="newest")
    return pipe


def test_a_rest_api_is_read_once_through_crashes_and_failures(spark, tmp_path, api):
    """A crash, an API that is down, an item that does not fit: nothing is lost, nothing doubled."""
    api.add(10)
    for point in ("epoch.after_execute", "epoch.after_commit"):
        with pytest.raises(SimulatedCrash), crash_at(point, 2):
            rest_pipeline(tmp_path, spark, api).run()
    api.failing = 1
    with pytest.raises(HoldfastError) as caught:
        rest_pipeline(tmp_path, spark, api).run(takeover=True)
    facts = caught.value.facts
    assert (caught.value.kind, facts["status"], facts["retryable"]) == ("api_refused", 503, True)
    api.add_items([{"id": "none", "kind": "odd"}])
    api.add(3)
    summary = rest_pipeline(tmp_path, spark, api).run(takeover=True)
    assert summary.bad == {"events": 1}
    seen = Counter(row["id"] for row in spark.read.parquet(str(tmp_path / "seen")).collect())
    assert seen == Counter(item["id"] for item in api.items if item["id"] != "none")
    (bad,) = spark.read.parquet(str(tmp_path / "bad")).collect()
    assert '"none"' in bad["raw"]
    assert bad["origin"].startswith(api.url)
    newest = rest_pipeline(tmp_path, spark, api).view("newest").to_arrow().to_pylist()
    last = {item["kind"]: item["id"] for item in api.items if item["id"] != "none"}
    assert {row["kind"]: row["id"] for row in newest} == last
    secret = b"t0p-s3cret"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if secret in path.read_bytes()]


def test_a_rest_api_that_refuses_is_a_named_error(spark, tmp_path, api, monkeypatch):
    """A wrong token cannot be tried again; a token in the clear is refused before."""
    monkeypatch.setenv("EVENTS_TOKEN", "wrong")
    with pytest.raises(HoldfastError) as caught:
        rest_pipeline(tmp_path, spark, api).run()
    assert (caught.value.facts["status"], caught.value.facts["retryable"]) == (401, False)
    assert "wrong" not in str(caught.value)
    with pytest.raises(HoldfastError) as caught:
        rest_pipeline(tmp_path, spark, api, token="t0p-s3cret")
    assert caught.value.kind == "invalid_secret"


def test_the_sqlite_sink_is_there_after_pip_install(spark, tmp_path, monkeypatch):
    """`hf.sinks.SqliteTable` of another package takes each epoch once."""
    target, package = tmp_path / "site", tmp_path / "package"
    shutil.copytree(SINK, package)  # building leaves files behind
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-index", "--disable-pip-version-check", "--target", str(target), str(package)],
        check=True,
    )  # fmt: skip
    monkeypatch.syspath_prepend(str(target))
    assert "SqliteTable" in dir(hf.sinks)
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    numbers = hf.sources.Generator({"k": "id % 3"}, rows=10, rows_per_epoch=4)
    counts = pipe.source("n", numbers).group_by("k").agg(n=hf.count(), name="counts")
    pipe.sink("out", counts, hf.sinks.SqliteTable(tmp_path / "out.db", "counts"))
    pipe.run()
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        rows = database.execute("SELECT k, n, _weight FROM counts").fetchall()
    assert Counter(net(rows)) == {(0, 4): 1, (1, 3): 1, (2, 3): 1}
