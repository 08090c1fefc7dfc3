"""Rows and keys in manifests are those that live: what a look at the whole state finds."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.runtime.task import source_of
from holdfast.state import TraceKind, TraceReader, runs_of
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.window_world import DELAY, SCHEMA, History

BOUND = {"recent", "ticks"}  # forget by time, but visit only partitions with rows


def ticker():
    """A function that Spark sends by value: its module is not there on executors."""

    def tick(rows, state, context):
        """Count the rows of a key, and keep nothing of a key with an even count."""
        del context
        before = {row["k"]: row["n"] for row in state.to_pylist()}
        counts = rows.group_by("k").aggregate([([], "count_all")]).to_pylist()
        kept = [(row["k"], before.get(row["k"], 0) + row["count_all"]) for row in counts]
        kept = [(k, n) for k, n in kept if n % 2]
        new = pa.table({"k": pa.array([k for k, _ in kept], rows.schema.field("k").type),
                        "n": pa.array([n for _, n in kept], pa.int64())})  # fmt: skip
        return rows.select(["k"]).slice(0, 0), new

    return tick


def make(home, spark, partitions):
    pipe = hf.Pipeline(
        "p", store=home / "cp", spark=spark, partitions=partitions, settings=hf.Settings(retain=50)
    )
    source = hf.sources.Files(str(home / "in"), schema=SCHEMA, weight="w", files_max=1)
    rows = pipe.source("in", source, event_time="at", delay=f"{DELAY} seconds")
    plain = hf.sources.Files(str(home / "plain"), schema=SCHEMA, files_max=1)
    seen = pipe.source("plain", plain, event_time="at", delay=f"{DELAY} seconds")
    rows.group_by("k").agg(
        n=hf.count(), s=hf.sum("x"), lo=hf.min("x"), d=hf.count_distinct("x"),
        all=hf.collect_list("x", limit=100), name="totals",
    )  # fmt: skip
    rows.group_by("k", hf.tumbling("at", size="30 seconds", allowed_lateness="15 seconds")).agg(
        n=hf.count(), hi=hf.max("x"), name="hops"
    )
    rows.group_by("k", hf.session_window("at", gap="10 seconds")).agg(n=hf.count(), name="visits")
    rows.distinct(name="set")
    rows.join(rows.group_by("k").agg(m=hf.count(), name="sizes"), on="k", how="left", name="joined")
    seen.dedupe("k", "x", name="once")
    seen.apply(
        ticker(), key="k", state_schema="n long", output_schema="k string", name="ticks", time="at",
        ttl="15 seconds",
    )  # fmt: skip
    seen.dedupe("k", "x", time="at", within="20 seconds", name="recent")
    return pipe


def counted(pipe, summary):
    """Of every trace: what the manifest says, and what is really there."""
    reader = pipe.reader()
    manifest = reader.manifest(summary)
    found = {}
    for resolved in pipe.resolve().values():
        mark = manifest.watermark_us
        bounds = {} if mark is None else resolved.task.bounds_us(mark)
        for trace, schema in resolved.task.traces.items():
            entry = manifest.operator(trace)
            rows = TraceReader(
                runs=runs_of(manifest, trace), source=source_of(pipe._place, "p"), schema=schema,
                time_bound_us=bounds.get(trace),
            ).table()  # fmt: skip
            weights = pa.array([1] * rows.num_rows)
            if schema.kind is TraceKind.BAG:
                weights = rows.column(0)
            keys = rows.select(schema.keys.names).append_column("_w", weights)
            by_key = keys.group_by(schema.keys.names).aggregate([("_w", "sum")])
            real = (pc.sum(weights).as_py() or 0, sum(1 for n in by_key["_w_sum"].to_pylist() if n))
            found[trace] = ((entry.rows, entry.keys), real, entry.counts)
    assert manifest.rows == summary.rows == sum(e.rows for e in manifest.operators)
    assert manifest.keys == summary.keys == sum(e.keys for e in manifest.operators)
    return found


@pytest.mark.parametrize("seed", [1])
def test_counts_are_of_live_rows_and_keys(spark, tmp_path, seed) -> None:
    """Through retractions, watermarks, restarts, rescales, crashes and merges, at every checkpoint."""
    rng = random.Random(seed)
    history, plain = History(tmp_path / "in", seed), History(tmp_path / "plain", seed + 1)
    names: set[str] = set()
    for step in range(3):
        for _ in range(2):
            history.random(40)
            plain.random(40)
        partitions = rng.choice([1, 2, 5])
        try:
            with crash_at("commit.after_record", nth=rng.randint(1, 3)):
                make(tmp_path, spark, partitions).run()
        except SimulatedCrash:
            pass
        pipe = make(tmp_path, spark, rng.choice([1, 2, 5]))
        pipe.run(takeover=True)
        for summary in pipe.reader().list():
            if summary.abandoned:
                continue
            for trace, (said, real, counts) in counted(pipe, summary).items():
                names.add(trace)
                if trace in BOUND:
                    assert counts == "bound"
                    assert said >= real, (step, trace, summary.epoch)
                else:
                    assert counts == "live"
                    assert said == real, (step, trace, summary.epoch)
    assert len(names) >= 10
