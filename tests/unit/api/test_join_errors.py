"""Mistakes in joins and set operations are found before Spark starts, and name the operator."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.operators.join.declare import JoinSpec, join_columns


def streams(tmp_path, **more):
    pipe = hf.Pipeline("p", store=tmp_path / "cp")
    a = pipe.source("a", hf.sources.Files("a/", schema="k long, at timestamp, x long"), **more)
    b = pipe.source("b", hf.sources.Files("b/", schema="k long, bt timestamp, x long"))
    return pipe, a, b


def other(tmp_path):
    return streams(tmp_path)[1]


CASES = {
    "unsupported_join": lambda a, b: a.join(b, "k", "cross", name="j"),
    "no_keys": lambda a, b: a.join(b, name="j"),
    "no_keys: an empty list": lambda a, b: a.join(b, [], name="j"),
    "unknown_column": lambda a, b: a.join(b, {"k": "nope"}, name="j"),
    "column_collision": lambda a, b: a.join(b, "k", name="j"),
    "columns_differ": lambda a, b: a.union(b),
    "no_watermark": lambda a, b: a.join(
        b, "k", name="j", suffix="_b", within=hf.interval("at", "bt", before="1 second")
    ),
    "invalid_bound": lambda a, b: a.join(b, "k", name="j", suffix="_b", within="10 minutes"),
    "unknown_columns": lambda a, b: a.join(
        b.transform(lambda df: df), "k", "left", name="j", condition="x > 1"
    ),
    "invalid_duration": lambda a, b: hf.interval("at", "bt", before="soon"),
    "no_late_rows": lambda a, b: a.late,
}


@pytest.mark.parametrize("kind", CASES)
def test_a_wrong_join_is_refused_by_kind(tmp_path, kind) -> None:
    """Each mistake has a kind of its own."""
    _, a, b = streams(tmp_path)
    with pytest.raises(hf.errors.HoldfastError) as caught:
        CASES[kind](a, b)
    assert caught.value.kind == kind.split(":")[0]


def test_streams_of_another_pipeline_are_refused(tmp_path) -> None:
    """A join, union, except or intersect stays inside one pipeline."""
    _, a, b = streams(tmp_path)
    stranger = other(tmp_path)
    for call in (
        lambda: a.join(stranger, "k", name="j"),
        lambda: a.union(b.select("k", "bt AS at", "x"), stranger),
        lambda: a.except_(stranger, name="e"),
        lambda: a.intersect(stranger, name="i"),
    ):
        with pytest.raises(hf.errors.InvalidInputError) as caught:
            call()
        assert caught.value.kind == "foreign_stream"


def test_an_interval_join_with_a_condition_must_be_inner(tmp_path) -> None:
    """What would need a whole-row comparison that forgets is refused, not approximated."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp")
    files = hf.sources.Files
    a = pipe.source("a", files("a/", schema="k long, at timestamp"), event_time="at")
    b = pipe.source("b", files("b/", schema="k long, bt timestamp"), event_time="bt")
    within = hf.interval("at", "bt", after="5 seconds")
    with pytest.raises(hf.errors.InvalidInputError) as caught:
        a.join(b, "k", "left", name="j", within=within, condition="k > 1")
    assert caught.value.kind == "unsupported_join"
    assert a.join(b, "k", name="i", within=within, condition="k > 1").columns == ["k", "at", "bt"]


def test_columns_of_a_join_are_shared_keys_then_left_then_right(tmp_path) -> None:
    """Names are known before Spark starts; a suffix is for the right side's taken names only."""
    _, a, b = streams(tmp_path)
    assert a.join(b, "k", name="j", suffix="_b").columns == ["k", "at", "x", "bt", "x_b"]
    assert a.join(b, "k", "anti", name="n").columns == ["k", "at", "x"]
    spec = JoinSpec((("k", "id"),), "left")
    names = [c.name for c in join_columns(["k", "x"], ["id", "y"], spec, "j")]
    assert names == ["k", "x", "id", "y"]


def test_weights_follow_from_the_kind_of_join(tmp_path) -> None:
    """Streams that only add rows stay so through inner and semi joins, intersect and union."""
    _, a, b = streams(tmp_path)
    b = b.select("k", "bt AS at", "x")
    grows = {
        how: not a.join(b.select("k", "x AS y"), "k", how, name=how).node.retracts
        for how in ("inner", "left", "right", "full", "semi", "anti")
    }
    assert [how for how, only_adds in grows.items() if only_adds] == ["inner", "semi"]
    assert not a.union(b).node.retracts
    assert not a.intersect(b, name="i", all=True).node.retracts
    assert a.except_(b, name="e").node.retracts
