"""Retention and a clock that is not to be trusted."""

from __future__ import annotations

from holdfast.settings import Settings
from holdfast.storage import MemoryStorage
from tests.helpers.scenes import World


def test_clock_set_back_does_not_stop_retention_without_an_age():
    """Where no age was asked for, a clock that was set back changes nothing about what stays."""
    settings = Settings(inline_bytes_max=16, exclusive=False, retain=2)
    world = World(MemoryStorage(), settings=settings)
    world.open()
    for _ in range(4):
        world.commit()
        world.outcome()
    world.clock.step_wall_ms(-86_400_000)
    world.sweep(world.store.retain())
    assert [entry.epoch for entry in world.store.list()] == [3, 2]


def test_clock_set_back_keeps_what_an_age_protects():
    """Where an age was asked for, checkpoints that seem to come from the future are young."""
    settings = Settings(inline_bytes_max=16, exclusive=False, retain=2, retain_age_ms=1_000)
    world = World(MemoryStorage(), settings=settings)
    world.open()
    for _ in range(4):
        world.commit()
        world.outcome()
    world.clock.step_wall_ms(-86_400_000)
    world.sweep(world.store.retain())
    assert len(world.store.list()) == 4
