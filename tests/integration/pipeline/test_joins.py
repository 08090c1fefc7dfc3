"""Joins and set operations are plain PySpark's, on random histories with crashes and rescales."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.testing import SimulatedCrash, crash_at

HOWS = ["inner", "left", "right", "full", "semi", "anti"]
CRASHES = [
    "epoch.after_plan", "epoch.after_execute", "epoch.after_draft", "commit.after_record",
    "epoch.after_commit", "outcome.after_record",
]  # fmt: skip
LEFT, RIGHT = "k long, x long, w long", "k int, y long, w long"
SETS = {
    "except": "SELECT * FROM a1 EXCEPT SELECT * FROM b1",
    "except-all": "SELECT * FROM a1 EXCEPT ALL SELECT * FROM b1",
    "intersect": "SELECT * FROM a1 INTERSECT SELECT * FROM b1",
    "intersect-all": "SELECT * FROM a1 INTERSECT ALL SELECT * FROM b1",
    "union": "SELECT * FROM a1 UNION ALL SELECT * FROM b1",
}


def write(directory: Path, number: int, names: str, rows: list[tuple], kinds) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in names]
    table = pa.table(
        {n: pa.array(list(c), t) for n, c, t in zip(names, columns, kinds, strict=True)}
    )
    temporary = directory / f".tmp-{number}"
    pq.write_table(table, temporary)
    temporary.rename(directory / f"part-{number:05d}.parquet")


def write_sides(home: Path, number: int, left: list[tuple], right: list[tuple]) -> None:
    """One file for each side that has changes."""
    if left:
        write(home / "a", number, "kxw", left, [pa.int64()] * 3)
    if right:
        write(home / "b", number, "kyw", right, [pa.int32(), pa.int64(), pa.int64()])


def random_changes(rng: random.Random, live: Counter, count: int) -> list[tuple]:
    changes = []
    for _ in range(count):
        there = [row for row, n in live.items() if n > 0]
        if there and rng.random() < 0.35:
            row = rng.choice(there)
            weight = -rng.randint(1, live[row])
        else:
            row = (rng.choice([None, 1, 2, 3, 4]), rng.choice([None, 0, 1, 2]))
            weight = rng.choice([1, 1, 1, 2])
        live[row] += weight
        if not live[row]:
            del live[row]
        changes.append((*row, weight))
    return changes


def published(path: Path) -> Counter:
    """The published changelog added up, read without Spark."""
    total: Counter = Counter()
    for file in path.glob("hf_epoch=*/*.parquet"):
        for row in pq.ParquetFile(file).read().to_pylist():
            weight = row.pop("_weight", 1)
            total[tuple(row.values())] += weight
    return Counter({row: n for row, n in total.items() if n})


def sources(home: Path, pipe: hf.Pipeline):
    for side in "ab":
        (home / side).mkdir(exist_ok=True)
    files = hf.sources.Files
    return (
        pipe.source("a", files(str(home / "a"), schema=LEFT, weight="w", files_max=1)),
        pipe.source("b", files(str(home / "b"), schema=RIGHT, weight="w", files_max=1)),
    )


def plain_pipeline(home: Path, spark, partitions: int) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    a, b = sources(home, pipe)
    found = {how: a.join(b, "k", how, name=f"j-{how}") for how in HOWS}
    a1, b1 = a.select("k", "x AS v"), b.select("y AS v", "k")
    found["union"] = a1.union(b1)
    for rule in ("except", "intersect"):
        method = a1.except_ if rule == "except" else a1.intersect
        found[rule] = method(b1, name=rule)
        found[f"{rule}-all"] = method(b1, name=f"{rule}-all", all=True)
    for name, stream in found.items():
        pipe.sink(f"{name}-out", stream, hf.sinks.Parquet(str(home / "out" / name)))
    return pipe


def condition_pipeline(home: Path, spark, partitions: int) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    a, b = sources(home, pipe)
    for how in HOWS:
        stream = a.join(b, "k", how, name=f"j-{how}", condition="x < y")
        pipe.sink(f"{how}-out", stream, hf.sinks.Parquet(str(home / "out" / how)))
    return pipe


def batch_answers(spark, live: tuple[Counter, Counter], condition: str, more: dict) -> dict:
    """Spark's own answers over the rows that are there, in one job."""
    for name, value, kind, rows in zip("ab", "xy", ("long", "int"), live, strict=True):
        flat = [row for row, n in rows.items() for _ in range(n)]
        frame = spark.createDataFrame(flat, f"k {kind}, {value} long")
        frame.createOrReplaceTempView(name)
        frame.selectExpr("cast(k AS long) AS k", f"{value} AS v").createOrReplaceTempView(
            f"{name}1"
        )
    on = f"ON a.k = b.k {condition}"
    texts = dict(more)
    for how in HOWS:
        exists = how in ("semi", "anti")
        shown = "a.k, x, NULL AS y" if exists else "coalesce(a.k, b.k) AS k, x, y"
        texts[how] = f"SELECT {shown} FROM a {how.upper()} JOIN b {on}"
    parts = [
        f"SELECT '{name}' AS op, * FROM (SELECT *{'' if name in HOWS else ', NULL AS y'} "
        f"FROM ({text}))"
        for name, text in texts.items()
    ]
    answers: dict[str, Counter] = {name: Counter() for name in texts}
    for row in spark.sql(" UNION ALL ".join(parts)).collect():
        op, *values = tuple(row)
        short = op not in ("inner", "left", "right", "full")
        answers[op][tuple(values[:2] if short else values)] += 1
    return answers


def run_history(
    spark, home: Path, seed: int, make, condition: str, more: dict, rounds: int
) -> None:
    rng = random.Random(seed)
    live: tuple[Counter, Counter] = (Counter(), Counter())
    number = 0
    for step in range(rounds):
        for _ in range(rng.randint(1, 2)):
            sides = [random_changes(rng, live[n], rng.randint(0, 12)) for n in (0, 1)]
            write_sides(home, number, *sides)
            number += 1
        try:
            if step == 1:
                with crash_at(rng.choice(CRASHES)):
                    make(home, spark, rng.choice([1, 2, 5])).run()
            else:
                make(home, spark, rng.choice([1, 2, 5])).run()
        except SimulatedCrash:
            make(home, spark, rng.choice([1, 2, 5])).run(takeover=True)
        answers = batch_answers(spark, live, condition, more)
        for name, answer in answers.items():
            assert published(home / "out" / name) == answer, (name, step, seed)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_joins_and_sets_equal_the_batch_answer(spark, tmp_path, seed) -> None:
    """Random histories of both sides, a crash and rescales: after every run, Spark's answer."""
    run_history(spark, tmp_path, seed, plain_pipeline, "", SETS, rounds=3)
    pipe = plain_pipeline(tmp_path, spark, 2)
    for rule in ("except", "intersect-all"):
        table = pipe.view(rule).arrow()
        assert Counter(tuple(row.values()) for row in table.to_pylist()) == published(
            tmp_path / "out" / rule
        )
    with pytest.raises(hf.errors.NotFoundError) as caught:
        pipe.view("j-left")
    assert caught.value.kind == "nothing_to_show"
    assert hf.verify_store(pipe.reader(), deep=True).ok


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.soak)])
def test_joins_with_a_condition_equal_the_batch_answer(spark, tmp_path, seed) -> None:
    """The condition decides who has a partner, under retraction and with duplicates."""
    run_history(spark, tmp_path, seed, condition_pipeline, "AND x < y", {}, rounds=3)
