"""The pipeline's answers are plain PySpark's, on random inserts, updates and deletes."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import holdfast as hf
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.pipeline_world import (
    TOTALS,
    batch_totals,
    check_all,
    pipeline,
    rows_of,
    write_rows,
)
from tests.helpers.toys import toy_pipeline

CRASHES = [
    "epoch.after_plan", "epoch.after_execute", "epoch.after_draft", "commit.after_manifest",
    "commit.after_barrier", "commit.after_record", "epoch.after_commit", "outcome.before_record",
    "outcome.after_record", "epoch.after_publish", "gc.after_record",
]  # fmt: skip


def random_changes(rng: random.Random, live: Counter, count: int) -> list[tuple]:
    """Inserts of random rows and deletes of rows that are there."""
    changes = []
    for _ in range(count):
        there = [row for row, n in live.items() if n > 0]
        if there and rng.random() < 0.35:
            row, weight = rng.choice(there), -1
        else:
            x = rng.choice([None, *range(-3, 4)])
            f = rng.choice([None, 0.5, 1.25, -2.0, 8.0])
            row, weight = (rng.choice(["a", "b", "c", "", None]), x, f), 1
        live[row] += weight
        changes.append((*row, weight))
    for row in [row for row, n in live.items() if n == 0]:
        del live[row]
    return changes


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_random_histories_with_crashes_and_rescales_equal_the_batch_answer(
    spark, tmp_path, seed
) -> None:
    """After crashes at random points and restarts with 1, 2 and 7 partitions, nothing differs."""
    rng = random.Random(seed)
    live: Counter = Counter()
    number = 0
    for _ in range(4):
        for _ in range(rng.randint(1, 3)):
            write_rows(tmp_path / "in", number, random_changes(rng, live, rng.randint(1, 30)))
            number += 1
        partitions = rng.choice([1, 2, 7])
        point = rng.choice(CRASHES)
        try:
            with crash_at(point, nth=rng.randint(1, 2)):
                pipeline(tmp_path, spark, partitions=partitions).run()
        except SimulatedCrash:
            pipeline(tmp_path, spark, partitions=rng.choice([1, 2, 7])).run(takeover=True)
        check_all(spark, tmp_path, live)
    pipe = pipeline(tmp_path, spark)
    rows = [row for row, n in live.items() for _ in range(n)]
    assert rows_of(pipe.view("totals").to_spark(spark), TOTALS) == rows_of(
        batch_totals(spark, rows), TOTALS
    )
    assert hf.checkpoint.verify_store(pipe.reader(), deep=True).ok


def test_a_view_can_be_read_at_every_retained_checkpoint(spark, tmp_path) -> None:
    """Older checkpoints show what was true then."""
    pipe, _, _ = toy_pipeline(tmp_path, spark, rows=40, rows_per_epoch=10)
    pipe.run()
    for epoch in (1, 2, 3):
        table = pipe.view("totals", at=f"epoch:{epoch}").to_arrow()
        ids = range((epoch + 1) * 10)
        want = {
            k: (len([i for i in ids if i % 3 == k]), sum(i for i in ids if i % 3 == k))
            for k in range(3)
        }
        assert {r["k"]: (r["n"], r["s"]) for r in table.to_pylist()} == want
