"""The catalog stays short whatever the caller does."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.checkpoint import read_store
from holdfast.errors import FencedError
from holdfast.storage import MemoryStorage
from holdfast.testing import CountingStorage, FaultyStorage
from holdfast.testing.faulty_storage import Fault
from tests.helpers.scenes import PIPELINE, SETTINGS, World, assert_verified

EVERY = msgspec.structs.replace(SETTINGS, base_every_min=8, retain=3)


def records(storage):
    return [*storage.list(f"{PIPELINE}/catalog")]


def commits(world, count):
    for _ in range(count):
        world.commit(sink=False)


def openings(world, count):
    for _ in range(count):
        world.open(clean_up=False)


def deletions(world, count):
    for _ in range(count):
        world.commit(sink=False)
        world.commit(sink=False)
        world.store.delete(world.store.list()[1].checkpoint)


def collections(world, count):
    for _ in range(count):
        world.commit(sink=False)
        world.store.gc()


@pytest.mark.parametrize("work", [commits, openings, deletions, collections])
def test_no_kind_of_work_lets_the_catalog_grow(work):
    """After a hundred times of anything there are no more records than twice the setting."""
    storage = MemoryStorage()
    world = World(storage, settings=EVERY)
    world.open()
    world.commit(sink=False)
    most = 0
    for _ in range(20):
        work(world, 5)
        most = max(most, len(records(storage)))
    assert most <= 2 * EVERY.base_every_min, most
    assert_verified(storage)
    fresh = World(storage, settings=EVERY)
    fresh.open()
    assert fresh.lineage() == world.lineage()


def test_a_compaction_costs_a_commit_little():
    """Two requests and the deletions for every eight commits."""
    storage = CountingStorage(MemoryStorage())
    world = World(storage, settings=EVERY)
    world.open()
    commits(world, 8)
    storage.reset()
    commits(world, 64)
    operations = storage.operations
    assert operations["put_new"] == 64 + 8, operations  # records and bases
    assert operations["delete"] <= 64 + 8, operations


def test_a_compaction_that_fails_does_not_fail_the_commit():
    """It is tried again with the next one."""
    inner = MemoryStorage()
    world = World(inner, settings=EVERY)
    world.open()
    commits(world, 8)
    faulty = FaultyStorage(inner, Fault(kind="enospc", nth=1, operations=["put_new"]))
    world.store._catalog._storage = faulty
    before = len(records(inner))
    world.commit(sink=False)
    assert faulty.fired
    assert len(records(inner)) == before + 1
    world.commit(sink=False)
    assert len(records(inner)) < before
    assert_verified(inner)


def test_a_writer_that_was_overtaken_learns_it_at_the_compaction():
    """Nothing is committed then, and nothing of its successor is touched."""
    storage = MemoryStorage()
    world = World(storage, settings=EVERY)
    world.open()
    commits(world, 8)
    World(storage, settings=EVERY).open()
    before = read_store(storage, PIPELINE).list()
    with pytest.raises(FencedError):
        world.commit(sink=False)
    assert read_store(storage, PIPELINE).list() == before
    assert_verified(storage)
