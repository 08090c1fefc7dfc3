"""Expectations next to plain PySpark's filters: what stays, what is set aside, and the counts."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.errors import InvalidInputError
from tests.helpers.pipeline_world import published

ROWS = {"id": "id", "x": "CASE WHEN id % 5 = 4 THEN NULL ELSE id % 5 - 1 END"}


def source(rows: int = 20, *, weight: bool = False) -> hf.sources.Generator:
    columns = {**ROWS, "w": "CASE WHEN id < 10 THEN 1 ELSE -1 END"} if weight else dict(ROWS)
    if weight:  # the second half retracts the first
        columns |= {"id": "id % 10", "x": "CASE WHEN id % 5 = 4 THEN NULL ELSE id % 5 - 1 END"}
    return hf.sources.Generator(
        columns, rows=rows, rows_per_epoch=10, weight="w" if weight else None
    )


def pipeline(home, spark, on_fail: str, **options) -> tuple[hf.Pipeline, hf.Stream]:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=2)
    rows = pipe.source("n", source(**options)).expect("x > 0", name="positive", on_fail=on_fail)
    pipe.sink("kept", rows, hf.sinks.Parquet(home / "kept"))
    return pipe, rows


def plain(spark, condition: str) -> Counter:
    there = spark.range(20).selectExpr(*(f"{text} AS {name}" for name, text in ROWS.items()))
    return Counter(row["id"] for row in there.where(condition).collect())


def ids(spark, path) -> Counter:
    return Counter(row["id"] for row in spark.read.parquet(str(path)).collect())


def test_warn_drop_and_quarantine_part_rows_as_plain_spark_does(spark, tmp_path):
    """A null fails; kept and quarantined rows together are all rows; counts say the same."""
    failing = "NOT coalesce(x > 0, false)"
    for on_fail in ("warn", "drop", "quarantine"):
        home = tmp_path / on_fail
        pipe, rows = pipeline(home, spark, on_fail)
        if on_fail == "quarantine":
            pipe.sink("odd", rows.quarantined, hf.sinks.Parquet(home / "odd"))
        reports = []
        summary = pipe.run(on_epoch=reports.append)
        kept = plain(spark, "true" if on_fail == "warn" else "x > 0")
        assert ids(spark, home / "kept") == kept
        failed = plain(spark, failing)
        verdicts = summary.expectations["positive"]
        assert (verdicts.passed, verdicts.failed) == (20 - failed.total(), failed.total())
        assert [r.expectations["positive"].failed for r in reports] == [6, 6]
        assert any("expectation positive: 12 of 20 rows failed" in n for n in summary.notes)
    assert ids(spark, tmp_path / "quarantine" / "odd") == failed
    with pytest.raises(InvalidInputError) as caught:
        _ = pipeline(tmp_path / "other", spark, "drop")[1].quarantined
    assert caught.value.kind == "no_quarantine"


def test_fail_stops_before_anything_is_kept_and_names_a_row(spark, tmp_path):
    """The checkpoint before stays the newest, and the sink has nothing."""
    pipe, _ = pipeline(tmp_path, spark, "fail")
    with pytest.raises(InvalidInputError) as caught:
        pipe.run()
    facts = caught.value.facts
    assert (caught.value.kind, facts["expectation"], facts["rows"]) == (
        "expectation_failed", "positive", 6,
    )  # fmt: skip
    assert '"x":' in facts["row"] or '"id":' in facts["row"]
    assert not list((tmp_path / "kept").glob("[!_]*/*.parquet"))
    fine = hf.Pipeline("fine", store=tmp_path / "cp", spark=spark, partitions=2)
    rows = fine.source("n", source()).expect("id >= 0", name="known", on_fail="fail")
    fine.sink("kept", rows, hf.sinks.Parquet(tmp_path / "fine"))
    assert fine.run().expectations["known"].failed == 0


def test_a_row_and_its_retraction_share_one_fate_and_count_once(spark, tmp_path):
    """Everything that was given is retracted: both parts are empty in the end."""
    pipe, rows = pipeline(tmp_path, spark, "quarantine", weight=True)
    pipe.sink("odd", rows.quarantined, hf.sinks.Parquet(tmp_path / "odd"))
    summary = pipe.run()
    for part in ("kept", "odd"):
        assert spark.read.parquet(str(tmp_path / part)).count() > 0
        assert published(spark, tmp_path / part, ["id"]) == {}
    verdicts = summary.expectations["positive"]
    assert (verdicts.passed, verdicts.failed) == (4, 6)


def test_conditions_that_are_no_function_of_the_row_are_refused(spark, tmp_path):
    """Random numbers, the time of day, and anything over several rows."""
    for condition, kind in {
        "rand() > 0.5": "unstable_expectation",
        "current_timestamp() > timestamp'2020-01-01'": "unstable_expectation",
        "max(x) > 0": "analysis_failed",
        "row_number() OVER (ORDER BY id) > 1": "not_row_wise",
        "nothing > 0": "analysis_failed",
    }.items():
        pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
        rows = pipe.source("n", source()).expect(condition, name="e")
        pipe.sink("out", rows, hf.sinks.Parquet(tmp_path / "out"))
        with pytest.raises(InvalidInputError) as caught:
            pipe.check()
            pipe.resolve()
        assert caught.value.kind == kind, condition


def test_warnings_change_no_fingerprint_and_names_are_their_own(spark, tmp_path):
    """An expectation that only looks can be added to a pipeline at any time; a filter is a change."""

    def build(*expectations, on_fail="warn"):
        pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
        rows = pipe.source("n", source(40 if expectations else 20))
        for name, condition in expectations:
            rows = rows.expect(condition, name=name, on_fail=on_fail)
        rows.group_by("x").agg(n=hf.count(), name="counts")
        return pipe

    build().run()
    both = [("a", F.col("x") > 0), ("b", "id < 30")]
    summary = build(*both).run()
    assert {name: v.failed for name, v in summary.expectations.items()} == {"a": 12, "b": 10}
    with pytest.raises(InvalidInputError) as caught:
        build(("a", "x > 0"), ("a", "x < 0"))
    assert caught.value.kind == "duplicate_name"
    with pytest.raises(InvalidInputError):
        build(("a", "x > 0"), on_fail="explode")
