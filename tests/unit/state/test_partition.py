"""Traces against a dict and a Counter, through everything that can happen to them."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ids import RandomIds
from holdfast.state import RunCache, RunWriterOptions
from holdfast.storage.local.storage import LocalStorage
from tests.helpers.effort import SOAK, examples
from tests.helpers.state_world import KEYS, VALUES, World

STEPS = st.one_of(
    st.tuples(st.just("epoch"), st.integers(0, 25), st.booleans()),
    st.tuples(st.just("epoch"), st.integers(0, 25), st.booleans()),
    st.tuples(st.just("merge"), st.integers(0, 15), st.booleans()),
    st.tuples(st.just("late_merge"), st.integers(0, 15), st.integers(1, 2)),
    st.tuples(st.just("crash"), st.integers(0, 15), st.booleans()),
    st.tuples(st.just("rescale"), st.integers(1, 16), st.none()),
    st.tuples(st.just("restore"), st.integers(0, 1000), st.none()),
    st.tuples(st.just("bound"), st.integers(0, 12), st.none()),
    st.tuples(st.just("check"), st.integers(0, 1000), st.integers(0, 1000)),
)


class Doomed:
    """Storage whose writers fail after a number of writes, as a full disk or a kill does."""

    def __init__(self, storage, writes):
        self._storage, self._left = storage, writes

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def create(self, path):
        writer, outer = self._storage.create(path), self

        class Writer:
            def write(self, data):
                if outer._left == 0:
                    raise OSError(28, "disk full")
                outer._left -= 1
                return writer.write(data)

            def __getattr__(self, name):
                return getattr(writer, name)

        return Writer()


def crash(world, number, partitions, *, hard):
    """An attempt that dies half way: nothing of it may ever count."""
    rows = world.make_rows(10)
    before = sorted(entry.path for entry in world.storage.list(""))
    real, world.storage = world.storage, Doomed(world.storage, number % 9)
    try:
        runs, model, epoch = list(world.runs), world.model.copy(), world.epoch
        if hard:
            world.merge(number % partitions, partitions, full=True)
        else:
            world.step(rows, partitions)
    except OSError:
        pass
    finally:
        world.storage = real
        world.runs, world.model, world.epoch = runs, model, epoch + 1
    if hard:
        left = [e.path for e in world.storage.list("") if e.path not in before]
        assert len(left) <= 1  # a whole run that nobody lists, or nothing


def act(world, step, partitions):
    name, first, second = step
    if name == "epoch":
        world.step(world.make_rows(first), partitions, retry=second)
    elif name == "merge":
        world.adopt(world.merge(first % partitions, partitions, full=second))
    elif name == "late_merge":
        merged = world.merge(first % partitions, partitions)
        for _ in range(second):
            world.step(world.make_rows(6), partitions)
        world.adopt(merged)
    elif name == "crash":
        crash(world, first, partitions, hard=second)
    elif name == "restore" and world.history:
        world.restore(world.history[first % len(world.history)])
    elif name == "bound" and world.timed:
        world.raise_bound(first)
    elif name == "check" and world.history:
        world.check_whole()
        size = len(world.history)
        world.check_diff(world.history[first % size], world.history[second % size])
    return first if name == "rescale" else partitions


def play(world, steps):
    partitions = 1
    for step in steps:
        partitions = act(world, step, partitions)
    world.step(world.make_rows(20), partitions)
    world.check_whole()
    world.check_diff(world.history[0], world.history[-1])


SERIES = {
    "steps": st.lists(STEPS, min_size=3, max_size=14),
    "seed": st.integers(0, 2**32),
    "keys": st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3),
    "value": st.sampled_from(sorted(VALUES)),
    "timed": st.booleans(),
    "compression": st.sampled_from([None, None, "lz4", "zstd"]),
}


@pytest.mark.parametrize("mode", ["full", "cut", "low"])
@pytest.mark.parametrize("kind", ["latest", "bag"])
def test_a_trace_is_what_its_model_says(kind, mode):
    """Through epochs, merges, crashes, rescales and restores a trace equals a dict or Counter."""

    @examples(20)
    @given(**SERIES)
    def run(steps, seed, keys, value, timed, compression):
        options = RunWriterOptions(rows_max=7, compression=compression)
        play(World(kind, keys, value, mode, seed, timed, options=options), steps)

    run()


@pytest.mark.parametrize("key", sorted(KEYS))
def test_every_key_type_in_both_kinds(key):
    """Each key type alone, with collisions everywhere, gives the model's answers."""
    for kind in ("latest", "bag"):
        world = World(kind, [key], "list", "cut", seed=7)
        for epoch in range(6):
            world.step(world.make_rows(20), 1 + epoch % 3)
            for partition in range(3 if epoch >= 2 else 0):
                world.adopt(world.merge(partition, 3, full=epoch == 5))
            world.check_whole()
        world.check_whole()
        world.check_diff(world.history[2], world.history[-1])


@pytest.mark.parametrize("kind", ["latest", "bag"])
def test_local_files_and_cached_remote_files_give_the_same(kind, tmp_path):
    """Memory-mapped files, and a small cache in front of remote ones, answer like the model."""

    @examples(6)
    @given(**SERIES)
    def run(steps, seed, keys, value, timed, compression):
        options = RunWriterOptions(rows_max=7, compression=compression)
        name = RandomIds().token()
        local = LocalStorage(tmp_path / name)
        play(World(kind, keys, value, "cut", seed, timed, storage=local, options=options), steps)
        cache = RunCache(tmp_path / f"{name}-cache", bytes_max=20_000, ids=RandomIds())
        play(World(kind, keys, value, "cut", seed, timed, options=options, cache=cache), steps)
        gc.collect()  # what is mapped stays, and nobody maps anything any more
        cache._evict(cache.bytes_max)
        assert cache.usage_bytes() <= 20_000

    run()


COUNTS = range(1, 17) if SOAK else (1, 2, 3, 7, 16)


def test_any_rescale_between_1_and_16_reads_the_same_and_rewrites_nothing():
    """Every pair of partition counts 1..16 sees the same state, and opening writes nothing."""
    for kind in ("latest", "bag"):
        world = World(kind, ["int64", "string"], "int64", "full", seed=3)
        for partitions in COUNTS:
            world.step(world.make_rows(40), partitions)
            stored = world.storage.usage_bytes()
            for other in COUNTS:
                for partition in range(other):
                    world.open(partition, other).close()
            world.check_whole()
            assert world.storage.usage_bytes() == stored
