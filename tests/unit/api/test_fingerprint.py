"""The fingerprint of a declared pipeline: however it is spelled, it is the one that is stored."""

from __future__ import annotations

import holdfast as hf
from holdfast.format.topology import fingerprint

SCHEMA = "k string, x long, d double, at timestamp"
STORED = "d7fa95308accbc7e102b82829b7d2af4e003f32b6bb6382bfd855a9ca3562f3e"
"""Of the pipeline below, as the first version of the API declared it."""


def own(changes, state, context):
    """Stands for a function of a user."""


def step(df):
    """Stands for a transform."""


own.__module__ = step.__module__ = "m"


def wide() -> hf.Pipeline:
    """A pipeline with every operator, step and kind of window."""
    pipe = hf.Pipeline("wide", store="unused")
    a = pipe.source(
        "a", hf.sources.Files("unused/a", schema=SCHEMA),
        event_time="at", delay="10 minutes", idle_after="1 hour",
    )  # fmt: skip
    b = pipe.source("b", hf.sources.Files("unused/b", schema=SCHEMA + ", w long", weight="w"))
    c = pipe.source("c", hf.sources.Files("unused/c", schema=SCHEMA), event_time="at")
    aggregates(a)
    update = windows(pipe, a, c)
    joins(a, b, c)
    a.union(c.select("at", "d", "x", "k"), b).distinct(name="dist")
    a.except_(c, name="ex")
    a.exceptAll(c, name="exa")
    a.intersect(b, name="in_")
    a.intersectAll(b, name="ina")
    a.dropDuplicates("k", name="dd")
    once = a.dedupe("k", "x", time="at", within="1 day", name="ddt")
    a.top_k(3, order_by=["d desc", "x"], per="k", rank="place", name="top")
    b.latest("k", order_by="at", name="last")
    a.apply(
        own, key="k", state_schema="n long, t timestamp", output_schema="k string, n long",
        time="at", ttl="1 day", timers="t", changes=True, name="own",
    )  # fmt: skip
    static = a.join_static(lambda spark: spark, ["k"], "left_outer", name="tab")
    pipe.sink("o1", update, hf.sinks.Parquet("unused/o1"))
    pipe.sink("o2", static.filter("x > 1"), hf.sinks.Parquet("unused/o2", mode="upsert"))
    pipe.sink("o3", once.late, hf.sinks.Parquet("unused/o3"))
    return pipe


def aggregates(a):
    rows = (
        a.filter("x > 0 AND k IS NOT NULL")
        .selectExpr("k", "x", "d * 2 AS d", "at")
        .withColumns({"y": "x + 1", "x": "x * 2"})
        .transform(step)
        .select("k", "x", "d", "at")
    )
    rows.groupBy("k").agg(
        hf.count().alias("n"), hf.sum("x").alias("t"), m=hf.avg("d"), lo=hf.min("x"),
        hi=hf.max("d"), sd=hf.stddev("d"), v=hf.variance("x", population=True),
        u=hf.count_distinct("k"), au=hf.approx_count_distinct("k", 0.02),
        p=hf.percentile("d", [0.5, 0.9]), me=hf.median("x"), l=hf.collect_list("x", limit=5),
        se=hf.collect_set("x", limit=7), f=hf.first("x", order_by=["at desc", "k"]),
        la=hf.last("x", order_by="at"), ua=hf.udaf(own, ["x", "d + 1 AS e"], "double"), name="agg",
    )  # fmt: skip


def windows(pipe, a, c):
    n = hf.count()
    hour = hf.tumbling(
        "at", size="1 hour", offset="5 minutes", emit="close", allowed_lateness="7 minutes"
    )
    a.group_by("k", hour).agg(n=n, name="tumble")
    slide = hf.sliding("at", size="1 hour", slide="10 minutes")
    c.group_by(slide).agg(n=n, x=hf.sum("x"), name="slide")
    visits = c.group_by("k", hf.session_window("at", gap="30 seconds", emit="close"))
    pipe.sink("o4", visits.agg(n=n, name="sess").late, hf.sinks.Parquet("unused/o4"))
    minute = hf.tumbling("at", size="1 minute", allowed_lateness="1 minute")
    update = c.group_by("k", minute).agg(n=n, name="upd")
    update.group_by(hf.tumbling("window_end", size="1 day")).agg(n=hf.sum("n"), name="day")
    return update


def joins(a, b, c):
    spellings = {
        "inner": "inner", "left": "left_outer", "right": "rightouter", "full": "outer",
        "semi": "left_semi", "anti": "leftanti",
    }  # fmt: skip
    for how, spelled in spellings.items():
        a.join(b, "k", spelled, suffix="_r", name=f"join_{how}")
        a.join(b, {"k": "k", "x": "x"}, how, condition="d > 3", suffix="_r", name=f"cond_{how}")
    near = hf.interval("at", "at", before="10 minutes", after="1 second")
    a.join(c, "k", within=near, suffix="_r", name="near")


def test_pipelines_of_the_first_api_keep_their_fingerprint():
    """PySpark's spellings, aliases and options of windows are spellings only."""
    assert fingerprint(wide()._graph.topology()) == STORED


def test_no_column_hides_another_fact_of_the_fingerprint():
    """A column called like a parameter of the window, or like the steps, is still compared."""

    def print_of(aggregate):
        pipe = hf.Pipeline("p", store="unused")
        rows = pipe.source("a", hf.sources.Files("unused", schema=SCHEMA), event_time="at")
        steps = rows.where("x > 0")
        hour = hf.tumbling("at", size="1 hour")
        names = ("name", "emit", "window", "lateness_us", "allowed_lateness", "lateness", "steps")
        columns = [aggregate.alias(name) for name in names]
        windowed = steps.group_by("k", hour).agg(*columns, name="w")
        plain = steps.group_by("k").agg(*columns, name="p")
        assert windowed.columns == ["k", "window_start", "window_end", *names]
        parts = {part.name: part for part in pipe._graph.topology().parts}
        texts = [str(aggregate)] * len(names)
        for part in (parts["w"], parts["p"]):
            assert sorted(v for v in part.params.values() if v in texts) == texts
        assert parts["w"].params["window"] == str(hour)
        assert parts["p"].params["steps"] == "where x > 0"
        assert plain.columns == ["k", *names]
        return fingerprint(pipe._graph.topology())

    assert print_of(hf.sum("x")) != print_of(hf.max("x"))
