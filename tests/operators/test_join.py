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


def write(directory: Path, number: int, names, rows: list[tuple], kinds) -> None:
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


def plain_pipeline(home: Path, spark, partitions: int, hows, sets) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    a, b = sources(home, pipe)
    found = {how: a.join(b, "k", how, name=f"j-{how}") for how in hows}
    a1, b1 = a.select("k", "x AS v"), b.select("y AS v", "k")
    for rule in sets:
        if rule == "union":
            found[rule] = a1.union(b1)
            continue
        method = a1.except_ if rule.startswith("except") else a1.intersect
        found[rule] = method(b1, name=rule, all=rule.endswith("-all"))
    for name, stream in found.items():
        pipe.sink(f"{name}-out", stream, hf.sinks.Parquet(str(home / "out" / name)))
    return pipe


def condition_pipeline(home: Path, spark, partitions: int, hows, sets) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    a, b = sources(home, pipe)
    for how in hows:
        stream = a.join(b, "k", how, name=f"j-{how}", condition="x < y")
        pipe.sink(f"{how}-out", stream, hf.sinks.Parquet(str(home / "out" / how)))
    return pipe


def batch_answers(spark, live, condition: str, hows, sets) -> dict:
    """Spark's own answers over the rows that are there, in one job."""
    for name, value, kind, rows in zip("ab", "xy", ("long", "int"), live, strict=True):
        flat = [row for row, n in rows.items() for _ in range(n)]
        frame = spark.createDataFrame(flat, f"k {kind}, {value} long")
        frame.createOrReplaceTempView(name)
        frame.selectExpr("cast(k AS long) AS k", f"{value} AS v").createOrReplaceTempView(
            f"{name}1"
        )
    on = f"ON a.k = b.k {condition}"
    texts = {rule: SETS[rule] for rule in sets}
    for how in hows:
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


def run_history(spark, home: Path, seed: int, make, condition: str, hows, sets) -> None:
    rng = random.Random(seed)
    live: tuple[Counter, Counter] = (Counter(), Counter())
    number = 0
    for step in range(3):
        for _ in range(rng.randint(1, 2)):
            sides = [random_changes(rng, live[n], rng.randint(0, 12)) for n in (0, 1)]
            write_sides(home, number, *sides)
            number += 1
        try:
            if step == 1:
                with crash_at(rng.choice(CRASHES)):
                    make(home, spark, rng.choice([1, 2, 5]), hows, sets).run()
            else:
                make(home, spark, rng.choice([1, 2, 5]), hows, sets).run()
        except SimulatedCrash:
            make(home, spark, rng.choice([1, 2, 5]), hows, sets).run(takeover=True)
        answers = batch_answers(spark, live, condition, hows, sets)
        for name, answer in answers.items():
            assert published(home / "out" / name) == answer, (name, step, seed)


FEW = ["right", "full", "semi", "anti"]


@pytest.mark.parametrize(
    ("seed", "hows", "sets"),
    [
        (1, FEW, ["union", "except", "intersect-all"]),
        *(pytest.param(seed, HOWS, list(SETS), marks=pytest.mark.soak) for seed in (2, 5, 6)),
    ],
)
def test_joins_and_sets_equal_the_batch_answer(spark, tmp_path, seed, hows, sets) -> None:
    """Random histories of both sides, a crash and rescales: after every run, Spark's answer."""
    run_history(spark, tmp_path, seed, plain_pipeline, "", hows, sets)
    pipe = plain_pipeline(tmp_path, spark, 2, hows, sets)
    for rule in ("except", "intersect-all"):
        table = pipe.view(rule).to_arrow()
        assert Counter(tuple(row.values()) for row in table.to_pylist()) == published(
            tmp_path / "out" / rule
        )
    with pytest.raises(hf.errors.NotFoundError) as caught:
        pipe.view("j-full")
    assert caught.value.kind == "nothing_to_show"
    assert hf.checkpoint.verify_store(pipe.reader(), deep=True).ok


@pytest.mark.parametrize(
    ("seed", "hows"),
    [
        (3, ["full", "anti"]),
        *(pytest.param(seed, HOWS, marks=pytest.mark.soak) for seed in (4, 7, 8)),
    ],
)
def test_joins_with_a_condition_equal_the_batch_answer(spark, tmp_path, seed, hows) -> None:
    """The condition decides who has a partner, under retraction and with duplicates."""
    run_history(spark, tmp_path, seed, condition_pipeline, "AND x < y", hows, [])


def test_shapes_of_joins_that_users_write(spark, tmp_path) -> None:
    """Other key names, a suffix, a self-join, keys of other types, and an aggregate behind a join."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    made = {"id": "cast(id % 7 AS int)", "v": "id", "tags": "map('a', id)"}
    a = pipe.source("a", hf.sources.Generator(made, rows=20, rows_per_epoch=10))
    b = pipe.source(
        "b", hf.sources.Generator({"key": "cast(id % 5 AS decimal(10,2))", "v": "id * 10"}, rows=10)
    )
    found = {
        "mapped": a.join(b, {"id": "key"}, "left", name="mapped", suffix="_b"),
        "self": a.select("id", "v").join(a.select("id", "v AS w"), "id", name="self"),
        "semi": a.join(b.select("key AS id", "v"), "id", "semi", name="semi"),
    }
    counts = found["mapped"].group_by("id").agg(n=hf.count("v_b"), s=hf.sum("v_b"), name="counts")
    for name, stream in {**found, "counts": counts}.items():
        pipe.sink(f"{name}-out", stream, hf.sinks.Parquet(str(tmp_path / name)))
    pipe.run()
    left = [(n % 7, n) for n in range(20)]
    right = [(n % 5, n * 10) for n in range(10)]

    def read(name: str, columns: list[str]) -> Counter:
        total: Counter = Counter()
        for file in (tmp_path / name).glob("hf_epoch=*/*.parquet"):
            for row in pq.ParquetFile(file).read().to_pylist():
                total[tuple(row[c] for c in columns)] += row.get("_weight", 1)
        return Counter({row: n for row, n in total.items() if n})

    pairs = [(i, v, k, w) for i, v in left for k, w in right if i == k]
    alone = [(i, v, None, None) for i, v in left if i > 4]
    assert read("mapped", ["id", "v", "key", "v_b"]) == Counter(pairs + alone)
    assert read("self", ["id", "v", "w"]) == Counter(
        (i, v, w) for i, v in left for j, w in left if i == j
    )
    assert read("semi", ["id", "v"]) == Counter((i, v) for i, v in left if i < 5)
    want = Counter()
    for key in range(7):
        values = [w for i, _, _, w in pairs if i == key]
        want[(key, len(values), sum(values) if values else None)] += 1
    assert read("counts", ["id", "n", "s"]) == want


def test_keys_that_cannot_be_compared_safely_are_refused(spark, tmp_path) -> None:
    """Text against numbers is an error that names both columns, not a cast in silence."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark)
    a = pipe.source("a", hf.sources.Generator({"k": "id"}, rows=1))
    b = pipe.source("b", hf.sources.Generator({"k": "cast(id AS string)"}, rows=1))
    a.join(b, "k", name="j")
    with pytest.raises(hf.errors.InvalidInputError) as caught:
        pipe.run()
    assert caught.value.kind == "join_key_types"
    assert caught.value.facts["operator"] == "j"
