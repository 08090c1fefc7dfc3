"""Every aggregate over every numeric type: rows come and go, and what is left equals batch."""

from __future__ import annotations

import math
import random
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf

DECIMALS = [(1, 0), (5, 5), (9, 2), (18, 9), (19, 0), (20, 8), (28, 10), (29, 1), (38, 0), (38, 18)]
DECIMALS += [(38, 38)]
TYPES = {
    "i8": ("tinyint", pa.int8()),
    "i16": ("smallint", pa.int16()),
    "i32": ("int", pa.int32()),
    "i64": ("bigint", pa.int64()),
    "f32": ("float", pa.float32()),
    "f64": ("double", pa.float64()),
    **{f"d{p}_{s}": (f"decimal({p},{s})", pa.decimal128(p, s)) for p, s in DECIMALS},
}
# A mean of the largest of these does not fit its own type, neither here nor in Spark.
NO_MEAN = ("d38_0", "d38_18")
SPARK = {
    "avg": "avg",
    "stddev": "stddev_samp",
    "variance": "var_pop",
    "sum": "sum",
    "n": "count",
}
ORDERED = ("i64", "f64", "d38_18")
EPOCHS = 4
HEAVY = 2**61


def extremes(name: str) -> list:
    """The smallest and the largest values of a type, and some that doubles cannot tell apart."""
    kind = TYPES[name][1]
    if pa.types.is_integer(kind):
        top = 2 ** (kind.bit_width - 1)
        return [-top, top - 1]
    if pa.types.is_decimal(kind):
        big = Decimal((0, (9,) * kind.precision, -kind.scale))
        return [big, big.copy_negate()]
    if name == "f32":
        return [
            3.4028234663852886e38,
            -3.4028234663852886e38,
            1.401298464324817e-45,
            math.nan,
            math.inf,
        ]
    return [1e300, -1.7976931348623157e308, 5e-324, 1e17, math.nan, math.inf, -math.inf]


def small(name: str, rng: random.Random):
    """A value of which many can be added."""
    kind = TYPES[name][1]
    if rng.random() < 0.1:
        return None
    if pa.types.is_decimal(kind):
        return Decimal((rng.randint(0, 1), (rng.randint(0, 3),), -kind.scale))
    if pa.types.is_integer(kind):
        return rng.randint(-9, 9)
    value = rng.choice([rng.uniform(-1e3, 1e3), 1e9 + rng.random(), 0.1, -0.0])
    return float(pa.scalar(value, pa.float32()).as_py()) if name == "f32" else value


def history(rng: random.Random, cases: int) -> tuple[list[list[tuple]], dict[int, list[tuple]]]:
    """Rows of each epoch as (key, values, weight), and the rows that are left of each key.

    A key is one case. Outliers of every type come and are retracted, in one epoch or over several,
    some of them with weights that only fit a long.
    """
    epochs: list[list[tuple]] = [[] for _ in range(EPOCHS)]
    left: dict[int, list[tuple]] = {}
    for key in range(cases):
        kept = [tuple(small(name, rng) for name in TYPES) for _ in range(rng.randint(1, 5))]
        if rng.random() < 0.3:  # one extreme stays
            kept = [tuple(rng.choice(extremes(name)) for name in TYPES)]
        left[key] = kept
        for row in kept:
            epochs[rng.randrange(EPOCHS)].append((key, row, 1))
        odd = tuple(rng.choice(extremes(name)) for name in TYPES)
        weight = rng.choice([1, 1, 3, HEAVY])
        begin = rng.randrange(EPOCHS)
        # Two extremes of one sign are more than their type can hold at the end of an epoch, so
        # the outlier goes in the epoch in which it came, before or after.
        epochs[begin].append((key, odd, weight))
        epochs[begin].append((key, odd, -weight))
        flood = tuple(  # doubles alone may overflow on the way
            rng.choice(extremes(name)) if name.startswith("f") else None for name in TYPES
        )
        first, second = sorted(rng.sample(range(EPOCHS), 2))
        count = rng.choice([1, 2, 1000])
        epochs[first].append((key, flood, count))
        epochs[second].append((key, flood, -count))
    for rows in epochs:
        rng.shuffle(rows)
    return epochs, left


def aggregates() -> dict:
    found = {"rows": hf.count()}
    for name in TYPES:
        x = name
        found |= {
            f"{name}_n": hf.count(x),
            f"{name}_sum": hf.sum(x),
            f"{name}_stddev": hf.stddev(x),
            f"{name}_variance": hf.variance(x, population=True),
        }
        if name not in NO_MEAN:
            found[f"{name}_avg"] = hf.avg(x)
        if name in ORDERED:
            found |= {f"{name}_min": hf.min(x), f"{name}_max": hf.max(x)}
    return found


def run(spark, home, epochs) -> dict[int, dict]:
    """The published changelog, added up."""
    (home / "in").mkdir(parents=True)
    for number, rows in enumerate(epochs):
        columns = {"k": pa.array([r[0] for r in rows], pa.int64())}
        for place, (name, (_, kind)) in enumerate(TYPES.items()):
            columns[name] = pa.array([r[1][place] for r in rows], kind)
        columns["w"] = pa.array([r[2] for r in rows], pa.int64())
        pq.write_table(pa.table(columns), home / "in" / f"{number}.parquet")
    schema = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    source = hf.sources.Files(
        str(home / "in"), schema=f"k long, {schema}, w long", weight="w", files_max=1
    )
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=2)
    totals = pipe.source("s", source).group_by("k").agg(**aggregates(), name="t")
    pipe.sink("out", totals, hf.sinks.Parquet(str(home / "out")))
    pipe.run()
    counted: Counter = Counter()
    rows = {}
    for path in sorted((home / "out").glob("hf_epoch=*/*.parquet")):
        for row in pq.ParquetFile(path).read().to_pylist():
            weight = row.pop("_weight")
            text = repr(sorted(row.items()))
            counted[text] += weight
            rows[text] = row
    assert set(counted.values()) <= {0, 1}
    return {rows[text]["k"]: rows[text] for text, n in counted.items() if n}


def batch(spark, left) -> dict[int, dict]:
    """Plain Spark over the rows that are left."""
    from pyspark.sql import functions as F

    table = [(key, *row) for key, rows in left.items() for row in rows]
    schema = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    frame = spark.createDataFrame(table, f"k long, {schema}")
    exprs = [F.expr("count(1) AS rows")]
    for name in TYPES:
        exprs += [
            F.expr(f"{how}({name}) AS {name}_{short}")
            for short, how in SPARK.items()
            if short != "avg" or name not in NO_MEAN
        ]
        if name in ORDERED:
            exprs += [F.expr(f"{how}({name}) AS {name}_{how}") for how in ("min", "max")]
    return {row["k"]: row.asDict() for row in frame.groupBy("k").agg(*exprs).collect()}


def off(found: float, exact: Fraction) -> float:
    """Units in the last place between a double and the exact number."""
    try:
        wanted = exact.numerator / exact.denominator
    except OverflowError:
        wanted = math.inf if exact > 0 else -math.inf
    if found == wanted:
        return 0.0
    if math.isinf(found) or math.isinf(wanted):
        return math.inf
    return float(abs(Fraction(found) - exact) / Fraction(math.ulp(wanted)))


def same(found, wanted) -> bool:
    if isinstance(found, float) and isinstance(wanted, float) and math.isnan(found):
        return math.isnan(wanted)
    return found == wanted


def check_doubles(key: int, name: str, found: dict, wanted: dict, values: list) -> list[str]:
    """Within the promise: a sum to the last bit, a mean one unit, deviations four."""
    values = [v for v in values if v is not None]
    exact = not name.startswith("f")
    doubles = values if exact else [float(v) for v in values]
    if not values or (not exact and not all(math.isfinite(v) for v in doubles)):
        parts = ("stddev", "variance") if exact else ("sum", "avg", "stddev", "variance")
        return [
            f"{key} {name}_{p}: {found[f'{name}_{p}']} {wanted[f'{name}_{p}']}"
            for p in parts
            if not same(found[f"{name}_{p}"], wanted[f"{name}_{p}"])
        ]
    n = len(values)
    numbers = [Fraction(v) for v in values]
    total = sum(numbers, Fraction(0))
    errors = []
    if not exact and off(found[f"{name}_sum"], total) > 0:
        errors.append("sum")
    if not name.startswith("d") and off(found[f"{name}_avg"], total / n) > (4 if exact else 1):
        errors.append("avg")
    # Spark too takes deviations of doubles, so that integers and decimals are rounded first.
    first = [Fraction(float(v)) for v in values]
    mean = sum(first, Fraction(0)) / n
    spread = sum(((v - mean) ** 2 for v in first), Fraction(0))
    if off(found[f"{name}_variance"], spread / n) > 4:
        errors.append("variance")
    deviation = found[f"{name}_stddev"]
    if n < 2:
        errors += [] if deviation is None else ["stddev"]
    elif (
        spread and not math.isclose(Fraction(deviation) ** 2 / (spread / (n - 1)), 1, rel_tol=2e-15)
    ) or (not spread and deviation != 0):
        errors.append("stddev")
    return [f"{key} {name}_{part}: {found[f'{name}_{part}']} of {values}" for part in errors]


def check(spark, home, seed: int, cases: int) -> None:
    epochs, left = history(random.Random(seed), cases)
    found, wanted = run(spark, home, epochs), batch(spark, left)
    assert found.keys() == wanted.keys()
    wrong = []
    for key, row in found.items():
        names = ["rows", *(f"{name}_n" for name in TYPES)]
        names += [f"{name}_sum" for name in TYPES if not name.startswith("f")]
        names += [f"{name}_avg" for name in TYPES if name[0] == "d" and name not in NO_MEAN]
        names += [f"{name}_{how}" for name in ORDERED for how in ("min", "max")]
        wrong += [
            f"{key} {n}: {row[n]} {wanted[key][n]}"
            for n in names
            if not same(row[n], wanted[key][n])
        ]
        for place, name in enumerate(TYPES):
            values = [values[place] for values in left[key]]
            wrong += check_doubles(key, name, row, wanted[key], values)
    assert not wrong, f"seed {seed}: {len(wrong)}\n" + "\n".join(wrong[:20])


def test_what_is_left_equals_batch_whatever_came_and_went(spark, tmp_path) -> None:
    """Integers and decimals have no difference; doubles keep the promised bounds."""
    check(spark, tmp_path, 1, 60)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 20))
def test_the_whole_matrix(spark, tmp_path, seed) -> None:
    """The same with many more cases."""
    check(spark, tmp_path, seed, 2_000)
