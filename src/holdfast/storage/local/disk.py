"""System calls of local disk, one method each, so that tests can count, fail and lose them.

Invariants:
- `sync_filesystem` is used only where the kernel reports write-back errors from it (Linux 5.8+).
- Nothing here decides anything; `holdfast.storage.local.storage` does.
- Paths are text: pathlib costs more than the calls themselves.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


class Disk:
    """The real disk."""

    def open_new(self, path: str) -> int:
        """Create exclusively for writing; never through a link."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, 0o644)

    def open_read(self, path: str) -> int:
        """Open for reading; never through a link."""
        # Without O_NONBLOCK, opening a named pipe that somebody put here would wait for ever.
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    def write(self, descriptor: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of it."""
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(descriptor, view) :]

    def sync(self, descriptor: int) -> None:
        """Make a file's content durable."""
        full = getattr(fcntl, "F_FULLFSYNC", None)
        if full is not None:
            fcntl.fcntl(descriptor, full)
        else:
            os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Let a descriptor go."""
        os.close(descriptor)

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

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(path)

    def make_dir(self, path: str) -> None:
        """Create one directory."""
        os.mkdir(path)

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)


def _load_libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


_libc = _load_libc()


def filesystem_sync_reports_errors() -> bool:
    """Whether `sync_filesystem` exists and tells about failed write-back (Linux 5.8+)."""
    if _libc is None or not hasattr(_libc, "syncfs"):
        return False
    try:
        major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    except ValueError:
        return False
    return (major, minor) >= (5, 8)
