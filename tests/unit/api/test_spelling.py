"""PySpark's spellings where the meaning is the same, and an answer for every other one."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.api.columns import output_names
from holdfast.api.graph import PipelineGraph
from holdfast.api.spelling import GROUPED_USES, STREAM_USES, VIEW_USES, UnknownNameError
from holdfast.api.view import View
from holdfast.durations import duration_us
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.storage import open_storage

SCHEMA = "k string, x long, at timestamp"


def declared(name="p"):
    pipe = hf.Pipeline(name, store=Path("unused"))
    rows = pipe.source("in", hf.sources.Files(Path("unused"), schema=SCHEMA), event_time="at")
    return pipe, rows


def refused(kind, call):
    with pytest.raises(InvalidInputError) as caught:
        call()
    assert caught.value.kind == kind, caught.value
    return caught.value


def test_steps_are_the_same_under_both_names():
    """Text in the fingerprint, columns and changes are equal."""
    _, rows = declared()
    pairs = [
        (rows.where("x > 0"), rows.filter("x > 0")),
        (rows.select("k", "x + 1 AS y"), rows.selectExpr("k", "x + 1 AS y")),
        (rows.with_columns(y="x + 1"), rows.withColumn("y", "x + 1")),
        (rows.with_columns(y="x + 1", z="k"), rows.withColumns({"y": "x + 1", "z": "k"})),
    ]
    for ours, theirs in pairs:
        assert (ours.node.text, ours.columns) == (theirs.node.text, theirs.columns)
    assert rows.drop("x", "unknown").columns == ["k", "at"]
    assert rows.drop().columns == ["k", "x", "at"]
    assert rows.withColumn("K", "upper(k)").columns == ["K", "x", "at"]
    assert rows.unionByName(rows.select("at", "x", "k")).columns == ["k", "x", "at"]
    assert rows.groupBy(["k", "x"]).agg(n=hf.count(), name="n").columns == ["k", "x", "n"]


def test_wrong_expressions_keys_and_columns_are_refused_before_spark_starts():
    """Each wrong argument has an error of its own."""
    _, rows = declared()
    refused("invalid_expression", lambda: rows.where(3))
    refused("invalid_expression", lambda: rows.select("k", None))
    refused("invalid_expression", lambda: rows.with_columns(y=1.5))
    refused("invalid_expression", lambda: rows.drop(3))
    refused("no_columns", rows.with_columns)
    refused("no_columns", lambda: rows.drop("k", "x", "at"))
    refused("no_columns", rows.select)
    refused("reserved_column", lambda: rows.drop("__hf_weight"))
    refused("reserved_column", lambda: rows.with_columns(_weight="1"))
    refused("duplicate_column", lambda: rows.with_columns({"y": "1", "Y": "2"}))
    refused("invalid_key", lambda: rows.group_by(3))
    refused("no_keys", lambda: rows.group_by([]))
    refused("not_a_function", lambda: rows.transform("x"))
    refused("unsupported_option", lambda: rows.unionByName(rows, allowMissingColumns=True))
    refused("unsupported_join", lambda: rows.join(rows, "k", "cross", name="j"))
    refused("foreign_stream", lambda: rows.union(declared("q")[1]))
    refused("foreign_stream", lambda: rows.join("k", "k", name="j"))


def test_every_other_name_of_pyspark_says_what_to_use():
    """All public names of DataFrame and GroupedData are there, or are answered."""
    pyspark = pytest.importorskip("pyspark.sql")
    _, rows = declared()
    grouped = rows.group_by("k")
    unanswered = []
    for owner, kind, uses in (
        (rows, pyspark.DataFrame, STREAM_USES),
        (grouped, pyspark.GroupedData, GROUPED_USES),
    ):
        for name in dir(kind):
            if name.startswith("_") or hasattr(type(owner), name):
                continue
            with pytest.raises(AttributeError) as caught:
                getattr(owner, name)
            if isinstance(caught.value, UnknownNameError):
                assert f"use {uses[name]}" in str(caught.value)
                again = pickle.loads(pickle.dumps(caught.value))
                assert str(again) == str(caught.value)
            else:
                unanswered.append(f"{kind.__name__}.{name}")
    assert unanswered == []
    assert not hasattr(rows, "orderBy")
    assert not hasattr(rows, "no_such_thing")


def test_no_answer_is_given_for_a_name_that_works():
    """A name is a method or has an answer, never both."""
    for kind, uses in ((hf.Stream, STREAM_USES), (View, VIEW_USES)):
        assert not [name for name in uses if hasattr(kind, name)]


def test_old_spellings_say_the_new_one():
    """Positional sizes, options of agg, resume: each is an error with the new spelling."""
    pipe, rows = declared()
    hour = hf.tumbling("at", size="1 hour")
    count = hf.count()
    cases = {
        'hf.tumbling("at", size="1 hour")': lambda: hf.tumbling("at", "1 hour"),
        'hf.sliding("at", size="1 hour", slide=': lambda: hf.sliding("at", "1 hour", "1 minute"),
        'hf.session_window("at", gap=': lambda: hf.session_window("at", "1 hour"),
        "from_checkpoint=": lambda: pipe.run(resume=3),
        'plan_outputs(from_checkpoint="ago:2h")': lambda: pipe.plan_outputs(resume=3),
        "emit=": lambda: rows.group_by(hour).agg(n=count, emit="close", name="a"),
        "allowed_lateness=": lambda: rows.group_by(hour).agg(n=count, lateness="1 s", name="a"),
    }
    for wanted, call in cases.items():
        assert wanted in str(refused("old_spelling", call))
    refused("no_window", lambda: rows.group_by("k").agg(n=count, emit="close", name="a"))
    with pytest.raises(AttributeError, match=r"holdfast\.session_window"):
        _ = hf.session
    with pytest.raises(AttributeError, match=r"holdfast\.checkpoint\.open_store"):
        _ = hf.open_store


def test_aggregates_have_names_and_no_name_is_impossible():
    """By alias or by keyword; a name that is missing, twice or no text is refused."""
    _, rows = declared()
    by = rows.group_by("k")
    total = by.agg(hf.sum("x").alias("name"), hf.count().alias("self"), emit=hf.max("x"), name="a")
    assert total.columns == ["k", "name", "self", "emit"]
    assert by.agg(self=hf.count(), name="b").columns == ["k", "self"]
    refused("no_alias", lambda: by.agg(hf.sum("x"), name="c"))
    refused("no_aggregates", lambda: by.agg(name="c"))
    refused("not_an_aggregate", lambda: by.agg("x", name="b"))
    refused("not_an_aggregate", lambda: by.agg(n="x", name="b"))
    refused("not_a_name", lambda: by.agg(n=hf.count(), name=hf.count()))
    refused("invalid_alias", lambda: hf.count().alias(3))
    refused("duplicate_column", lambda: by.agg(hf.sum("x").alias("n"), n=hf.count(), name="b"))
    refused("reserved_column", lambda: by.agg(hf.sum("x").alias("_weight"), name="b"))


def test_durations_are_text_or_timedeltas():
    """Both spellings of one duration are one duration; a negative one is none."""
    assert duration_us(timedelta(hours=1, milliseconds=2)) == 3_600_002_000
    size = timedelta(minutes=10)
    assert hf.tumbling("at", size=size) == hf.tumbling("at", size="10 minutes")
    assert hf.interval("a", "b", before=size) == hf.interval("a", "b", before="10 minutes")
    _, rows = declared()
    once = rows.dedupe("k", time="at", within=timedelta(days=1), name="once")
    assert once.node.fingerprint()["within_us"] == "86400000000"
    for wrong in (timedelta(seconds=-1), 5, None, "soon"):
        refused("invalid_duration", lambda w=wrong: duration_us(w))


def test_names_of_a_select_are_only_those_that_are_sure():
    """A condition without AS has no name that can be known; an alias has."""
    known = {
        "a": "a", "a AS b": "b", "a b": "b", "upper(a) b": "b", "a + 1 c": "c",
        "case when a then b end z": "z", "a IS NULL": None, "a AND b": None, "NOT a": None,
        "a + b": None, "case when a then b end": None, "*": None, "a, b": None,
    }  # fmt: skip
    for text, name in known.items():
        assert output_names([text], [text]) == (None if name is None else [name]), text


def test_what_shows_itself_is_short_escaped_and_never_fails():
    """One line for a console, HTML for a notebook, also for a thousand columns."""
    pipe = hf.Pipeline("p", store="unused")
    schema = ", ".join(f"column_with_a_long_name_{n} long" for n in range(1_000))
    wide = pipe.source("wide", hf.sources.Files("unused", schema=schema))
    evil = wide.select("column_with_a_long_name_0 AS k").where("k <> '<script>'")
    totals = evil.group_by("k").agg(n=hf.count(), name="totals")
    pipe.sink("out", totals, hf.sinks.Parquet("unused"))
    assert len(repr(wide)) < 800
    assert "and 988 more" in repr(wide)
    assert repr(evil) == "<Stream of wide and 2 steps: k>"
    assert repr(totals) == "<Stream of totals: k, n (changelog)>"
    assert repr(pipe).startswith("<Pipeline p in ")
    assert "by k" in repr(evil.group_by("k"))
    for text in (pipe._repr_html_(), evil._repr_html_(), pipe.graph()._repr_html_()):
        assert "<script>" not in text
        assert len(text) < 20_000
    wide.node = None
    assert repr(wide) == "<Stream (AttributeError)>"
    assert "&lt;Stream" in wide._repr_html_()


def test_the_graph_is_drawn_as_text_mermaid_and_svg(capsys):
    """Every part and arrow once; text of users is escaped; changelogs have a thick arrow."""
    import xml.etree.ElementTree as ET

    pipe, rows = declared()
    totals = rows.where("k <> '\"&`<b>'").group_by("k").agg(n=hf.count(), name="totals")
    both = rows.join(totals, "k", name="both")
    pipe.sink("out", both, hf.sinks.Parquet("unused"))
    graph = pipe.graph()
    assert isinstance(graph, PipelineGraph)
    assert [box.name for box in graph.boxes] == ["in", "totals", "both", "out"]
    lines = graph.mermaid().splitlines()
    assert lines[0] == "flowchart LR"
    assert [line.strip() for line in lines[5:]] == [
        "n0 --> n1", "n0 --> n2", "n1 ==> n2", "n2 ==> n3",
    ]  # fmt: skip
    assert all(sign not in lines[2].replace("<br/>", "") for sign in "<>&`")
    root = ET.fromstring(graph.svg())
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert (tags.count("rect"), tags.count("path")) == (4, 5)
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"in", "totals", "both", "out"} <= set(texts)
    pipe.explain()
    said = capsys.readouterr().out
    assert said == graph.text() + "\n" == repr(graph) + "\n"
    assert "operator  totals (aggregate by k)" in said
    assert "gives k, n as a changelog" in said
    assert "<svg" in hf.Pipeline("q", store="unused").graph().svg()  # an empty one, too


def test_a_pipeline_takes_real_connectors_and_paths():
    """Something else is refused by name; a path may be text or a PathLike."""
    pipe, rows = declared()
    refused("not_a_connector", lambda: pipe.source("s", "folder"))
    refused("not_a_connector", lambda: pipe.sink("s", rows, "folder"))
    refused("not_a_connector", lambda: pipe.sink("s", rows, hf.sources.Files("a", schema=SCHEMA)))
    assert hf.sinks.Parquet(Path("a")).path == hf.sinks.Parquet("a").path


def test_a_changelog_that_is_not_there_is_refused_before_spark_is_asked(tmp_path):
    """A wrong epoch, a missing and an empty directory."""
    with pytest.raises(NotFoundError) as caught:
        hf.read_changelog(None, tmp_path / "nothing")
    assert caught.value.kind == "no_output"
    with pytest.raises(NotFoundError) as caught:
        hf.read_changelog(None, str(tmp_path))
    assert caught.value.kind == "no_output"
    for wrong in (-1, True, "3"):
        refused("invalid_epoch", lambda w=wrong: hf.read_changelog(None, tmp_path, as_of=w))
    (tmp_path / "part-00.parquet").touch()
    refused("not_a_changelog", lambda: hf.read_changelog(None, tmp_path))


class Somewhere:
    """A path of somebody else's class."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return str(self.path)


def test_every_path_may_be_a_pathlike(tmp_path):
    """Stores, sources, sinks and changelogs take any PathLike; what is no path has a typed error."""
    there = Somewhere(tmp_path)
    pipe = hf.Pipeline("p", store=there)
    assert pipe._place.url == str(tmp_path)
    assert hf.sources.Files(there, schema=SCHEMA).path == str(tmp_path)
    assert hf.sinks.Parquet(there).path == str(tmp_path)
    assert open_storage(there).url == open_storage(str(tmp_path)).url
    with pytest.raises(NotFoundError):
        hf.checkpoint.read_store(there, "p")
    for call in (
        lambda: hf.Pipeline("p", store=3),
        lambda: hf.sources.Files(None, schema=SCHEMA),
        lambda: hf.sinks.Parquet(3.5),
        lambda: open_storage(None),
        lambda: hf.read_changelog(None, 5),
    ):
        refused("bad_url", call)
