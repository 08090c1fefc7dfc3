"""The unordered scan: what it is checked against, what it refuses, how far ahead it goes."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptionError, HoldfastError
from holdfast.state import (
    HASH,
    LatestPartition,
    RunSource,
    RunWriterOptions,
    TraceReader,
    TraceSchema,
)
from holdfast.state.arrow.numpy_views import bits, indices, numbers
from holdfast.state.arrow.prefetch import Prefetch
from holdfast.state.scan import meet, plan_windows
from holdfast.state.trace import views_of
from holdfast.storage.local.storage import LocalStorage
from tests.helpers.effort import every, examples
from tests.helpers.state_world import World


def scanned(world):
    """All rows by a scan of freshly opened runs."""
    source = RunSource(world.storage)
    reader = TraceReader(runs=tuple(world.runs), source=source, schema=world.schema)
    scan = reader.scan(window_rows=3)
    try:
        batches = list(scan.batches(reader.columns()))
    finally:
        scan.close()
    return sorted(str(row) for batch in batches for row in batch.to_pylist())


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("kind", ["latest", "bag"])
def test_a_flip_never_changes_what_a_scan_gives(kind, compression, tmp_path):
    """A flipped bit in any of several runs is a typed error that names the file, or no change."""
    options = RunWriterOptions(rows_max=4, compression=compression)
    world = World(kind, ["int64"], "text", seed=5, storage=LocalStorage(tmp_path), options=options)
    world.step(world.make_rows(12), 1)
    world.step(world.make_rows(8), 1)
    right = scanned(world)
    refused = total = 0
    for run in world.runs:
        file = world.storage.local_path(run.path)
        data = bytearray(file.read_bytes())
        for position in range(0, len(data), every(3, 19, 57)):
            data[position] ^= 1 << (position % 8)
            file.write_bytes(data)
            total += 1
            try:
                assert scanned(world) == right, position
            except HoldfastError as error:
                assert run.path in str(error)
                refused += 1
            data[position] ^= 1 << (position % 8)
        file.write_bytes(data)
    assert refused > total // 2
    assert scanned(world) == right


def test_a_damaged_value_is_found_before_a_row_is_seen(tmp_path):
    """A flip inside a value column is a checksum error of exactly that batch."""
    world = World("latest", ["int64"], "int64", seed=5, storage=LocalStorage(tmp_path))
    world.step(world.make_rows(40), 1)
    file = world.storage.local_path(world.runs[0].path)
    source = RunSource(world.storage)
    run = source.open(world.runs[0], world.schema)
    column = run.batch(1).column(3).buffers()[1]
    place = file.read_bytes().find(column.to_pybytes(), run._summary.batches[1].offset)
    data = bytearray(file.read_bytes())
    data[place] ^= 4
    file.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        scanned(world)
    assert caught.value.kind == "run_checksum_differs"
    assert caught.value.facts["batch"] == 1


HASHES = st.lists(st.integers(0, 60), max_size=40, unique=True).map(
    lambda some: np.array(sorted(some), np.uint64)
)


@examples(80)
@given(left=HASHES.filter(len), right=HASHES.filter(len))
def test_meet_is_the_intersection(left, right):
    """`meet` gives the rows of both sides where numpy's intersect1d finds the same value."""
    mine, theirs = meet(left, right)
    _, a, b = np.intersect1d(left, right, return_indices=True)
    assert mine.tolist() == a.tolist()
    assert theirs.tolist() == b.tolist()


@examples(60)
@given(values=st.lists(st.booleans(), max_size=40), start=st.integers(0, 17))
def test_columns_by_buffers_are_those_of_arrow(values, start):
    """Truth values and integers made and read by their buffers are what Arrow makes and reads."""
    mask = np.array(values, np.bool_)
    whole = np.array([*map(int, values)], np.int64) * -7
    assert bits(mask).equals(pa.array(mask, pa.bool_()))
    assert indices(whole).equals(pa.array(whole, pa.int64()))
    assert numbers(pa.array(mask, pa.bool_()).slice(start)).tolist() == values[start:]
    assert numbers(pa.array(whole).slice(start)).tolist() == whole[start:].tolist()


@pytest.mark.parametrize("rows_min", [1, 10, 1000])
@pytest.mark.parametrize("mode", ["full", "low"])
def test_windows_cover_every_hash_once_and_touch_no_rows(mode, rows_min):
    """Windows are disjoint, ascend, and cover the views; planning them reads no batch."""
    world = World("bag", ["int64", "string"], "int64", mode, seed=2)
    for partitions in (1, 3, 2):
        world.step(world.make_rows(60), partitions)
    reader = world.reader()
    from holdfast.state.partition import run_slices

    views = views_of(run_slices(reader.runs), RunSource(world.storage), world.schema, keep=False)
    windows = plan_windows(views, rows_min)
    assert windows[0][0] == min(view.low for view in views)
    assert windows[-1][1] == max(view.high for view in views)
    for (_, end), (begin, _) in itertools.pairwise(windows):
        assert begin == end + 1
    assert all(low <= high for low, high in windows)
    assert not any(view.run._kept for view in views)
    if rows_min == 1 and mode == "full":
        assert len(windows) > 5


def test_a_scan_of_many_keys_equals_a_dict(tmp_path):
    """Three big runs, where newer ones replace and delete, with rows that collide, are a dict."""
    from holdfast.ids import SeededIds
    from holdfast.state import DELETED, RunTarget

    schema = TraceSchema.latest(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))
    storage, ids, rng = LocalStorage(tmp_path), SeededIds(1), np.random.default_rng(4)
    runs, model = [], {}
    for epoch, size in enumerate((60_000, 20_000, 500)):
        keys = rng.choice(70_000, size, replace=False)
        values, gone = rng.integers(0, 9, size), rng.random(size) < 0.2
        # Keys k and k + 50,000 share a hash; inside one run only one of the two may be.
        lone = keys[~np.isin(keys - 50_000, keys)]
        take = np.isin(keys, lone)
        keys, values, gone = keys[take], values[take], gone[take]
        hashes = (keys % 50_000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        rows = pa.table({HASH: hashes, DELETED: gone, "k": keys, "v": values})
        target = RunTarget(
            checkpoint=ids.checkpoint_id(1), operator="op", partition=0, partitions=1,
            attempt=ids.token(), epoch=epoch,
        )  # fmt: skip
        opened = LatestPartition.open(runs, RunSource(storage), schema)
        options = RunWriterOptions(rows_max=5_000)
        runs.append(opened.apply(rows, storage, target, options=options))
        for key, value, dead in zip(keys.tolist(), values.tolist(), gone.tolist(), strict=True):
            model.pop(key, None)
            if not dead:
                model[key] = value
    source = RunSource(storage)
    assert all(source.open(run, schema).hashes_distinct for run in runs)  # the way in place
    reader = TraceReader(runs=tuple(runs), source=source, schema=schema)
    for window_rows in (1_000, 1 << 18):
        rows = pa.Table.from_batches(reader.scan(window_rows=window_rows).batches(["k", "v"]))
        assert rows.num_rows == len(model)
        assert dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True)) == model


# Working ahead


def test_results_come_in_order_and_a_failure_in_its_place():
    """Whoever finishes first, results are in order; what failed is raised where it belongs."""

    def work(number):
        time.sleep(0.002 * (number % 3))
        if number == 7:
            raise ValueError(number)
        return number

    seen = []
    with pytest.raises(ValueError, match="7"):
        for result in Prefetch(work, range(20), threads=3, ahead=5):
            seen.append(result)  # noqa: PERF402 - up to the failure
    assert seen == [*range(7)]


def test_nobody_runs_further_ahead_than_allowed_and_close_ends_all():
    """At most `ahead` tasks beyond what was taken are begun; leaving early ends the threads."""
    begun = []
    lock = threading.Lock()

    def work(number):
        with lock:
            begun.append(number)
        return number

    ahead = Prefetch(work, range(1000), threads=2, ahead=4)
    for taken, _ in enumerate(ahead, 1):
        time.sleep(0.001)
        assert len(begun) <= taken + 4
        if taken == 10:
            break
    ahead.close()
    assert not any(thread.is_alive() for thread in ahead._threads)
    assert len(begun) <= 14
