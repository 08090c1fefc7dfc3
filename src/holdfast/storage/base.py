"""What Holdfast needs from a place that keeps bytes.

Reading is a different type from writing: code that takes a `StorageReader` cannot write.

Paths are relative to the root, separated by `/`, and were made by `holdfast.format.paths`.

Invariants that every backend keeps, and that the conformance suite checks:
- `put_new` is put-if-absent: of many racers exactly one returns, the others get
  `AlreadyExistsError`. When it returns, the object is durable.
- `put` replaces atomically: a reader sees the old bytes or the new ones, never a mixture.
- `create` never overwrites. What it wrote is whole once `close` has returned, and durable
  after a `barrier` that names it.
- `delete` of an absent object is not an error.
- Every failure is a `HoldfastError`; a lost reply is a `StorageError` whose `took_effect` is None.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from holdfast.errors import AlreadyExistsError, HoldfastError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored object, as a listing shows it.

    tag: where the storage gives one, a mark that changes with the content (an ETag).
    """

    path: str
    size: int
    modified_us: int | None = None
    tag: str | None = None


class ObjectWriter(Protocol):
    """A new object being written. Leaving the context closes it, an exception aborts it."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes; returns how many."""
        ...

    def close(self) -> None:
        """Make the object whole. Not durable before a barrier."""
        ...

    def abort(self) -> None:
        """Give up: nothing of it stays."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class _Closable(Protocol):
    def close(self) -> None: ...
    def abort(self) -> None: ...


class WholeOrNothing:
    """A writer as a context: closed where its body ended, aborted where it raised."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: _Closable,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class StorageReader(Protocol):
    """The read half."""

    @property
    def url(self) -> str:
        """Where this is, for people. Never contains a secret."""
        ...

    @property
    def parallel(self) -> int:
        """How many requests at once pay off: 1 on local disk, many over a network."""
        ...

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        """The whole object. More than `bytes_max` is a `CorruptionError`, before it is read."""
        ...

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Exactly that range; running past the end is an `InvalidInputError`."""
        ...

    def stat(self, path: str) -> Entry:
        """Size and time, or `NotFoundError`."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the object is there."""
        ...

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects below a directory prefix, in order of path."""
        ...

    def local_path(self, path: str) -> Path | None:
        """The file behind an object where there is one, to be memory-mapped; else None."""
        ...

    def usage_bytes(self) -> int:
        """Bytes stored below the root."""
        ...


class Storage(StorageReader, Protocol):
    """Reading and writing."""

    def create(self, path: str) -> ObjectWriter:
        """Begin a new object; `AlreadyExistsError` if it is there."""
        ...

    def put_new(self, path: str, data: bytes) -> None:
        """Durable put-if-absent."""
        ...

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Replace atomically."""
        ...

    def barrier(self, paths: Sequence[str]) -> None:
        """Return only when these objects, and the names that lead to them, are durable."""
        ...

    def delete(self, path: str) -> None:
        """Remove one object, durably; an absent one is fine."""
        ...

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove objects in no particular order, not durably; stops at the first failure."""
        ...

    def exclusive(self, path: str, owner: str) -> Lease | None:
        """Exclusive use by a live process where the platform has locks; else None."""
        ...

    def close(self) -> None:
        """Release the handles."""
        ...


class Lease(Protocol):
    """Exclusive use of a directory, held until released or until the process ends."""

    def release(self) -> None:
        """Let others in."""
        ...


def close_own(
    storage: StorageReader, path: str, writer: ObjectWriter, *, size: int, sha256: str
) -> None:
    """Make an object whole at a name that nobody else uses, with the truth about what happened.

    "Exists already" and a lost reply are resolved by comparing the bytes: a client that retries by
    itself meets its own first try. What is there with this size and digest was written. Only for
    names with a random part of their own: elsewhere, equal bytes do not say whose they are.
    """
    try:
        writer.close()
    except (AlreadyExistsError, StorageError) as error:
        refused = isinstance(error, StorageError) and error.took_effect is False
        if refused or not _has(storage, path, size, sha256):
            raise


def _has(storage: StorageReader, path: str, size: int, sha256: str) -> bool:
    """Whether the object is there with exactly these bytes; what cannot be read is not."""
    digest = hashlib.sha256()
    try:
        if storage.stat(path).size != size:
            return False
        for start in range(0, size, _CHUNK_BYTES):
            digest.update(storage.get_range(path, start, min(_CHUNK_BYTES, size - start)))
    except HoldfastError:
        return False
    return digest.hexdigest() == sha256
