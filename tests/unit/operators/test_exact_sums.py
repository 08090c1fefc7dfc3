"""Sums under retraction against exact rational arithmetic: whatever comes, goes and is heavy."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.operators.aggregate.execute import AggregateTask
from holdfast.operators.aggregate.functions import exact
from holdfast.operators.aggregate.functions.exact import (
    STORED,
    Scaled,
    parts_of,
    rounded,
    squares_of,
    stored_form,
    summed,
)
from holdfast.operators.aggregate.functions.sums import CountFold, ExactSumFold, SumFold
from holdfast.operators.aggregate.functions.variance import ExactVarianceFold, divided, spread
from holdfast.operators.columns import HASH, TIMES, WEIGHT
from holdfast.operators.join.matching import Entries, multiplied
from tests.helpers.effort import examples
from tests.helpers.harness import Harness

KEYS = pa.schema([("k", pa.int64())])
LONGS = [-(2**63), 2**63 - 1, -1, 0, 1, 2**32, -(2**32) - 1]
SUMS = st.one_of(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(-1_000, 1_000))
COUNTS = st.sampled_from([0, 1, 2, 3, 7, 8, 64, 10_000, 2**31 + 1, 2**62])
WEIGHTS = st.one_of(st.sampled_from([1, -1, 2, -3]), st.sampled_from([2**63 - 1, -(2**63), 2**40]))
DOUBLES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([5e-324, -5e-324, 1.7976931348623157e308, -1.7976931348623157e308, 0.0, -0.0]),
    st.integers(-100, 100).map(float),
)


def nearest(value: Fraction) -> float:
    """The double nearest to a fraction; beyond all of them, infinity."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def units_off(found: float, exact: Fraction) -> float:
    """How many units in the last place a double is off."""
    wanted = nearest(exact)
    if found == wanted:
        return 0.0
    if math.isinf(found) or math.isinf(wanted):
        return math.inf
    return float(abs(Fraction(found) - exact) / Fraction(math.ulp(wanted)))


def rows_of(changes: list[tuple], kind: pa.DataType) -> pa.RecordBatch:
    """(key, value, weight) as the JVM would prepare them."""
    keys = np.array([c[0] for c in changes], np.int64)
    hashes = (keys.astype(np.uint64) % 3) << np.uint64(61)
    present = [0 if c[1] is None else c[2] for c in changes]
    return pa.record_batch(
        {
            HASH: pa.array(hashes.view(np.int64)),
            "k": pa.array(keys),
            "x": pa.array([c[1] for c in changes], kind),
            "n": pa.array(present, pa.int64()),
            WEIGHT: pa.array([c[2] for c in changes], pa.int64()),
        }
    )


def beside_a_tie(little: float) -> list[list[tuple[int, float, int]]]:
    """Half a unit more than a power of two: `little` decides where the sum is rounded to."""
    return [[(0, 2.0**100, 1), (0, 2.0**47, 1), (0, little, 1), (1, -(2.0**100), 1)]]


@examples(150)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), DOUBLES, WEIGHTS), max_size=8), min_size=1, max_size=4
    )
)
@example(beside_a_tie(2.0**36))
@example(beside_a_tie(2.0**25))
@example(beside_a_tie(2.0**-200))
@example(beside_a_tie(-(2.0**-200)))
def test_a_sum_is_the_double_nearest_to_the_exact_sum(epochs) -> None:
    """Sums, and spreads within four units, of any doubles with any weights, over any epochs."""
    sums = squares = pa.array([[]] * 3, STORED)
    there = np.ones(3, np.bool_)
    model: list[list[tuple[Fraction, int]]] = [[], [], []]
    for rows in epochs:
        numbers = np.array([r[0] for r in rows], np.int64)
        weights = np.array([r[2] for r in rows], np.int64)
        parts = parts_of(np.array([r[1] for r in rows], np.float64))
        for group, value, weight in rows:
            model[group].append((Fraction(value), weight))
        one = summed(sums, there, [parts], numbers, weights)
        two = summed(squares, there, squares_of(parts), numbers, weights)
        sums, squares = stored_form(one), stored_form(two)
        shown = rounded(one).doubles()
        counts = [sum(w for _, w in group) for group in model]
        usable = [0 < n < 2**53 for n in counts]
        n = np.array([c if ok else 0 for c, ok in zip(counts, usable, strict=True)], np.int64)
        both = divided(spread(n, one, two), n.astype(np.float64) * n, root=False)
        for group in range(3):
            first = sum((v * w for v, w in model[group]), Fraction(0))
            second = sum((v * v * w for v, w in model[group]), Fraction(0))
            assert shown[group] == nearest(first)
            exact = counts[group] * second - first * first
            if usable[group] and exact >= 0:
                assert units_off(float(both[group]), exact / counts[group] ** 2) <= 4


@given(st.lists(DOUBLES, max_size=6), st.permutations(range(6)))
@examples(60)
def test_what_is_stored_of_a_sum_does_not_depend_on_how_it_came_about(values, order) -> None:
    """One sum has one stored form, and what was retracted leaves nothing behind."""
    empty = pa.array([[]], STORED)
    there = np.ones(1, np.bool_)

    def add(stored, numbers, weight):
        parts = parts_of(np.array(numbers, np.float64))
        zeros, weights = np.zeros(len(numbers), np.int64), np.full(len(numbers), weight, np.int64)
        return stored_form(summed(stored, there, [parts], zeros, weights))

    together = add(empty, values, 1)
    one_by_one = empty
    for place in order:
        one_by_one = add(one_by_one, values[place : place + 1], 1)
    assert one_by_one == together
    assert add(together, values, -1).to_pylist() == [[]]


def test_numbers_whose_highest_bit_is_that_of_a_limb_keep_their_sign() -> None:
    """Every power of two, and its negative, is loaded as it was stored."""
    powers = [sign * math.ldexp(1.0, n) for n in range(-1074, 1024) for sign in (1, -1)]
    numbers, ones = np.arange(len(powers)), np.ones(len(powers), np.int64)
    there, empty = np.ones(len(powers), np.bool_), pa.array([[]] * len(powers), STORED)
    parts = parts_of(np.array(powers))
    stored = stored_form(summed(empty, there, [parts], numbers, ones))
    again = summed(stored, there, [parts], numbers, 0 * ones)
    assert rounded(again).doubles().tolist() == powers
    assert stored_form(again) == stored


def test_an_outlier_that_was_retracted_is_forgotten(monkeypatch) -> None:
    """Sums, means and deviations, also beyond all doubles, NaN and infinite, come back."""
    monkeypatch.setattr(exact, "BLOCK", 2)  # groups of one batch in several blocks
    folds = (
        ExactSumFold("s", pa.float64(), ("x",)),
        ExactSumFold("a", pa.float64(), ("x",), mean=True),
        ExactVarianceFold("d", pa.float64(), ("x",)),
    )
    harness = Harness(AggregateTask("t", KEYS, folds, changes=True))
    base = [(k, x, 1) for k in range(5) for x in (1.0, 2.0, 3.0, 4.0)]
    odd = [
        (0, 1e17, 1),
        (1, 1.7e308, 1),
        (1, 1.7e308, 1),
        (2, math.nan, 1),
        (3, math.inf, 1),
        (3, -math.inf, 1),
        (4, -1e15, 1),
    ]
    first = last(harness.step(rows_of([*base, *odd], pa.float64())))
    assert [repr(first[k]["s"]) for k in range(5)] == [
        "1.0000000000000002e+17",
        "inf",
        "nan",
        "nan",
        "-999999999999990.0",
    ]
    assert all(math.isnan(first[k]["d"]) for k in (2, 3))
    seen = {
        row["k"]: row
        for row in harness.step(
            rows_of([(k, x, -w) for k, x, w in odd], pa.float64())
        ).changes.to_pylist()
        if row[WEIGHT] == 1
    }
    assert sorted(seen) == [0, 1, 2, 3, 4]
    for row in seen.values():
        assert (row["s"], row["a"]) == (10.0, 2.5)
        assert row["d"] == math.sqrt(5 / 3)


def test_a_mean_is_among_the_doubles_where_its_sum_is_not() -> None:
    """The sum of two large doubles is infinite, their mean is not."""
    folds = (
        ExactSumFold("s", pa.float64(), ("x",)),
        ExactSumFold("a", pa.float64(), ("x",), mean=True),
    )
    found = Harness(AggregateTask("t", KEYS, folds, changes=True)).step(
        rows_of([(0, 1.7e308, 2)], pa.float64())
    )
    assert [(r["s"], r["a"]) for r in found.changes.to_pylist()] == [(math.inf, 1.7e308)]


def last(result) -> dict:
    return {row["k"]: row for row in result.changes.to_pylist() if row[WEIGHT] == 1}


@examples(60)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 1), st.sampled_from(LONGS), WEIGHTS), max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_sums_of_integers_are_exact_or_refused(epochs) -> None:
    """Extremes times extreme weights: the exact sum, or an error where a long cannot hold it."""
    work = AggregateTask(
        "t", KEYS, (SumFold("s", pa.int64(), ("x", "n"), weighted=True),), changes=True
    )
    harness = Harness(work)
    totals, counts, shown = {}, {}, {}
    for rows in epochs:
        for key, value, weight in rows:
            totals[key] = totals.get(key, 0) + value * weight
            counts[key] = counts.get(key, 0) + weight
        numbers = [*totals.values(), *counts.values()]
        if any(not -(2**63) <= n < 2**63 for n in numbers):
            with pytest.raises(InvalidInputError) as caught:
                harness.step(rows_of(rows, pa.int64()))
            assert caught.value.kind == "sum_overflow"
            return
        if not rows:
            continue
        for row in harness.step(rows_of(rows, pa.int64())).changes.to_pylist():
            shown.pop(row["k"], None) if row[WEIGHT] == -1 else shown.update({row["k"]: row["s"]})
        assert shown == {k: totals[k] for k, n in counts.items() if n > 0}


@pytest.mark.parametrize(
    ("precision", "scale"),
    [(p, s) for p in (1, 9, 18, 19, 20, 28, 29, 38) for s in (0, 1, 17, 37, 38) if s <= p],
)
def test_sums_of_decimals_are_exact_at_every_precision(precision, scale) -> None:
    """The largest decimals times heavy weights, and back; a sum of too many digits is an error."""
    kind = pa.decimal128(precision, scale)
    wide = pa.decimal128(min(38, precision + 10), scale)
    means = pa.decimal128(min(38, precision + 4), min(38, scale + 4))
    folds = (
        SumFold("s", wide, ("x", "n"), weighted=True),
        SumFold("a", means, ("x", "n"), weighted=True, mean=True, kept=wide),
    )
    work = AggregateTask("t", KEYS, folds, changes=True)
    harness = Harness(work)
    big = Decimal((0, (9,) * precision, -scale))
    small = Decimal((1, (1,), -scale))
    if precision - scale > means.precision - means.scale:  # a mean of its own size does not fit
        with pytest.raises(InvalidInputError) as caught:
            Harness(work).step(rows_of([(0, big, 1)], kind))
        assert caught.value.kind == "sum_overflow"
        big = Decimal((0, (9,) * (means.precision - 4), -scale))
    harness.step(rows_of([(0, big, 1), (0, small, 7), (1, None, 1)], kind))
    heavy = [(0, big, 2**62), (0, big, -(2**62) - 1), (0, small, -5), (1, small, 3)]
    found = last(harness.step(rows_of(heavy, kind)))
    assert [found[k]["s"] for k in (0, 1)] == [small * 2, small * 3]
    assert [found[k]["a"] for k in (0, 1)] == [small, small]
    with pytest.raises(InvalidInputError) as caught:
        harness.step(
            rows_of([(0, big, 2**62)], kind)
            if precision > 10
            else rows_of([(0, big, 2**62)] * 4, kind)
        )
    assert caught.value.kind == "sum_overflow"


@given(st.lists(st.tuples(SUMS, COUNTS), min_size=1), st.integers(0, 38))
@examples(60)
def test_means_of_decimals_are_exact_means_rounded_half_up(pairs, scale) -> None:
    """Sums of any size and scale over any count, ties of both signs among them."""
    wide, means = pa.decimal128(38, scale), pa.decimal128(38, min(38, scale + 4))
    fold = SumFold("a", means, ("x", "n"), mean=True, kept=wide)
    exact_means = [(Fraction(units, 10**scale) / n if n else None) for units, n in pairs]
    column = pa.array([_at(units, scale) if n else None for units, n in pairs], wide)
    counts = np.array([n for _, n in pairs])
    wanted = [None if mean is None else _half_up(mean, means.scale) for mean in exact_means]
    if any(abs(units) >= 10**38 for units in wanted if units is not None):
        with pytest.raises(InvalidInputError) as caught:
            fold._means(column, counts)
        assert caught.value.kind == "sum_overflow"
        return
    found = fold._means(column, counts).to_pylist()
    assert found == [None if units is None else _at(units, means.scale) for units in wanted]


def _at(units: int, scale: int) -> Decimal:
    return Decimal((units < 0, tuple(map(int, str(abs(units)))), -scale))


def _half_up(number: Fraction, scale: int) -> int:
    units = int(abs(number) * 10**scale + Fraction(1, 2))
    return -units if number < 0 else units


@examples(40)
@given(st.lists(st.tuples(st.lists(st.sampled_from(LONGS), min_size=1), WEIGHTS), min_size=1))
def test_halves_that_the_jvm_has_summed_give_the_same_sum(parts) -> None:
    """Rows of one weight as one row: upper and lower bits, and how many rows it was made of."""
    total = sum(sum(values) * weight for values, weight in parts)
    count = sum(len(values) * weight for values, weight in parts)
    heavy = sum(abs(len(values) * weight) for values, weight in parts) >= 2**63
    if heavy or count <= 0 or not -(2**63) <= total < 2**63:
        return
    batch = pa.record_batch(
        {
            HASH: pa.array([1] * len(parts), pa.int64()),
            "k": pa.array([0] * len(parts), pa.int64()),
            "x_hi": pa.array([sum(v >> 32 for v in values) for values, _ in parts], pa.int64()),
            "x_lo": pa.array(
                [sum(v & 0xFFFFFFFF for v in values) for values, _ in parts], pa.int64()
            ),
            "n": pa.array([len(values) * weight for values, weight in parts], pa.int64()),
            WEIGHT: pa.array([weight for _, weight in parts], pa.int64()),
            TIMES: pa.array([len(values) for values, _ in parts], pa.int64()),
        }
    )
    folds = (SumFold("s", pa.int64(), ("x", "n"), weighted=True), CountFold("c", pa.int64()))
    found = last(Harness(AggregateTask("t", KEYS, folds, changes=True)).step(batch))
    assert (found[0]["s"], found[0]["c"]) == (total, count)


def test_a_count_that_leaves_64_bits_is_an_error() -> None:
    """Weights that a long cannot hold together are refused, not wrapped."""
    harness = Harness(AggregateTask("t", KEYS, (CountFold("n", pa.int64()),), changes=True))
    harness.step(rows_of([(0, 1, 2**63 - 1)], pa.int64()))
    with pytest.raises(InvalidInputError) as caught:
        harness.step(rows_of([(0, 1, 1)], pa.int64()))
    assert caught.value.kind == "sum_overflow"


def test_a_row_without_a_weight_is_an_error() -> None:
    """A null weight is refused before any group is touched."""
    harness = Harness(AggregateTask("t", KEYS, (CountFold("n", pa.int64()),), changes=True))
    with pytest.raises(InvalidInputError) as caught:
        harness.step(rows_of([(0, 1, 1), (0, 1, None)], pa.int64()))
    assert caught.value.kind == "null_weight"


def test_pairs_that_are_there_more_often_than_a_long_can_say_are_refused() -> None:
    """Weights of both sides are multiplied exactly, or not at all."""
    one = np.zeros(1, np.int64)
    for weight, fits in ((2**31, True), (2**32, False)):
        side = Entries(one, [], one, np.array([weight], np.int64))
        if fits:
            assert multiplied(side, side, one, one).tolist() == [weight * weight]
            continue
        with pytest.raises(InvalidInputError) as caught:
            multiplied(side, side, one, one)
        assert caught.value.kind == "weight_overflow"


@pytest.mark.parametrize("seed", range(4))
def test_a_mean_is_off_by_less_than_one_unit_in_the_last_place(seed):
    """The quotient of an exact sum takes along what rounding the sum would have lost."""
    rng = np.random.default_rng(seed)
    count = 20_000
    values = rng.integers(2**63, 2**64, count, dtype=np.uint64, endpoint=False)
    values[:4] = [2**64 - 1, 2**63, 2**64 - 2**10, 2**63 + 1]
    counts = np.concatenate([
        rng.integers(1, 1000, count // 2), rng.integers(1, 2**62, count - count // 2)
    ])  # fmt: skip
    value = values.astype(np.float64)
    reached = np.where(value < 2.0**64, value, 0.0).astype(np.uint64)
    rest = (values - reached).astype(np.int64).astype(np.float64)
    found = Scaled(value, np.zeros(count, np.int64), rest).over(counts)
    for number in range(0, count, 7):
        wanted = Fraction(int(values[number]), int(counts[number]))
        off = abs(Fraction(float(found[number])) - wanted) / Fraction(math.ulp(float(wanted)))
        assert off <= Fraction(51, 100), (values[number], counts[number], float(off))
