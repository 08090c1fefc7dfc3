"""A store of version 1 is used as it is, and becomes one of version 2 on request."""

from __future__ import annotations

import pytest

from holdfast.checkpoint import plan_upgrade, read_store, upgrade_store, verify_store
from holdfast.checkpoint.replication.sync import sync_pipeline
from holdfast.errors import FencedError, HoldfastError, IncompatibleError, RefusedError
from holdfast.format import canonical
from holdfast.format import documents as records
from holdfast.storage import LocalStorage, MemoryStorage
from tests.helpers.scenes import PIPELINE, World, as_version_1, assert_verified, snapshot


def formats(storage):
    """The format of every document of the store, by the first part of its path."""
    found = {}
    for entry in storage.list(PIPELINE):
        data = storage.get(entry.path)
        start = data.find(b'"format":')
        if start >= 0:
            name = entry.path.split("/")[1]
            found.setdefault(name, set()).add(int(chr(data[start + 9])))
    return found


@pytest.fixture(params=["memory", "local"])
def world(request, tmp_path):
    """A store of version 1 with three checkpoints, outcomes and a pin."""
    storage = MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path)
    made = World(storage)
    made.open()
    for _ in range(3):
        made.commit()
        made.outcome()
    made.store.pin("gold", "epoch:1")
    made.store.close()
    as_version_1(storage)
    assert_verified(storage)
    return made


def everything(storage):
    return {e.path: storage.get(e.path) for e in storage.list(PIPELINE)}


def test_a_dry_run_changes_nothing_and_says_what_would_be_done(world):
    """The plan names the fence, the records and the header, and what stays as it is."""
    before = everything(world.storage)
    plan = plan_upgrade(read_store(world.storage, PIPELINE))
    assert plan.needed
    assert (plan.header, plan.records, plan.kept) == (1, 4, {"manifests": 3})
    assert [step.split()[0] for step in plan.steps] == ["append", "replace", "replace"]
    assert everything(world.storage) == before


def test_upgrading_leaves_checkpoints_alone_and_is_idempotent(world):
    """Header and catalog are of version 2; manifests, outcomes and pins keep their bytes."""
    before, seen = everything(world.storage), snapshot(world.storage)
    upgrade_store(world.storage, PIPELINE, clock=world.clock)
    found = formats(world.storage)
    assert found["holdfast.json"] == {2}
    assert found["catalog"] == {2}
    kept = [path for path in before if "/checkpoints/" in path or "/pins/" in path]
    after = everything(world.storage)
    assert all(after[path] == before[path] for path in kept)
    assert snapshot(world.storage) == seen
    assert verify_store(read_store(world.storage, PIPELINE), deep=True).ok
    assert not upgrade_store(world.storage, PIPELINE, clock=world.clock).needed
    assert everything(world.storage) == after


def test_a_store_of_version_1_needs_no_upgrade(world):
    """Commits go on; the new records are of version 2, the header still says 1."""
    world.open()
    world.commit()
    found = formats(world.storage)
    assert (found["holdfast.json"], found["catalog"]) == ({1}, {1, 2})
    counts = [entry.counts for entry in read_store(world.storage, PIPELINE).list()]
    assert counts == ["unknown"] * 4
    assert_verified(world.storage)
    plan = plan_upgrade(read_store(world.storage, PIPELINE))
    assert (plan.header, plan.records) == (1, 4)


def test_software_that_knows_version_1_alone_refuses_by_name(world, monkeypatch):
    """Before the upgrade by the newest record, afterwards by the header; never as damage."""
    old = {"Record": records.Record, "StoreHeader": records.StoreHeader}
    world.open()
    world.store.close()
    for kind in old.values():
        monkeypatch.setattr(kind, "newest_format", 1)
    with pytest.raises(IncompatibleError) as caught:
        read_store(world.storage, PIPELINE).catalog()
    assert (caught.value.kind, "/catalog/" in caught.value.facts["path"]) == ("newer_format", True)
    monkeypatch.undo()
    upgrade_store(world.storage, PIPELINE, clock=world.clock)
    for kind in old.values():
        monkeypatch.setattr(kind, "newest_format", 1)
    with pytest.raises(IncompatibleError) as caught:
        read_store(world.storage, PIPELINE)
    assert caught.value.facts["path"].endswith("holdfast.json")
    assert canonical.FORMAT_VERSION == 2


def test_upgrading_fences_whoever_still_writes(world):
    """A writer that sleeps through the upgrade is told, and commits nothing."""
    store = world.open()
    upgrade_store(world.storage, PIPELINE, clock=world.clock, takeover=True)
    with pytest.raises(FencedError):
        store.compact()


def test_a_damaged_store_is_not_upgraded(world):
    """Where opening would fall back, nothing is written."""
    newest = read_store(world.storage, PIPELINE).list()[0].checkpoint
    path = f"{PIPELINE}/checkpoints/{newest}/state.pack"
    world.storage.put(path, world.storage.get(path)[:-1] + b"!")
    before = everything(world.storage)
    with pytest.raises(HoldfastError) as caught:
        upgrade_store(world.storage, PIPELINE, clock=world.clock)
    assert caught.value.kind == "not_whole"
    assert everything(world.storage) == before


def test_a_replica_is_upgraded_by_its_source(world):
    """A copy that is written to is no copy any more."""
    copy = MemoryStorage("copy")
    sync_pipeline(world.storage, copy, PIPELINE, clock=world.clock)
    assert formats(copy)["checkpoints"] == {1}
    before = everything(copy)
    with pytest.raises(RefusedError) as caught:
        upgrade_store(copy, PIPELINE, clock=world.clock)
    assert caught.value.kind == "replica"
    assert everything(copy) == before
    upgrade_store(world.storage, PIPELINE, clock=world.clock)
    sync_pipeline(world.storage, copy, PIPELINE, clock=world.clock)
    assert snapshot(copy) == snapshot(world.storage)
    assert verify_store(read_store(copy, PIPELINE), deep=True).ok
