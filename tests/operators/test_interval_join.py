"""Interval joins are plain PySpark's over the rows that came on time; they forget the rest."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.state import runs_of
from holdfast.testing import SimulatedCrash, crash_at
from tests.operators.test_join import published, write

HOWS = ["inner", "left", "right", "full", "semi", "anti"]
STAMP = pa.timestamp("us", tz="UTC")
SECOND = 1_000_000
BEFORE, AFTER, DELAY = 3, 2, 4
CRASHES = ["epoch.after_execute", "epoch.after_draft", "commit.after_record", "epoch.after_commit"]


def interval_pipeline(home: Path, spark, partitions: int, hows=HOWS) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    files = hf.sources.Files
    sides = []
    for side, value in (("a", "x"), ("b", "y")):
        (home / side).mkdir(parents=True, exist_ok=True)
        time = f"{side}t"
        connector = files(
            str(home / side), schema=f"k long, {time} timestamp, {value} long, w long", weight="w",
            files_max=1,
        )  # fmt: skip
        sides.append(
            pipe.source(side, connector, event_time=time, delay=f"{DELAY} seconds", future=None)
        )
    a, b = sides
    within = hf.interval("at", "bt", before=f"{BEFORE} seconds", after=f"{AFTER} seconds")
    for how in hows:
        stream = a.join(b, "k", how, name=f"j-{how}", within=within)
        shown = stream.select(
            "k", "unix_micros(at) AS at", "x",
            *(() if how in ("semi", "anti") else ("unix_micros(bt) AS bt", "y")),
        )  # fmt: skip
        pipe.sink(f"{how}-out", shown, hf.sinks.Parquet(str(home / "out" / how)))
        late = hf.sinks.Parquet(str(home / "out" / f"late-{how}"))
        pipe.sink(f"late-{how}", stream.late, late)
    return pipe


class Model:
    """Both sides as they came on time, and the watermark of the next epoch."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.live = (Counter(), Counter())
        self.newest: list[int | None] = [None, None]
        self.mark: int | None = None
        self.late: list[tuple] = []

    def epoch(self, now: int) -> tuple[list[tuple], list[tuple]]:
        """Changes of both sides around a time, some of them too late, some taking rows back."""
        sides = []
        for number in (0, 1):
            count = self.rng.randint(6, 12)
            sides.append([self._change(number, now) for _ in range(count)])
        newest = [max((c[1] for c in side if c[1] is not None), default=None) for side in sides]
        for number, time in enumerate(newest):
            if time is not None:
                self.newest[number] = max(time, self.newest[number] or 0)
        if None not in self.newest:
            self.mark = min(self.newest) - DELAY * SECOND  # type: ignore[type-var]
        return sides[0], sides[1]

    def _change(self, number: int, now: int) -> tuple:
        rng, live = self.rng, self.live[number]
        there = [r for r in live if r[1] is None or self.mark is None or r[1] >= self.mark]
        if there and rng.random() < 0.3:
            row = rng.choice(sorted(there, key=repr))
            weight = -rng.randint(1, live[row])
        else:
            second = rng.choice([None, *range(now - 9, now + 3), now, now])
            time = None if second is None else second * SECOND
            row = (rng.choice([None, 1, 2, 3]), time, rng.choice([None, 0, 1]))
            weight = rng.choice([1, 1, 2])
        if self.mark is not None and row[1] is not None and row[1] < self.mark:
            self.late.append((("left", "right")[number], *row, weight))
        else:
            live[row] += weight
            if not live[row]:
                del live[row]
        return (*row, weight)

    def answers(self, spark, hows) -> dict[str, Counter]:
        """Spark's own joins over what came on time, in one job."""
        for name, names, rows in zip("ab", ("at, x", "bt, y"), self.live, strict=True):
            flat = [row for row, n in rows.items() for _ in range(n)]
            first, second = names.split(", ")
            frame = spark.createDataFrame(flat, f"k long, {first} long, {second} long")
            frame.createOrReplaceTempView(f"i{name}")
        parts = []
        for how in hows:
            exists = how in ("semi", "anti")
            shown = "a.k, at, x, 0L AS bt, 0L AS y" if exists else (
                "coalesce(a.k, b.k) AS k, at, x, bt, y"
            )  # fmt: skip
            parts.append(
                f"SELECT '{how}' AS how, {shown} FROM ia a {how.upper()} JOIN ib b ON a.k = b.k "
                f"AND bt BETWEEN at - {BEFORE * SECOND} AND at + {AFTER * SECOND}"
            )
        found: dict[str, Counter] = {how: Counter() for how in hows}
        for how, *row in spark.sql(" UNION ALL ".join(parts)).collect():
            found[how][tuple(row[:3] if how in ("semi", "anti") else row)] += 1
        return found


def write_epoch(home: Path, number: int, sides) -> None:
    for side, value, rows in zip("ab", "xy", sides, strict=True):
        names = ["k", f"{side}t", value, "w"]
        write(home / side, number, names, rows, [pa.int64(), STAMP, pa.int64(), pa.int64()])


@pytest.mark.parametrize(
    ("seed", "hows"),
    [(5, ["semi", "full"]), *(pytest.param(n, HOWS, marks=pytest.mark.soak) for n in (6, 7))],
)
def test_interval_joins_equal_the_batch_answer_on_time(spark, tmp_path, seed, hows) -> None:
    """With late rows, nulls, retraction, a crash and rescales: Spark's join of what was on time."""
    model = Model(seed)
    for number in range(4):
        told = len(model.late)
        sides = model.epoch(20 + 4 * number)
        write_epoch(tmp_path, number, sides)
        partitions = model.rng.choice([1, 2, 5])
        pipe = interval_pipeline(tmp_path, spark, partitions, hows)
        try:
            if number == 2:
                with crash_at(model.rng.choice(CRASHES)):
                    pipe.run()
            else:
                assert pipe.run().late == len(hows) * len(model.late[told:])
        except SimulatedCrash:
            interval_pipeline(tmp_path, spark, 2, hows).run(takeover=True)
        for how, answer in model.answers(spark, hows).items():
            assert published(tmp_path / "out" / how) == answer, (how, number, seed)
    assert model.late
    for how in hows:
        assert late_rows(tmp_path / "out" / f"late-{how}") == Counter(model.late), how


def late_rows(path: Path) -> Counter:
    """Late rows of both sides: side, key, time, value and weight."""
    found = []
    for file in path.glob("hf_epoch=*/*.parquet"):
        table = pq.ParquetFile(file).read()
        for name in ("at", "bt"):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, table.column(name).cast(pa.int64()))
        for row in table.to_pylist():
            time, value = (("at", "x"), ("bt", "y"))[row["_side"] == "right"]
            others = [row[n] for n in ("at", "x", "bt", "y") if n not in (time, value)]
            assert others == [None, None]
            found.append((row["_side"], row["k"], row[time], row[value], row["_weight"]))
    return Counter(found)


def jobs(spark) -> int:
    """All Spark jobs that this session has run."""
    return spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()


def listed(pipe: hf.Pipeline) -> tuple[int, int]:
    """Bytes and rows of state that the newest checkpoint lists."""
    manifest = pipe.reader().manifest("latest")
    runs = [run for side in ("left", "right") for run in runs_of(manifest, f"j-left.{side}")]
    return sum(run.size for run in runs), sum(run.rows for run in runs)


def test_an_interval_join_forgets_and_runs_one_job_an_epoch(spark, tmp_path) -> None:
    """Over many epochs with the same live rows the listed state stays flat, one job an epoch."""
    rng = np.random.default_rng(1)
    count, rows, number, sizes = 6, 1_000, 0, []
    for _ in range(2):
        for _ in range(count):
            base = number * 10 * SECOND
            for side, value in (("a", "x"), ("b", "y")):
                times = base + rng.integers(0, 10 * SECOND, rows)
                columns = [rng.integers(0, 500, rows), times, rng.integers(0, 9, rows)]
                flat = list(zip(*(c.tolist() for c in columns), [1] * rows, strict=True))
                kinds = [pa.int64(), STAMP, pa.int64(), pa.int64()]
                write(tmp_path / side, number, ["k", f"{side}t", value, "w"], flat, kinds)
            number += 1
        before = jobs(spark)
        pipe = interval_pipeline(tmp_path, spark, 1, ["left"])
        assert pipe.run().epochs == count
        assert jobs(spark) - before == count
        sizes.append(listed(pipe))
    assert sizes[1][0] < 1.3 * sizes[0][0]
    assert sizes[1][1] < 0.5 * 2 * rows * number


# Sources that only add rows

EVENTS_A, EVENTS_B = "k long, at timestamp, x long", "k long, bt timestamp, y long"


def write_events(home: Path, side: str, number: int, rows: list[tuple]) -> None:
    names, stamp = (("k", "at", "x"), ("k", "bt", "y"))[side == "b"], pa.timestamp("us", tz="UTC")
    write(home / side, number, names, rows, [pa.int64(), stamp, pa.int64()])


def append_only(home: Path, spark, partitions: int, hows) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    for side in "ab":
        (home / side).mkdir(exist_ok=True)
    files = hf.sources.Files
    a = pipe.source("a", files(str(home / "a"), schema=EVENTS_A, files_max=1),
                    event_time="at", delay="20 seconds")  # fmt: skip
    b = pipe.source("b", files(str(home / "b"), schema=EVENTS_B, files_max=1),
                    event_time="bt", delay="20 seconds")  # fmt: skip
    within = hf.interval("at", "bt", before="10 seconds", after="5 seconds")
    for how in hows:
        stream = a.join(b, "k", how, name=f"j-{how}", within=within)
        pipe.sink(f"{how}-out", stream, hf.sinks.Parquet(str(home / "out" / how)))
        pipe.sink(f"{how}-late", stream.late, hf.sinks.Parquet(str(home / "late" / how)))
    return pipe


def second(rng: random.Random, step: int):
    """Seconds that move on by 30 an epoch, out of order by up to 40."""
    return None if rng.random() < 0.05 else (1_000 + 30 * step - rng.randint(-20, 40)) * 1_000_000


@pytest.mark.parametrize(
    ("seed", "hows"),
    [(1, ["full", "semi"]), pytest.param(2, HOWS, marks=pytest.mark.soak)],
)
def test_interval_joins_equal_the_batch_answer_over_rows_on_time(
    spark, tmp_path, seed, hows
) -> None:
    """Without deletes: of what came on time nothing is lost by forgetting; late rows are routed."""
    rng = random.Random(seed)
    rows: dict[str, Counter] = {"a": Counter(), "b": Counter()}
    work = append_only(tmp_path, spark, 2, hows).resolve()["j-semi"].task
    assert work.bounds_us(0) == {"j-semi.left": -5_000_000, "j-semi.right": -15_000_000}
    for step in range(5):
        for side in "ab":
            new = [(rng.choice([None, 1, 2]), second(rng, step), rng.randint(0, 3))
                   for _ in range(8)]  # fmt: skip
            rows[side].update(new)
            write_events(tmp_path, side, step, new)
        if step in (2, 4):
            pipe = append_only(tmp_path, spark, 2 if step == 2 else 5, hows)
            if step == 2:
                with pytest.raises(SimulatedCrash), crash_at("epoch.after_draft", nth=2):
                    pipe.run()
                pipe = append_only(tmp_path, spark, 3, hows)
            pipe.run(takeover=step == 2)
    for how in hows:
        on_time = {side: rows[side].copy() for side in "ab"}
        gone = 0
        for file in (tmp_path / "late" / how).glob("hf_epoch=*/*.parquet"):
            for row in pq.ParquetFile(file).read().to_pylist():
                side = "a" if row["_side"] == "left" else "b"
                if how == "semi" and side == "b":  # only what a semi join needs is sent
                    found = next(r for r in on_time["b"] if on_time["b"][r] > 0
                                 and r[:2] == (row["k"], micros(row["bt"])))  # fmt: skip
                else:
                    names = ("k", "at", "x") if side == "a" else ("k", "bt", "y")
                    k, at, value = (row[name] for name in names)
                    found = (k, micros(at), value)
                on_time[side][found] -= row["_weight"]
                gone += 1
        assert gone
        assert all(n >= 0 for side in on_time.values() for n in side.values())
        got = Counter()
        for row, n in published(tmp_path / "out" / how).items():
            got[tuple(micros(v) for v in row)] += n
        assert got == interval_answer(spark, on_time, how), how


def micros(value):
    return int(value.timestamp() * 1_000_000) if hasattr(value, "timestamp") else value


def interval_answer(spark, rows: dict[str, Counter], how: str) -> Counter:
    for side, schema in (("a", "k long, at long, x long"), ("b", "k long, bt long, y long")):
        flat = [row for row, n in rows[side].items() for _ in range(n)]
        spark.createDataFrame(flat, schema).createOrReplaceTempView(f"e{side}")
    shown = "ea.k, at, x" if how in ("semi", "anti") else "coalesce(ea.k, eb.k), at, x, bt, y"
    frame = spark.sql(
        f"SELECT {shown} FROM ea {how.upper()} JOIN eb ON ea.k = eb.k "
        "AND bt BETWEEN at - 10000000 AND at + 5000000"
    )
    return Counter(tuple(row) for row in frame.collect())
