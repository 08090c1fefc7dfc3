"""The parts that have one right answer each: search, order, comparison, ranges, small state."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptionError, IncompatibleError, InvalidInputError
from holdfast.state import (
    HASH,
    WEIGHT,
    SmallState,
    TraceSchema,
    partition_range,
    partition_table,
    vnodes_of,
)
from holdfast.state.arrow import interpolation_search as search_module
from holdfast.state.arrow.batches import _pair_order, group_rows, hash_order, number_order
from holdfast.state.arrow.row_equality import encode, normalise, row_codes, rows_equal
from holdfast.state.partition import first_hash_sql, partition_of, partition_sql, vnode_of
from tests.helpers.effort import examples
from tests.helpers.state_world import KEYS, canon

UINT64 = st.integers(0, 2**64 - 1)


@examples(60)
@given(st.lists(UINT64, min_size=1, max_size=200), st.lists(UINT64, max_size=60), st.data())
def test_lower_bound_is_searchsorted_for_any_distribution(values, probes, data):
    """Interpolation gives numpy's answer on uniform, clustered and constant columns alike."""
    shape = data.draw(st.sampled_from(["any", "clustered", "constant"]))
    hashes = np.sort(np.array(values, np.uint64))
    if shape == "clustered":
        hashes = np.sort(hashes % np.uint64(50) + np.uint64(2**63))
    if shape == "constant":
        hashes[:] = hashes[0]
    asked = np.sort(np.array([*probes, *hashes[:5].tolist(), 0, 2**64 - 1], np.uint64))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ROWS_MIN", "PROBES_MIN", "SPARSITY"):
            patch.setattr(search_module, f"INTERPOLATE_{name}", 0)
        found = search_module.lower_bound(hashes, asked)
    assert found.tolist() == np.searchsorted(hashes, asked).tolist()


def test_lower_bound_on_a_large_uniform_column():
    """A column large enough to be interpolated gives numpy's answer."""
    random = np.random.default_rng(1)
    hashes = np.sort(random.integers(0, 2**64, 1 << 18, np.uint64, endpoint=False))
    probes = np.sort(np.concatenate([hashes[::97], random.integers(0, 2**64, 2000, np.uint64)]))
    assert np.array_equal(
        search_module.lower_bound(hashes, probes), np.searchsorted(hashes, probes)
    )


@examples(60)
@given(
    st.lists(st.one_of(UINT64, st.integers(0, 40), st.integers(2**64 - 5, 2**64 - 1)), max_size=120)
)
def test_hash_order_is_the_stable_order(values):
    """The packed sort equals Python's stable sort, also where only low bits differ."""
    order = hash_order(np.array(values, np.uint64))
    assert order.tolist() == sorted(range(len(values)), key=values.__getitem__)


@examples(60)
@given(st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**63 - 1)), max_size=80), st.data())
def test_orders_of_numbers_and_pairs_are_stable(numbers, data):
    """Packed or not, one number or two, the order is that of Python's stable sort."""
    array = np.array(numbers, np.int64)
    assert number_order(array).tolist() == sorted(range(len(array)), key=numbers.__getitem__)
    if numbers:
        size = len(numbers)
        major = data.draw(st.lists(st.integers(0, 2**40), min_size=size, max_size=size))
        got = _pair_order(np.array(major, np.int64), array).tolist()
        assert got == sorted(range(size), key=lambda i: (major[i], numbers[i]))


@pytest.mark.parametrize("key", sorted(KEYS))
def test_equality_codes_and_encoding_agree_with_python(key):
    """For every type: rows are equal, coded equal and encoded equal exactly when the model says so."""
    import random

    kind, make = KEYS[key]
    rng = random.Random(3)
    values = [make(rng) for _ in range(60)]
    array = pa.array(values, kind)
    if pa.types.is_dictionary(kind):
        array = array.cast(kind.value_type)
    array = pa.concat_arrays([array, array])[7:107]  # a slice: offsets must be honoured
    values = (values + values)[7:107]
    array = normalise(array)
    left, right = np.divmod(np.arange(100 * 100), 100)
    same = rows_equal([array.take(pa.array(left))], [array.take(pa.array(right))])
    expected = [canon(values[a]) == canon(values[b]) for a, b in zip(left, right, strict=True)]
    assert same.tolist() == expected
    codes = row_codes([array])
    assert (codes[left] == codes[right]).tolist() == expected
    raw = encode(array).to_pylist()
    assert [raw[a] == raw[b] for a, b in zip(left, right, strict=True)] == expected


def test_every_nan_is_one_and_negative_zero_is_zero():
    """Normalising leaves one NaN pattern and no negative zero, at any depth."""
    nans = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    flat = normalise(pa.array([*nans, -0.0, 0.0, 1.0, None], from_pandas=False))
    bits = np.frombuffer(flat.buffers()[1], np.uint64)[:5]
    assert bits[0] == bits[1]
    assert bits[2] == bits[3] == 0
    nested = normalise(pa.array([[{"a": -0.0}], None, []]))
    assert math.copysign(1, nested.to_pylist()[0][0]["a"]) == 1
    assert nested.to_pylist()[1:] == [None, []]


@examples(80)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_groups_are_those_of_a_dict(rows):
    """Rows group by hash and identity, in hash order, the oldest of a group first."""
    hashes = np.array([h for h, _ in rows], np.uint64)
    groups = group_rows(hashes, [pa.array([k for _, k in rows], pa.int64())])
    expected = {}
    for number, row in enumerate(rows):
        expected.setdefault(row, []).append(number)
    got = [groups.order[a:b].tolist() for a, b in zip(groups.starts, groups.ends, strict=True)]
    assert sorted(got) == sorted(expected.values())
    assert [rows[g[0]][0] for g in got] == sorted(rows[g[0]][0] for g in got)


def test_partitions_cover_every_vnode_once_for_every_count():
    """For 1 to 256 partitions: contiguous, complete, without overlap, and the table agrees."""
    for partitions in range(1, 257):
        covered = []
        for partition in range(partitions):
            vnodes = partition_range(partition, partitions)
            covered += range(vnodes.low, vnodes.high)
            assert set(partition_table(partitions)[vnodes.low : vnodes.high]) == {partition}
        assert covered == list(range(256))
    hashes = np.array([0, 2**56 - 1, 2**56, 2**63, 2**64 - 1], np.uint64)
    assert vnodes_of(hashes).tolist() == [0, 0, 1, 128, 255]
    assert vnodes_of(hashes.view(np.int64)).tolist() == [0, 0, 1, 128, 255]
    assert [vnode_of(int(value)) for value in hashes] == [0, 0, 1, 128, 255]
    assert [vnode_of(int(value)) for value in hashes.view(np.int64)] == [0, 0, 1, 128, 255]


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 100, 256])
def test_the_sql_of_partitions_says_what_the_functions_say(partitions):
    """The texts that Spark evaluates, evaluated as integers, agree with `partition_of`."""
    names = {
        "shiftrightunsigned": lambda value, bits: value >> bits,
        "shiftleft": lambda value, bits: value << bits,
    }
    text = re.sub(r"^cast\((.*) AS int\)$", r"\1", partition_sql("h", partitions))
    where = text.replace(" div ", " // ")
    first = first_hash_sql("id", partitions).replace(" div ", " // ")
    for vnode in range(256):
        assert eval(where, {**names, "h": vnode << 56}) == partition_of(vnode, partitions)
    for partition in range(partitions):
        value = eval(first, {**names, "id": partition})
        assert vnode_of(value) == partition_range(partition, partitions).low


@pytest.mark.parametrize("partitions", [0, -1, 257])
def test_a_number_of_partitions_that_cannot_be_is_refused(partitions):
    """Only 1 to 256 partitions exist."""
    with pytest.raises(InvalidInputError):
        partition_range(0, partitions)


def test_bad_schemas_and_rows_are_refused_by_name():
    """Every way to give unusable columns has a typed error that names the column."""
    key = pa.schema([("k", pa.int64())])
    value = pa.schema([("v", pa.int64())])
    for keys, values, time, word in (
        (pa.schema([]), value, None, "key column"),
        (key, pa.schema([("k", pa.int8())]), None, "twice=k"),
        (key, pa.schema([("__hf_x", pa.int8())]), None, "__hf_x"),
        (key, value, "v", "event-time"),
        (key, value, "nope", "nope"),
        (key, pa.schema([("u", pa.dense_union([pa.field("a", pa.int8())]))]), None, "union"),
    ):
        with pytest.raises(InvalidInputError, match=word):
            TraceSchema.latest(keys, values, time_column=time)
    schema = TraceSchema.bag(key, value)
    good = {HASH: pa.array([1], pa.int64()), "k": [1], "v": [2]}
    assert schema.rows_of(pa.table(good)).num_rows == 1
    for change, word in (
        ({HASH: pa.array([None], pa.int64())}, HASH),
        ({HASH: pa.array(["x"])}, HASH),
        ({"k": pa.array(["x"])}, "k"),
        ({WEIGHT: pa.array([None], pa.int64())}, WEIGHT),
        ({WEIGHT: pa.array([1.5])}, WEIGHT),
    ):
        with pytest.raises(InvalidInputError, match=word):
            schema.rows_of(pa.table({**good, **change}))
    with pytest.raises(InvalidInputError, match="missing"):
        schema.rows_of(pa.table({HASH: good[HASH], "k": [1]}))
    with pytest.raises(InvalidInputError, match="Arrow"):
        schema.rows_of([1, 2])


class Window(msgspec.Struct):
    """A small state of the second version."""

    watermark_us: int
    late: int = 0
    sketch: bytes = b""


def test_small_state_comes_back_and_older_versions_are_upgraded():
    """Typed small state round-trips; version 1 is upgraded; newer, other and damaged are refused."""
    old = SmallState(msgspec.defstruct("Old", [("mark", int)]), name="window")
    new = SmallState(
        Window, name="window", version=2, upgrades={1: lambda f: {"watermark_us": f["mark"]}}
    )
    value = Window(5, 2, b"\0\xff")
    assert new.decode(new.encode(value), operator="w") == value
    assert new.encode(value) == new.encode(Window(5, 2, b"\0\xff"))
    first = old.encode(msgspec.defstruct("Old", [("mark", int)])(7))
    assert new.decode(first, operator="w") == Window(7)
    with pytest.raises(IncompatibleError, match="operator=w"):
        old.decode(new.encode(value), operator="w")
    with pytest.raises(IncompatibleError):
        SmallState(Window, name="other").decode(first, operator="w")
    data = new.encode(value)
    for length in range(len(data)):
        with pytest.raises((CorruptionError, IncompatibleError), match="operator=w"):
            new.decode(data[:length], operator="w")
    with pytest.raises(InvalidInputError, match="upgrades"):
        SmallState(Window, name="window", version=3)


def test_state_never_imports_spark():
    """Importing the package loads neither pyspark nor pandas."""
    code = (
        "import sys, holdfast.state; print([m for m in ('pyspark', 'pandas') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
