"""Aggregates that need all values of a group: sketches, windows, and types that are refused."""

from __future__ import annotations

import pytest

import holdfast as hf
from tests.helpers.pipeline_world import SCHEMA, rows_of, write_rows
from tests.helpers.toys import own_aggregate


@pytest.mark.parametrize("weighted", [False, True])
def test_approximate_counts_are_near_and_exact_where_rows_can_be_taken_back(
    spark, tmp_path, weighted
) -> None:
    """Sketches are within 5 sigma over any split into epochs; with weights the count is exact."""
    rows = [(None if n % 10 == 0 else f"k{n % 2}", n % 3000, None, 1) for n in range(12_000)]
    for number in range(3):
        write_rows(tmp_path / "in", number, rows[number::3])
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    source = hf.sources.Files(
        str(tmp_path / "in"), schema=SCHEMA, weight="w" if weighted else None, files_max=1
    )
    pipe.source("s", source).group_by("k").agg(
        d=hf.approx_count_distinct("concat('v', x)", rsd=0.02), e=hf.count_distinct("x"), name="t"
    )
    pipe.run()
    found = pipe.view("t").to_arrow().to_pylist()
    assert len(found) == 3
    for row in found:
        assert abs(row["d"] - row["e"]) <= (0 if weighted else 5 * 0.02 * row["e"])


def test_gathered_aggregates_work_inside_windows(spark, tmp_path) -> None:
    """Windows only make keys longer: each window shows what Spark computes from its rows."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    columns = {"k": "id % 2", "x": "pmod(id * 7, 11)", "at": "timestamp_seconds(id)"}
    rows = pipe.source(
        "n", hf.sources.Generator(columns, rows=120, rows_per_epoch=40), event_time="at",
        delay="10 minutes",
    )  # fmt: skip
    rows.group_by("k", hf.sliding("at", size="40 seconds", slide="20 seconds")).agg(
        m=hf.median("x"), l=hf.collect_list("x", limit=4), a=hf.first("x", order_by="at"),
        u=hf.udaf(own_aggregate(), inputs=["x AS twice"], returns="long"), name="w",
    )  # fmt: skip
    pipe.run()
    spark.range(120).selectExpr(
        *(f"{e} AS {n}" for n, e in columns.items())
    ).createOrReplaceTempView("n")
    wanted = spark.sql(
        """SELECT k, window.start AS window_start, percentile(x, 0.5) AS m,
        slice(array_sort(collect_list(x)), 1, 4) AS l, min_by(x, at) AS a, count(*) - min(x) AS u
        FROM (SELECT *, window(at, '40 seconds', '20 seconds') AS window FROM n) GROUP BY k, window"""
    )
    names = ["k", "window_start", "m", "l", "a", "u"]
    assert rows_of(pipe.view("w").to_spark(spark), names) == rows_of(wanted, names)


def test_wrong_types_are_found_before_anything_runs(spark, tmp_path) -> None:
    """Percentiles of text, orders by maps and unknown result types are refused by name."""

    def refused(declare) -> hf.errors.InvalidInputError:
        pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
        columns = {"k": "id", "t": "cast(id AS string)", "m": "map(id, id)"}
        declare(pipe.source("n", hf.sources.Generator(columns, rows=5)))
        with pytest.raises(hf.errors.InvalidInputError) as caught:
            pipe.run()
        assert caught.value.facts["operator"] == "o"
        assert not (tmp_path / "cp").exists()
        return caught.value

    def agg(**aggregates):
        return lambda rows: rows.group_by("k").agg(name="o", **aggregates)

    assert refused(agg(x=hf.median("t"))).kind == "unsupported_type"
    assert refused(agg(x=hf.collect_set("m", limit=2))).kind == "unsupported_type"
    assert refused(agg(x=hf.first("k", order_by="m"))).kind == "unsupported_type"
    assert refused(agg(x=hf.udaf(own_aggregate(), ["k"], "doubble"))).kind == "invalid_schema"
    assert refused(lambda r: r.top_k(1, per="k", order_by="m", name="o")).kind == "unsupported_type"
    assert refused(lambda r: r.top_k(1, order_by="nope(k)", name="o")).kind == "analysis_failed"
