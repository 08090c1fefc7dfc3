"""Files, generator, Parquet and function: exactly once, and bad input is a typed error."""

from __future__ import annotations

import os

import pytest

import holdfast as hf
from holdfast.errors import HoldfastError, IncompatibleError, RefusedError
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.pipeline_world import write_rows
from tests.helpers.toys import toy_pipeline


def counting(home, spark, sink, **more):
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=2, **more)
    rows = pipe.source(
        "in", hf.sources.Files(str(home / "in"), schema="k string, x long, f double, w long")
    )
    totals = rows.group_by("k").agg(n=hf.count(), name="t")
    pipe.sink("out", totals, sink)
    return pipe


def test_a_file_changed_after_being_read_is_an_error_that_names_it(spark, tmp_path) -> None:
    """Neither read again nor skipped: the run stops, and nothing is lost."""
    write_rows(tmp_path / "in", 0, [("a", 1, 1.0, 1)])
    pipe = counting(tmp_path, spark, hf.sinks.Parquet(str(tmp_path / "out")))
    pipe.run()
    write_rows(tmp_path / "in", 0, [("a", 1, 1.0, 1), ("b", 2, 1.0, 1)])
    with pytest.raises(hf.errors.InvalidInputError) as caught:
        pipe.run()
    assert caught.value.kind == "file_changed"
    assert "part-00000.parquet" in str(caught.value)


def test_the_log_of_read_files_stays_small(spark, tmp_path) -> None:
    """Thousands of files leave one compressed log and a short recent list, not a growing manifest."""
    from holdfast.connectors.files.file_log import Seen
    from holdfast.connectors.files.source import Files

    reader = Files(str(tmp_path), schema="k string").open("in")
    sizes = []

    class Draft:
        def put_offsets(self, name, data):
            sizes.append(len(data))
            return f"offsets-{len(sizes)}"

    for start in range(0, 100_000, 1000):
        for n in range(start, start + 1000):
            reader._log.add(
                Seen(f"2026/11/15/part-{n:08d}.parquet", 1000 + n, 1_700_000_000_000_000 + n)
            )
        position = reader.save(Draft())
        assert position.files == start + 1000
        assert len(position.recent) <= max(500, position.files // 10 + 1)
    assert sum(sizes) < 30_000_000
    assert sizes[-1] < 1_500_000


def test_csv_and_json_files_are_read_and_bad_rows_are_errors(spark, tmp_path) -> None:
    """Each format is read by its schema; a row that does not fit stops the epoch, untouched."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("a,1\nb,2\na,3\n")
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    files = hf.sources.Files(
        tmp_path / "in", schema="k string, x long", format="csv", on_bad="fail"
    )
    rows = pipe.source("in", files)
    rows.group_by("k").agg(s=hf.sum("x"), name="t")
    pipe.run()
    assert {r["k"]: r["s"] for r in pipe.view("t").to_arrow().to_pylist()} == {"a": 4, "b": 2}
    (tmp_path / "in" / "b.csv").write_text("a,not-a-number\n")
    with pytest.raises(HoldfastError) as caught:
        pipe.run()
    assert caught.value.kind == "unreadable_file"
    assert (caught.value.facts["path"], caught.value.facts["line"]) == ("b.csv", 1)
    assert {r["k"]: r["s"] for r in pipe.view("t").to_arrow().to_pylist()} == {"a": 4, "b": 2}


def test_a_function_gets_the_same_rows_again_after_a_crash_with_the_same_key(
    spark, tmp_path
) -> None:
    """A crash between the call and its record repeats the call: same key, same rows."""
    calls = []

    def handler(rows, epoch, key):
        calls.append((epoch, key, sorted((r["k"], r["n"], r["_weight"]) for r in rows.collect())))

    write_rows(tmp_path / "in", 0, [("a", 1, 1.0, 1), ("b", 1, 1.0, 1)])
    pipe = counting(tmp_path, spark, hf.sinks.Function(handler, deduplicates=True))
    with pytest.raises(SimulatedCrash), crash_at("outcome.before_record"):
        pipe.run()
    pipe.run(takeover=True)
    assert len(calls) == 2
    assert calls[0] == calls[1]


def test_a_function_that_fails_keeps_its_token_and_is_called_again(spark, tmp_path) -> None:
    """The epoch is durable; the sink is driven again until it succeeds, and nothing is skipped."""
    calls = []

    def handler(rows, epoch, key):
        calls.append(epoch)
        if len(calls) == 1:
            message = "the warehouse is closed"
            raise OSError(message)

    write_rows(tmp_path / "in", 0, [("a", 1, 1.0, 1)])
    pipe = counting(tmp_path, spark, hf.sinks.Function(handler))
    with pytest.raises(HoldfastError) as caught:
        pipe.run()
    assert "the warehouse is closed" in str(caught.value)
    pipe.run()
    assert calls == [0, 0]


def test_a_changed_pipeline_is_refused_with_a_readable_difference(spark, tmp_path) -> None:
    """Another key or aggregate is another pipeline: the store is not touched."""
    write_rows(tmp_path / "in", 0, [("a", 1, 1.0, 1)])
    counting(tmp_path, spark, hf.sinks.Parquet(str(tmp_path / "out"))).run()
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    rows = pipe.source(
        "in", hf.sources.Files(str(tmp_path / "in"), schema="k string, x long, f double, w long")
    )
    totals = rows.group_by("x").agg(n=hf.count(), name="t")
    pipe.sink("out", totals, hf.sinks.Parquet(str(tmp_path / "out")))
    with pytest.raises(IncompatibleError) as caught:
        pipe.run()
    assert caught.value.kind == "fingerprint_differs"
    assert "t: keys" in str(caught.value)


def test_going_back_takes_published_epochs_back(spark, tmp_path) -> None:
    """After a rollback the Parquet output holds each row once."""
    pipe = counting(tmp_path, spark, hf.sinks.Parquet(str(tmp_path / "out")))
    for number in range(3):
        write_rows(tmp_path / "in", number, [("a", number, 1.0, 1)])
        pipe.run()
    pipe.run(from_checkpoint="epoch:0")
    out = spark.read.parquet(str(tmp_path / "out"))
    assert out.groupBy("k", "n").sum("_weight").where("`sum(_weight)` <> 0").count() == 1
    assert {r["n"] for r in pipe.view("t").to_arrow().to_pylist()} == {3}


def test_an_output_of_another_store_is_not_overwritten(spark, tmp_path) -> None:
    """A fresh store and an output with epochs do not belong together: refused, nothing deleted."""
    write_rows(tmp_path / "in", 0, [("a", 1, 1.0, 1)])
    counting(tmp_path, spark, hf.sinks.Parquet(str(tmp_path / "out"))).run()
    before = sorted(os.listdir(tmp_path / "out"))
    pipe = hf.Pipeline("p", store=tmp_path / "other", spark=spark, partitions=2)
    rows = pipe.source(
        "in", hf.sources.Files(str(tmp_path / "in"), schema="k string, x long, f double, w long")
    )
    pipe.sink(
        "out",
        rows.group_by("k").agg(n=hf.count(), name="t"),
        hf.sinks.Parquet(str(tmp_path / "out")),
    )
    with pytest.raises(RefusedError) as caught:
        pipe.run()
    assert caught.value.kind == "output_owned"
    assert sorted(os.listdir(tmp_path / "out")) == before


def test_checkpoints_by_interval_commit_several_epochs_at_once(spark, tmp_path) -> None:
    """With an interval, epochs gather until one checkpoint; the end of a run commits the rest."""
    settings = hf.Settings(epochs_max=3, interval_ms=3_600_000)
    pipe, _, _ = toy_pipeline(tmp_path, spark, rows=63, rows_per_epoch=9, settings=settings)
    pipe.run()
    assert [s.epoch for s in pipe.reader().list()] == [6, 5, 2]
    assert {r["n"] for r in pipe.view("totals").to_arrow().to_pylist()} == {21}
