"""Mistakes in a pipeline are found before Spark starts, and the error names the operator."""

from __future__ import annotations

import sys

import pytest

import holdfast as hf
from holdfast.errors import InvalidInputError

SCHEMA = "customer string, amount double, at timestamp"


@pytest.fixture
def pipe(tmp_path):
    (tmp_path / "in").mkdir()
    return hf.Pipeline("orders", store=tmp_path / "cp")


def orders(pipe, tmp_path, name="orders"):
    return pipe.source(name, hf.sources.Files(str(tmp_path / "in"), schema=SCHEMA))


def refused(kind, call):
    with pytest.raises(InvalidInputError) as caught:
        call()
    assert caught.value.kind == kind, caught.value
    return caught.value


def test_a_chain_that_nobody_could_follow_down_is_refused(pipe, tmp_path) -> None:
    """Not Python's recursion limit, somewhere: 200 steps on one another, and no more."""
    stream = orders(pipe, tmp_path)
    for _ in range(199):
        stream = stream.where("amount > 0")
    pipe.sink("out", stream, hf.sinks.Parquet(str(tmp_path / "out")))
    error = refused("too_many_steps", lambda: stream.where("amount > 1").where("amount > 2"))
    assert (error.facts["step"], error.facts["limit"]) == ("where amount > 2", 200)


def test_an_unknown_column_names_the_operator_and_the_known_columns(pipe, tmp_path) -> None:
    """A wrong name in group_by or in an aggregate is found at once."""
    stream = orders(pipe, tmp_path)
    error = refused(
        "unknown_column", lambda: stream.group_by("custommer").agg(n=hf.count(), name="totals")
    )
    assert error.facts["operator"] == "totals"
    assert "customer" in str(error)
    refused("unknown_column", lambda: stream.group_by("customer").agg(t=hf.sum("amont"), name="t"))
    refused("unknown_column", lambda: stream.select("amont"))
    refused("unknown_column", lambda: stream.dedupe("nope", name="d"))


def test_two_parts_cannot_have_one_name(pipe, tmp_path) -> None:
    """Two sources, or a source and an operator, with one name are refused."""
    stream = orders(pipe, tmp_path)
    refused("duplicate_name", lambda: orders(pipe, tmp_path))
    refused("duplicate_name", lambda: stream.group_by("customer").agg(n=hf.count(), name="orders"))


def test_a_sink_without_input_is_refused(pipe) -> None:
    """A sink needs a stream of this pipeline."""
    refused("sink_without_input", lambda: pipe.sink("out", None, hf.sinks.Parquet("out")))


def test_a_stream_of_another_pipeline_is_refused(pipe, tmp_path) -> None:
    """Graphs cannot be mixed, so there can be no cycle through another pipeline."""
    other = hf.Pipeline("other", store=tmp_path / "cp2")
    stream = orders(other, tmp_path)
    refused("foreign_stream", lambda: pipe.sink("out", stream, hf.sinks.Parquet("out")))


def test_an_incomplete_pipeline_does_not_start_spark(pipe, tmp_path) -> None:
    """No source, nothing to do, or a source that leads nowhere: said before a JVM is started."""
    refused("incomplete_pipeline", pipe.run)
    orders(pipe, tmp_path)
    refused("incomplete_pipeline", pipe.run)
    assert pipe._spark is None


def test_names_that_could_leave_the_store_are_refused(tmp_path) -> None:
    """Pipeline, operator and sink names are checked like every name."""
    for name in ("../x", "a/b", "", ".hidden", "x" * 200):
        refused("invalid_name", lambda name=name: hf.Pipeline(name, store=tmp_path))


def test_reserved_and_double_columns_are_refused(pipe, tmp_path) -> None:
    """Holdfast's own prefix and two columns of one name are refused."""
    stream = orders(pipe, tmp_path)
    refused("reserved_column", lambda: stream.with_columns(__hf_x="1"))
    refused(
        "duplicate_column", lambda: stream.group_by("customer").agg(customer=hf.count(), name="t")
    )
    refused("invalid_schema", lambda: hf.sources.Files("in", schema="customer"))


@pytest.mark.parametrize("name", ["_weight", "_WEIGHT", "hf_epoch", "HF_Epoch", "__HF_x"])
def test_names_that_outputs_use_are_refused_wherever_they_are_declared(tmp_path, name) -> None:
    """In a source, a step, an aggregate or an output of apply, in any case of letters."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp")
    made = {
        "source": lambda: pipe.source(
            "s", hf.sources.Files(str(tmp_path), schema=f"k long, {name} long")
        )
    }
    stream = pipe.source("in", hf.sources.Files(str(tmp_path), schema="k long, x long"))
    made |= {
        "select": lambda: stream.select("k", f"x AS {name}"),
        "with": lambda: stream.with_columns(**{name: "x"}),
        "agg": lambda: stream.group_by("k").agg(**{name: hf.sum("x")}, name="a"),
        "rank": lambda: stream.top_k(1, order_by="x", rank=name, name="t"),
        "apply": lambda: stream.apply(
            print, key="k", state_schema="n long", output_schema=f"{name} long", name="f"
        ),
        "join": lambda: stream.join(stream.select("k", "x AS y"), "k", name="j").select(
            f"y AS {name}"
        ),
    }
    for declare in made.values():
        with pytest.raises(InvalidInputError) as caught:
            declare()
        assert caught.value.kind == "reserved_column"
        assert name in str(caught.value)


def test_a_weight_may_have_the_name_that_outputs_give_it(tmp_path) -> None:
    """What one pipeline has published, another one reads."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp")
    files = hf.sources.Files(str(tmp_path), schema="k long, _weight long", weight="_weight")
    assert pipe.source("s", files).columns == ["k"]


def test_names_of_any_letters_are_read_from_a_schema(tmp_path) -> None:
    """Quoted names may hold spaces, dots, commas, brackets and quotes."""
    schema = "`a b` long, `c.d` struct<x:int,y:int>, `e,f(` string, `g``h` decimal(10,2)"
    files = hf.sources.Files(str(tmp_path), schema=schema)
    assert files.columns() == ["a b", "c.d", "e,f(", "g`h"]


def test_dedupe_of_a_stream_with_retractions_is_refused(pipe, tmp_path) -> None:
    """The first row for good cannot be taken back, so dedupe after an aggregate is refused."""
    totals = orders(pipe, tmp_path).group_by("customer").agg(n=hf.count(), name="totals")
    refused("dedupe_of_changes", lambda: totals.dedupe("customer", name="d"))


def test_importing_holdfast_does_not_import_pyspark() -> None:
    """The package itself stays light; the pipeline loads Spark when it is asked for."""
    import subprocess

    code = "import holdfast, sys; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
