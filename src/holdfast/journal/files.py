"""The journal's only I/O: a thin, typed layer over the calls of `Disk`.

Every call that changes the log goes through `JournalFiles._do`, every other one (the lock's
included) through `JournalFiles._look`, so a test can fail the k-th one before or after it took
effect, write short, or record what a power cut would leave.

Invariants:
- No symlink is ever followed at the last component of a path.
- `replace` is atomic and durable: temporary name, fsync, rename, fsync of the directory.
- An fsync that failed is never tried again here: what it left behind is unknown.
- Every failure is a `HoldfastError`. Closing a descriptor has no outcome: what must be durable was
  made so before.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import (
    ConflictError,
    CorruptionError,
    HoldfastError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from holdfast.failpoints import failpoint
from holdfast.storage.local.disk import current_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.storage.local.disk import Disk

Data = bytes | bytearray | memoryview
TEMPORARY_SUFFIX = ".tmp"


def storage_error(error: OSError, operation: str, path: Path) -> Exception:
    """Make a typed error of an OSError."""
    facts: dict[str, Any] = {"operation": operation, "path": path, "errno": error.errno}
    if error.errno == errno.ENOENT:
        return NotFoundError("file is missing", kind="file_missing", **facts)
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return RefusedError(
            "symbolic link refused",
            kind="symlink",
            **facts,
            remedy="put the real file there; the journal follows no links",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            "the disk is full",
            kind="no_space",
            retryable=True,
            **facts,
            remedy="free some space (`journal info` shows what the journal uses), then try again",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorageError(
            "access denied", kind="denied", **facts, remedy="check owner and mode of the path"
        )
    return StorageError(
        f"{operation} failed: {error.strerror}",
        kind="io",
        **facts,
        remedy="check the disk and the kernel's log",
    )


class JournalFiles:
    """Calls on the journal's directory, with typed errors."""

    def __init__(self, disk: Disk | None = None) -> None:
        """disk: by default that of the process."""
        self._disk = disk or current_disk()

    def _do(self, operation: str, path: Path, call: Callable[..., Any], *args: Any) -> Any:
        """Run one mutating call. Tests override this."""
        return self._look(operation, path, call, *args)

    def _look(self, operation: str, path: Path, call: Callable[..., Any], *args: Any) -> Any:
        """Run one call that changes nothing in the log."""
        try:
            return call(*args)
        except OSError as error:
            raise storage_error(error, operation, path) from error

    def kind(self, path: Path) -> int:
        """Type and permissions of what lies at a path, a link not followed; 0 for nothing."""
        try:
            return int(self._look("stat", path, os.lstat, path).st_mode)
        except NotFoundError:
            return 0

    def exists(self, path: Path) -> bool:
        """Whether something lies at a path."""
        return self.kind(path) != 0

    def _refuse_link(self, path: Path, operation: str) -> int:
        found = self.kind(path)
        if stat.S_ISLNK(found):
            raise storage_error(OSError(errno.ELOOP, "symlink"), operation, path)
        return found

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents, each made durable in its parent."""
        if stat.S_ISDIR(self._refuse_link(path, "mkdir")):
            return
        if path.parent != path:
            self.make_directory(path.parent)
        try:
            self._do("mkdir", path, self._disk.make_dir, os.fspath(path))
        except StorageError as error:
            if error.facts.get("errno") != errno.EEXIST or not stat.S_ISDIR(self.kind(path)):
                raise
        self.sync_directory(path.parent)

    def create(self, path: Path) -> int:
        """A new file for writing; an existing one is refused."""
        return int(self._do("create", path, self._disk.open_new, os.fspath(path)))

    def open_write(self, path: Path) -> int:
        """An existing file for writing."""
        return self._open(path, self._disk.open_write)

    def open_or_create(self, path: Path) -> int:
        """A small file that is written in place: the lock and the mark."""
        return int(self._look("open", path, self._disk.open_lock, os.fspath(path)))

    def say(self, fd: int, path: Path, text: str) -> None:
        """Write who holds the lock. Nobody but a message depends on it."""
        self._look("truncate", path, self._disk.truncate, fd, 0)
        self._look("write", path, self._disk.write_at, fd, [text.encode()], 0)

    def open_read(self, path: Path) -> int:
        """An existing file for reading."""
        return self._open(path, self._disk.open_read)

    def _open(self, path: Path, opener: Callable[[str], int]) -> int:
        fd = int(self._look("open", path, opener, os.fspath(path)))
        try:
            if not stat.S_ISREG(self._look("stat", path, os.fstat, fd).st_mode):
                raise RefusedError("not a regular file", kind="not_a_file", path=path)
        except HoldfastError:
            self.close(fd)
            raise
        return fd

    def write_at(self, fd: int, path: Path, parts: Sequence[Data], offset: int) -> int:
        """Write all parts, one after another, at an offset; returns the bytes written."""
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        total = sum(len(view) for view in views)
        done = 0
        while done < total:
            wrote = int(
                self._do("write", path, self._disk.write_at, fd, views[:512], offset + done)
            )
            if wrote == 0:
                raise storage_error(OSError(errno.EIO, "nothing was written"), "write", path)
            done += wrote
            while views and wrote >= len(views[0]):
                wrote -= len(views.pop(0))
            if wrote:
                views[0] = views[0][wrote:]
        return total

    def sync(self, fd: int, path: Path) -> None:
        """Make the file's bytes durable. Never call it again after it failed."""
        self._do("fsync", path, self._disk.sync, fd)

    def sync_data(self, fd: int, path: Path) -> None:
        """Make bytes and length durable, but no times. Never call it again after it failed."""
        self._do("fdatasync", path, self._disk.sync_data, fd)

    def cut(self, fd: int, path: Path, size: int) -> None:
        """Shorten a file."""
        self._do("truncate", path, self._disk.truncate, fd, size)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        self._do("fsync_directory", path, self._disk.sync_dir, os.fspath(path))

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its final name. Durable after `sync_directory`."""
        self._do("rename", target, self._disk.rename, os.fspath(source), os.fspath(target))

    def remove(self, path: Path) -> None:
        """Remove a file; an absent one is fine."""
        try:
            self._do("unlink", path, self._disk.unlink, os.fspath(path))
        except NotFoundError:
            return

    def close(self, fd: int) -> None:
        """Close a descriptor; nothing is expected of it."""
        with suppress(OSError):
            self._disk.close(fd)

    def replace(self, path: Path, parts: Sequence[Data]) -> None:
        """Write a whole file atomically and durably. A symlink in its place is refused."""
        self.install(self.stage(path, parts), path)

    def stage(self, path: Path, parts: Sequence[Data]) -> Path:
        """The first half of `replace`: a durable file under a temporary name."""
        self._refuse_link(path, "replace")
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        self.remove(temporary)
        fd = self.create(temporary)
        try:
            self.write_at(fd, temporary, parts, 0)
            failpoint("journal_replace.after_write")
            self.sync(fd, temporary)
        finally:
            self.close(fd)
        return temporary

    def install(self, temporary: Path, path: Path) -> None:
        """The second half: a failure leaves open whether the file has its name."""
        failpoint("journal_replace.before_rename")
        self.rename(temporary, path)
        failpoint("journal_replace.after_rename")
        self.sync_directory(path.parent)

    def read(self, path: Path, bytes_max: int) -> bytes:
        """A whole small file; a larger one than expected is damage."""
        fd = self.open_read(path)
        try:
            size = self.size(fd, path)
            if size > bytes_max:
                raise CorruptionError(
                    "file is larger than it can be", kind="too_large", path=path, bytes=size
                )
            return self.read_at(fd, path, 0, size)
        finally:
            self.close(fd)

    def read_at(self, fd: int, path: Path, offset: int, length: int) -> bytes:
        """Bytes from an offset; fewer only at the end of the file."""
        parts = []
        while length > 0:
            data = self._look("read", path, os.pread, fd, min(length, 1 << 30), offset)
            if not data:
                break
            parts.append(data)
            offset += len(data)
            length -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self, fd: int, path: Path) -> int:
        """The file's length."""
        return self.stat(fd, path).st_size

    def stat(self, what: int | Path, path: Path) -> os.stat_result:
        """What the system knows of a descriptor, or of a path (a link not followed)."""
        call = os.fstat if isinstance(what, int) else os.lstat
        return self._look("stat", path, call, what)  # type: ignore[no-any-return]

    def map(self, path: Path, *, whole: bool = False) -> memoryview:
        """A read-only mapping of an immutable file; lives as long as something refers to it.

        `whole` says that all of it will be read: its pages are brought in at once.
        """
        fd = self.open_read(path)
        try:
            size = self.size(fd, path)
            if size == 0:
                return memoryview(b"")
            flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if whole else 0)

            def mapped() -> mmap.mmap:
                try:
                    return mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ)
                except ValueError as error:  # shorter than it was a moment ago
                    raise OSError(errno.EIO, str(error)) from error

            return memoryview(self._look("mmap", path, mapped))
        finally:
            self.close(fd)

    def entries(self, path: Path) -> dict[str, int]:
        """Names and sizes of the regular files in a directory; a symlink is refused."""
        found = {}
        try:
            with os.scandir(path) as listing:
                for entry in listing:
                    if entry.is_symlink():
                        raise storage_error(
                            OSError(errno.ELOOP, "symlink"), "list", path / entry.name
                        )
                    if entry.is_file(follow_symlinks=False):
                        with suppress(FileNotFoundError):  # removed since: only this one is gone
                            found[entry.name] = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise storage_error(error, "list", path) from error
        return found


class WriterLock:
    """One writer per journal: an flock that the kernel releases when the process ends."""

    def __init__(self, files: JournalFiles, path: Path, owner: str) -> None:
        """Take the lock or say who has it."""
        self.path = path
        self._files = files
        self.pid = os.getpid()
        self._fd = files.open_or_create(path)
        try:
            self._take(owner)
        except BaseException:
            files.close(self._fd)
            raise

    def _take(self, owner: str) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise storage_error(error, "lock", self.path) from error
            holder = ""
            with suppress(HoldfastError):
                found = self._files.read_at(self._fd, self.path, 0, 200)
                holder = found.decode(errors="replace").strip()
            raise ConflictError(
                "another writer has this journal open",
                kind="journal_locked",
                path=self.path,
                holder=holder or "unknown",
                remedy="stop that process, or let it do the appending; readers need no lock",
            ) from error
        self._identity = self._inode(self._files.stat(self._fd, self.path))
        with suppress(HoldfastError):  # who has it is a courtesy; a full disk stops no writer here
            self._files.say(self._fd, self.path, f"pid={self.pid} {owner}\n")

    @staticmethod
    def _inode(found: os.stat_result) -> tuple[int, int]:
        return found.st_dev, found.st_ino

    def held(self) -> bool:
        """Whether this process still owns the journal: no fork, and the lock file is the same."""
        if os.getpid() != self.pid:
            return False
        try:
            return self._inode(self._files.stat(self.path, self.path)) == self._identity
        except NotFoundError:
            return False

    def release(self) -> None:
        """Let others in."""
        self._files.close(self._fd)
