"""Weights that are missing, names of any letters, and rows that come too late."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.errors import HoldfastError

STAMP = pa.timestamp("us", tz="UTC")


def put(directory: Path, number: int, **columns) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), directory / f"{number}.parquet")


def rows_of(path: Path) -> list[dict]:
    found = [pq.ParquetFile(file).read() for file in sorted(path.glob("hf_epoch=*/*.parquet"))]
    return [row for table in found for row in table.to_pylist()]


def test_a_null_weight_is_refused_with_its_source_and_column(spark, tmp_path) -> None:
    """Nothing of the epoch is kept, and the error names where the row came from."""
    put(tmp_path / "in", 0, k=["a", "a"], w=pa.array([1, None], pa.int64()))
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=1)
    files = hf.sources.Files(str(tmp_path / "in"), schema="k string, w long", weight="w")
    rows = pipe.source("orders", files)
    totals = rows.group_by("k").agg(n=hf.count(), name="t")
    pipe.sink("o", totals, hf.sinks.Parquet(str(tmp_path / "out")))
    pipe.sink("rows", rows.distinct(name="d"), hf.sinks.Parquet(str(tmp_path / "rows")))
    with pytest.raises(HoldfastError) as caught:
        pipe.run()
    assert caught.value.kind == "null_weight"
    assert "source=orders column=w" in str(caught.value)
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "rows") == []


@pytest.mark.parametrize("kind", ["double", "string", "decimal(10,0)", "boolean"])
def test_a_weight_that_is_no_whole_number_is_refused(spark, tmp_path, kind) -> None:
    """Half a row cannot be retracted."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=1)
    files = hf.sources.Files(str(tmp_path / "in"), schema=f"k string, w {kind}", weight="w")
    pipe.source("orders", files).group_by("k").agg(n=hf.count(), name="t")
    with pytest.raises(HoldfastError) as caught:
        pipe.resolve()
    assert (caught.value.kind, caught.value.facts["column"]) == ("unsupported_type", "w")


def test_columns_may_have_names_of_any_letters(spark, tmp_path) -> None:
    """Dots, spaces, commas, quotes and names like those of Holdfast's own columns are just names."""
    names = ["a b", "c.d", "e,f(", "g`h", "_all", "_rows"]
    put(tmp_path / "in", 0, **{name: [1, 2, 2] for name in names})
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    schema = ", ".join(f"{name} long" for name in quoted)
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=1)
    rows = pipe.source("s", hf.sources.Files(str(tmp_path / "in"), schema=schema))
    made = {
        "grouped": rows.group_by(*names[:5]).agg(n=hf.count(), s=hf.sum("`g``h`"), name="g"),
        "unique": rows.distinct(name="u"),
        "joined": rows.join(rows.select(*quoted[:5], "_rows AS other"), names[:5], name="j"),
        "top": rows.top_k(2, order_by="`c.d` desc", name="t"),
        "last": rows.latest("g`h", order_by="`a b`", name="l"),
        "first": rows.dedupe("e,f(", name="d"),
        "minus": rows.except_(rows.where("`a b` = 1"), name="m"),
    }
    for name, stream in made.items():
        pipe.sink(f"{name}-out", stream, hf.sinks.Parquet(str(tmp_path / name)))
    pipe.run()
    found = {name: sorted(row["c.d"] for row in rows_of(tmp_path / name)) for name in made}
    assert found == {
        "grouped": [1, 2],
        "unique": [1, 2],
        "joined": [1, 2, 2, 2, 2],
        "top": [2],
        "last": [1, 2],
        "first": [1, 2],
        "minus": [2],
    }
    assert {row["s"] for row in rows_of(tmp_path / "grouped")} == {1, 4}
    assert all(row["_all"] == row["_rows"] == 2 for row in rows_of(tmp_path / "top"))


def test_a_name_that_an_operator_needs_for_itself_is_refused(spark, tmp_path) -> None:
    """Before anything runs, with the operator and the column."""
    cases = {
        "_rows": lambda s: s.group_by("_rows").agg(n=hf.count(), name="op"),
        "_t_n": lambda s: s.group_by("_t_n").agg(t=hf.sum("x"), name="op"),
        "_count": lambda s: s.distinct(name="op"),
        "_epoch": lambda s: s.dedupe("_epoch", name="op"),
        "_shown": lambda s: s.except_(s.where("x > 1"), name="op"),
        "_value": lambda s: s.group_by("_value").agg(n=hf.count_distinct("x"), name="op"),
    }
    for column, declare in cases.items():
        pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=1)
        schema = f"x long, {column} long"
        declare(pipe.source("s", hf.sources.Files(str(tmp_path / "in"), schema=schema)))
        with pytest.raises(HoldfastError) as caught:
            pipe.resolve()
        facts = caught.value.facts
        assert (caught.value.kind, facts["operator"], facts["column"]) == (
            "reserved_column",
            "op",
            column,
        )


def test_rows_too_late_for_dedupe_and_apply_are_given(spark, tmp_path) -> None:
    """They come as they were, and are counted."""

    def kept(changes, state, context):
        keys = context.keys["k"]
        return None, pa.table({"k": keys, "n": pa.array([1] * len(keys), pa.int64())})

    for number, (k, t) in enumerate([("a", 0), ("b", 100), ("a", 10), ("c", 101)]):
        put(tmp_path / "in", number, k=[k], t=pa.array([t * 1_000_000], STAMP))
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=1)
    files = hf.sources.Files(str(tmp_path / "in"), schema="k string, t timestamp", files_max=1)
    rows = pipe.source("s", files, event_time="t")
    first = rows.dedupe("k", name="d", time="t", within="5 seconds")
    own = rows.apply(
        kept,
        key="k",
        state_schema="n long",
        output_schema="k string",
        name="f",
        time="t",
        ttl="5 seconds",
        text="kept",
    )
    for name, stream in (("first", first), ("own", own)):
        pipe.sink(f"{name}-late", stream.late, hf.sinks.Parquet(str(tmp_path / name)))
    assert pipe.run().late == 2
    for name in ("first", "own"):
        assert [(r["k"], r["t"].timestamp()) for r in rows_of(tmp_path / name)] == [("a", 10.0)]
