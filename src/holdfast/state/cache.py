"""A disk cache for runs of stores that have no local files: by digest, with a byte limit.

Invariants:
- A file in the cache has the size and SHA-256 of its name: it is verified on arrival, before it
  gets that name. The name appears at once or not at all.
- Several processes may share a directory. One of them downloads a run that several ask for.
- The directory stays below its limit, but for runs that are mapped or on their way: room is made
  before a byte arrives, and downloads count with the size that they will have.
- A run is not evicted while somebody has it mapped: its disk space would not come back. A map
  holds a shared lock on the file for as long as it lives.
- It is a cache: it can be deleted at any time, and it is never durable. What was damaged on this
  disk is fetched again; where the disk is full, small runs are served from memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import mmap
import os
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import CorruptionError, InvalidInputError, StorageError
from holdfast.storage.local.disk import current_disk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.ids import IdSource
    from holdfast.state.run_info import RunInfo
    from holdfast.storage.base import StorageReader

log = logging.getLogger("holdfast.state")

CHUNK_BYTES = 8 << 20
_SUFFIX = ".run"
_PARTIAL = ".partial-"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MEMORY_BYTES_MAX = 64 << 20  # what is served from memory when the disk is full


def map_file(path: Path) -> pa.Buffer:
    """A file as an Arrow buffer: a view of its pages, alive for as long as somebody uses it."""
    with pa.memory_map(os.fspath(path)) as file:
        return file.read_buffer()


class RunCache:
    """Runs on local disk, found by their digest."""

    def __init__(self, directory: str | PathLike[str], *, bytes_max: int, ids: IdSource) -> None:
        """Use a directory of its own; it is made if it is not there. `~` is this user's home."""
        if bytes_max < 1:
            raise InvalidInputError(
                "the cache needs room", kind="invalid_cache_limit", bytes_max=bytes_max
            )
        self._directory = Path(os.path.expanduser(directory))
        self.bytes_max = bytes_max
        self._ids, self._disk = ids, current_disk()
        try:
            self._disk.make_dirs(str(self._directory))
        except OSError as error:
            raise self._failed(error) from error

    def fetch(self, storage: StorageReader, source: str, info: RunInfo) -> pa.Buffer:
        """The bytes of a run, mapped from the cache; downloaded and verified if not there yet.

        What is returned is mapped already, and stays in the cache while it is.
        """
        path = self._path(info)
        try:
            content = self._hit(path, info.size)
            if content is not None:
                return content
            with self._locked(f"-{info.sha256[:2]}"):  # somebody may be fetching it at this moment
                content = self._hit(path, info.size)
                return content if content is not None else self._fill(storage, source, info)
        except OSError as error:
            if error.errno in _FULL and info.size <= _MEMORY_BYTES_MAX:
                log.warning("the disk of the run cache %s is full", self._directory)
                return self._in_memory(storage, source, info)
            raise self._failed(error, info.path) from error

    def discard(self, info: RunInfo) -> None:
        """Forget a run whose cached bytes turned out to be damaged."""
        try:
            self._remove(self._path(info))
        except OSError as error:
            raise self._failed(error, info.path) from error

    def _path(self, info: RunInfo) -> Path:
        return self._directory / f"{info.sha256}{_SUFFIX}"

    def _hit(self, path: Path, size: int) -> pa.Buffer | None:
        try:
            descriptor = self._disk.open_read(str(path))
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_size == size:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(path)  # least recently used goes first
                return _mapped(descriptor, size)
        finally:
            self._disk.close(descriptor)
        self._remove(path)
        return None

    def _fill(self, storage: StorageReader, source: str, info: RunInfo) -> pa.Buffer:
        """Download a run to a name of its own, then give it the name of its digest."""
        partial = self._directory / f"{_PARTIAL}{info.size}-{self._ids.token()}"
        with self._locked():
            self._evict(self.bytes_max - info.size)
            descriptor = self._disk.open_new(str(partial))
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # tells it from the download of a dead process
        try:
            self._download(storage, source, info, descriptor)
            with self._locked():  # for a moment it is locked neither by the writer nor by the map
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                content = _mapped(descriptor, info.size)
                self._disk.rename(str(partial), str(self._path(info)))
        except OSError as error:
            if error.errno in _FULL:
                with self._locked():
                    self._evict(0)
            raise
        finally:
            self._remove(partial)
            self._disk.close(descriptor)
        return content

    def _download(
        self, storage: StorageReader, source: str, info: RunInfo, descriptor: int
    ) -> None:
        digest = hashlib.sha256()
        for chunk in _chunks(storage, source, info):
            digest.update(chunk)
            self._disk.write(descriptor, chunk)
        if digest.hexdigest() != info.sha256:
            raise _differs("digest", "run_digest_differs", info, info.sha256, digest.hexdigest())

    def _in_memory(self, storage: StorageReader, source: str, info: RunInfo) -> pa.Buffer:
        data = b"".join(_chunks(storage, source, info))
        actual = hashlib.sha256(data).hexdigest()
        if actual != info.sha256:
            raise _differs("digest", "run_digest_differs", info, info.sha256, actual)
        return pa.py_buffer(data)

    @contextlib.contextmanager
    def _locked(self, which: str = "") -> Iterator[None]:
        """Only one process at a time evicts, or fetches a run."""
        descriptor = self._disk.open_lock(f"{self._directory}/.lock{which}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            self._disk.close(descriptor)

    def _remove(self, path: Path | str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(str(path))

    def _evict(self, bytes_left: int) -> None:
        """Leave at most so many bytes, of runs and of downloads; what is in use stays."""
        total, entries = 0, []
        for entry in os.scandir(self._directory):
            with contextlib.suppress(FileNotFoundError):
                if entry.name.startswith(_PARTIAL):
                    promised = entry.name.removeprefix(_PARTIAL).partition("-")[0]
                    if not self._remove_unused(entry.path):
                        total += int(promised) if promised.isdecimal() else 0
                elif entry.name.endswith(_SUFFIX):
                    status = entry.stat(follow_symlinks=False)
                    entries.append((status.st_mtime_ns, status.st_size, entry.path))
                    total += status.st_size
        for _, size, path in sorted(entries):
            if total <= bytes_left:
                return
            if self._remove_unused(path):
                total -= size

    def _remove_unused(self, path: str) -> bool:
        """Remove a file unless somebody holds its lock, who maps it or is writing it."""
        try:
            descriptor = self._disk.open_read(path)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._remove(path)
        except BlockingIOError:
            return False
        finally:
            self._disk.close(descriptor)
        return True

    def usage_bytes(self) -> int:
        """Bytes of whole runs in the cache."""
        sizes = 0
        for entry in os.scandir(self._directory):
            if entry.name.endswith(_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    sizes += entry.stat(follow_symlinks=False).st_size
        return sizes

    def _failed(self, error: OSError, path: str | None = None) -> StorageError:
        return StorageError(
            "the run cache cannot be used",
            kind="cache_failed",
            directory=self._directory,
            path=path,
            reason=str(error),
            remedy="give it a writable directory with enough room",
        )


def _mapped(descriptor: int, size: int) -> pa.Buffer:
    """The pages of an open file; its lock is held for as long as somebody uses them.

    `mmap` keeps a duplicate of the descriptor, and with it the lock, until it is collected.
    """
    return pa.py_buffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))


def _chunks(storage: StorageReader, source: str, info: RunInfo) -> Iterator[bytes]:
    """The bytes of a run as they are stored: one request, or one each for parts of a large run."""
    try:
        if info.size <= CHUNK_BYTES:
            data = storage.get(source, bytes_max=info.size)
            if len(data) != info.size:
                raise _differs("size", "run_size_differs", info, info.size, len(data))
            yield data
            return
    except CorruptionError as error:
        if error.kind != "object_too_large":
            raise
        actual = error.facts.get("size")
        raise _differs("size", "run_size_differs", info, info.size, actual) from error
    actual = storage.stat(source).size
    if actual != info.size:
        raise _differs("size", "run_size_differs", info, info.size, actual)
    for start in range(0, info.size, CHUNK_BYTES):
        yield storage.get_range(source, start, min(CHUNK_BYTES, info.size - start))


def _differs(
    what: str, kind: str, info: RunInfo, expected: object, actual: object
) -> CorruptionError:
    return CorruptionError(
        f"the {what} of a run differs from its record",
        kind=kind,
        path=info.path,
        expected=expected,
        actual=actual,
        remedy="run `holdfast recover --plan` for the way back; nothing was cached",
    )
