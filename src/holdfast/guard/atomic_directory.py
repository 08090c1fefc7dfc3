"""Putting a directory in place: built aside, moved in one step, removed when anything fails.

Invariants:
- What has the target's name is whole: it is built under another name, next to the target, and moved
  when every file is durable. An object store has no such move: there the log files by which Spark
  knows a checkpoint come last, and a note says that the place is not finished.
- A failure of any kind, Ctrl-C included, removes what was built. What a killed process has left is
  removed by the next call with the same target; a lock tells that its builder is gone.
- What stood at the target before is renamed, never deleted.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import msgspec

from holdfast.errors import AlreadyExistsError, HoldfastError, NotFoundError, RefusedError
from holdfast.storage.base import Storage
from holdfast.storage.local.disk import current_disk
from holdfast.storage.local.errors import translate

NOTE = ".holdfast-restoring"
_NOTE_BYTES_MAX = 64 * 1024 * 1024


@dataclass
class Built:
    """A directory that is being built next to its target."""

    path: str
    target: str
    token: str

    def move(self) -> None:
        """Give it the target's name, which is free or an empty directory."""
        with _typed(self.target):
            disk = current_disk()
            disk.rename(self.path, self.target)
            disk.sync_dir(os.path.dirname(self.target))

    def swap(self) -> str:
        """Trade places with the target; returns where the old one lies now, if there was one."""
        aside = f"{self.target}.before-{self.token}"
        with _typed(self.target):
            if not os.path.lexists(self.target):
                self.move()
                return ""
            # First under the name that is never cleaned up: no moment can cost the old one.
            disk = current_disk()
            disk.rename(self.path, aside)
            if not _exchange(aside, self.target):
                disk.rename(aside, self.path)
                self._swap_slowly(aside)
            disk.sync_dir(os.path.dirname(self.target))
        return aside

    def _swap_slowly(self, aside: str) -> None:
        """By two renames, where the system knows no exchange."""
        disk = current_disk()
        disk.rename(self.target, aside)
        try:
            disk.rename(self.path, self.target)
        except OSError:
            disk.rename(aside, self.target)
            raise


@contextmanager
def building(target: str, token: str) -> Iterator[Built]:
    """A place next to the target; gone again unless it was moved."""
    made = _make_parents(os.path.dirname(target))
    path = f"{target}.restoring-{token}"
    built = Built(path, target, token)
    disk, lock = current_disk(), -1
    try:
        with _typed(path):
            remove_leftovers(target)
            disk.make_dir(path)
            lock = disk.open_dir(path)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield built
    except BaseException:
        disk.remove_tree(path)
        for each in made:
            with suppress(OSError):
                disk.remove_dir(each)
        raise
    finally:
        if lock >= 0:
            disk.close(lock)


def remove_leftovers(target: str) -> list[str]:
    """Delete what killed calls have built next to this target; returns their paths."""
    folder, name = os.path.split(target)
    pattern = re.compile(re.escape(name) + r"\.restoring-[0-9a-f]{16}")
    gone = []
    with suppress(FileNotFoundError):
        for entry in os.listdir(folder):
            path = os.path.join(folder, entry)
            if pattern.fullmatch(entry) and os.path.isdir(path) and _abandoned(path):
                current_disk().remove_tree(path)
                gone.append(path)
    return gone


def _abandoned(path: str) -> bool:
    """Whether nobody builds there any more: the lock of a process ends with it."""
    try:
        descriptor = current_disk().open_dir(path)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        current_disk().close(descriptor)
    return True


def check_free(target: str) -> None:
    """Refuse a target on disk that is anything but absent or an empty directory."""
    with _typed(target):
        if not os.path.lexists(target):
            return
        first = next(iter(sorted(os.listdir(target))), None) if os.path.isdir(target) else ""
    if first is not None:
        raise not_empty(target, first)


def not_empty(target: str, path: str) -> RefusedError:
    """Says that a restore never writes into what is in use."""
    return RefusedError(
        "the target is not empty",
        kind="target_not_empty",
        location=target,
        path=path,
        remedy="choose another one; to replace the original, give no target",
    )


# Object stores


def fill(storage: Storage, target: str, paths: list[str], write: Callable[[], None]) -> None:
    """Write a new prefix of an object store, under a note that says which files are ours."""
    _remove_unfinished(storage)
    first = next(iter(storage.list("")), None)
    if first is not None:
        raise not_empty(target, first.path)
    try:
        storage.put(NOTE, msgspec.json.encode(paths))
    except AlreadyExistsError as error:
        raise not_empty(target, NOTE) from error
    try:
        write()
    except BaseException:
        _remove(storage, paths)
        raise
    storage.delete(NOTE)


def _remove_unfinished(storage: Storage) -> None:
    """Remove what an interrupted call has left: exactly the files that its note names."""
    try:
        left = storage.get(NOTE, bytes_max=_NOTE_BYTES_MAX)
    except NotFoundError:
        return
    try:
        paths = msgspec.json.decode(left, type=list[str])
    except msgspec.MsgspecError:
        return
    _remove(storage, paths)


def _remove(storage: Storage, paths: list[str]) -> None:
    with suppress(HoldfastError):
        for path in paths:
            with suppress(NotFoundError):
                storage.delete(path)
        storage.delete(NOTE)


# The system


def _make_parents(folder: str) -> list[str]:
    """Make the missing directories above a target; returns them, innermost first."""
    missing = []
    above = folder
    while not os.path.lexists(above):
        missing.append(above)
        above = os.path.dirname(above)
    with _typed(folder):
        current_disk().make_dirs(folder)
    return missing


def _exchange(one: str, other: str) -> bool:
    """Swap two directories in one step; False where the system cannot."""
    try:
        current_disk().exchange(one, other)
    except OSError:
        return False
    return True


@contextmanager
def _typed(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise translate(error, path, took_effect=None) from error
