"""Writers that sleep while others build on their files: nothing that is needed is deleted.

Checkpoints here share runs, so that a file that an overtaken writer deletes is missed by every
later checkpoint.
"""

from __future__ import annotations

import pytest

from holdfast.checkpoint import (
    plan_upgrade,
    read_store,
    rebuild_catalog,
    upgrade_store,
    verify_store,
)
from holdfast.errors import CommitUnknownError, ConflictError, FencedError, RefusedError
from holdfast.errors import StorageError as Failure
from holdfast.storage import MemoryStorage
from holdfast.testing import HookedStorage
from tests.helpers.interleave import Actor, Moments
from tests.helpers.scenes import PIPELINE, World, as_version_1, assert_verified, fill, told

MOMENTS = 400


def opened(storage, **options):
    world = World(storage)
    world.open(takeover=True, **options)
    return world


def newest(storage):
    reader = read_store(storage, PIPELINE)
    return told(reader, reader.resolve("latest"))


def begun():
    storage = MemoryStorage()
    opened(storage).commit(sink=False)
    return storage


def overtakes(storage, *, commits=3):
    """A successor that builds on what it finds, and drops what it has built on."""
    world = opened(storage)
    for _ in range(commits):
        world.commit(sink=False)
    world.store.retain()
    world.store.gc()
    return world


def test_a_sleeper_that_was_built_upon_deletes_nothing():
    """Its record was taken over, its checkpoint was dropped since: its files are still needed."""
    for stop in range(1, MOMENTS):
        storage = begun()
        sleeper = Actor(storage, lambda place: opened(place).commit(sink=False))
        more = sleeper.run(stop)
        overtakes(storage)
        sleeper.run()
        assert not isinstance(sleeper.answer, AssertionError), sleeper.answer
        try:
            assert_verified(storage)
            assert len(newest(storage)) >= 4
        except AssertionError as error:
            raise AssertionError(f"asleep at {stop}: {error}") from error
        if not more:
            return
    pytest.fail("the sleeper never ran through undisturbed")


@pytest.mark.parametrize("commits", [1, 3])
def test_a_refused_put_that_was_the_second_one_deletes_nothing(commits):
    """A client sends again by itself: the first try was taken over, folded, and its number used."""
    storage, armed = begun(), []

    def lose(moment, operation, path):
        if (moment, operation, path) == ("after", "put_new", "".join(armed)):
            armed.clear()
            overtakes(storage, commits=commits).store.compact()
            storage.put_new(path, b"a dead record of another sleeper")
            raise Failure("reply lost", kind="lost", retryable=True, took_effect=None)

    world = opened(HookedStorage(storage, lose))
    number = world.store._catalog.state.head + 1
    armed.append(f"{PIPELINE}/catalog/{number:020}.json")
    with pytest.raises(FencedError):
        world.commit(sink=False)
    assert not armed
    assert_verified(storage)
    assert len(newest(storage)) == 2 + commits


def test_a_refused_put_leaves_nothing_that_a_rebuild_could_take():
    """The first put was refused: nobody can have built on it, and its files go."""
    storage = begun()
    world = opened(storage)
    opened(storage)
    with pytest.raises(FencedError):
        world.commit(sink=False)
    left = [entry.path for entry in storage.list(f"{PIPELINE}/checkpoints")]
    assert {path.split("/")[2] for path in left} == {
        entry.checkpoint for entry in read_store(storage, PIPELINE).catalog().live
    }


def test_whatever_keeps_a_record_from_being_confirmed_keeps_its_checkpoint():
    """The record is there: a listing that is refused leaves the outcome unknown, not failed."""
    storage = begun()

    def refuse(moment, operation, where):
        if (moment, operation, where) == ("before", "list", f"{PIPELINE}/catalog") and broken:
            raise RefusedError("a symbolic link inside a store is refused", kind="symlink_refused")

    broken = []
    world = opened(HookedStorage(storage, refuse))
    lineage = world.lineage()

    def fill_and_commit():
        with world.store.draft() as draft:
            fill(draft, draft.epoch, lineage, sink=False)
            broken.append(True)
            world.store.commit(draft)

    with pytest.raises(CommitUnknownError):
        fill_and_commit()
    assert_verified(storage)
    assert len(newest(storage)) == 2


def test_an_overtaken_writer_that_deletes_is_told_so():
    """Its successor has retired what it wants to delete: that is the better explanation."""
    storage = begun()
    world = opened(storage)
    for _ in range(2):
        world.commit(sink=False)
    sleeper = opened(storage, clean_up=False)  # it knows no manifest but the newest
    oldest = sleeper.store.list()[-1].checkpoint
    overtakes(storage)
    with pytest.raises(FencedError):
        sleeper.store.delete(oldest)


def test_an_upgrade_next_to_a_writer_that_compacts():
    """At every moment of the upgrade, the records that it reads may be folded into a base."""
    for stop in range(1, MOMENTS):
        storage = begun()
        as_version_1(storage)
        world = opened(storage)

        def compact(world=world):
            world.commit(sink=False)
            world.store.compact()

        moments = Moments(stop, lambda compact=compact: fenced_or(compact))
        upgrade_store(moments.on(storage), PIPELINE, takeover=True)
        assert verify_store(read_store(storage, PIPELINE), deep=True).ok, moments.where
        assert plan_upgrade(read_store(storage, PIPELINE)).header == 2
        if not moments.ran:
            return
    pytest.fail("the upgrade never ran through undisturbed")


def fenced_or(work):
    try:
        work()
    except ConflictError:
        return


def test_a_rebuild_next_to_a_writer_that_retires_everything():
    """What was listed is gone when it is read: then there is something newer to look at."""
    for stop in range(1, MOMENTS):
        storage = begun()
        world = opened(storage)

        def retire(world=world):
            for _ in range(3):
                world.commit(sink=False)
                world.store.gc()

        moments = Moments(stop, lambda retire=retire: fenced_or(retire))
        rebuild_catalog(moments.on(storage), PIPELINE, force=True)
        assert_verified(storage)
        if not moments.ran:
            return
    pytest.fail("the rebuild never ran through undisturbed")


def test_a_rebuild_that_finds_the_checkpoint_of_a_fenced_writer_may_keep_it():
    """Its record was put between two looks of the rebuild, which lists it: its files stay."""
    for first in range(10, MOMENTS):
        for then in range(0, 30, 6):
            storage = begun()
            storage.delete(f"{PIPELINE}/_latest")
            world = opened(storage)
            rebuild = Actor(storage, lambda place: rebuild_catalog(place, PIPELINE, force=True))
            if not rebuild.run(first):
                return

            def wake(moment, operation, path, rebuild=rebuild, then=then):
                if (moment, operation) == ("after", "put_new") and "/catalog/" in path:
                    rebuild.run(then)

            world.store._catalog._storage = HookedStorage(storage, wake)
            fenced_or(lambda world=world: world.commit(sink=False))
            rebuild.run()
            assert not isinstance(rebuild.answer, BaseException), (first, then, rebuild.answer)
            assert_verified(storage)
    pytest.fail("the rebuild never ran through undisturbed")


def test_a_rebuild_publishes_nothing_of_an_overtaken_writer():
    """Its manifest is older than what was retained, nothing confirms it: it comes as abandoned."""
    storage = begun()
    sleeper = opened(storage)
    lineage, draft = sleeper.lineage(), sleeper.store.draft()
    fill(draft, draft.epoch, lineage)
    right = opened(storage, clean_up=False)
    for _ in range(3):
        right.commit()
        right.outcome()
    right.store.retain()
    right.store.compact()
    with pytest.raises(FencedError):
        sleeper.store.commit(draft)  # into a freed number
    rebuild_catalog(storage, PIPELINE, force=True)
    known = {entry.checkpoint for entry in right.store.list()}
    live = read_store(storage, PIPELINE).catalog().live
    dead = [entry for entry in live if entry.checkpoint not in known]
    assert [entry.abandoned for entry in dead] == [True]
    after = opened(storage, clean_up=False)
    assert after.store.recovery.roll_forward == ()
    assert not after.store.pending()
