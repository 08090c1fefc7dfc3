"""Files through Spark: names, partitions, time zones, failures, and what a run writes down."""

from __future__ import annotations

import json
import logging
import os
import string

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.errors import HoldfastError, IncompatibleError, InvalidInputError, StorageError
from tests.helpers.pipeline_world import published, rows_of
from tests.helpers.toys import toy_pipeline

ZONE = "spark.sql.session.timeZone"
STRANGE = [
    *(f"a{char}b" for char in string.printable if char not in "/\0"),
    "käse", "日本", "a%20b", "a%2Fb", " lead", "a:b*c", "[a]:{b,c}", "x=1", "~", "-", "\\", "\\*",
]  # fmt: skip


def run(home, spark, connector, steps=lambda rows: rows, *, name="p", **more):
    """A pipeline from one source to one changelog; returns its summary."""
    pipe = hf.Pipeline(name, store=home / f"cp-{name}", spark=spark, partitions=2)
    pipe.sink("out", steps(pipe.source("s", connector)), hf.sinks.Parquet(str(home / f"o-{name}")))
    return pipe.run(**more)


def failure(home, spark, connector, steps=lambda rows: rows, *, name="p") -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        run(home, spark, connector, steps, name=name)
    return caught.value


def write(path, text) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(path, (1_700_000_000, 1_700_000_000))


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_a_listed_name_is_a_literal(spark, tmp_path, kind) -> None:
    """Every printable character in a name, and a directory full of pattern characters."""
    for place in ("plain", "in [x]{a,b}:*?"):
        home = tmp_path / place
        home.mkdir()
        names = STRANGE if place == "plain" else STRANGE[-12:]
        for number, name in enumerate(names):
            file = home / f"{name}.{kind}"
            if kind == "parquet":
                pq.write_table(pa.table({"x": [number]}), file)
            else:
                file.write_text(f'{{"x": {number}}}\n' if kind == "json" else f"{number}\n")
            os.utime(file, (number + 1, number + 1))
        run(tmp_path, spark, hf.sources.Files(home, schema="x long"), name=place[:2].strip())
        got = published(spark, tmp_path / f"o-{place[:2].strip()}", ["x"])
        assert got == {json.dumps([number]): 1 for number in range(len(names))}


def test_partition_directories_are_sparks(spark, tmp_path) -> None:
    """Types, nulls, escapes and nesting as plain Spark reads them; a file above them is read too."""
    root = tmp_path / "in"
    for number, place in enumerate(
        ["day=2024-01-01/c=a%3Ab", "day=__HIVE_DEFAULT_PARTITION__/c=x y", "day=2024-02-29/c=ü"]
    ):
        (root / place).mkdir(parents=True)
        pq.write_table(pa.table({"x": [number]}), root / place / "f.parquet")
    schema = "c string, x long, day date"
    batch = spark.read.schema(schema).parquet(str(root))
    run(tmp_path, spark, hf.sources.Files(root, schema=schema, min_age_ms=0))
    assert published(spark, tmp_path / "o-p", ["c", "x", "day"]) == rows_of(
        batch, ["c", "x", "day"]
    )
    pq.write_table(pa.table({"x": [9], "c": ["own"]}), root / "top.parquet")
    pq.write_table(pa.table({"x": [8]}), root / "day=2024-02-29" / "g.parquet")
    run(tmp_path, spark, hf.sources.Files(root, schema=schema, min_age_ms=0))
    got = published(spark, tmp_path / "o-p", ["c", "x", "day"])
    assert got['["own", 9, null]'] == got['[null, 8, "2024-02-29"]'] == 1


def test_the_sessions_time_zone_is_the_users(spark, tmp_path) -> None:
    """CSV times, hours, windows and keys mean in New York what they mean in plain Spark there."""
    spark.conf.set(ZONE, "America/New_York")
    try:
        lines = [
            f"{k},2024-03-{10 + k % 2:02d} {h:02d}:30:00\n" for k in range(4) for h in (0, 1, 4)
        ]
        write(tmp_path / "in" / "a.csv", "".join(lines))
        schema = "k long, t timestamp"
        frame = spark.read.schema(schema).csv(str(tmp_path / "in"))
        files = hf.sources.Files(tmp_path / "in", schema=schema)
        run(
            tmp_path, spark, files, name="keys",
            steps=lambda rows: rows.with_columns(
                h="hour(t)", n="cast(t AS timestamp_ntz)"
            ).group_by("t", "n", "h").agg(c=hf.count(), last=hf.max("t"), name="t"),
        )  # fmt: skip
        batch = frame.selectExpr("t", "cast(t AS timestamp_ntz) AS n", "hour(t) AS h")
        batch = batch.groupBy("t", "n", "h").agg({"*": "count", "t": "max"})
        batch = batch.toDF("t", "n", "h", "c", "last").select("t", "n", "h", "c", "last")
        if str(batch.schema["c"].dataType) != "LongType()":
            batch = batch.toDF("t", "n", "h", "last", "c")
        columns = ["t", "n", "h", "c", "last"]
        assert published(spark, tmp_path / "o-keys", columns) == rows_of(batch, columns)
        assert spark.conf.get(ZONE) == "America/New_York"
        for kind in ("timestamp", "timestamp_ntz"):
            pipe = hf.Pipeline(f"w-{kind[9:]}x", store=tmp_path / "w", spark=spark, partitions=2)
            timed = hf.sources.Files(tmp_path / "in", schema=f"k long, t {kind}")
            rows = pipe.source("s", timed, event_time="t", delay="1 hour")
            counted = rows.group_by(hf.tumbling("t", size="1 hour")).agg(c=hf.count(), name="w")
            pipe.sink("out", counted, hf.sinks.Parquet(str(tmp_path / f"o-{kind}")))
            assert pipe.run().late == 0
            found = spark.read.parquet(str(tmp_path / f"o-{kind}"))
            total = found.selectExpr("sum(c * _weight) AS n").first()["n"]
            starts = {str(r[0]) for r in found.select("window_start").distinct().collect()}
            plain = spark.read.schema(f"k long, t {kind}").csv(str(tmp_path / "in"))
            expected = plain.selectExpr("window(t, '1 hour').start AS s").distinct().collect()
            assert (total, starts) == (len(lines), {str(r[0]) for r in expected})
    finally:
        spark.conf.set(ZONE, "UTC")


def test_failures_name_the_file_the_record_and_the_cause(spark, tmp_path) -> None:
    """Nothing about rows, files or code is retryable."""
    bad = {
        "corrupt.parquet": (b"PAR1 garbage PAR1", "corrupted file", None),
        "row.csv": (b"1,2\n3,4\nx,y\n", "x", 3),
        "half.json": (b'{"k":1,"x":2}\n{"k":1,"x":\n', "end-of-input", 2),
        "type.json": (b'{"k":1,"x":"abc"}\n', "abc", 1),
    }
    for name, (text, word, line) in bad.items():
        write(tmp_path / name / name, text)
        files = hf.sources.Files(tmp_path / name, schema="k long, x long", on_bad="fail")
        error = failure(tmp_path, spark, files, name=name.replace(".", "-"))
        assert isinstance(error, InvalidInputError), error
        assert error.kind == "unreadable_file"
        assert (error.facts["source"], error.facts["path"]) == ("s", name)
        assert word in str(error.facts["reason"])
        assert error.facts.get("line") == line
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"k": [1], "x": ["a"]}), tmp_path / "t" / "t.parquet")
    error = failure(tmp_path, spark, hf.sources.Files(tmp_path / "t", schema="k long, x long"))
    assert "column [x] is BINARY, not bigint" in str(error)


def test_a_file_that_vanishes_before_it_is_read_is_named(spark, tmp_path, monkeypatch) -> None:
    """It may come back or not: running again goes on without it."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "in" / "gone.parquet")
    files = hf.sources.Files(tmp_path / "in", schema="x long", min_age_ms=0)
    from holdfast.connectors.files.reader import FilesReader

    read = FilesReader.read

    def late(self, spark, piece):
        frame = read(self, spark, piece)
        (tmp_path / "in" / "gone.parquet").unlink()
        return frame

    monkeypatch.setattr(FilesReader, "read", late)
    error = failure(tmp_path, spark, files)
    assert isinstance(error, StorageError)
    assert (error.kind, error.facts["path"], error.retryable) == (
        "file_vanished", "gone.parquet", True,
    )  # fmt: skip
    monkeypatch.undo()
    assert run(tmp_path, spark, files).epochs == 0


def test_code_and_expressions_that_fail_are_named(spark, tmp_path) -> None:
    """The user's own line, or the expression; wrong code in a transform before any job."""
    from pyspark.sql import functions as F

    numbers = hf.sources.Generator({"n": "id"}, rows=4)

    def broken(n):
        return 1 // (n - n)

    def transform(df):
        return df.withColumn("m", F.udf(broken, "long")("n"))

    error = failure(tmp_path, spark, numbers, lambda rows: rows.transform(transform))
    assert (error.kind, "retryable" in error.facts) == ("user_code_failed", False)
    assert "test_files_in_spark.py" in error.facts["at"]
    assert error.facts["at"].endswith("in broken")
    assert "ZeroDivisionError" in error.facts["reason"]
    error = failure(tmp_path, spark, numbers, lambda rows: rows.select("10 / (n - n) AS q"))
    assert error.kind == "expression_failed"
    assert "10 / (n - n)" in error.facts["expression"]
    for function in (lambda df: None, lambda df: {}["k"]):
        error = failure(
            tmp_path, spark, numbers, lambda rows, f=function: rows.transform(f, text="mine")
        )
        assert (error.kind, error.facts["operator"]) == ("user_code_failed", "transform mine")


def test_an_event_time_that_is_no_time_is_refused_by_name(spark, tmp_path) -> None:
    """Before any job, with source and column."""
    (tmp_path / "in").mkdir()
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark)
    files = hf.sources.Files(tmp_path / "in", schema="k string, at string", format="csv")
    rows = pipe.source("clicks", files, event_time="at")
    pipe.sink("out", rows, hf.sinks.Parquet(str(tmp_path / "out")))
    with pytest.raises(InvalidInputError) as caught:
        pipe.run()
    assert caught.value.kind == "invalid_time_column"
    assert (caught.value.facts["source"], caught.value.facts["column"]) == ("clicks", "at")


def test_rows_are_those_of_the_source_whatever_becomes_of_them(spark, tmp_path) -> None:
    """Three branches and filters that skip whole files: 15 rows are 15 rows."""
    (tmp_path / "in").mkdir()
    for number in range(5):
        pq.write_table(
            pa.table({"x": [number * 3, number * 3 + 1, number * 3 + 2]}),
            tmp_path / "in" / f"{number}.parquet",
        )
    write(tmp_path / "csv" / "a.csv", "".join(f"{n}\n" for n in range(15)))
    for name in ("in", "csv"):
        pipe = hf.Pipeline(name, store=tmp_path / "cp", spark=spark, partitions=2)
        rows = pipe.source("s", hf.sources.Files(tmp_path / name, schema="x long"))
        for branch in range(3):
            kept = rows.where(f"x >= {10 + branch}")
            totals = kept.group_by("x").agg(n=hf.count(), name=f"t{branch}")
            pipe.sink(f"o{branch}", totals, hf.sinks.Parquet(str(tmp_path / f"{name}-{branch}")))
        reports = []
        assert pipe.run(on_epoch=reports.append).rows == 15
        assert sum(report.rows for report in reports) == 15


def test_a_run_marks_its_checkpoints_and_tells_what_it_does(spark, tmp_path, caplog) -> None:
    """Label, properties, one checkpoint an epoch under other settings, honest reports, records."""
    pipe = hf.Pipeline(
        "p", store=tmp_path / "cp", spark=spark, partitions=2, settings=hf.Settings(retain=50)
    )
    rows = pipe.source("n", hf.sources.Generator({"k": "id"}, rows=50, rows_per_epoch=10))
    pipe.sink("out", rows.distinct(name="d"), hf.sinks.Parquet(str(tmp_path / "out")))
    reports, states, made = [], [], []

    def seen(report) -> None:
        states.append(report.committed)
        reports.append(report)

    with caplog.at_level(logging.INFO, "holdfast.pipeline"):
        logging.getLogger("holdfast").propagate = True
        pipe.run(
            label="nightly", properties={"git": "abc"}, on_epoch=seen, on_checkpoint=made.append
        )
    assert len(pipe.reader().list()) == len(made) == 5
    assert all(report.committed for report in reports)
    assert not all(states), "nothing is durable before its commit"
    manifest = pipe.reader().manifest("nightly")
    given = {k: v for k, v in manifest.properties.items() if not k.startswith("holdfast.")}
    assert (manifest.epoch, manifest.label, given) == (4, "nightly", {"git": "abc"})
    events = [r.facts["event"] for r in caplog.records if hasattr(r, "facts")]
    assert events.count("epoch") == events.count("checkpoint") == events.count("publish") == 5
    assert events[0] == "recovery"
    with pytest.raises(InvalidInputError):
        pipe.run(properties={"holdfast.x": "1"})


def test_a_pipeline_that_has_run_can_grow_and_removals_are_recorded(spark, tmp_path) -> None:
    """An operator added to the same object is filled; one that goes is gone without a new row."""

    def declared(*, more: bool):
        pipe, rows, _ = toy_pipeline(tmp_path, spark)
        return pipe, rows, add(pipe, rows) if more else None

    def add(pipe, rows):
        pipe.sink("m_out", rows.group_by("k").agg(m=hf.max("k"), name="m"),
                  hf.sinks.Parquet(str(tmp_path / "m")))  # fmt: skip

    pipe, rows, _ = declared(more=False)
    with pytest.raises(HoldfastError) as caught:
        pipe.view("totals")
    assert caught.value.kind == "no_checkpoint"
    pipe.run()
    add(pipe, rows)
    pipe.run(allow_changes=True)
    assert sorted(r["m"] for r in pipe.view("m").to_arrow().to_pylist()) == [0, 1, 2]
    pipe, _, _ = declared(more=False)
    assert pipe.run(allow_changes=True).notes
    pipe, _, _ = declared(more=False)
    assert pipe.run().notes == []
    assert sorted(r["n"] for r in pipe.view("totals").to_arrow().to_pylist()) == [10, 10, 10]


def test_another_static_table_is_refused_by_name(spark, tmp_path) -> None:
    """Rows in another order are the same table; another row is not, and is accepted only aloud."""

    def joined(table):
        return lambda rows: rows.join_static(table, "k", name="names")

    def table(*rows):
        return spark.createDataFrame(list(rows), "k long, v string")

    numbers = hf.sources.Generator({"k": "id % 2"}, rows=4)
    run(tmp_path, spark, numbers, joined(table((0, "a"), (1, "b"))))
    run(tmp_path, spark, numbers, joined(table((1, "b"), (0, "a"))))
    with pytest.raises(IncompatibleError) as caught:
        run(tmp_path, spark, numbers, joined(table((0, "a"), (1, "c"))))
    assert (caught.value.kind, caught.value.facts["tables"]) == ("static_table_changed", "names")
    other = joined(table((0, "a"), (1, "c")))
    assert "another table" in run(tmp_path, spark, numbers, other, allow_changes=True).notes[0]
    assert run(tmp_path, spark, numbers, other).notes == []


def test_read_files_go_once_their_checkpoint_is_the_oldest(spark, tmp_path) -> None:
    """Deleted files leave results as they were; those of newer checkpoints stay for going back."""
    (tmp_path / "in").mkdir()
    for number in range(6):
        pq.write_table(pa.table({"x": [number]}), tmp_path / "in" / f"{number}.parquet")
        os.utime(tmp_path / "in" / f"{number}.parquet", (number + 1, number + 1))
    files = hf.sources.Files(tmp_path / "in", schema="x long", files_max=1, after_read="delete")
    run(tmp_path, spark, files)
    left = sorted(os.listdir(tmp_path / "in"))
    assert left == ["3.parquet", "4.parquet", "5.parquet"], "three checkpoints are kept"
    run(tmp_path, spark, files, from_checkpoint="epoch:3")
    assert published(spark, tmp_path / "o-p", ["x"]) == {f"[{n}]": 1 for n in range(6)}
