"""upsert gives plain Spark's window functions' answers, over epochs, restarts, crashes and rescaling."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

import holdfast as hf
from holdfast.errors import InvalidInputError
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.pipeline_world import published, rows_of

SCHEMA = "k string, x long, op string, lsn long"
SHOWN = ["k", "x", "op", "lsn"]
LAST = """
    SELECT k, x, op, lsn FROM (
        SELECT *, row_number() OVER (
            PARTITION BY k ORDER BY lsn DESC NULLS LAST, op != 'd' DESC, x DESC, op DESC
        ) AS place FROM events
    ) WHERE place = 1 AND op != 'd'
"""


def build(home, spark, *, partitions: int) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    files = hf.sources.Files(home / "in", schema=SCHEMA, files_max=1, min_age_ms=0)
    table = pipe.source("changes", files).upsert(
        "k", sequence_by="lsn", delete_when="op = 'd'", name="table"
    )
    pipe.sink("out", table, hf.sinks.Parquet(home / "out"))
    sums = table.group_by("op").agg(s=hf.sum("x"), n=hf.count(), name="sums")
    pipe.sink("sums_out", sums, hf.sinks.Parquet(home / "sums"))
    return pipe


def write(home, number: int, events) -> None:
    (home / "in").mkdir(exist_ok=True)
    lines = [json.dumps(dict(zip(SHOWN, event, strict=True))) for event in events]
    (home / "in" / f"{number:03d}.json").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("seed", range(2))
def test_the_table_is_what_a_window_function_finds_last(spark, tmp_path, seed):
    """After every run: with crashes between commit and publishing, other partitions, late rows."""
    draw, events = random.Random(seed), []
    for number, partitions in enumerate((2, 3, 1)):
        more = [
            (
                draw.choice([None, *"abcdefgh"]),
                draw.choice([None, 0, 1, 2]),
                draw.choice("iuud"),
                draw.choice([None, *range(30)]),
            )
            for _ in range(25)
        ]
        write(tmp_path, 2 * number, more[:12])
        write(tmp_path, 2 * number + 1, more[12:])
        events += more
        point = draw.choice(["epoch.after_execute", "commit.after_manifest", "epoch.after_commit"])
        with pytest.raises(SimulatedCrash), crash_at(point):
            build(tmp_path, spark, partitions=partitions).run()
        pipe = build(tmp_path, spark, partitions=partitions)
        pipe.run(takeover=True)
        spark.createDataFrame(events, SCHEMA).createOrReplaceTempView("events")
        expected = spark.sql(LAST)
        assert rows_of(pipe.view("table").to_spark(), SHOWN) == rows_of(expected, SHOWN)
        assert published(spark, tmp_path / "out", SHOWN) == rows_of(expected, SHOWN)
        sums = expected.groupBy("op").agg({"x": "sum", "*": "count"}).toDF("op", "s", "n")
        assert published(spark, tmp_path / "sums", ["op", "s", "n"]) == rows_of(
            sums.select("op", "s", "n"), ["op", "s", "n"]
        )


def test_rows_count_as_they_come_from_a_source_in_order(spark, tmp_path):
    """A million rows would shuffle as these do: numbered where Spark reads, in several partitions."""
    columns = {"k": "id % 7", "x": "id", "gone": "id % 7 = 4 AND id % 2 = 1"}
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=3)
    rows = pipe.source("n", hf.sources.Generator(columns, rows=2_000, rows_per_epoch=700))
    rows.where("x >= 0").upsert("k", delete_when="gone", name="table")
    reports = []
    pipe.run(on_epoch=reports.append)
    there = {row["k"]: row["x"] for row in pipe.view("table").to_arrow().to_pylist()}
    last = {k: max(x for x in range(2_000) if x % 7 == k) for k in range(7)}
    assert last[4] % 2 == 1
    assert there == {k: x for k, x in last.items() if k != 4}
    assert sum(report.outdated for report in reports) == 0


def test_columns_that_were_left_out_keep_their_values(spark, tmp_path):
    """Debezium's placeholder for a value that Postgres did not send; nulls elsewhere are values."""
    columns = {
        "id": "id % 2",
        "n": "CASE WHEN id < 4 THEN id END",
        "body": "CASE WHEN id < 2 THEN concat('text', id) ELSE '__unavailable' END",
    }
    for name, missing, expected in (
        ("mapped", {"body": "body = '__unavailable'"}, {0: (None, "text0"), 1: (None, "text1")}),
        ("keep", "keep", {0: (2, "__unavailable"), 1: (3, "__unavailable")}),
    ):
        pipe = hf.Pipeline(name, store=tmp_path / "cp", spark=spark, partitions=2)
        rows = pipe.source("n", hf.sources.Generator(columns, rows=6, rows_per_epoch=2))
        table = rows.upsert("id", missing=missing, name="table")
        pipe.sink("out", table, hf.sinks.Parquet(tmp_path / name))
        pipe.run()
        there = pipe.view("table").to_arrow().to_pylist()
        assert {row["id"]: (row["n"], row["body"]) for row in there} == expected
        assert sum(published(spark, tmp_path / name, ["id", "n", "body"]).values()) == 2


def test_negative_weights_delete_and_a_changelog_can_be_put_in_order(spark, tmp_path):
    """A source with weights; and -old +new of one place in the sequence, which a put survives."""
    columns = {"k": "id % 3", "x": "id", "w": "CASE WHEN id = 8 THEN -1 ELSE 1 END"}
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    rows = pipe.source("n", hf.sources.Generator(columns, rows=9, rows_per_epoch=4, weight="w"))
    rows.upsert("k", name="table")
    counts = rows.group_by("k").agg(n=hf.count(), hi=hf.max("x"), name="counts")
    counts.upsert("k", sequence_by="hi", name="again")
    pipe.run()
    there = {row["k"]: row["x"] for row in pipe.view("table").to_arrow().to_pylist()}
    assert there == {0: 6, 1: 7}
    again = pipe.view("again").to_arrow().to_pylist()
    plain = pipe.view("counts").to_arrow().to_pylist()
    assert {row["k"]: row["hi"] for row in again} == {row["k"]: row["hi"] for row in plain}


def test_types_that_cannot_be_ordered_are_refused_only_in_the_sequence(spark, tmp_path):
    """A map may be carried; nothing can be ordered by it. A taken name is refused by name."""
    base = {"k": "id % 2", "m": "map('a', id)"}

    def table(columns, **options):
        pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
        rows = pipe.source("n", hf.sources.Generator(columns, rows=10))
        rows.upsert("k", name="table", **options)
        return pipe

    pipe = table(base)
    pipe.run()
    assert Counter(len(row["m"]) for row in pipe.view("table").to_arrow().to_pylist()) == {1: 2}
    for columns, options, kind in (
        (base, {"sequence_by": "m"}, "unsupported_type"),
        ({**base, "_gone": "true"}, {"sequence_by": "k"}, "reserved_column"),
        (base, {"delete_when": "nothing = 1"}, "analysis_failed"),
    ):
        with pytest.raises(InvalidInputError) as caught:
            table(columns, **options).resolve()
        assert caught.value.kind == kind
