"""System calls of local disk, one method each, so that tests can count, fail and lose them.

Stores, journals, sinks, the guard and caches make a file, a name or its durability only here.

Invariants:
- `sync_filesystem` is used only where the kernel reports write-back errors from it (Linux 5.8+).
- Nothing here decides anything; those who call it do.
- Paths are text: pathlib costs more than the calls themselves.
- No link is followed at the last part of a path that is opened, but by `sync_dir`.

Decision: docs/adr/0125-one-disk-layer.md.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2  # RENAME_SWAP on macOS
_Data = bytes | bytearray | memoryview


class Disk:
    """The real disk."""

    # Descriptors

    def open_new(self, path: str) -> int:
        """Create exclusively for writing; never through a link."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, 0o644)

    def open_read(self, path: str) -> int:
        """Open for reading; never through a link."""
        # Without O_NONBLOCK, opening a named pipe that somebody put here would wait for ever.
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    def open_write(self, path: str) -> int:
        """Open what exists for writing in place; never through a link."""
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    def open_lock(self, path: str) -> int:
        """Open a small file for writing in place, and make it if it is not there."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def open_dir(self, path: str) -> int:
        """Open a directory, to lock it; never through a link."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    # Content

    def write(self, descriptor: int, data: _Data) -> None:
        """Write all of it."""
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(descriptor, view) :]

    def write_at(self, descriptor: int, parts: Sequence[_Data], offset: int) -> int:
        """Write parts one after another at an offset; returns how many bytes, maybe not all."""
        return os.pwritev(descriptor, parts, offset)

    def truncate(self, descriptor: int, size: int) -> None:
        """Shorten a file."""
        os.ftruncate(descriptor, size)

    def copy(self, source: str, target: str) -> None:
        """Copy a file with its times; not durable."""
        import shutil  # not at the top: every command and task loads this module

        shutil.copy2(source, target)

    # Durability

    def sync(self, descriptor: int) -> None:
        """Make a file's content durable."""
        full = getattr(fcntl, "F_FULLFSYNC", None)
        if full is not None:
            fcntl.fcntl(descriptor, full)
        else:
            os.fsync(descriptor)

    def sync_data(self, descriptor: int) -> None:
        """Make a file's bytes and length durable, but no times."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(descriptor)
        else:
            self.sync(descriptor)

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_filesystem(self, descriptor: int) -> None:
        """Make everything on the file system durable with one call."""
        if _libc is None or _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno() or errno.ENOSYS
            raise OSError(number, os.strerror(number))

    # Names

    def link_new(self, source: str, target: str) -> None:
        """Give a file a second name, which must not exist: the atomic put-if-absent."""
        os.link(source, target, follow_symlinks=False)

    def rename_new(self, source: str, target: str) -> None:
        """Rename to a name that must not exist, for file systems without hard links."""
        if _libc is None or not hasattr(_libc, "renameat2"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        done = _libc.renameat2(
            _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE
        )
        if done != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)

    def rename(self, source: str, target: str) -> None:
        """Replace atomically."""
        os.rename(source, target)

    def exchange(self, one: str, other: str) -> None:
        """Swap two names in one step; ENOSYS where the system cannot."""
        first, second = os.fsencode(one), os.fsencode(other)
        done, number = -1, errno.ENOSYS
        if sys.platform == "darwin":
            library = ctypes.CDLL(None, use_errno=True)
            done = library.renamex_np(first, second, _RENAME_EXCHANGE)
            number = ctypes.get_errno()
        elif _libc is not None and hasattr(_libc, "renameat2"):
            done = _libc.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE)
            number = ctypes.get_errno()
        if done != 0:
            raise OSError(number, os.strerror(number), other)

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link at a path, which must not exist."""
        os.symlink(target, path)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(path)

    def make_dir(self, path: str) -> None:
        """Create one directory."""
        os.mkdir(path)

    def make_dirs(self, path: str) -> None:
        """Create a directory and those above it that are missing; not durable."""
        if not os.path.isdir(path):
            parent = os.path.dirname(path)
            if parent != path:
                self.make_dirs(parent)
            try:
                self.make_dir(path)
            except FileExistsError:
                if not os.path.isdir(path):
                    raise

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all that is in it, as far as it can be."""
        import shutil

        shutil.rmtree(path, ignore_errors=True)


def _load_libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


_libc = _load_libc()
_current = Disk()


def current_disk() -> Disk:
    """The disk of this process, for code that was not given one."""
    return _current


@contextmanager
def installed_disk(disk: Disk) -> Iterator[None]:
    """For tests: another disk for all that is opened meanwhile in this process."""
    global _current  # noqa: PLW0603 - a fact about this process
    before, _current = _current, disk
    try:
        yield
    finally:
        _current = before


def filesystem_sync_reports_errors() -> bool:
    """Whether `sync_filesystem` exists and tells about failed write-back (Linux 5.8+)."""
    if _libc is None or not hasattr(_libc, "syncfs"):
        return False
    try:
        major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    except ValueError:
        return False
    return (major, minor) >= (5, 8)
