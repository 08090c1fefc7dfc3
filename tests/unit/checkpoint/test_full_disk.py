"""A full disk: what only removes can still be done, on a real file system that has no byte left."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint import read_store
from holdfast.errors import StorageError
from holdfast.failpoints import failpoint_handler
from holdfast.storage import LocalStorage
from holdfast.storage.local.reserve import RESERVE
from holdfast.testing import FaultyDisk
from tests.helpers.paths import child_environment
from tests.helpers.scenes import PIPELINE, SETTINGS, World, assert_verified

KEEPING = msgspec.structs.replace(SETTINGS, retain=2, exclusive=False)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two mebibytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    command = [mount, "-t", "tmpfs", "-o", "size=2m", "holdfast-test", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run([shutil.which("umount"), "-l", str(place)], check=True)


def fill_up(place):
    """Not one byte is left."""
    file = os.open(place / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in (65_536, 4_096, 1):
        with contextlib.suppress(OSError):
            while True:
                os.write(file, b"x" * size)
    with pytest.raises(OSError, match="No space"):
        os.write(file, b"x")
    os.close(file)


def several(place, commits=6):
    """Checkpoints that could go, and a disk that is full."""
    settings = msgspec.structs.replace(KEEPING, retain=100)
    world = World(LocalStorage(place), settings=settings)
    world.open()
    for _ in range(commits):
        world.commit()
        world.outcome()
    fill_up(place)
    return world


def test_a_commit_fails_on_a_full_disk_and_leaves_the_reserve(small_disk):
    """The reserve is for what removes: no commit gets it, not even for its record."""
    world = several(small_disk)
    with pytest.raises(StorageError) as caught:
        world.commit()
    assert caught.value.kind == "disk_full"
    (small_disk / "ballast").unlink()

    def fill(name):
        if name == "commit.after_barrier":
            fill_up(small_disk)

    with pytest.raises(StorageError) as caught, failpoint_handler(fill):
        world.commit()
    assert caught.value.kind == "disk_full"
    assert (small_disk / RESERVE).stat().st_size


def test_retention_frees_space_on_a_full_disk(small_disk):
    """The running writer drops what its settings no longer keep, and can commit again."""
    world = several(small_disk)
    world.store._environment = msgspec_settings(world.store._environment, KEEPING)
    world.store._collector._environment = world.store._environment
    report = world.store.retain()
    assert report.error is None, report.error
    assert len(report.dropped) == 4
    assert (small_disk / RESERVE).exists() or os.statvfs(small_disk).f_bavail
    (small_disk / "ballast").unlink()
    world.commit()
    assert_verified(LocalStorage(small_disk))


def msgspec_settings(around, settings):
    import dataclasses

    return dataclasses.replace(around, settings=settings)


def opened_anew(place, **options):
    world = World(LocalStorage(place), settings=KEEPING)
    world.open(**options)
    return world


@pytest.mark.parametrize("clean_up", [True, False])
def test_gc_frees_space_on_a_full_disk(small_disk, clean_up):
    """A process that only comes to clean up can open the store and do it."""
    several(small_disk)
    before = os.statvfs(small_disk).f_bavail
    world = opened_anew(small_disk, clean_up=clean_up)
    report = world.store.gc()
    assert report.error is None, report.error
    assert report.bytes > 0
    assert os.statvfs(small_disk).f_bavail >= before
    assert len(read_store(small_disk, PIPELINE).list()) == 2
    (small_disk / "ballast").unlink()
    world.commit()
    assert_verified(LocalStorage(small_disk))


def test_delete_frees_space_on_a_full_disk(small_disk):
    """One checkpoint, by name."""
    several(small_disk)
    world = opened_anew(small_disk)
    oldest = world.store.list()[-1]
    assert world.store.delete(oldest.checkpoint).error is None
    assert read_store(small_disk, PIPELINE).catalog().find(oldest.checkpoint) is None
    assert_verified(LocalStorage(small_disk))


def test_the_command_line_frees_space_on_a_full_disk(small_disk):
    """`holdfast gc` on a disk without a byte."""
    several(small_disk)
    program = Path(sys.executable).with_name("holdfast")
    environment = child_environment()
    done = subprocess.run(
        [program, "gc", f"{small_disk}/{PIPELINE}", "--retain", "2"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(read_store(small_disk, PIPELINE).list()) == 2


def test_again_and_again(small_disk):
    """The reserve is filled again when there is room, so that the next full disk is cleared too."""
    world = several(small_disk)
    for _ in range(3):
        world = opened_anew(small_disk)
        world.store.gc()
        (small_disk / "ballast").unlink()
        world = opened_anew(small_disk)
        assert (small_disk / RESERVE).exists()
        for _ in range(3):
            world.commit()
            world.outcome()
        fill_up(small_disk)
    assert opened_anew(small_disk).store.gc().error is None


def test_the_reserve_is_for_a_full_disk_alone(tmp_path):
    """A broken disk is no full one: nothing is released, and the error is the disk's."""
    world = World(LocalStorage(tmp_path), settings=KEEPING)
    world.open()
    world.commit()
    made = (tmp_path / RESERVE).stat().st_mtime_ns
    for nth in range(1, 1_000):
        disk = FaultyDisk(kind="eio", nth=nth)
        with contextlib.suppress(StorageError):
            World(LocalStorage(tmp_path, disk=disk), settings=KEEPING).open()
        assert (tmp_path / RESERVE).stat().st_mtime_ns == made, disk.fired
        if not disk.fired:
            return
    pytest.fail("the opening never ran through undisturbed")


@pytest.mark.parametrize("left", [0, 100])
def test_a_torn_reserve_is_made_again(tmp_path, left):
    """A crash in the middle, or a power cut, leaves a reserve that holds nothing back."""
    storage = LocalStorage(tmp_path)
    before = storage.usage_bytes()
    (tmp_path / RESERVE).write_bytes(b"x" * left)
    measured = LocalStorage(tmp_path)
    assert measured.usage_bytes() == before + left
    measured.reserve.fill()
    assert (tmp_path / RESERVE).stat().st_size >= 65_536
    assert measured.usage_bytes() == (tmp_path / RESERVE).stat().st_size
    assert measured.reserve.release()
    assert measured.usage_bytes() == before
