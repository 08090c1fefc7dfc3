"""Power cuts: after every system call, every legal state of the disk is the old or the new one."""

from __future__ import annotations

import functools

import msgspec
import pytest

from holdfast.errors import CommitUnknownError, HoldfastError
from holdfast.storage import LocalStorage, MemoryStorage
from holdfast.testing import FaultyDisk, PowerCut, RecordingDisk
from tests.helpers.effort import SOAK
from tests.helpers.scenes import PIPELINE, SETTINGS, World, assert_verified, snapshot

RANDOM_STATES = 40 if SOAK else 2
KEEP_TWO = msgspec.structs.replace(SETTINGS, retain=2, base_every_min=4)


def outcome(world):
    world.outcome()


def retain(world):
    world.sweep(world.store.retain())


def pin(world):
    world.store.pin("gold", "latest")


def unpin(world):
    world.store.unpin("gold")


def compact(world):
    world.store.compact()


STEPS = [
    World.open,
    World.commit,
    outcome,
    pin,
    World.commit,
    outcome,
    World.commit,
    outcome,
    unpin,
    retain,
    World.open,
    World.commit,
    compact,
]


def record(root, barrier, skip=()):
    """Run the steps; the calls, and for each step the snapshot and the number of calls by then."""
    disk = RecordingDisk(root, skip=skip)
    world = World(LocalStorage(root / "store", barrier=barrier, disk=disk), settings=KEEP_TWO)
    snapshots, ends = [snapshot(world.storage)], [0]
    for step in STEPS:
        step(world)
        snapshots.append(snapshot(world.storage))
        ends.append(len(disk.calls))
    return disk.calls, snapshots, ends


def booted(state):
    """The store as the next process finds it."""
    storage = MemoryStorage()
    for path, content in state.items():
        storage.put(path.removeprefix("store/"), content)
    return storage


def problem(state, allowed):
    """What is wrong with a state after a power cut; None if it recovers as it must."""
    world = World(booted(state), settings=KEEP_TWO)
    try:
        world.open()
        now = snapshot(world.storage)
        if now not in allowed:
            return f"recovered to {now}"
        world.commit()
        assert_verified(world.storage)
    except Exception as error:  # noqa: BLE001 - any failure to recover is the finding
        return f"{type(error).__name__}: {error}"
    return None


def problems(calls, snapshots, ends, seeds):
    """Every moment and state that does not recover, one by one."""
    step = 0
    for cut in range(len(calls) + 1):
        while step + 1 < len(ends) and ends[step + 1] <= cut:
            step += 1
        # A step that has returned must have happened; one under way may have.
        allowed = snapshots[step : step + 2]
        power = PowerCut(calls[:cut])
        states = [*power.worst(), *((f"seed {seed}", power.some(seed)) for seed in range(seeds))]
        for name, state in states:
            wrong = problem(state, allowed)
            if wrong:
                last = str(calls[cut - 1]) if cut else "nothing"
                yield f"after call {cut} ({last}), {name}: {wrong}"


@pytest.mark.parametrize("barrier", ["fsync", "syncfs"])
def test_power_cut_after_every_system_call(barrier, ram_path):
    """A rename or a file that was not synced never costs a checkpoint that commit has returned."""
    calls, snapshots, ends = record(ram_path, barrier)
    assert len(calls) > 80
    assert [*problems(calls, snapshots, ends, RANDOM_STATES)] == []


@pytest.mark.parametrize(
    ("barrier", "skip"),
    [
        ("fsync", ("sync_dir",)),
        ("fsync", ("sync",)),
        ("syncfs", ("sync_filesystem",)),
        ("syncfs", ("sync_dir",)),
        ("syncfs", ("sync",)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"no {value[0]}",
)
def test_power_cut_is_noticed_when_a_sync_is_left_out(barrier, skip, ram_path):
    """The power-cut test itself goes red without directory syncs, file syncs or the barrier."""
    calls, snapshots, ends = record(ram_path, barrier, skip)
    assert next(problems(calls, snapshots, ends, 0), None) is not None


@functools.cache
def _calls_of_a_commit(root):
    disk = RecordingDisk(root)
    world = World(LocalStorage(root / "store", barrier="fsync", disk=disk))
    world.open()
    start = len(disk.calls)
    world.commit()
    return [call.name for call in disk.calls[start:]]


def test_commit_record_is_named_only_after_the_barrier(ram_path):
    """Every file that a manifest names is synced before the catalog record gets its name."""
    names = _calls_of_a_commit(ram_path)
    record_link = len(names) - 1 - names[::-1].index("link")
    barrier_end = max(i for i, name in enumerate(names[:record_link]) if name == "sync_dir")
    assert "create" not in names[:record_link][barrier_end:-3]
    assert names[record_link + 1] in ("unlink", "sync_dir")


def test_full_disk_while_syncing_the_directory_is_not_reported_as_success(ram_path):
    """A commit whose directory fsync failed with ENOSPC is unknown, not done."""
    for nth in range(1, 200):
        disk = FaultyDisk(kind="enospc", nth=0)
        world = World(LocalStorage(ram_path / str(nth), disk=disk))
        world.open()
        disk._nth = disk.seen + nth
        try:
            world.commit()
        except CommitUnknownError:
            assert disk.fired == [("sync_dir", str(ram_path / str(nth) / PIPELINE / "catalog"))]
            return
        except HoldfastError:
            continue  # the matter of another test
        assert disk.fired[0][0] != "sync_dir"
    pytest.fail("no commit met a failing directory sync")
