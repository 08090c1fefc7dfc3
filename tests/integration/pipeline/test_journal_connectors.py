"""The journal as source and sink of a pipeline."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast.journal import Event, JournalReader, JournalSettings, JournalWriter, Query
from holdfast.testing import SimulatedCrash, crash_at


def fill(path, start: int, stop: int, settings=None) -> None:
    with JournalWriter(path, settings or JournalSettings()) as journal:
        for first in range(start, stop, 50):
            journal.append(
                [
                    Event(entity=f"e{n % 5}", kind="n", payload=json.dumps({"x": n}))
                    for n in range(first, min(first + 50, stop))
                ]
            )


def totals(home, spark, sink=None, **more):
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=2)
    rows = pipe.source(
        "in", hf.sources.Journal(home / "journal", payload="x long", events_max=200, **more)
    )
    out = rows.group_by("entity").agg(n=hf.count(), s=hf.sum("x"), name="t")
    if sink is not None:
        pipe.sink("out", out, sink)
    return pipe


def test_each_event_is_counted_once_through_crashes(spark, tmp_path) -> None:
    """Crashes at several points, more events meanwhile: the totals are those of the journal."""
    fill(tmp_path / "journal", 0, 500)
    for point in ("epoch.after_execute", "commit.after_barrier", "epoch.after_commit"):
        with pytest.raises(SimulatedCrash), crash_at(point):
            totals(tmp_path, spark).run(takeover=True)
    fill(tmp_path / "journal", 500, 700)
    pipe = totals(tmp_path, spark)
    pipe.run(takeover=True)
    got = {r["entity"]: (r["n"], r["s"]) for r in pipe.view("t").to_arrow().to_pylist()}
    assert got == {f"e{k}": (140, sum(n for n in range(700) if n % 5 == k)) for k in range(5)}


def test_truncation_never_passes_what_a_retained_checkpoint_needs(spark, tmp_path) -> None:
    """The source holds the oldest retained position: truncating everything stops there."""
    small = JournalSettings(segment_bytes=4_096)
    fill(tmp_path / "journal", 0, 1_000, small)
    totals(tmp_path, spark).run()
    oldest = min(
        (totals(tmp_path, spark).reader().manifest(s).source("in").position.sequence)
        for s in totals(tmp_path, spark).reader().list()
    )
    with JournalWriter(tmp_path / "journal", small) as journal:
        report = journal.truncate_before(1_000)
        assert report.held_by.startswith("p-in-")
        assert report.base_sequence <= oldest
        assert report.bytes_freed > 0
    fill(tmp_path / "journal", 1_000, 1_100, small)
    pipe = totals(tmp_path, spark)
    pipe.run()
    assert sum(r["n"] for r in pipe.view("t").to_arrow().to_pylist()) == 1_100


def test_a_replaced_journal_is_noticed(spark, tmp_path) -> None:
    """Another log under the same path has another chain: an error, not other data."""
    fill(tmp_path / "journal", 0, 100)
    totals(tmp_path, spark).run()
    (tmp_path / "journal").rename(tmp_path / "old")
    fill(tmp_path / "journal", 0, 300)
    with pytest.raises(HoldfastError) as caught:
        totals(tmp_path, spark).run()
    assert caught.value.kind != "job_failed"


def test_typed_payloads_are_columns(spark, tmp_path) -> None:
    """Typed columns of a journal come as columns of the stream, without going through text."""
    with JournalWriter(tmp_path / "journal") as journal:
        journal.append(
            pa.record_batch(
                {
                    "entity": ["a", "b", "a"], "kind": ["n", "n", "n"],
                    "payload": pa.array([{"x": 1}, {"x": 2}, {"x": 3}], pa.struct([("x", pa.int64())])),
                }
            )
        )  # fmt: skip
    pipe = totals(tmp_path, spark, typed=True)
    pipe.run()
    assert {r["entity"]: r["s"] for r in pipe.view("t").to_arrow().to_pylist()} == {"a": 4, "b": 2}
    with pytest.raises(HoldfastError) as caught:
        other = hf.Pipeline("q", store=tmp_path / "cp", spark=spark, partitions=2)
        rows = other.source("in", hf.sources.Journal(tmp_path / "journal", payload="x long"))
        rows.group_by("entity").agg(n=hf.count(), name="t")
        other.run()
    assert "typed=True" in str(caught.value)


def test_a_journal_sink_appends_each_epoch_once(spark, tmp_path) -> None:
    """A crash between append and record repeats the append: the journal returns its first receipt."""
    fill(tmp_path / "journal", 0, 300)
    sink = hf.sinks.Journal(tmp_path / "out", entity="entity", kind="=total")
    with pytest.raises(SimulatedCrash), crash_at("outcome.before_record"):
        totals(tmp_path, spark, sink).run()
    totals(tmp_path, spark, sink).run(takeover=True)
    net: dict = {}
    with JournalReader(tmp_path / "out") as journal:
        events = journal.query(Query(kind="total")).to_table().to_pylist()
    for event in events:
        row = json.loads(event["payload"])
        key = (row["entity"], row["n"], row["s"])
        net[key] = net.get(key, 0) + row["_weight"]
    want = {(f"e{k}", 60, sum(n for n in range(300) if n % 5 == k)) for k in range(5)}
    assert {key for key, n in net.items() if n} == want
    assert set(net.values()) <= {0, 1}
