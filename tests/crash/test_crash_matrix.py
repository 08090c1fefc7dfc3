"""Crash matrix: a crash at every visit of every named point leaves the old or the new state."""

from __future__ import annotations

import functools

import pytest

from holdfast.checkpoint import recovery_plan
from holdfast.failpoints import FAILPOINTS
from holdfast.storage import LocalStorage, MemoryStorage
from holdfast.testing import SimulatedCrash, crash_at, failpoints_reached
from tests.helpers.scenarios import SCENARIOS, Scenario
from tests.helpers.scenes import PIPELINE, World, assert_verified, copied, snapshot


class KernelStorage(LocalStorage):
    """Local disk whose locks the test can drop, as the kernel does when a process dies."""

    def __init__(self, root):
        super().__init__(root)
        self.leases = []

    def exclusive(self, path, owner):
        lease = super().exclusive(path, owner)
        self.leases.append(lease)
        return lease

    def die(self):
        for lease in self.leases:
            lease.release()


class MemoryPlace:
    def __init__(self, root):
        del root
        self._storage = MemoryStorage()

    def boot(self):
        return self._storage

    def kill(self, storage):
        pass


class LocalPlace:
    def __init__(self, root):
        self._root = root

    def boot(self):
        return KernelStorage(self._root)

    def kill(self, storage):
        storage.die()


@functools.cache
def expected(name):
    """Snapshots before, between and after the steps, and all visits, of an undisturbed run."""
    scenario = next(s for s in SCENARIOS if s.name == name)
    world = World(MemoryStorage(), settings=scenario.settings)
    scenario.prepare(world)
    states = [snapshot(world.storage)]
    visits = []
    with failpoints_reached() as seen:
        for index, step in enumerate(scenario.steps):
            step(world)
            states.append(snapshot(world.storage))
            assert_reopens_here(world)
            visits.extend((index, *visit) for visit in seen.visits()[len(visits) :])
    return states, visits


def assert_reopens_here(world):
    """What this writer builds on is what the next one would choose."""
    if world.store is None:
        return
    plan = recovery_plan(world.storage, PIPELINE, settings=world.settings)
    current = world.store.current
    chosen = plan.chosen.checkpoint if plan.chosen else None
    assert chosen == (current.checkpoint if current else None)


def check_recovered(world: World, allowed, context):
    """Recovered, exactly old or new, whole, and able to go on without using an epoch twice."""
    now = snapshot(world.storage)
    assert now in allowed, (context, now, allowed)
    used = {epoch for epoch, *_ in now["live"]}
    assert world.store.epoch_next not in used
    assert world.store.epoch_next > max(used, default=-1)
    assert_verified(world.storage)
    chosen = [entry for entry in now["live"] if not entry[2]]
    assert world.lineage() == [*(chosen[-1][1] if chosen else ())]
    summary = world.commit()
    assert summary.epoch not in used
    after = snapshot(world.storage)
    assert after["live"][:-1] == now["live"]
    assert_verified(world.storage)
    world.store.close()


def run_until_crash(scenario: Scenario, world: World, point, nth):
    """Run the steps with a crash in the way; the index of the step that died."""
    done = 0
    try:
        with crash_at(point, nth):
            for step in scenario.steps:
                step(world)
                done += 1
    except SimulatedCrash:
        return done
    pytest.fail(f"{point} was not reached {nth} times")


def allowed_after(states, index):
    return [state for state in states[index : index + 2] if "refused" not in state]


@pytest.mark.parametrize("place", [MemoryPlace, LocalPlace], ids=["memory", "disk"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_crash_at_every_visit_of_every_point(scenario, place, tmp_path):
    """A crash anywhere leaves exactly the old or exactly the new checkpoint, and the store goes on."""
    states, visits = expected(scenario.name)
    for number, (index, point, nth) in enumerate(visits):
        where = place(tmp_path / str(number))
        world = World(where.boot(), settings=scenario.settings)
        if place is LocalPlace:
            world.settings = exclusive(scenario.settings)
        scenario.prepare(world)
        where.kill(world.storage)
        world.storage = where.boot()
        assert run_until_crash(scenario, world, point, nth) == index
        where.kill(world.storage)
        world = World(where.boot(), settings=world.settings)
        world.recover()
        check_recovered(world, allowed_after(states, index), (scenario.name, point, nth))
        where.kill(world.storage)


def exclusive(settings):
    import msgspec

    return msgspec.structs.replace(settings, exclusive=True)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_crash_again_during_recovery(scenario):
    """A second crash inside the recovery from the first one changes nothing about the outcome."""
    states, visits = expected(scenario.name)
    prepared = World(MemoryStorage(), settings=scenario.settings)
    scenario.prepare(prepared)
    for index, point, nth in visits:
        crashed = World(copied(prepared.storage), settings=scenario.settings)
        run_until_crash(scenario, crashed, point, nth)
        with failpoints_reached() as recovery:
            World(copied(crashed.storage), settings=scenario.settings).recover()
        for second in recovery.visits():
            world = World(copied(crashed.storage), settings=scenario.settings)
            with pytest.raises(SimulatedCrash), crash_at(*second):
                world.recover()
            world = World(world.storage, settings=scenario.settings)
            world.recover()
            allowed = allowed_after(states, index)
            check_recovered(world, allowed, (scenario.name, point, nth, second))


OTHERS = (
    "kafka.",
    "epoch.",
    "fill.",
    "fold.",
    "output.",
    "journal_",
)  # points of the pipeline and the journal have suites of their own


def test_every_point_is_reached_by_a_scenario():
    """A point that no crash scenario reaches fails the suite."""
    reached = {point for s in SCENARIOS for _, point, _ in expected(s.name)[1]}
    assert reached == {point for point in FAILPOINTS if not point.startswith(OTHERS)}


def test_a_commit_that_returned_survives_a_crash_at_the_next_point():
    """Once commit has returned, no crash afterwards brings the old checkpoint back."""
    world = World(MemoryStorage())
    world.open()
    world.commit()
    with pytest.raises(SimulatedCrash), crash_at("commit.before_manifest"):
        world.commit()
    world = World(world.storage)
    world.recover()
    assert world.lineage() == [0]
    assert PIPELINE in world.store.reader.directory.pipeline
