"""Rows that a source cannot read are set aside, counted and shown, or fail the epoch if asked."""

from __future__ import annotations

import json
import logging
from collections import Counter

import pytest

import holdfast as hf
from holdfast.connectors import (
    BAD,
    BAD_SCHEMA,
    Backlog,
    CounterPosition,
    Source,
    SourceReader,
    Split,
)
from holdfast.errors import HoldfastError, InvalidInputError
from tests.helpers.pipeline_world import published

SCHEMA = "k string, x int, at timestamp"
GOOD = [{"k": "a", "x": 1, "at": "2026-01-01T00:00:00Z"}, {"k": "b", "x": 2}]
BAD_JSON = {
    '{"k":"c","x":"many"}': "values that do not fit their columns: x",
    '{"k":"d","x":1,"at":"never"}': "values that do not fit their columns: at",
    "not json at all": "not JSON",
    '{"k":"e","x":': "not JSON",
}


def json_lines(home, name: str, lines) -> None:
    (home / "in").mkdir(exist_ok=True)
    (home / "in" / name).write_text("".join(f"{line}\n" for line in lines))


def build(home, spark, *, bad: bool = True, **options) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=2)
    files = hf.sources.Files(home / "in", schema=SCHEMA, min_age_ms=0, **options)
    rows = pipe.source("in", files)
    rows.select("k").distinct(name="keys")  # asks for a column that every record has
    pipe.sink("good", rows, hf.sinks.Parquet(home / "good"))
    if bad:
        pipe.sink("bad", rows.bad, hf.sinks.Parquet(home / "bad"))
    return pipe


def test_json_records_that_do_not_fit_are_bad_rows_with_reason_and_origin(spark, tmp_path):
    """Every record is in one of the two streams, once; the next files are read as usual."""
    json_lines(tmp_path, "1.json", [*map(json.dumps, GOOD), *BAD_JSON])
    reports = []
    summary = build(tmp_path, spark).run(on_epoch=reports.append)
    assert (summary.rows, summary.bad) == (6, {"in": 4})
    assert reports[0].bad["in"].count == 4
    assert {row.reason for row in reports[0].bad["in"].first} <= set(BAD_JSON.values())
    rows = spark.read.parquet(str(tmp_path / "bad")).collect()
    assert {row["raw"]: row["reason"] for row in rows} == BAD_JSON
    assert all(row["origin"].endswith("/in/1.json") for row in rows)
    good = Counter(row["k"] for row in spark.read.parquet(str(tmp_path / "good")).collect())
    assert good == {"a": 1, "b": 1}
    json_lines(tmp_path, "2.json", ['{"k":"f"}', "{"])
    assert build(tmp_path, spark).run().bad == {"in": 1}
    assert spark.read.parquet(str(tmp_path / "bad")).count() == 5


def test_a_record_is_bad_in_every_branch_whatever_columns_it_asks_for(spark, tmp_path):
    """Spark parses only the columns that are asked for; here no branch reads a bad record as good."""
    json_lines(tmp_path, "1.json", ['{"k":"a","x":1}', '{"k":"c","x":"many"}'])
    pipe = build(tmp_path, spark)
    pipe.run()
    assert [row["k"] for row in pipe.view("keys").to_arrow().to_pylist()] == ["a"]


def test_csv_records_that_do_not_fit_are_bad_rows(spark, tmp_path):
    """Too few values, or values of another type; with plain Spark's permissive mode as the judge."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("a,1,2026-01-01\nb\nc,many,2026-01-01\nd,4,\n")
    build(tmp_path, spark).run()
    reader = spark.read.schema(SCHEMA + ", bad string").option("columnNameOfCorruptRecord", "bad")
    there = reader.csv(str(tmp_path / "in")).cache()
    expected = {row["bad"] for row in there.where("bad IS NOT NULL").collect()}
    rows = spark.read.parquet(str(tmp_path / "bad")).collect()
    assert {row["raw"] for row in rows} == expected == {"b", "c,many,2026-01-01"}
    assert {row["raw"]: row["reason"] for row in rows}["c,many,2026-01-01"].endswith(": x")


def test_bad_rows_that_nobody_takes_are_counted_logged_and_noted(spark, tmp_path, caplog):
    """Never dropped without a word."""
    json_lines(tmp_path, "1.json", ['{"k":"a"}', "nonsense"])
    with caplog.at_level(logging.WARNING, logger="holdfast.pipeline"):
        summary = build(tmp_path, spark, bad=False).run()
    assert summary.bad == {"in": 1}
    assert any("1 row, nobody takes .bad" in note and "nonsense" in note for note in summary.notes)
    assert any("nonsense" in record.message for record in caplog.records)


def test_bad_rows_do_not_move_the_watermark_and_need_no_weight(spark, tmp_path):
    """Whatever could be parsed of a bad row counts for nothing."""
    json_lines(
        tmp_path,
        "1.json",
        [
            '{"k":"a","x":1,"at":"2026-01-01T00:00:00Z"}',
            '{"k":"b","x":"no weight","at":"2026-06-01T00:00:00Z"}',
        ],
    )
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    files = hf.sources.Files(tmp_path / "in", schema=SCHEMA, weight="x", min_age_ms=0)
    rows = pipe.source("in", files, event_time="at")
    pipe.sink("good", rows, hf.sinks.Parquet(tmp_path / "good"))
    pipe.run()
    assert published(spark, tmp_path / "good", ["k"]) == {'["a"]': 1}
    marks = [s.watermark_us for s in pipe.reader().manifest("latest").sources]
    assert marks == [1_767_225_600_000_000]


def test_on_bad_fail_stops_the_epoch_and_a_mode_of_sparks_is_left_alone(spark, tmp_path):
    """A source that is to fail has no bad rows; two ways at once are refused."""
    json_lines(tmp_path, "1.json", ['{"k":"a"}', "nonsense"])
    with pytest.raises(InvalidInputError) as caught:
        build(tmp_path, spark, bad=False, on_bad="fail").run()
    assert (caught.value.kind, caught.value.facts["line"]) == ("unreadable_file", 2)
    with pytest.raises(InvalidInputError) as caught:
        build(tmp_path, spark, on_bad="fail")
    assert caught.value.kind == "no_bad_rows"
    mode = {"mode": "DROPMALFORMED"}
    with pytest.raises(InvalidInputError) as caught:
        hf.sources.Files(tmp_path / "in", schema=SCHEMA, options=mode, on_bad="keep")
    assert caught.value.kind == "invalid_option"
    assert build(tmp_path, spark, bad=False, options=mode).run().bad == {}


class Numbers(Source):
    """A third party's source: every third number cannot be read."""

    kind, schema_text = "numbers", "n long"
    bad = BAD_SCHEMA + ", place long"

    def __init__(self, on_bad: str) -> None:
        self.on_bad = on_bad

    def columns(self) -> list[str]:
        return ["n"]

    def empty(self, spark):
        return spark.createDataFrame([], self.schema_text)

    def open(self, name: str) -> NumbersReader:
        return NumbersReader(name)


class NumbersReader(SourceReader):
    def __init__(self, name: str) -> None:
        self.name, self.at = name, 0

    def restore(self, manifest, reader) -> None:
        entry = manifest.source(self.name)
        self.at = entry.position.partitions["0"] if entry else 0

    def plan(self, after=None):
        at = self.at if after is None else after.detail + 6
        return Split(self.name, 6, 0, at) if at < 12 else None

    def read(self, spark, split):
        at = split.detail
        part = (
            "named_struct('raw', concat('n', id), 'origin', 'memory', 'reason', 'a third', "
            "'place', id)"
        )
        return spark.range(at, at + 6).selectExpr(
            "id AS n", f"CASE WHEN id % 3 = 2 THEN {part} END AS `{BAD}`"
        )

    def advance(self, split) -> None:
        self.at = split.detail + 6

    def save(self, draft):
        return CounterPosition(partitions={"0": self.at})

    def backlog(self):
        return Backlog(self.at, 12, "rows")


def test_bad_rows_of_any_source_are_parted_by_the_runtime(spark, tmp_path):
    """A connector gives one column; streams, counts and failing are the runtime's affair."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    rows = pipe.source("n", Numbers("keep"))
    pipe.sink("good", rows, hf.sinks.Parquet(tmp_path / "good"))
    rows.bad.group_by("reason").agg(n=hf.count(), last=hf.max("place"), name="bad")
    summary = pipe.run()
    assert (summary.rows, summary.bad) == (12, {"n": 4})
    assert spark.read.parquet(str(tmp_path / "good")).count() == 8
    assert pipe.view("bad").to_arrow().to_pylist() == [{"reason": "a third", "n": 4, "last": 11}]
    strict = hf.Pipeline("strict", store=tmp_path / "cp", spark=spark, partitions=2)
    strict.sink("good", strict.source("n", Numbers("fail")), hf.sinks.Parquet(tmp_path / "strict"))
    with pytest.raises(HoldfastError) as caught:
        strict.run()
    facts = caught.value.facts
    assert (caught.value.kind, facts["source"], facts["rows"]) == ("bad_rows", "n", 2)
    assert not list((tmp_path / "strict").glob("[!_]*/*.parquet"))
