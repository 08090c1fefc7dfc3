"""Compaction and a damaged catalog."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.checkpoint import read_store
from holdfast.errors import CorruptionError
from holdfast.storage import MemoryStorage
from tests.helpers.scenes import PIPELINE, SETTINGS, World


def damaged_store():
    """Three checkpoints; the record that committed the second one is damaged."""
    storage = MemoryStorage()
    world = World(storage, settings=msgspec.structs.replace(SETTINGS, retain=3))
    world.open()
    for _ in range(3):
        world.commit(sink=False)
    path = f"{PIPELINE}/catalog/{2:020d}.json"
    storage.put(path, storage.get(path)[:-2])
    world.settings = msgspec.structs.replace(SETTINGS, base_every_min=2, retain=3)
    world.open()
    return world


def test_compaction_does_not_bury_a_damaged_record():
    """A catalog that has lost a record is not folded into a base that looks whole."""
    world = damaged_store()
    with pytest.raises(CorruptionError):
        world.store.compact()
    assert world.store.retain().error is not None
    assert read_store(world.storage, PIPELINE).catalog().damage
