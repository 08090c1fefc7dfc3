"""The k-th storage operation fails, for every k, every kind of fault, before and after its effect."""

from __future__ import annotations

import functools
import shutil

import pytest

from holdfast.errors import (
    CommitUnknownError,
    FencedError,
    HoldfastError,
)
from holdfast.storage import LocalStorage, MemoryStorage
from holdfast.testing import Fault, FaultyDisk, FaultyStorage
from holdfast.testing.wrapped_storage import WRITES
from tests.helpers.effort import every
from tests.helpers.scenarios import SCENARIOS, Scenario
from tests.helpers.scenes import World, assert_verified, copied, in_memory, snapshot

FAULTS = [
    pytest.param("enospc", False, id="disk full, before"),
    pytest.param("enospc", True, id="disk full, after"),
    pytest.param("eio", False, id="disk broken, before"),
    pytest.param("eio", True, id="disk broken, after"),
    pytest.param("lost", False, id="reply lost, no effect"),
    pytest.param("lost", True, id="reply lost, took effect"),
    pytest.param("slow", False, id="slow"),
]
KINDS = [tuple(fault.values) for fault in FAULTS]
COMMITS = {"commit"}


@functools.cache
def prepared(name):
    scenario = next(s for s in SCENARIOS if s.name == name)
    world = World(MemoryStorage(), settings=scenario.settings)
    scenario.prepare(world)
    return world.storage


@functools.cache
def states_of(name):
    scenario = next(s for s in SCENARIOS if s.name == name)
    world = World(copied(prepared(name)), settings=scenario.settings)
    states = [snapshot(world.storage)]
    for step in scenario.steps:
        step(world)
        states.append(snapshot(world.storage))
    return states


class Run:
    """One pass through a scenario with one fault in the way."""

    def __init__(self, scenario: Scenario, storage, fault: Fault):
        self.scenario = scenario
        self.states = states_of(scenario.name)
        self.plain = storage
        self.faulty = FaultyStorage(storage, fault)
        self.world = World(self.faulty, settings=scenario.settings)

    def go(self):
        for index, step in enumerate(self.scenario.steps):
            before = in_memory(self.world)
            fired = bool(self.faulty.fired)
            try:
                step(self.world)
            except HoldfastError as error:
                assert not fired, "failed although nothing was wrong"
                assert self.faulty.fired, "failed although nothing was wrong"
                self.after_failure(index, step, error, before)
            else:
                if self.faulty.fired and not fired:
                    assert snapshot(self.plain) == self.states[index + 1], self.where(index)
        assert snapshot(self.plain) == self.states[-1], self.where(len(self.states))
        world = World(self.plain, settings=self.scenario.settings)
        world.recover()
        assert snapshot(self.plain)["live"] == self.states[-1]["live"]
        assert_verified(self.plain)

    def where(self, index):
        return self.scenario.name, index, self.faulty.fired, self.faulty.fault

    def after_failure(self, index, step, error, before):
        """Old or new on storage; unchanged in memory; the same object goes on, or is poisoned."""
        old, new = self.states[index], self.states[index + 1]
        now = snapshot(self.plain)
        assert now in (old, new), (self.where(index), error)
        poisoned = isinstance(error, (CommitUnknownError, FencedError))
        if step.__name__ in COMMITS:
            assert in_memory(self.world) == before, self.where(index)
            assert poisoned or now == old, self.where(index)
        if poisoned and step.__name__ != "open" and self.has_writer(step):
            self.check_poisoned()
            self.world.recover()
            now = snapshot(self.plain)
            assert now in (old, new), (self.where(index), error)
        if now == new and old != new and step.__name__ not in ("outcome", "failed"):
            if "open" in step.__name__ or "go_" in step.__name__:
                self.world.recover()
            return
        step(self.world)
        assert snapshot(self.plain) == new, self.where(index)

    def has_writer(self, step):
        """Steps that append to the catalog; a pin or an outcome of unknown fate poisons nothing.

        An upgrade is a writer of its own.
        """
        return step.__name__ not in ("outcome", "failed", "pin", "unpin", "rebuild", "upgrade",
                                     "go_back", "go_forward_again")  # fmt: skip

    def check_poisoned(self):
        """Whoever does not know what it has done must not do anything more."""
        store = self.world.store
        for attempt in (store.draft, store.retain, store.gc, store.compact):
            with pytest.raises((CommitUnknownError, FencedError)):
                attempt()
        report = None
        try:
            report = store.clean_up()
        except (CommitUnknownError, FencedError):
            return
        assert isinstance(report.error, (CommitUnknownError, FencedError))


@pytest.mark.parametrize(("kind", "after"), FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_every_operation_fails_once(scenario, kind, after):
    """Whichever storage operation fails, the store is old or new, and can go on."""
    if kind == "slow" and scenario.name not in ("fresh", "retain and compact"):
        pytest.skip("slowness changes nothing: two scenarios show it")
    # A read has no effect that it could fail before or after, and needs no space.
    operations = WRITES if after or kind == "enospc" else None
    # Half of the operations, so that each of them fails in every second way; a soak takes all.
    step = every(1, 2)
    for nth in range(1 + (KINDS.index((kind, after)) * 3 // 2) % step, 10_000, step):
        fault = Fault(kind=kind, nth=nth, after=after, operations=operations)
        run = Run(scenario, copied(prepared(scenario.name)), fault)
        run.go()
        if not run.faulty.fired:
            assert nth > 3, "the scenario has too few operations to mean anything"
            return
    pytest.fail("the scenario never ran through")


class DiskRun(Run):
    """The fault is below `LocalStorage`: one system call of one process."""

    def __init__(self, scenario, root, **fault):
        super().__init__(scenario, None, Fault(kind="slow", nth=0))
        self.plain = LocalStorage(root, disk=FaultyDisk(kind="eio", nth=0))
        self.faulty = FaultyDisk(**fault)
        self.faulty.fault = fault
        self.world.storage = LocalStorage(root, disk=self.faulty, barrier=fault_barrier(fault))


def fault_barrier(fault):
    return "syncfs" if fault["nth"] % 2 else "fsync"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "scenario",
    [s for s in SCENARIOS if s.name in ("fresh", "retain and compact")],
    ids=lambda s: s.name,
)
def test_every_system_call_fails_once(scenario, after, ram_path):
    """Whichever system call of local disk fails, every error is typed and the store old or new."""
    source = ram_path / "prepared"
    disk = FaultyDisk(kind="eio", nth=0)
    world = World(LocalStorage(source, disk=disk), settings=scenario.settings)
    scenario.prepare(world)
    for nth in range(1, 10_000):
        target = ram_path / str(nth)
        shutil.copytree(source, target)
        kind = "enospc" if nth % 2 else "eio"
        run = DiskRun(scenario, target, kind=kind, nth=nth, after=after)
        run.go()
        shutil.rmtree(target)
        if not run.faulty.fired:
            return
    pytest.fail("the scenario never ran through")
