"""Where a guard writes: refused before anything is made, put in place in one step."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.errors import HoldfastError, InvalidInputError, RefusedError, StorageError
from holdfast.guard import _restore as restoring
from holdfast.guard import atomic_directory as placing
from holdfast.guard import clone, restore, save, verify
from holdfast.guard.attach import attach
from holdfast.storage import open_storage
from tests.helpers.guard_golden import NAMES, in_memory, on_disk
from tests.helpers.paths import child_environment

NAME = NAMES[0]


def _snapshot(root):
    """Every path below a directory, with what it is and holds."""
    found = {}
    for path in sorted(root.rglob("*")):
        kind = "link" if path.is_symlink() else "dir" if path.is_dir() else "file"
        content = hashlib.sha256(path.read_bytes()).hexdigest() if kind == "file" else ""
        found[str(path.relative_to(root))] = (kind, content, path.lstat().st_mtime_ns)
    return found


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A checkpoint with a savepoint, another checkpoint and another store, and links to all."""
    on_disk(NAME, tmp_path / "ck")
    on_disk(NAME, tmp_path / "other-ck")
    save(tmp_path / "ck", tmp_path / "store", "one")
    save(tmp_path / "other-ck", tmp_path / "other-store", "one")
    (tmp_path / "out").mkdir()
    for name in ("ck", "store", "other-ck", "other-store"):
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


PIPELINE = "other-store/{pipeline}"
TARGETS = [
    "ck/inner",
    "ck/state/0/deep",
    "to-ck/inner",
    "ck/../ck/inner",
    "./ck/inner",
    "file:{root}/ck/x",
    "store",
    "store/new",
    "store/x/y",
    "to-store/new",
    "ck/../store/new",
    "other-ck/inner",
    "to-other-ck/inner",
    "other-ck",
    f"{PIPELINE}/inner",
    f"{PIPELINE}/checkpoints/x",
    f"to-{PIPELINE}/inner",
    ".",
    "..",
    "{root}",
    "/",
]
STORES = [
    "ck",
    "ck/",
    "./ck",
    "ck/store",
    "ck/state/0",
    "to-ck",
    "to-ck/x",
    "ck/../ck/x",
    "other-ck/x",
    "to-other-ck",
    ".",
    "{root}",
    "file://{root}/ck/x",
]


def _named(world, text):
    pipeline = next(p.name for p in (world / "other-store").iterdir() if p.is_dir())
    return text.format(root=world, pipeline=pipeline)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("verb", [restore, clone])
def test_a_target_that_overlaps_is_refused_and_leaves_nothing(world, target, verb):
    """Inside or around a checkpoint or a store, by any spelling: refused, and nothing was made."""
    before = _snapshot(world)
    with pytest.raises(RefusedError) as caught:
        verb("ck", "store", into=_named(world, target))
    assert caught.value.kind in ("overlapping", "target_not_empty")
    assert _snapshot(world) == before


@pytest.mark.parametrize("store", STORES)
def test_a_store_that_overlaps_a_checkpoint_is_refused_and_leaves_nothing(world, store):
    """A save never makes anything inside or around a checkpoint of Spark."""
    before = _snapshot(world)
    for root in (_named(world, store), open_storage(world / "ck", create=False)):
        with pytest.raises(RefusedError, match="overlap"):
            save("ck", root)
    assert _snapshot(world) == before


@pytest.mark.parametrize("sink", ["ck", "ck/x", "store", "store/x", "to-ck"])
def test_a_sink_that_overlaps_is_refused(world, sink):
    """The log of a sink is never put into a checkpoint or a store."""
    before = _snapshot(world)
    with pytest.raises(RefusedError, match="overlap"):
        save("ck", "store", sink=sink)
    with pytest.raises(RefusedError, match="overlap"):
        restore("ck", "store", into="new", sink=sink)
    assert _snapshot(world) == before


@pytest.mark.parametrize(
    "call",
    [
        lambda: save("ck", "fresh", "fork-x"),
        lambda: save("ck", "fresh", "a/b"),
        lambda: save("ck", "fresh", name="../up"),
        lambda: save("ck", "fresh", "x", note="x" * 2_000),
        lambda: save("nowhere", "fresh"),
        lambda: save("out", "fresh"),
        lambda: save("ck", "fresh", sink="nowhere"),
        lambda: restore("ck", "store", 999, into="fresh"),
        lambda: restore("ck", "nowhere", into="fresh"),
        lambda: restore("ck", "store", into="fresh/a/b", sink="nowhere"),
        lambda: restore("ck", "store", into="ck/metadata/x"),
        lambda: clone("ck", "store", ""),
    ],
)
def test_a_refused_call_leaves_nothing(world, call):
    """Wrong labels, names, savepoints and places are refused before a directory is made."""
    before = _snapshot(world)
    with pytest.raises(HoldfastError):
        call()
    assert _snapshot(world) == before


@pytest.mark.parametrize("damage", ["foreign", "no batch", "metadata"])
def test_what_cannot_be_saved_makes_no_store(world, damage):
    """A checkpoint that is refused while it is read leaves no store behind."""
    place = world / "other-ck"
    if damage == "foreign":
        (place / "who.txt").write_text("?")
    elif damage == "no batch":
        shutil.rmtree(place / "commits")
    else:
        (place / "metadata").write_text("{")
    before = _snapshot(world)
    with pytest.raises(HoldfastError):
        save("other-ck", "fresh")
    assert _snapshot(world) == before


def test_an_empty_directory_and_missing_parents_are_fine(world):
    """A target may be an empty directory, or lie below directories that are not there yet."""
    restore("ck", "store", into="out")
    restore("ck", "store", into="a/b/c")
    for place in ("out", "a/b/c"):
        assert verify(place).ok
    assert sorted(p.name for p in (world / "a" / "b").iterdir()) == ["c"]


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "into"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit, MemoryError, "disk"])
@pytest.mark.parametrize("when", ["first file", "after the files", "at the move"])
def test_a_failure_removes_what_was_built(world, monkeypatch, failure, when, in_place):
    """Ctrl-C, a full disk or anything else in the middle leaves every file as it was."""

    def fail(*_args, **_more):
        if failure == "disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise failure

    before = _snapshot(world)
    spot = {
        "first file": (restoring._Content, "write_to"),
        "after the files": (restoring, "compute"),
        "at the move": (placing.os, "rename"),
    }[when]
    with monkeypatch.context() as patch:
        patch.setattr(*spot, fail)
        patch.setattr(placing, "_exchange", fail)
        wanted = (StorageError, OSError) if failure == "disk" else failure
        with pytest.raises(wanted):
            restore("ck", "store", into=None if in_place else "deep/er/new")
    after = _snapshot(world)
    kept = {path for path in after if not path.startswith("store")}
    assert kept == {path for path in before if not path.startswith("store")}
    assert verify("ck").ok


_KILLED = """
import os, signal, sys
from holdfast.guard import restore
count = 0
real = {place}.{name}
def dying(*args, **more):
    global count
    count += 1
    if count == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **more)
{place}.{name} = dying
restore("ck", "store", into={into!r})
"""


@pytest.mark.parametrize("into", ["new", None])
@pytest.mark.parametrize(("place", "name"), [("os", "rename"), ("os", "open"), ("os", "mkdir")])
@pytest.mark.parametrize("number", [1, 2, 5, 20])
def test_a_kill_leaves_nothing_half_and_the_next_call_cleans_up(world, into, place, name, number):
    """After kill -9 at any call the target is whole or absent, and the next restore removes the rest."""
    code = _KILLED.format(place=place, name=name, number=number, into=into)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=world,
        capture_output=True,
        timeout=60,
        check=False,
        env=child_environment(),
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    target = world / (into or "ck")
    if target.exists():
        assert verify(str(target)).ok
    if into and target.exists():
        shutil.rmtree(target)
    restore("ck", "store", into=into)
    assert verify(str(target)).ok
    assert not [*world.glob("*.restoring-*")]
    for aside in world.glob("ck.before-*"):
        assert verify(str(aside)).ok, "what was kept aside is whole"


def test_a_restore_that_still_runs_is_not_cleaned_up(world):
    """Only what a dead process has left is removed: the builder's lock tells."""
    target = str(world / "new")
    with placing.building(target, "0" * 16) as built:
        assert placing.remove_leftovers(target) == []
        assert os.path.isdir(built.path)
        built.move()
    (world / "new2.restoring-0123456789abcdef").mkdir()
    (world / "new2.restoring-mine").mkdir()
    restore("ck", "store", into="new2")
    assert not (world / "new2.restoring-0123456789abcdef").exists()
    assert (world / "new2.restoring-mine").exists()


def test_without_an_exchange_two_renames_do(world, monkeypatch):
    """Where the system cannot swap two names, the old checkpoint is still kept aside."""
    monkeypatch.setattr(placing, "_exchange", lambda *_: False)
    before = {k: v[:2] for k, v in _snapshot(world / "ck").items()}
    done = restore("ck", "store")
    aside = {k: v[:2] for k, v in _snapshot(Path(done.aside)).items()}
    assert aside == before
    assert verify("ck").ok


@pytest.mark.parametrize("number", [1, 3, 10])
def test_an_interrupted_restore_to_an_object_store_is_finished_by_the_next(number, monkeypatch):
    """Without renames a note says what is ours: a failure removes it, the next call removes the rest."""
    location, _ = in_memory(NAME)
    save(location, "memory://places-store")
    into = f"memory://places-target-{number}"
    storage = open_storage(into)
    real, count = type(storage).create, 0

    def failing(self, path):
        nonlocal count
        count += self is storage
        if count == number:
            raise StorageError("gone", kind="io_error")
        return real(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(type(storage), "create", failing)
        with pytest.raises(StorageError):
            restore(location, "memory://places-store", into=into)
    assert [*storage.list("")] == []
    with monkeypatch.context() as patch:  # as if killed: nothing is cleaned up either
        patch.setattr(type(storage), "create", failing)
        patch.setattr(placing, "_remove", lambda *_: None)
        count = 0
        with pytest.raises(StorageError):
            restore(location, "memory://places-store", into=into)
    assert not any(e.path == "metadata" or e.path.startswith("commits/") for e in storage.list(""))
    restore(location, "memory://places-store", into=into)
    assert verify(into).ok
    assert not storage.exists(placing.NOTE)


@pytest.mark.parametrize("query", ["x", None, 7, object()])
def test_attaching_to_what_is_no_query_is_refused(query, tmp_path):
    """`attach` wants a streaming query, and says so."""
    with pytest.raises(InvalidInputError, match="query"):
        attach(query, tmp_path)


def test_attaching_to_a_stopped_query_is_refused(tmp_path):
    """A query that has ended would never be saved."""
    query = SimpleNamespace(id="1", isActive=False)
    with pytest.raises(InvalidInputError, match="stopped"):
        attach(query, tmp_path)
