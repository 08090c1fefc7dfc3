"""A changed pipeline on an old store: kept, dropped, filled, or refused with a reason."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import holdfast as hf
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.pipeline_world import SCHEMA, published, rows_of, write_rows


def build(home, spark, version: int, partitions: int = 2) -> hf.Pipeline:
    """Version 1: totals. Version 2: no totals_out; a copy, a count of counts, spread, unique."""
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    source = hf.sources.Files(str(home / "in"), schema=SCHEMA, weight="w", files_max=2)
    rows = pipe.source("changes", source)
    totals = rows.group_by("k").agg(n=hf.count(), s=hf.sum("x"), name="totals")
    if version == 1:
        pipe.sink("totals_out", totals, hf.sinks.Parquet(str(home / "totals")))
        rows.select("k", "x").distinct(name="old")
        return pipe
    pipe.sink("copy", totals, hf.sinks.Parquet(str(home / "copy")))
    pipe.sink("big", totals.where("n > 1"), hf.sinks.Parquet(str(home / "big")))
    sizes = totals.group_by("n").agg(groups=hf.count(), name="sizes")
    pipe.sink("sizes_out", sizes, hf.sinks.Parquet(str(home / "sizes")))
    spread = rows.group_by("x").agg(lo=hf.min("f"), d=hf.count_distinct("k"), name="spread")
    pipe.sink("spread_out", spread, hf.sinks.Parquet(str(home / "spread")))
    pipe.sink("raw", rows.where("x > 0").select("k", "x"), hf.sinks.Parquet(str(home / "raw")))
    return pipe


def check(spark, home, live: Counter) -> None:
    """Everything that version 2 publishes equals plain PySpark over the rows that are there."""
    from pyspark.sql import functions as F

    rows = [row for row, n in live.items() for _ in range(n)]
    frame = spark.createDataFrame(rows, "k string, x long, f double").cache()
    totals = frame.groupBy("k").agg(F.count("*").alias("n"), F.sum("x").alias("s"))
    spread = frame.groupBy("x").agg(F.min("f").alias("lo"), F.countDistinct("k").alias("d"))
    wanted = {
        "copy": totals, "big": totals.where("n > 1"), "spread": spread,
        "sizes": totals.groupBy("n").agg(F.count("*").alias("groups")),
        "raw": frame.where("x > 0").select("k", "x"),
    }  # fmt: skip
    for name, want in wanted.items():
        assert published(spark, home / name, want.columns) == rows_of(want, want.columns), name
    frame.unpersist()


def changes(rng: random.Random, live: Counter, count: int) -> list[tuple]:
    found = []
    for _ in range(count):
        there = [row for row, n in live.items() if n > 0]
        if there and rng.random() < 0.3:
            row, weight = rng.choice(there), -1
        else:
            f = rng.choice([None, 0.5, 8.0])
            row, weight = (rng.choice(["a", "b", None]), rng.choice([None, 1, 2]), f), 1
        live[row] += weight
        found.append((*row, weight))
    return found


def test_new_parts_are_filled_from_history_and_state_and_go_on(spark, tmp_path) -> None:
    """New operators and sinks get the past, removed ones go, and later epochs are right."""
    rng, live = random.Random(3), Counter()
    for number in range(5):
        write_rows(tmp_path / "in", number, changes(rng, live, 12))
    build(tmp_path, spark, 1).run()
    with pytest.raises(hf.errors.IncompatibleError) as refused:
        build(tmp_path, spark, 2).run()
    assert refused.value.kind == "fingerprint_differs"
    assert "spread: added" in str(refused.value)
    with pytest.raises(SimulatedCrash), crash_at("fill.after_execute", nth=2):
        build(tmp_path, spark, 2).run(allow_changes=True)
    pipe = build(tmp_path, spark, 2, partitions=3)
    summary = pipe.run(allow_changes=True, takeover=True)
    assert any("old: removed" in note for note in summary.notes)
    assert any(note.startswith("spread: new, filled from source changes") for note in summary.notes)
    check(spark, tmp_path, live)
    assert hf.checkpoint.verify_store(pipe.reader(), deep=True).ok
    assert {part.name for part in pipe.reader().manifest("latest").topology.parts} >= {"spread"}
    assert pipe.reader().manifest("latest").operator("old") is None
    write_rows(tmp_path / "in", 9, changes(rng, live, 12))
    build(tmp_path, spark, 2).run()
    check(spark, tmp_path, live)


def test_lost_history_refuses_the_change_and_leaves_the_old_pipeline_running(
    spark, tmp_path
) -> None:
    """Where the files that were read are gone, nothing is half filled."""
    live: Counter = Counter()
    write_rows(tmp_path / "in", 0, changes(random.Random(1), live, 10))
    build(tmp_path, spark, 1).run()
    (tmp_path / "in" / "part-00000.parquet").unlink()
    before = build(tmp_path, spark, 1).reader().manifest("latest")
    with pytest.raises(hf.errors.InvalidInputError) as caught:
        build(tmp_path, spark, 2).run(allow_changes=True)
    assert caught.value.kind == "history_lost"
    pipe = build(tmp_path, spark, 1)
    pipe.run()
    assert pipe.reader().manifest("latest") == before


@pytest.mark.parametrize("what", ["keys", "aggregate", "sink", "type", "dedupe"])
def test_a_part_that_changed_its_meaning_is_refused_by_name(spark, tmp_path, what) -> None:
    """Other keys, aggregates, inputs of sinks or types cannot go on with the old state."""

    def declare(*, changed: bool) -> hf.Pipeline:
        pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
        other = changed and what == "type"
        number = "string(id % 3)" if other else "id % 3"
        rows = pipe.source("n", hf.sources.Generator({"k": number, "x": "id"}, rows=9))
        key = "x" if changed and what == "keys" else "k"
        more = hf.max("x") if changed and what == "aggregate" else hf.sum("x")
        totals = rows.group_by(key).agg(v=more, name="totals")
        first = rows.dedupe("k", name="first")
        if changed and what == "dedupe":
            pipe.sink("late_comer", first, hf.sinks.Parquet(str(tmp_path / "late")))
        shown = totals.where("v > 5") if changed and what == "sink" else totals
        pipe.sink("out", shown, hf.sinks.Parquet(str(tmp_path / "out")))
        return pipe

    declare(changed=False).run()
    with pytest.raises(hf.errors.IncompatibleError) as caught:
        declare(changed=True).run(allow_changes=True)
    assert caught.value.kind == "changes_refused"
    part = {"sink": "out", "dedupe": "first"}.get(what, "totals")
    assert f"{part}:" in str(caught.value.facts["reasons"])
