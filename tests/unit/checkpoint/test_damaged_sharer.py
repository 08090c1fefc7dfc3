"""Clean-up while a listed checkpoint cannot be read."""

from __future__ import annotations

from holdfast import Settings
from holdfast.storage.memory import MemoryStorage
from tests.helpers.scenes import PIPELINE, World, assert_verified


def test_runs_of_dropped_checkpoints_stay_while_a_sharer_cannot_be_read() -> None:
    """Its manifest may be put back; then every file that it names must still be there."""
    storage = MemoryStorage()
    settings = Settings(retain=10, exclusive=False)
    world = World(storage, settings=settings)
    world.open()
    for _ in range(4):
        world.commit(sink=False)
    newest = world.store.current
    assert newest is not None
    assert world.store.delete(f"epoch:{newest.epoch - 1}").error is None
    path = f"{PIPELINE}/checkpoints/{newest.checkpoint}/manifest.json"
    whole = storage.get(path)
    storage.put(path, b"{" + whole[1:-1])
    after = World(storage, settings=settings, clock=world.clock)
    after.open()
    assert after.store.current is not None and after.store.current.epoch < newest.epoch
    storage.put(path, whole)
    assert_verified(storage)
