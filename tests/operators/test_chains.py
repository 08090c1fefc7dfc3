"""Random chains of operators, diamonds included, equal plain PySpark after every round."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.effort import SOAK

COLUMNS = ["k", "x", "y"]
POINTS = ["epoch.after_execute", "commit.after_barrier", "epoch.after_commit", "epoch.after_plan"]


@dataclass(frozen=True)
class Op:
    """One operator over (k, x, y): as a stream, and as a table."""

    name: str
    stream: Callable[[Any, str], Any]
    table: Callable[[Any], Any]


def _ranked(df, order: list[str], rest: list[str], count: int):
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    terms = [F.col(n.split()[0]).desc() if n.endswith("desc") else F.col(n).asc() for n in order]
    window = Window.partitionBy("k").orderBy(*terms, *rest)
    return df.withColumn("r", F.row_number().over(window)).where(f"r <= {count}").drop("r")


def _joined(df, how: str):
    other = df.where("x % 2 = 0").selectExpr("k AS k2", "x AS y2")
    sql = {"left": "left", "inner": "inner", "anti": "left_anti", "semi": "left_semi"}[how]
    done = df.join(other, df.k == other.k2, sql)
    return done if how in ("anti", "semi") else done.selectExpr("k", "x", "y2 AS y")


def _join(how: str) -> Op:
    def stream(s, name: str):
        other = s.where("x % 2 = 0").select("k AS k2", "x AS y2")
        done = s.join(other, {"k": "k2"}, how, name=name)
        return done if how in ("anti", "semi") else done.select("k", "x", "y2 AS y")

    return Op(f"join-{how}", stream, lambda df: _joined(df, how))


def _gathered(df):
    from pyspark.sql import functions as F

    return df.groupBy("k").agg(
        F.countDistinct("x").alias("x"), F.expr("cast(percentile(y, 0.5) AS long)").alias("y")
    )


OPS = [
    Op("filter", lambda s, n: s.where("x % 3 <> 0"), lambda df: df.where("x % 3 <> 0")),
    Op(
        "totals",
        lambda s, n: s.group_by("k").agg(x=hf.sum("x"), y=hf.max("y"), name=n),
        lambda df: df.groupBy("k").agg({"x": "sum", "y": "max"}).toDF("k", "x", "y"),
    ),
    Op(
        "spread",
        lambda s, n: (
            s.group_by("k").agg(a=hf.count_distinct("x"), b=hf.median("y"), name=n)
            .select("k", "a AS x", "cast(b AS long) AS y")
        ),
        _gathered,
    ),
    Op("distinct", lambda s, n: s.distinct(name=n), lambda df: df.distinct()),
    Op(
        "top",
        lambda s, n: s.top_k(2, per="k", order_by=["x desc"], name=n),
        lambda df: _ranked(df, ["x desc"], ["y"], 2),
    ),
    Op(
        "except",
        lambda s, n: s.except_(s.where("x > 2"), name=n),
        lambda df: df.distinct().subtract(df.where("x > 2")),
    ),
    Op(
        "intersect-all",
        lambda s, n: s.intersect(s.union(s).where("y <> 1"), name=n, all=True),
        lambda df: df.intersectAll(df.unionAll(df).where("y <> 1")),
    ),
    Op(
        "union",
        lambda s, n: s.union(s.select("k", "x + 1 AS x", "y")),
        lambda df: df.unionAll(df.selectExpr("k", "x + 1 AS x", "y")),
    ),
    *(_join(how) for how in ("inner", "left", "semi", "anti")),
]  # fmt: skip


def write(directory: Path, number: int, rows: list[tuple]) -> None:
    """One file of changes: (k, x, y, weight)."""
    directory.mkdir(parents=True, exist_ok=True)
    columns = list(zip(*rows, strict=True))
    kinds = [pa.string(), pa.int64(), pa.int64(), pa.int64()]
    table = pa.table(
        {n: pa.array(list(c), t) for n, c, t in zip("kxyw", columns, kinds, strict=True)}
    )
    temporary = directory / f".tmp-{number}"
    pq.write_table(table, temporary)
    temporary.rename(directory / f"part-{number:05d}.parquet")


def changes(rng: random.Random, live: Counter) -> list[tuple]:
    found = []
    for _ in range(rng.randint(4, 14)):
        there = sorted((row for row, n in live.items() if n > 0), key=str)
        if there and rng.random() < 0.35:
            row, weight = rng.choice(there), -1
        else:
            row = (rng.choice(["a", "b", "c", None]), rng.randint(0, 5), rng.choice([1, 2, 3]))
            weight = 1
        live[row] += weight
        found.append((*row, weight))
    for row in [row for row, n in live.items() if n == 0]:
        del live[row]
    return found


def declare(home: Path, spark, chain: list[Op], partitions: int) -> hf.Pipeline:
    """The chain with a sink at its end, and one in its middle: several sinks, one epoch."""
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    source = hf.sources.Files(
        str(home / "in"), schema="k string, x long, y long, w long", weight="w", files_max=1
    )
    stream = pipe.source("in", source)
    for number, op in enumerate(chain):
        stream = op.stream(stream, f"op{number}")
        if number == len(chain) // 2:
            pipe.sink("middle", stream, hf.sinks.Parquet(str(home / "middle")))
    pipe.sink("end", stream, hf.sinks.Parquet(str(home / "end")))
    return pipe


def net(path: Path) -> Counter:
    """A published changelog, added up."""
    total: Counter = Counter()
    if any(path.glob("hf_epoch=*")):
        for row in ds.dataset(path, partitioning="hive").to_table().to_pylist():
            total[tuple(row[n] for n in COLUMNS)] += row["_weight"]
    assert all(n >= 0 for n in total.values())
    return Counter({row: n for row, n in total.items() if n})


@pytest.mark.parametrize("seed", range(60 if SOAK else 2))
def test_random_chains_equal_the_batch_answer_after_every_round(spark, tmp_path, seed) -> None:
    """Up to four operators, inserts and deletes, a crash and rescales: exactly Spark's answer."""
    rng = random.Random(7 + seed)
    chain = [rng.choice(OPS) for _ in range(rng.randint(2, 4))]
    print("chain:", [op.name for op in chain], "seed:", seed)
    live: Counter = Counter()
    number = 0
    for round_ in range(3):
        for _ in range(rng.randint(1, 2)):
            write(tmp_path / "in", number, changes(rng, live))
            number += 1
        try:
            if round_ == 1:
                with crash_at(rng.choice(POINTS)):
                    declare(tmp_path, spark, chain, rng.choice([1, 2, 5])).run()
            else:
                declare(tmp_path, spark, chain, rng.choice([1, 2, 5])).run()
        except SimulatedCrash:
            declare(tmp_path, spark, chain, rng.choice([1, 2, 5])).run(takeover=True)
        rows = [row for row, n in live.items() for _ in range(n)]
        table = spark.createDataFrame(rows, "k string, x long, y long")
        for index, op in enumerate(chain):
            table = op.table(table)
            if index == len(chain) // 2:
                middle = Counter(tuple(row) for row in table.select(*COLUMNS).collect())
                assert net(tmp_path / "middle") == middle, (round_, [o.name for o in chain])
        end = Counter(tuple(row) for row in table.select(*COLUMNS).collect())
        assert net(tmp_path / "end") == end, (round_, [o.name for o in chain])


def test_keys_may_be_spelled_in_another_case(spark, tmp_path) -> None:
    """Names are Spark's: upper and lower case are the same column, for every operator with keys."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    made = hf.sources.Generator(
        {"k": "pmod(id, 3)", "x": "id", "at": "timestamp_seconds(id)"}, rows=12, rows_per_epoch=6
    )
    rows = pipe.source("n", made, event_time="AT")
    streams = {
        "grouped": rows.group_by("K").agg(s=hf.sum("X"), name="grouped"),
        "windowed": rows.group_by("K", hf.tumbling("AT", size="1 hour")).agg(
            n=hf.count(), name="windowed"
        ),
        "first": rows.dedupe("K", name="first"),
        "top": rows.top_k(1, per="K", order_by="X desc", name="top"),
        "last": rows.latest("K", order_by="X", name="last"),
        "joined": rows.select("k", "x").join(rows.select("k AS K", "x AS y"), "K", name="joined"),
        "counted": rows.apply(
            counted, key="K", state_schema="n long", output_schema="k long, n long", name="counted"
        ),
    }
    for name, stream in streams.items():
        pipe.sink(f"{name}_out", stream, hf.sinks.Parquet(tmp_path / name))
    pipe.run()

    def found(name):
        frame = hf.read_changelog(spark, tmp_path / name)
        if streams[name].columns is not None:
            assert [c.lower() for c in frame.columns] == [c.lower() for c in streams[name].columns]
        return frame

    assert sorted(map(tuple, found("grouped").collect())) == [(0, 18), (1, 22), (2, 26)]
    assert found("windowed").selectExpr("sum(n)").first()[0] == 12
    assert sorted(row["x"] for row in found("first").collect()) == [0, 1, 2]
    for name in ("top", "last"):
        assert sorted(row["x"] for row in found(name).collect()) == [9, 10, 11]
    assert found("joined").count() == 48
    assert found("counted").count() == 6


def counted(changes, state, context):
    keys = context.keys.column(0)
    rows = pa.table({"k": keys, "n": pa.array([1] * len(keys), pa.int64())})
    return rows, rows
