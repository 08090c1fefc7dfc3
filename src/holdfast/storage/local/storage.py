"""Local disk.

Invariants:
- `put_new` and `put` write a temporary name, fsync it, give it its final name, fsync the directory.
- A barrier syncs every file that it names and every directory on the way to it: with one `syncfs`
  where that is cheaper and reports errors, file by file otherwise.
- No path leaves the root, none is followed through a symbolic link.

Spec: spec/format-v2.md, section 5.1.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from holdfast.format import paths
from holdfast.ids import IdSource, RandomIds
from holdfast.storage.base import Entry
from holdfast.storage.local.disk import Disk, current_disk, filesystem_sync_reports_errors
from holdfast.storage.local.errors import (
    check_regular,
    missing_root,
    root_text,
    same_file,
    symlink_refused,
    temporary_lost,
    translate,
    unsynced,
)
from holdfast.storage.local.reserve import Reserve
from holdfast.storage.local.writer import LocalLease, LocalWriter, lock_holder

_Entries = list[Entry]
_Names = list[str]
BarrierMode = Literal["auto", "fsync", "syncfs"]

# Measured on ext4: one fsync 0.5 ms, four 1.6 ms, sixteen 6 ms; syncfs 0.5, 0.6 and 1.1 ms.
_SYNCFS_FROM = 3
_TEMPORARIES = 5
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalStorage:
    """A directory on local disk."""

    parallel = 1

    def __init__(
        self,
        root: str | PathLike[str],
        *,
        create: bool = True,
        barrier: BarrierMode = "auto",
        disk: Disk | None = None,
        ids: IdSource | None = None,
    ) -> None:
        """Open a directory; with `create`, make it if it is not there."""
        self._disk = disk or current_disk()
        self._ids = ids or RandomIds()
        self._descriptor: int | None = None
        self._root = root_text(root)
        self._lock = threading.Lock()
        self._usage: int | None = None
        self._durable_dirs: set[str] = set()
        try:
            if create:
                self._make_dirs(self._root, durable=True)
            if not os.path.isdir(self._root):
                raise missing_root(self._root)
            # Opened now and kept: syncfs reports only errors since its descriptor was opened.
            self._descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise translate(error, self._root, took_effect=False) from error
        self._whole = barrier == "syncfs" or (
            barrier == "auto" and filesystem_sync_reports_errors()
        )
        self._syncfs_from = 0 if barrier == "syncfs" else _SYNCFS_FROM

    @property
    def url(self) -> str:
        """The directory."""
        return self._root

    @property
    def reserve(self) -> Reserve:
        """Bytes that are kept back; not held, which would make a cycle that keeps descriptors."""
        return Reserve(self._root, self._count)

    # Reading

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        """The whole object."""
        descriptor = self._open(path)
        with io.FileIO(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            if bytes_max is not None and size > bytes_max:
                raise CorruptionError(
                    "object is larger than allowed",
                    kind="object_too_large",
                    path=path,
                    size=size,
                    limit=bytes_max,
                )
            try:
                return file.readall()
            except OSError as error:
                raise translate(error, path, took_effect=False) from error

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Exactly that range."""
        descriptor = self._open(path)
        try:
            size = os.fstat(descriptor).st_size
            if start < 0 or length < 0 or start + length > size:
                raise InvalidInputError(
                    "range runs past the object",
                    kind="range_outside",
                    path=path,
                    start=start,
                    length=length,
                    size=size,
                )
            chunks = []
            while length > 0:
                chunk = os.pread(descriptor, length, start)
                if not chunk:
                    raise CorruptionError("object shrank while being read", path=path)
                chunks.append(chunk)
                start, length = start + len(chunk), length - len(chunk)
            return b"".join(chunks)
        except OSError as error:
            raise translate(error, path, took_effect=False) from error
        finally:
            os.close(descriptor)

    def stat(self, path: str) -> Entry:
        """Size and time."""
        try:
            found = os.lstat(self._locate(path))
        except OSError as error:
            raise translate(error, path, took_effect=False) from error
        check_regular(found.st_mode, path)
        return Entry(path, found.st_size, found.st_mtime_ns // 1_000)

    def exists(self, path: str) -> bool:
        """Whether the object is there."""
        try:
            self.stat(path)
        except NotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects below a directory prefix, in order of path."""
        start = self._root if not prefix else self._locate(prefix.rstrip("/"))
        found: _Entries = []
        if prefix and os.path.islink(start):
            raise symlink_refused(prefix)  # an empty answer would hide pins and outcomes
        self._walk(start, prefix.rstrip("/"), found)
        found.sort(key=lambda entry: entry.path)
        return iter(found)

    def _walk(self, directory: str, prefix: str, found: _Entries) -> None:
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    name = entry.name
                    if not name.isascii():  # a name that is no text: shown, never opened
                        name = os.fsencode(name).decode("utf-8", "backslashreplace")
                    path = f"{prefix}/{name}" if prefix else name
                    if entry.is_dir(follow_symlinks=False):
                        self._walk(entry.path, path, found)
                        continue
                    try:
                        seen = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # deleted between the listing and now
                    found.append(Entry(path, seen.st_size, seen.st_mtime_ns // 1_000))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise translate(error, directory, took_effect=False) from error

    def directories(self) -> _Names:
        """Names of the directories right below the root, without looking into them."""
        try:
            with os.scandir(self._root) as entries:
                return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        except OSError as error:
            raise translate(error, self._root, took_effect=False) from error

    def local_path(self, path: str) -> Path | None:
        """The file itself."""
        return Path(self._locate(path))

    def usage_bytes(self) -> int:
        """Measured once, then kept up to date with this process's own changes."""
        with self._lock:
            if self._usage is not None:
                return self._usage
        total = sum(entry.size for entry in self.list(""))
        with self._lock:
            self._usage = total
        return total

    # Writing

    def create(self, path: str) -> LocalWriter:
        """Begin a new object at its final name: nobody reads it before a manifest names it."""
        target = self._locate(path)
        try:
            return LocalWriter(self, target, path, self._open_new(target, durable=False))
        except OSError as error:
            raise translate(error, path, took_effect=False) from error

    def put_new(self, path: str, data: bytes) -> None:
        """Durable put-if-absent."""
        target = self._locate(path)
        for _ in range(_TEMPORARIES):
            temporary = self._write_temporary(target, path, data, durable=True)
            try:
                named = self._name_new(temporary, target, path)
            finally:
                self._discard(temporary)
            if named:
                break
        else:
            raise temporary_lost(path)
        try:
            self._disk.sync_dir(os.path.dirname(target))
        except OSError as error:
            raise unsynced(error, path) from error
        self._count(len(data))

    def _name_new(self, temporary: str, target: str, path: str) -> bool:
        """Give a file its final name; False if another process's clean-up took it before that."""
        try:
            try:
                self._disk.link_new(temporary, target)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self._disk.rename_new(temporary, target)
        except FileExistsError:
            raise AlreadyExistsError("object exists already", path=path) from None
        except FileNotFoundError:
            return False
        except OSError as error:
            # Over a network the call may have succeeded and its reply been lost.
            if not same_file(temporary, target):
                raise translate(error, path, took_effect=False) from error
        return True

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Replace atomically."""
        target = self._locate(path)
        try:
            found = os.lstat(target)
            check_regular(found.st_mode, path)
            before = found.st_size
        except FileNotFoundError:
            before = 0
        except OSError as error:
            raise translate(error, path, took_effect=False) from error
        for _ in range(_TEMPORARIES):
            temporary = self._write_temporary(target, path, data, durable=durable)
            try:
                self._disk.rename(temporary, target)
                break
            except FileNotFoundError:
                continue  # another process's clean-up took it before it had its name
            except OSError as error:
                self._discard(temporary)
                raise unsynced(error, path) from error
        else:
            raise temporary_lost(path)
        try:
            if durable:
                self._disk.sync_dir(os.path.dirname(target))
        except OSError as error:
            raise unsynced(error, path) from error
        self._count(len(data) - before)

    def _write_temporary(self, target: str, path: str, data: bytes, *, durable: bool) -> str:
        temporary = f"{os.path.dirname(target)}/{paths.TEMPORARY_PREFIX}{self._ids.token()}"
        try:
            descriptor = self._open_new(temporary, durable=durable)
            try:
                self._disk.write(descriptor, data)
                if durable:
                    self._disk.sync(descriptor)
            finally:
                self._disk.close(descriptor)
        except OSError as error:
            self._discard(temporary)
            raise translate(error, path, took_effect=False) from error
        return temporary

    def _discard(self, temporary: str) -> None:
        """A left-over temporary name is harmless; the next clean-up takes it."""
        try:
            self._disk.unlink(temporary)
        except OSError:
            return

    def barrier(self, paths: Sequence[str]) -> None:
        """Files and the directories that lead to them become durable."""
        files = [self._locate(path) for path in dict.fromkeys(paths)]
        top = len(self._root)
        names = {name[:end] for name in files for end in _cuts(name, top)}
        directories = sorted(names, key=len, reverse=True)
        try:
            for file in files:
                check_regular(os.lstat(file).st_mode, file)
            if self._whole and len(files) + len(directories) >= self._syncfs_from:
                self._disk.sync_filesystem(self._handle())
                return
            for file in files:
                descriptor = self._disk.open_read(file)
                try:
                    self._disk.sync(descriptor)
                finally:
                    self._disk.close(descriptor)
            for directory in directories:  # deepest first
                self._disk.sync_dir(directory)
        except OSError as error:
            raise translate(error, self.url, took_effect=None) from error

    def delete(self, path: str) -> None:
        """Remove one object for good."""
        if self._delete(path):
            try:
                self._disk.sync_dir(os.path.dirname(self._locate(path)))
            except FileNotFoundError:
                return  # its directory went with it
            except OSError as error:
                raise unsynced(error, path) from error

    def _delete(self, path: str) -> bool:
        """Remove one object and the directories that this leaves empty; False if it was gone."""
        target = self._locate(path)
        try:
            size = os.lstat(target).st_size
            self._disk.unlink(target)
        except (FileNotFoundError, IsADirectoryError):
            return False  # a directory is not an object: there is none of that name
        except OSError as error:
            raise translate(error, path, took_effect=None) from error
        self._count(-size)
        if path.count("/") > 2:  # below <pipeline>/<kind>/: only a checkpoint's own directories
            self._remove_empty(os.path.dirname(target), depth=path.count("/") - 2)
        return True

    def _remove_empty(self, directory: str, depth: int) -> None:
        for _ in range(depth):
            try:
                self._disk.remove_dir(directory)
            except OSError:
                return
            directory = os.path.dirname(directory)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove objects, one by one; after a power cut some may be back."""
        for path in paths:
            self._delete(path)

    def exclusive(self, path: str, owner: str) -> LocalLease:
        """An flock on a file of the store; the kernel releases it when the process ends."""
        target = self._locate(path)
        try:
            self._make_dirs(os.path.dirname(target), durable=True)
            descriptor = self._disk.open_lock(target)
        except OSError as error:
            raise translate(error, path, took_effect=False) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = lock_holder(os.fstat(descriptor).st_ino)
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise ConflictError(
                    "another process is writing to this pipeline",
                    kind="locked",
                    path=target,
                    pid=holder,
                    asked_by=owner,
                    remedy="stop it first, or open with takeover=True to fence it",
                ) from error
            raise translate(error, path, took_effect=False) from error
        return LocalLease(descriptor)

    def close(self) -> None:
        """Release the root."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        """A storage that was forgotten keeps no descriptor."""
        if getattr(self, "_descriptor", None) is not None:
            self.close()

    # Helpers

    def _handle(self) -> int:
        if self._descriptor is None:
            raise StorageError("storage is closed", kind="closed", url=self.url)
        return self._descriptor

    def _locate(self, path: str) -> str:
        """The file of a path; refuses to walk through a symbolic link on the way."""
        target = f"{self._root}/{paths.check_relative(path)}"
        end = top = len(self._root)
        while (end := target.find("/", end + 1)) > 0:  # every directory below the root
            if os.path.islink(target[:end]):
                raise symlink_refused(target[top + 1 : end])
        return target

    def _open(self, path: str) -> int:
        target = self._locate(path)
        try:
            descriptor = self._disk.open_read(target)
        except OSError as error:
            raise translate(error, path, took_effect=False) from error
        try:
            check_regular(os.fstat(descriptor).st_mode, path)
        except HoldfastError:
            os.close(descriptor)
            raise
        return descriptor

    def _open_new(self, target: str, *, durable: bool) -> int:
        """Create a file and the directories that lead to it."""
        for _ in range(_TEMPORARIES):
            try:
                self._make_dirs(os.path.dirname(target), durable=durable)
                return self._disk.open_new(target)
            except FileNotFoundError:
                continue  # another process's clean-up has just removed the empty directory
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target)

    def _make_dirs(self, directory: str, *, durable: bool) -> None:
        """Create missing directories; with `durable`, each made durable in its parent.

        A directory that another process has just made, or that this one could not sync, exists
        but is not durable: so each one is synced once by every process that depends on it.
        """
        missing: _Names = []
        while not os.path.exists(directory) or (
            durable
            and directory not in self._durable_dirs
            and directory.startswith(f"{self._root}/")
        ):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                self._disk.make_dir(path)
            if durable:
                self._disk.sync_dir(os.path.dirname(path))
                self._durable_dirs.add(path)

    def _count(self, change: int) -> None:
        with self._lock:
            if self._usage is not None:
                self._usage += change


def _cuts(name: str, top: int) -> Iterator[int]:
    """Where the directories of a file end, from the root down."""
    end = top
    while end > 0:
        yield end
        end = name.find("/", end + 1)
