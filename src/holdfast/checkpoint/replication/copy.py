"""Copying files between stores: in bounded memory, hashed on the way and read back on arrival.

Invariants:
- A file counts as copied when the bytes read back from the destination have the size and SHA-256
  of the manifest, and are durable.
- What an interrupted copy has left is hashed before it is believed; what does not fit is replaced.
- A source file that does not have its digest is never left at the destination.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

from holdfast.checkpoint.artifact import ArtifactWriter
from holdfast.errors import AlreadyExistsError, CorruptionError
from holdfast.format.canonical import sha256_hex
from holdfast.storage.base import Storage, StorageReader

_CHUNK_BYTES = 8 * 1024 * 1024
_PARALLEL_MAX = 8
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ExpectedFile:
    """What a file must be."""

    size: int
    sha256: str


@dataclass
class Copied:
    """What was copied and what was there."""

    files: int = 0
    bytes: int = 0
    files_present: int = 0
    bytes_present: int = 0


@dataclass
class Copier:
    """Copies files, several at once where a network is between."""

    source: StorageReader
    target: Storage
    progress: Progress | None = None
    _todo: list[tuple[str, ExpectedFile, bool]] = field(default_factory=list)
    _done: Copied = field(default_factory=Copied)
    _lock: Lock = field(default_factory=Lock)
    _seen: int = 0

    def skip(self, expected: ExpectedFile) -> None:
        """Count a file that needs no look."""
        self._done.files_present += 1
        self._done.bytes_present += expected.size

    def add(self, path: str, expected: ExpectedFile, *, present: bool) -> None:
        """Note a file to be copied; one that is `present` is looked at first."""
        self._todo.append((path, expected, present))

    def run(self) -> Copied:
        """Copy everything and make it durable; the first failure ends it."""
        together = min(_PARALLEL_MAX, max(self.source.parallel, self.target.parallel))
        if together == 1:
            for item in self._todo:
                self._one(*item)
        else:
            with ThreadPoolExecutor(together) as pool:
                jobs = [pool.submit(self._one, *item) for item in self._todo]
                try:
                    for job in jobs:
                        job.result()
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        self.target.barrier([path for path, _, _ in self._todo])
        return self._done

    def _one(self, path: str, expected: ExpectedFile, present: bool) -> None:  # noqa: FBT001 - unpacked
        whole = present and self._whole(path, expected)
        if not whole:
            if present:
                self.target.delete(path)
            copy_file(self.source, self.target, path, expected)
            if not self._whole(path, expected):
                self.target.delete(path)
                raise CorruptionError(
                    "a file arrived with other content than was sent",
                    kind="arrived_damaged",
                    path=path,
                    expected=expected.sha256,
                    remedy="check the destination's disk or network, then sync again",
                )
        with self._lock:
            if whole:
                self._done.files_present += 1
                self._done.bytes_present += expected.size
            else:
                self._done.files += 1
                self._done.bytes += expected.size
            self._seen += expected.size
            if self.progress is not None:
                self.progress(self._seen, sum(item[1].size for item in self._todo))

    def _whole(self, path: str, expected: ExpectedFile) -> bool:
        if self.target.stat(path).size != expected.size:
            return False
        return digest_of(self.target, path, expected.size) == expected.sha256


def digest_of(storage: StorageReader, path: str, size: int) -> str:
    """SHA-256 of a stored file, in bounded memory."""
    local = storage.local_path(path)
    if local is not None:
        with local.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for start in range(0, size, _CHUNK_BYTES):
        digest.update(storage.get_range(path, start, min(_CHUNK_BYTES, size - start)))
    return digest.hexdigest()


def copy_file(source: StorageReader, target: Storage, path: str, expected: ExpectedFile) -> None:
    """Send one file; a source that disagrees with its manifest leaves nothing behind."""
    actual = source.stat(path).size
    if actual != expected.size:
        raise _damaged(path, "size_differs", expected.size, actual)
    with suppress(AlreadyExistsError), ArtifactWriter(target, path) as writer:
        digest = hashlib.sha256()
        for start in range(0, expected.size, _CHUNK_BYTES):
            chunk = source.get_range(path, start, min(_CHUNK_BYTES, expected.size - start))
            digest.update(chunk)
            writer.write(chunk)
        if digest.hexdigest() != expected.sha256:
            raise _damaged(path, "digest_differs", expected.sha256, digest.hexdigest())


def _damaged(path: str, kind: str, expected: object, actual: object) -> CorruptionError:
    return CorruptionError(
        "a file of the source is damaged",
        kind=kind,
        path=path,
        expected=expected,
        actual=actual,
        remedy="run `holdfast verify --deep` on the source; nothing of it was published",
    )


def read_back(target: Storage, path: str, data: bytes) -> None:
    """A document must have arrived as it was sent."""
    there = target.get(path, bytes_max=len(data))
    if there != data:
        raise CorruptionError(
            "a document arrived with other content than was sent",
            kind="arrived_damaged",
            path=path,
            expected=sha256_hex(data),
            actual=sha256_hex(there),
            remedy="check the destination's disk or network, then sync again",
        )
