"""What has become due: the same as looking at every row of a model, at the cost of what is due."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.state import HASH, WEIGHT, LatestPartition, RunTarget, RunWriterOptions, TraceSchema
from holdfast.state.run_reader import RunFile
from tests.helpers.effort import examples
from tests.helpers.state_world import EPOCH, World, canon, micros

STEPS = st.one_of(
    st.tuples(st.just("epoch"), st.integers(0, 25)),
    st.tuples(st.just("epoch"), st.integers(0, 25)),
    st.tuples(st.just("merge"), st.integers(0, 15)),
    st.tuples(st.just("compact"), st.integers(0, 15)),
    st.tuples(st.just("rescale"), st.integers(1, 7)),
    st.tuples(st.just("bound"), st.integers(0, 12)),
)


def second(number):
    return micros(EPOCH) + number * 1_000_000


def expected(world, low, high):
    """All of the model that lies in the range, row by row."""
    if world.bound is not None:
        low = world.bound if low is None else max(low, world.bound)

    def inside(time):
        return time is not None and (low is None or micros(time) >= low) and micros(time) < high

    if world.kind == "latest":
        return Counter((key, value) for key, (value, time) in world.model.items() if inside(time))
    return Counter({(k, v): n for (k, v, t), n in world.model.items() if n and inside(t)})


def found(world, partitions, low, high):
    rows, width = Counter(), len(world.keys)
    for partition in range(partitions):
        with world.open(partition, partitions) as opened:
            batch = opened.due(low, high)
        hashes = batch.column(HASH).to_numpy()
        assert (np.diff(hashes.astype(object)) >= 0).all()
        assert all(opened.vnodes.hash_low <= h <= opened.vnodes.hash_high for h in hashes.tolist())
        for row in batch.drop_columns([HASH]).to_pylist():
            weight = row.pop(WEIGHT, 1)
            cells = list(row.values())
            key = (canon(cells[:width]), canon(cells[width:]))
            assert key not in rows
            rows[key] = weight
    return rows


@pytest.mark.parametrize("mode", ["full", "cut"])
@pytest.mark.parametrize("kind", ["latest", "bag"])
def test_due_rows_are_those_of_the_model(kind, mode):
    """Through epochs, merges, rescales and bounds, `due` gives the model's rows of the range."""

    @examples(40)
    @given(
        steps=st.lists(STEPS, min_size=2, max_size=10),
        ranges=st.lists(st.tuples(st.integers(-1, 13), st.integers(-1, 13)), min_size=1),
        seed=st.integers(0, 2**32),
        compression=st.sampled_from([None, "lz4"]),
    )
    def run(steps, ranges, seed, compression):
        options = RunWriterOptions(rows_max=7, compression=compression)
        world = World(kind, ["int8"], "int64", mode, seed, timed=True, options=options)
        partitions = 1
        for name, number in steps:
            if name == "epoch":
                world.step(world.make_rows(number), partitions)
            elif name in ("merge", "compact"):
                full = name == "compact"
                world.adopt(world.merge(number % partitions, partitions, full=full))
            elif name == "rescale":
                partitions = number
            else:
                world.raise_bound(number)
            for low, high in ranges:
                start = None if low < 0 else second(low)
                wanted = expected(world, start, second(high))
                assert found(world, partitions, start, second(high)) == wanted

    run()


def timed_run(count=1000):
    """A trace of one run, its row i due at second i."""
    world = World("latest", ["int64"], "int64", timed=True, options=RunWriterOptions(rows_max=100))
    at = pa.array([second(i) for i in range(count)], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    hashes = np.arange(count, dtype=np.uint64) << np.uint64(50)
    rows = pa.table(
        [pa.array(hashes), pa.array(range(count)), pa.array([1] * count, pa.int64()), at],
        names=[HASH, "k0", "v", "t"],
    )
    with world.open(0, 1) as opened:
        world.runs = [opened.apply(rows, world.storage, world.target(0, 1), options=world.options)]
    return world


def test_the_index_of_a_run_is_made_once(monkeypatch):
    """A run's times are sorted once however often `due` is asked, and rows are read when due."""
    world, made, read = timed_run(), [], []
    real_index, real_batch = RunFile._make_time_index, RunFile.batch
    monkeypatch.setattr(
        RunFile, "_make_time_index", lambda run: made.append(run) or real_index(run)
    )
    with world.open(0, 1) as opened:
        assert opened.due(None, second(1)).num_rows == 1
    monkeypatch.setattr(RunFile, "batch", lambda run, n: read.append(n) or real_batch(run, n))
    with world.open(0, 1) as opened:
        assert opened.due(second(250), second(252)).column("k0").to_pylist() == [250, 251]
    assert len(made) == 1
    assert set(read) <= {0, 2, 9}  # the batch of the rows, and those at the ends of the view


def test_runs_outside_of_the_question_are_not_touched(monkeypatch):
    """A run whose times lie before or after the range is not even indexed."""
    world = timed_run()
    monkeypatch.setattr(RunFile, "_make_time_index", lambda run: pytest.fail("indexed"))
    with world.open(0, 1) as opened:
        assert opened.due(None, second(0)).num_rows == 0
        assert opened.due(second(1000), second(2000)).num_rows == 0


def test_a_trace_without_times_has_nothing_due():
    """Asking a trace without an event-time column is a typed error."""
    world = World("latest", ["int64"], "int64")
    world.step(world.make_rows(3), 1)
    with world.open(0, 1) as opened, pytest.raises(InvalidInputError) as error:
        opened.due(None, 5)
    assert error.value.kind == "invalid_time_column"


def test_a_time_that_is_a_part_of_the_key():
    """With the time among the keys, a tombstone still hides what was due."""
    at = pa.timestamp("us", tz="UTC")
    schema = TraceSchema.latest(
        pa.schema([("k", pa.int64()), ("end", at)]), pa.schema([("n", pa.int64())]),
        time_column="end",
    )  # fmt: skip
    world = World("latest", ["int64"], "int64")
    runs = []
    for epoch, (value, deleted) in enumerate([(1, False), (None, True)]):
        target = RunTarget(
            checkpoint=world.ids.checkpoint_id(1), operator="op", partition=0, partitions=1,
            attempt=world.ids.token(), epoch=epoch,
        )  # fmt: skip
        columns = {
            HASH: pa.array([5, 9], pa.uint64()), "k": [1, 2], "end": pa.array([10, 20], at),
            "n": pa.array([value, 7], pa.int64()), "__hf_deleted": [deleted, False],
        }  # fmt: skip
        opened = LatestPartition.open(runs, world.source, schema)
        runs.append(opened.apply(pa.table(columns), world.storage, target))
        due = LatestPartition.open(runs, world.source, schema).due(None, 15)
        assert due.column("n").to_pylist() == ([] if deleted else [1])
