"""A disk cache for runs of stores that have no local files: by digest, with a byte limit.

Invariants:
- A file in the cache has the size and SHA-256 of its name: it is verified on arrival, before it
  gets that name. The name appears at once or not at all.
- Several processes may share a directory: the second one finds the file or replaces it by
  identical bytes. A file that is evicted while somebody has it mapped stays readable for them.
- The directory stays below its limit, except for the one run that is being asked for.
- It is a cache: it can be deleted at any time, and it is never durable.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
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

CHUNK_BYTES = 8 << 20
_SUFFIX = ".run"
_PARTIAL = ".partial-"
_DEAD_NS = 86_400 * 10**9  # no download takes a day


def map_file(path: Path) -> pa.Buffer:
    """A file as an Arrow buffer: a view of its pages, alive for as long as somebody uses it."""
    with pa.memory_map(os.fspath(path)) as file:
        return file.read_buffer()


class RunCache:
    """Runs on local disk, found by their digest."""

    def __init__(self, directory: str | PathLike[str], *, bytes_max: int, ids: IdSource) -> None:
        """Use a directory of its own; it is made if it is not there."""
        if bytes_max < 1:
            raise InvalidInputError(
                "the cache needs room", kind="invalid_cache_limit", bytes_max=bytes_max
            )
        self._directory = Path(directory)
        self._bytes_max = bytes_max
        self._ids, self._disk = ids, current_disk()
        try:
            self._disk.make_dirs(str(self._directory))
        except OSError as error:
            raise self._failed(error) from error

    def fetch(self, storage: StorageReader, source: str, info: RunInfo) -> pa.Buffer:
        """The bytes of a run, mapped from the cache; downloaded and verified if not there yet.

        What is returned is mapped already: another process may evict the name at any moment.
        """
        path = self._directory / f"{info.sha256}{_SUFFIX}"
        try:
            content = self._hit(path, info.size)
            if content is not None:
                return content
            partial = self._directory / f"{_PARTIAL}{self._ids.token()}"
            try:
                self._download(storage, source, info, partial)
                content = map_file(partial)
                with self._locked():
                    self._evict(info.size, keep=path.name, now_ns=partial.stat().st_mtime_ns)
                    self._disk.rename(str(partial), str(path))
            finally:
                self._remove(partial)
        except OSError as error:
            raise self._failed(error, info.path) from error
        return content

    def _hit(self, path: Path, size: int) -> pa.Buffer | None:
        try:
            if path.stat().st_size == size:
                os.utime(path)  # least recently used goes first
                content = map_file(path)
                if content.size == size:
                    return content
            self._remove(path)
        except FileNotFoundError:
            pass  # evicted between two calls: as good as never there
        return None

    def _download(self, storage: StorageReader, source: str, info: RunInfo, partial: Path) -> None:
        actual_size = storage.stat(source).size
        if actual_size != info.size:
            raise _differs("size", "run_size_differs", info, info.size, actual_size)
        digest = hashlib.sha256()
        descriptor = self._disk.open_new(str(partial))
        try:
            for start in range(0, info.size, CHUNK_BYTES):
                chunk = storage.get_range(source, start, min(CHUNK_BYTES, info.size - start))
                digest.update(chunk)
                self._disk.write(descriptor, chunk)
        finally:
            self._disk.close(descriptor)
        if digest.hexdigest() != info.sha256:
            raise _differs("digest", "run_digest_differs", info, info.sha256, digest.hexdigest())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one process evicts at a time."""
        descriptor = self._disk.open_lock(f"{self._directory}/.lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            self._disk.close(descriptor)

    def _remove(self, path: Path | str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(str(path))

    def _evict(self, incoming: int, keep: str, now_ns: int) -> None:
        """Make room for a file that is about to get its name, and remove dead downloads."""
        entries = []
        for entry in os.scandir(self._directory):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if entry.name.startswith(_PARTIAL) and status.st_mtime_ns < now_ns - _DEAD_NS:
                    self._remove(entry.path)
                elif entry.name.endswith(_SUFFIX) and entry.name != keep:
                    entries.append((status.st_mtime_ns, status.st_size, entry.path))
        total = incoming + sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._bytes_max:
                return
            self._remove(path)
            total -= size

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
