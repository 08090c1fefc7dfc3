"""Whatever is given to the public API: it is taken, or refused by a typed error with a remedy."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.checkpoint import read_store
from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.state import read_state


class _Bytes:
    """A PathLike that gives bytes."""

    def __fspath__(self):
        return b"/tmp/x"


ODD = [
    None,
    *(0, -1, 2**70, True, 1.5, float("nan")),
    *("", " ", "a b", "x\0y", "é" * 300, "*", "a'b", '"', "`", "\ud800", "name", "AT"),
    *("9" * 5000 + " s", "99999999999999999999 days", "-1 second", "1 month"),
    *(b"x", [], [1], ["customer", None], (), {}, {1: "a"}, {"a": 1}, {"a"}),
    *(timedelta(-1), timedelta(0), timedelta.max, datetime(2020, 1, 1, tzinfo=UTC)),
    *(object(), len, int, _Bytes(), Path(), hf.count()),
]
APPLY = {"key": "customer", "state_schema": "n long", "output_schema": "n long", "name": "a"}


def _by(orders, **aggregates):
    return orders.group_by("customer").agg(name="n", **aggregates)


CALLS = {
    "store": lambda p, o, v: hf.Pipeline("x", store=v),
    "settings": lambda p, o, v: hf.Pipeline("x", store="s", settings=v),
    "partitions": lambda p, o, v: hf.Pipeline("x", store="s", partitions=v),
    "spark_config": lambda p, o, v: hf.Pipeline("x", store="s", spark_config=v),
    "storage_options": lambda p, o, v: hf.Pipeline("x", store="s", storage_options=v),
    "configure": lambda p, o, v: p.configure(partitions=v),
    "source": lambda p, o, v: p.source("x", v),
    "delay": lambda p, o, v: p.source("x", hf.sources.Generator({"a": "id"}), delay=v),
    "sink name": lambda p, o, v: p.sink(v, o, hf.sinks.Parquet("o")),
    "sink stream": lambda p, o, v: p.sink("x", v, hf.sinks.Parquet("o")),
    "files": lambda p, o, v: hf.sources.Files(v, schema="a int"),
    "files schema": lambda p, o, v: hf.sources.Files("in", schema=v),
    "files age": lambda p, o, v: hf.sources.Files("in", schema="a int", min_age_ms=v),
    "files options": lambda p, o, v: hf.sources.Files("in", schema="a int", options=v),
    "files weight": lambda p, o, v: hf.sources.Files("in", schema="a int", weight=v),
    "files archive": lambda p, o, v: hf.sources.Files("in", schema="a int", archive=v),
    "generator": lambda p, o, v: hf.sources.Generator(v),
    "generator rows": lambda p, o, v: hf.sources.Generator({"a": "id"}, rows=v),
    "generator epoch": lambda p, o, v: hf.sources.Generator({"a": "id"}, rows_per_epoch=v),
    "generator seed": lambda p, o, v: hf.sources.Generator({"a": "id"}, seed=v),
    "generator weight": lambda p, o, v: hf.sources.Generator({"a": "id"}, weight=v),
    "journal": lambda p, o, v: hf.sources.Journal(v),
    "journal payload": lambda p, o, v: hf.sources.Journal("j", payload=v),
    "journal events": lambda p, o, v: hf.sources.Journal("j", events_max=v),
    "journal sink": lambda p, o, v: hf.sinks.Journal(v, entity="a", kind="=b"),
    "parquet": lambda p, o, v: hf.sinks.Parquet(v),
    "parquet options": lambda p, o, v: hf.sinks.Parquet("o", storage_options=v),
    "compact_after": lambda p, o, v: hf.sinks.Parquet("o", compact_after=v),
    "compact_bytes": lambda p, o, v: hf.sinks.Parquet("o", compact_bytes=v),
    "where": lambda p, o, v: o.where(v),
    "select": lambda p, o, v: o.select(v),
    "with_columns": lambda p, o, v: o.with_columns(v),
    "withColumn": lambda p, o, v: o.withColumn(v, "1"),
    "drop": lambda p, o, v: o.drop(v),
    "group_by": lambda p, o, v: o.group_by(v).agg(n=hf.count(), name="n"),
    "union": lambda p, o, v: o.union(v),
    "join other": lambda p, o, v: o.join(v, "customer", name="j"),
    "join on": lambda p, o, v: o.join(o.select("customer"), v, name="j"),
    "join how": lambda p, o, v: o.join(o.select("customer"), "customer", v, name="j"),
    "static on": lambda p, o, v: o.join_static(lambda spark: None, v, name="s"),
    "static how": lambda p, o, v: o.join_static(lambda spark: None, "customer", v, name="s"),
    "dedupe": lambda p, o, v: o.dedupe(v, name="d"),
    "dedupe time": lambda p, o, v: o.dedupe("customer", time=v, within="1 day", name="d"),
    "dedupe within": lambda p, o, v: o.dedupe("customer", time="at", within=v, name="d"),
    "dropDuplicates": lambda p, o, v: o.dropDuplicates(v, name="d"),
    "k": lambda p, o, v: o.top_k(v, order_by="at", name="t"),
    "per": lambda p, o, v: o.top_k(1, per=v, order_by="at", name="t"),
    "order_by": lambda p, o, v: o.top_k(1, order_by=v, name="t"),
    "rank": lambda p, o, v: o.top_k(1, order_by="at", rank=v, name="t"),
    "apply key": lambda p, o, v: o.apply(print, **{**APPLY, "key": v}),
    "apply state": lambda p, o, v: o.apply(print, **{**APPLY, "state_schema": v}),
    "apply output": lambda p, o, v: o.apply(print, **{**APPLY, "output_schema": v}),
    "apply ttl": lambda p, o, v: o.apply(print, **APPLY, time="at", ttl=v),
    "apply timers": lambda p, o, v: o.apply(print, **APPLY, timers=v),
    "operator": lambda p, o, v: o.operator(v),
    "sum": lambda p, o, v: _by(o, x=hf.sum(v)),
    "percentile": lambda p, o, v: _by(o, x=hf.percentile("amount", v)),
    "limit": lambda p, o, v: _by(o, x=hf.collect_list("amount", limit=v)),
    "udaf": lambda p, o, v: _by(o, x=hf.udaf(print, v, "double")),
    "udaf input": lambda p, o, v: _by(o, x=hf.udaf(print, [v], "double")),
    "alias": lambda p, o, v: o.group_by("customer").agg(hf.count().alias(v), name="n"),
    "operator name": lambda p, o, v: o.distinct(name=v),
    "size": lambda p, o, v: hf.tumbling("at", size=v),
    "offset": lambda p, o, v: hf.tumbling("at", size="1h", offset=v),
    "emit": lambda p, o, v: hf.tumbling("at", size="1h", emit=v),
    "epochs": lambda p, o, v: p.run(epochs=v),
    "poll_ms": lambda p, o, v: p.run(poll_ms=v),
    "properties": lambda p, o, v: p.run(properties=v),
    "outputs": lambda p, o, v: p.run(outputs=v),
    "set_aside": lambda p, o, v: p.run(set_aside=v),
    "on_epoch": lambda p, o, v: p.run(on_epoch=v),
    "stop": lambda p, o, v: p.run(stop=v),
    "read_state": lambda p, o, v: read_state(v, "totals"),
    "read_store": lambda p, o, v: read_store(v, "p"),
    "read_changelog": lambda p, o, v: hf.read_changelog(None, v),
    "as_of": lambda p, o, v: hf.read_changelog(None, "nowhere", as_of=v),
}


def _declared(folder):
    pipe = hf.Pipeline("p", store=folder / "store")
    schema = "customer string, amount double, at timestamp"
    files = hf.sources.Files(folder, schema=schema, format="json")
    return pipe, pipe.source("orders", files, event_time="at")


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_are_taken_or_refused_with_a_remedy(name, tmp_path, monkeypatch):
    """No error of Python comes out of the API, and every refusal says what to do."""
    monkeypatch.chdir(tmp_path)
    for value in ODD:
        pipe, orders = _declared(tmp_path)
        try:
            CALLS[name](pipe, orders, value)
        except HoldfastError as error:
            assert error.remedy, (value, str(error))
            assert str(error)


@pytest.mark.parametrize("text", ["amount, at", "amount, 1", "a = ',', at"])
def test_an_aggregate_is_taken_over_one_expression(text, tmp_path):
    """Two would be counted as one pair, which is never null; what is one is taken."""
    _, orders = _declared(tmp_path)
    for make in (hf.count, hf.count_distinct, hf.sum, hf.max):
        with pytest.raises(InvalidInputError) as caught:
            _by(orders, x=make(text))
        assert caught.value.kind == "invalid_expression"
    _by(orders, x=hf.count_distinct("struct(amount, at)"), y=hf.count("customer = 'a,b' OR `c,d`"))


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": "x"},
        {"epochs": -1},
        {"poll_ms": "x"},
        {"properties": 5},
        {"outputs": "out"},
        {"set_aside": "out"},
        {"redrive": 5},
        {"on_epoch": 5},
        {"on_checkpoint": "x"},
        {"stop": 5},
    ],
    ids=str,
)
def test_a_run_is_refused_before_anything_is_opened(options, tmp_path):
    """An option of the wrong type is named at once: no store is made, and Spark does not start."""
    pipe, orders = _declared(tmp_path)
    pipe.sink("out", orders, hf.sinks.Parquet(tmp_path / "out"))
    with pytest.raises(InvalidInputError) as caught:
        pipe.run(**options)
    assert caught.value.kind == "invalid_argument"
    assert not (tmp_path / "store").exists()


def test_a_drawing_of_many_self_joins_takes_no_time(tmp_path):
    """Each part is placed once, however many ways lead to it."""
    pipe, orders = _declared(tmp_path)
    both = orders.select("customer")
    for number in range(24):
        both = both.join(both, "customer", name=f"j{number}")
    began = time.perf_counter()
    assert len(pipe.graph().boxes) == 25
    assert time.perf_counter() - began < 2  # it was twice as long for each join


def test_no_time_at_all_is_a_bound_like_any_other(tmp_path):
    """A `timedelta` of zero means what "0 seconds" means; it is not the absence of a bound."""
    for zero in ("0 seconds", timedelta(0)):
        _, orders = _declared(tmp_path)
        first = orders.dedupe("customer", time="at", within=zero, name="d")
        assert first.node.bound is not None
        assert first.node.bound.within_us == 0
        kept = orders.apply(print, **APPLY, time="at", ttl=zero)
        assert kept.node.ttl_us == 0


@pytest.mark.parametrize("value", [timedelta.max, "1000001 days", "9" * 5000 + " s"])
def test_a_duration_fits_64_bits_with_any_time_of_today(value):
    """What would overflow in the middle of a run is refused where it is written."""
    with pytest.raises(InvalidInputError) as caught:
        hf.tumbling("at", size=value)
    assert caught.value.kind == "invalid_duration"


@pytest.mark.parametrize("text", ["amount > 0 AND 'a\0b' <> ''", "customer <> '\ud800'", "\x1b"])
def test_a_graph_draws_what_cannot_be_printed(text, tmp_path):
    """The picture is XML and the text can be written, whatever stands in an expression."""
    from xml.dom.minidom import parseString

    pipe, orders = _declared(tmp_path)
    pipe.sink("out", orders.where(text), hf.sinks.Parquet(tmp_path / "out"))
    graph = pipe.graph()
    assert parseString(graph.svg()).documentElement.tagName == "svg"
    for shown in (graph.text(), graph.mermaid(), repr(pipe), pipe._repr_html_()):
        shown.encode()
        assert "\x1b" not in shown
        assert "\0" not in shown


def test_a_name_with_a_backtick_is_a_name(tmp_path):
    """A schema that is a `StructType` keeps every name; a generator gives every name."""
    from pyspark.sql.types import LongType, StructField, StructType

    schema = StructType([StructField("a`b", LongType()), StructField("c``", LongType())])
    assert hf.sources.Files(tmp_path, schema=schema).columns() == ["a`b", "c``"]
