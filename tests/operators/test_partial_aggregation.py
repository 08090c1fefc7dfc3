"""Adding rows up in the JVM first, or not: the same result, whatever earlier epochs saw."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import holdfast as hf
from holdfast.runtime import partial_aggregation
from holdfast.runtime.partial_aggregation import PartialAggregationPolicy
from holdfast.runtime.planner import FrameBuilder
from tests.helpers.pipeline_world import rows_of, write_rows


def declare(home, spark, *, weighted: bool) -> hf.Pipeline:
    """Aggregates that can be added up, over every kind of number.

    Doubles that can be retracted are not among them: the JVM would round.
    """
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=2)
    source = hf.sources.Files(str(home / "in"), schema="k string, x long, f double, w long",
                              weight="w" if weighted else None, files_max=1)  # fmt: skip
    rows = pipe.source("in", source).with_columns(
        d="cast(x AS decimal(10, 2)) / 4", b="cast(x AS decimal(28, 2))"
    )
    more = {"lo": hf.min("f"), "hi": hf.max("x"), "fs": hf.sum("f"), "a": hf.avg("x")}
    totals = rows.group_by("k").agg(
        n=hf.count(), nx=hf.count("x"), s=hf.sum("x"), ds=hf.sum("d"), bs=hf.sum("b"),
        da=hf.avg("d"), **({} if weighted else more), name="totals",
    )  # fmt: skip
    pipe.sink("out", totals, hf.sinks.Parquet(str(home / "out")))
    return pipe


@pytest.mark.parametrize("weighted", [True, False])
def test_rows_added_up_in_the_jvm_give_the_same_result(
    spark, tmp_path, monkeypatch, weighted
) -> None:
    """With the threshold at one row, epochs are added up first and equal those that are not."""
    rng, live = random.Random(4), Counter()
    for number in range(5):
        rows = []
        for _ in range(40):
            there = sorted((row for row, n in live.items() if n), key=str)
            if weighted and there and rng.random() < 0.4:
                row, weight = rng.choice(there), -1
            else:
                x, f = rng.choice([None, 1, -7, 123]), rng.choice([None, 0.5, 4.0, float("inf")])
                row, weight = (rng.choice(["a", "b", None]), x, f), 1
            live[row] += weight
            rows.append((*row, weight))
        for home in ("plain", "crowded"):
            write_rows(tmp_path / home / "in", number, rows)
    used: list[set[str]] = []
    build = FrameBuilder._build

    def spy(self, plan, jobs):
        used.append(set(self.partially_aggregated))
        return build(self, plan, jobs)

    monkeypatch.setattr(FrameBuilder, "_build", spy)
    columns = None
    for home, least in (("plain", 10**12), ("crowded", 1)):
        monkeypatch.setattr(partial_aggregation, "ROWS_MIN", least)
        monkeypatch.setattr(partial_aggregation, "ROWS_PER_KEY_MIN", 1)
        used.clear()
        pipe = declare(tmp_path / home, spark, weighted=weighted)
        assert pipe.resolve()["totals"].sums is not None
        pipe.run()
        assert ({"totals"} in used) is (home == "crowded")
        frame = pipe.view("totals").to_spark(spark)
        columns = columns or frame.columns
        if home == "plain":
            wanted, schema = rows_of(frame, columns), frame.schema
    assert rows_of(frame, columns) == wanted
    assert frame.schema == schema
    assert hf.checkpoint.verify_store(pipe.reader(), deep=True).ok


def test_it_pays_only_for_many_rows_of_few_keys() -> None:
    """The decision goes by the last epoch of each operator."""
    seen = PartialAggregationPolicy()
    seen.note({"few": {"rows_in": 600_000, "keys": 1_000}, "many": {"rows_in": 600_000, "keys": 500_000}})  # fmt: skip
    assert seen.operators() == {"few"}
    seen.note({"few": {"rows_in": 10, "keys": 5}, "none": {"rows_in": 600_000}})
    assert seen.operators() == set()
