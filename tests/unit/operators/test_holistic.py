"""Percentiles, collections, first and last, own aggregates and sketches against a plain model."""

from __future__ import annotations

import base64
import math
import zlib
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptionError, InvalidInputError
from holdfast.operators.aggregate.execute import AggregateTask
from holdfast.operators.aggregate.functions import holistic, selection
from holdfast.operators.aggregate.functions.base import Batch
from holdfast.operators.aggregate.functions.holistic import (
    CollectFold,
    FirstFold,
    PercentileFold,
    UserFold,
)
from holdfast.operators.aggregate.functions.sketch import (
    Images,
    SketchFold,
    coupons_max,
    merged,
)
from holdfast.operators.base import group_by_key, group_numbers
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.sort_order import SortKey
from tests.helpers.effort import examples
from tests.helpers.harness import Harness

KEYS = pa.schema([("k", pa.string())])
ONE = pa.schema([("_v0", pa.float64())])
TWO = pa.schema([("_v0", pa.float64()), ("_v1", pa.int64())])


def spread(rows: pa.Table, count: int) -> pa.Array:
    """Largest minus smallest plus how many rows: an aggregate as a user would write it."""
    assert rows.column_names == ["group", "weight", "f", "x"]
    assert rows.column("group").to_pylist() == sorted(rows.column("group").to_pylist())
    done = rows.group_by("group").aggregate([("x", "max"), ("x", "min"), ("weight", "sum")])
    done = done.sort_by("group")
    assert done.num_rows == count
    width = pc.fill_null(pc.subtract(done.column("x_max"), done.column("x_min")), 0)
    return pc.add(width, done.column("weight_sum"))


def work_of(*, changes: bool) -> AggregateTask:
    def bag(name: str, *, always: bool = False) -> str | None:
        return f"t.{name}" if changes or always else None

    late = (SortKey("_v1", descending=True, nulls_first=False),)
    return AggregateTask(
        "t",
        KEYS,
        (
            PercentileFold("p", pa.list_(pa.float64()), ("f",), ONE, "t.f", (0.0, 0.3, 0.5, 1.0), several=True),
            PercentileFold("m", pa.float64(), ("f",), ONE, "t.f"),
            CollectFold("l", pa.list_(pa.float64()), ("f",), ONE, bag("f"), 4),
            CollectFold("s", pa.list_(pa.float64()), ("f",), ONE, bag("f"), 3, unique=True),
            FirstFold("a", pa.float64(), ("f", "x"), TWO, bag("fx"), (SortKey("_v1"),)),
            FirstFold("z", pa.float64(), ("f", "x"), TWO, bag("fx"), late),
            UserFold("u", pa.int64(), ("f", "x"), TWO, "t.fx2", spread, ("f", "x")),
        ),
        changes,
    )  # fmt: skip


def batch_of(changes: list[tuple], *, weights: bool) -> pa.RecordBatch:
    """(key, double, integer, weight)."""
    columns = {
        HASH: pa.array(
            np.array([(hash(c[0]) & 1) << 63 for c in changes], np.uint64).view(np.int64)
        ),
        "k": pa.array([c[0] for c in changes], pa.string()),
        "f": pa.array([math.nan if c[1] == "nan" else c[1] for c in changes], pa.float64()),
        "x": pa.array([c[2] for c in changes], pa.int64()),
    }
    if weights:
        columns[WEIGHT] = pa.array([c[3] for c in changes], pa.int64())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def place(f) -> tuple:
    return (0, 0.0) if f is None else (2, 0.0) if f == "nan" else (1, f)


def percentile(values: list, p: float):
    if not values:
        return None
    position = (len(values) - 1) * p
    low, high = math.floor(position), math.ceil(position)
    a, b = (math.nan if values[n] == "nan" else values[n] for n in (low, high))
    return a if low == high or a == b else a + (position - low) * (b - a)


def expected(live: Counter) -> dict:
    groups = defaultdict(list)
    for (key, f, x), n in live.items():
        groups[key] += [(f, x)] * n
    found = {}
    for key, rows in groups.items():
        if not rows:
            continue
        fs = sorted((f for f, _ in rows if f is not None), key=place)
        xs = [x for _, x in rows if x is not None]
        first = min(rows, key=lambda r: (r[1] is not None, r[1] or 0, place(r[0])))
        last = min(rows, key=lambda r: (r[1] is None, -(r[1] or 0), place(r[0])))
        found[key] = {
            "p": [percentile(fs, p) for p in (0.0, 0.3, 0.5, 1.0)] if fs else None,
            "m": percentile(fs, 0.5),
            "l": fs[:4],
            "s": sorted(set(fs), key=place)[:3],
            "a": first[0],
            "z": last[0],
            "u": (max(xs) - min(xs) if xs else 0) + len(rows),
        }
    return found


def text(value) -> str:
    """Comparable, NaN included."""
    if isinstance(value, list):
        return str([text(v) for v in value])
    return "nan" if isinstance(value, float) and math.isnan(value) else str(value)


def take_in(shown: dict, changes: pa.RecordBatch) -> None:
    rows = [
        {n: text(v) if n not in ("k", WEIGHT) else v for n, v in r.items()}
        for r in changes.to_pylist()
    ]
    for row in rows:
        if row.pop(WEIGHT) == -1:
            assert shown.pop(row.pop("k")) == row, "took back a row that was not there"
        else:
            assert row["k"] not in shown
            shown[row.pop("k")] = row


ROW = st.tuples(
    st.one_of(st.none(), st.sampled_from("ab")),
    st.sampled_from([None, "nan", 0.0, 1.0, -2.5, 8.0, math.inf]),
    st.one_of(st.none(), st.integers(-3, 3)),
)


@examples(35)
@given(st.data())
def test_gathered_aggregates_with_retractions_equal_a_model(data) -> None:
    """After every epoch of inserts and deletes, all of them equal what Python computes from the rows."""
    harness = Harness(work_of(changes=True))
    live: Counter = Counter()
    shown: dict = {}
    for _ in range(data.draw(st.integers(1, 5))):
        drawn = data.draw(st.lists(st.tuples(ROW, st.sampled_from([1, 1, 2])), max_size=8))
        changes = [(*row, w) for row, w in drawn]
        pool = live + Counter([c[:3] for c in changes])
        if pool:
            for row in data.draw(st.lists(st.sampled_from(sorted(pool, key=repr)), max_size=8)):
                if pool[row] > 0:
                    pool[row] -= 1
                    changes.append((*row, -1))
        for *row, weight in changes:
            live[tuple(row)] += weight
        live = +live
        take_in(shown, harness.step(batch_of(changes, weights=True)).changes)
        model = {k: {n: text(v) for n, v in row.items()} for k, row in expected(live).items()}
        assert shown == model


@examples(25)
@given(st.lists(st.lists(ROW, max_size=8), min_size=1, max_size=5))
def test_gathered_aggregates_of_growing_streams_equal_a_model(epochs) -> None:
    """Streams that only add rows give the same answers, and keep bags only for what needs them."""
    harness = Harness(work_of(changes=False))
    assert sorted(harness.work.traces) == ["t", "t.f", "t.fx2"]
    live: Counter = Counter()
    shown: dict = {}
    for rows in epochs:
        live.update(rows)
        take_in(shown, harness.step(batch_of(rows, weights=False)).changes)
        model = {k: {n: text(v) for n, v in row.items()} for k, row in expected(live).items()}
        assert shown == model


def user(function) -> AggregateTask:
    fold = UserFold("u", pa.int64(), ("f", "x"), TWO, "t.fx", function, ("f", "x"))
    return AggregateTask("t", KEYS, (fold,), changes=False)


@pytest.mark.parametrize(
    ("function", "kind", "says"),
    [
        (lambda rows, count: 1 / 0, "udaf_failed", "ZeroDivisionError"),
        (lambda rows, count: pa.array([1] * (count + 1)), "udaf_result", "2 values for 1 groups"),
        (lambda rows, count: ["a"] * count, "udaf_result", "cannot be read as int64"),
        (lambda rows, count: None, "udaf_result", "cannot be read as int64"),
    ],
)
def test_a_wrong_aggregate_of_the_user_names_column_and_key(function, kind, says) -> None:
    """Exceptions, wrong numbers of values and wrong types are told apart, with a sample key."""
    with pytest.raises(InvalidInputError) as caught:
        Harness(user(function)).step(batch_of([("a", 1.0, 1)], weights=False))
    assert caught.value.kind == kind
    assert says in str(caught.value)
    assert caught.value.facts["column"] == "u"
    assert caught.value.facts["sample_key"] == "k:'a'"


def hashed(values: list[int]) -> np.ndarray:
    """A good 64-bit hash of integers, as the JVM would compute."""
    x = np.array(values, np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x + np.uint64(0x9E3779B97F4A7C15)) if shift == 30 else x
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x.view(np.int64)


def sketch_batch(key: str, values: list[int], nulls: int = 0) -> pa.RecordBatch:
    hashes = pa.concat_arrays([pa.array(hashed(values)), pa.nulls(nulls, pa.int64())])
    size = len(hashes)
    return pa.RecordBatch.from_arrays(
        [pa.array([5] * size, pa.int64()), pa.array([key] * size), hashes], names=[HASH, "k", "h"]
    )


@pytest.mark.parametrize("lg_k", [8, 9, 12])
def test_estimates_are_near_the_truth_and_do_not_depend_on_how_values_came(lg_k) -> None:
    """In one epoch or in many, with repetitions and out of order: the same estimate, within 5 sigma."""
    work = AggregateTask("t", KEYS, (SketchFold("d", pa.int64(), ("h",), lg_k),), changes=False)
    rng = np.random.default_rng(3)
    for count in (1, 5, 8, 30, 60, 400, 3000, 40_000):
        values = list(range(count))
        once = Harness(work)
        whole = once.step(sketch_batch("a", values, nulls=3)).changes.to_pylist()[-1]["d"]
        parts = Harness(work)
        estimate = None
        for piece in np.array_split(rng.permutation(values + values[: count // 2]), 4):
            if len(piece):
                for row in parts.step(sketch_batch("a", piece.tolist())).changes.to_pylist():
                    estimate = row["d"] if row[WEIGHT] == 1 else estimate
        assert estimate == whole
        assert abs(whole - count) <= max(1, 5 * 1.04 / math.sqrt(1 << lg_k) * count)


def test_a_group_without_values_has_none_to_count() -> None:
    """Nulls do not count, and a group of nulls shows zero."""
    work = AggregateTask("t", KEYS, (SketchFold("d", pa.int64(), ("h",), 9),), changes=False)
    harness = Harness(work)
    assert harness.step(sketch_batch("a", [], nulls=2)).changes.to_pylist()[0]["d"] == 0
    assert harness.step(sketch_batch("a", [7], nulls=2)).changes.to_pylist()[1]["d"] == 1


STORED = {
    3: "c-muPWanT8!s4ZA?75r1a@>eM!T|s$as|l",
    20: "c-jG60Hgl{0S5>L2mlEb0002s%BT_JDu4#$Otb|E#x@EHET;r*vh@fKUtb_^0y+l}?S2K=Tf_*GPL%|6rDg~8vN#G"
    "=L+l3?5Sj<qD!&C-LYWD>NZkr`Jjf5fizx;7FCJ$",
    5000: "c-mc$!BNCe3`4_OlAQ$Z6hHx#z=8g2+UGqnc#=OqV@XfB-g=JD<2wG#_wU!w@oyw`IGjX1R@&lp^J+dGvZJ}i7"
    "YdfqZFf!03W8<Qa`9x6Qz-&Gr$*d^p-|rM1<C6tQVn#xpU5+(^@8F|kwy=8s>j03bQ&h5lp9vNiq_qOVa51yZv_^pkSVZ"
    "{66j6dA2~B)DlUE_&O8D1#s-u",
}
"""By number of values: a list, a set and registers that DataSketches 5.2 has merged and written."""


def stored_image(count: int) -> bytes:
    return zlib.decompress(base64.b85decode(STORED[count]))


def seen_values(count: int) -> np.ndarray:
    """The hashes that the stored images have seen."""
    return hashed((np.arange(count, dtype=np.uint64) + np.uint64(10**9)).tolist())


def sketch_of(hashes: np.ndarray, lg_k: int, before: bytes | None = None) -> tuple[bytes, float]:
    fold = SketchFold("d", pa.int64(), ("h",), lg_k)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([5] * len(hashes), pa.int64()), pa.array(["a"] * len(hashes)), pa.array(hashes)],
        names=[HASH, "k", "h"],
    )
    groups = group_by_key(batch, ["k"])[0]
    numbers = group_numbers(groups, len(hashes))
    old = {"d": pa.array([0]), "_d_sketch": pa.array([before], pa.binary())}
    found = np.array([before is not None])
    weights = np.ones(len(hashes), np.int64)
    after = fold.fold(Batch(batch, groups, numbers, weights, changes=False), old, found)
    return after["_d_sketch"][0].as_py(), after["d"][0].as_py()


@pytest.mark.parametrize("count", STORED)
def test_sketches_of_the_library_are_read_and_written_as_they_were(count) -> None:
    """Old state goes on: the same values give the same bytes, from nothing or on top of half."""
    image = stored_image(count)
    hashes = seen_values(count)
    fresh, estimate = sketch_of(hashes, 8)
    assert image[:8] == fresh[:8] and sorted(image) == sorted(fresh)
    again, same = sketch_of(hashes[: count // 2 + 1], 8, before=image)
    assert again == fresh
    assert same == estimate
    assert abs(estimate - count) <= 3 * 1.04 / math.sqrt(256) * count


def test_registers_do_not_depend_on_when_a_group_became_large() -> None:
    """Coupons turn into registers at one number of them, also when another epoch brings it."""
    for lg_k in (8, 12):
        many = coupons_max(lg_k)
        for count in (many - 1, many, many + 1):
            hashes = seen_values(count)
            whole, _ = sketch_of(hashes, lg_k)
            half, _ = sketch_of(hashes[: count // 2], lg_k)
            assert sketch_of(hashes[count // 2 :], lg_k, before=half)[0] == whole
            assert whole[7] == (10 if count > many else 9)


@pytest.mark.parametrize(
    "damage",
    [
        lambda image: image[:-1],
        lambda image: image[:3],
        lambda image: image[:3] + b"\x09" + image[4:],
        lambda image: image[:7] + b"\x02" + image[8:],
    ],
)
@pytest.mark.parametrize("count", STORED)
def test_a_sketch_that_is_none_is_refused(damage, count) -> None:
    """Cut short, of another size or in another form: a typed error, never a wrong number."""
    with pytest.raises(CorruptionError) as refused:
        sketch_of(seen_values(2), 8, before=damage(stored_image(count)))
    assert refused.value.kind == "sketch_unreadable"


def test_estimates_have_the_promised_deviation() -> None:
    """Over many groups at once, in every range of sizes, without a bias."""
    lg_k, groups = 9, 200
    bound = 1.04 / math.sqrt(1 << lg_k)
    none = Images.of(pa.nulls(groups, pa.binary()), lg_k)
    for count in (30, 60, 200, 1000, 5000):
        hashes = hashed(np.arange(groups * count, dtype=np.uint64).tolist()).view(np.uint64)
        rest = hashes >> np.uint64(26)
        zeros = (38 - np.frexp(rest.astype(np.float64))[1] + 1).astype(np.uint64)
        coupons = ((zeros << np.uint64(26)) | (hashes & np.uint64((1 << 26) - 1))).astype(np.uint32)
        _, estimates = merged(none, np.repeat(np.arange(groups), count), coupons, lg_k)
        errors = estimates / count - 1
        assert np.sqrt((errors**2).mean()) <= 1.15 * bound
        assert abs(errors.mean()) <= 4 * bound / math.sqrt(groups)


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1.5, -1.5, math.nan]),
)


@given(
    st.lists(st.lists(st.tuples(NUMBERS, st.integers(1, 3)), max_size=6), min_size=1, max_size=4)
)
def test_values_at_ranks_are_those_of_the_sorted_list(batches) -> None:
    """NaN is last, zeros are one, a value counts as often as it is there."""
    flat = [x for batch in batches for x, n in batch for _ in range(n)]
    if not flat:
        return
    want = np.sort(np.array(flat) + 0.0)
    arrays = [
        (np.array([x for x, _ in batch], np.float64), np.array([n for _, n in batch], np.int64))
        for batch in batches
    ]
    ranks = np.arange(len(flat))
    assert selection.total(lambda: arrays) == len(flat)
    np.testing.assert_array_equal(selection.at_ranks(lambda: arrays, ranks), want)


@given(st.data())
@examples(40)
def test_percentiles_of_heavy_groups_are_those_of_light_ones(data) -> None:
    """Counting values in passes gives what sorting all of them gives, also after retractions."""
    folds = (
        PercentileFold(
            "p", pa.list_(pa.float64()), ("f",), ONE, "t.f", (0.0, 0.3, 0.5, 1.0), several=True
        ),
        PercentileFold("m", pa.float64(), ("f",), ONE, "t.f"),
    )
    task = AggregateTask("t", KEYS, folds, changes=True)
    light, heavy = Harness(task), Harness(task)
    live: Counter = Counter()
    for _ in range(data.draw(st.integers(1, 5))):
        changes = [(*row, 1) for row in data.draw(st.lists(ROW, max_size=8))]
        pool = live + Counter([c[:3] for c in changes])
        gone = (
            data.draw(st.lists(st.sampled_from(sorted(pool, key=repr)), max_size=4)) if pool else []
        )
        for row in gone:
            if pool[row] > 0:
                pool[row] -= 1
                changes.append((*row, -1))
        live = +pool
        batch = batch_of(changes, weights=True)
        want = light.step(batch).changes.to_pylist()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(holistic, "GATHERED_ROWS_MAX", 2)
            got = heavy.step(batch).changes.to_pylist()
        assert repr(got) == repr(want)
