"""Memory: for tests and for trying things out. Everything is gone when the process ends."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from holdfast.errors import (
    AlreadyExistsError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from holdfast.format.paths import check_relative
from holdfast.storage.base import Entry, WholeOrNothing


class MemoryStorage:
    """A dictionary of objects, with the same promises as every other backend."""

    parallel = 1

    def __init__(self, name: str = "anonymous") -> None:
        """Begin empty."""
        self._name = name
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """A name for people."""
        return f"memory://{self._name}"

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        """The whole object."""
        with self._lock:
            data = self._objects.get(check_relative(path))
        if data is None:
            raise NotFoundError("object does not exist", path=path)
        if bytes_max is not None and len(data) > bytes_max:
            raise CorruptionError(
                "object is larger than allowed",
                kind="object_too_large",
                path=path,
                size=len(data),
                limit=bytes_max,
            )
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Exactly that range."""
        data = self.get(path)
        if start < 0 or length < 0 or start + length > len(data):
            raise InvalidInputError(
                "range runs past the object",
                kind="range_outside",
                path=path,
                start=start,
                length=length,
                size=len(data),
            )
        return data[start : start + length]

    def stat(self, path: str) -> Entry:
        """The size."""
        return Entry(path, len(self.get(path)))

    def exists(self, path: str) -> bool:
        """Whether the object is there."""
        with self._lock:
            return check_relative(path) in self._objects

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects below a directory prefix, in order of path."""
        start = f"{prefix.rstrip('/')}/" if prefix else ""
        with self._lock:
            found = [
                Entry(path, len(data))
                for path, data in self._objects.items()
                if path.startswith(start)
            ]
        return iter(sorted(found, key=lambda entry: entry.path))

    def local_path(self, path: str) -> Path | None:
        """There is no file."""
        check_relative(path)
        return None

    def usage_bytes(self) -> int:
        """Bytes of all objects."""
        with self._lock:
            return sum(len(data) for data in self._objects.values())

    def create(self, path: str) -> MemoryWriter:
        """Begin a new object."""
        if self.exists(path):
            raise AlreadyExistsError("object exists already", path=path)
        return MemoryWriter(self, path)

    def put_new(self, path: str, data: bytes) -> None:
        """Put-if-absent."""
        with self._lock:
            if check_relative(path) in self._objects:
                raise AlreadyExistsError("object exists already", path=path)
            self._objects[path] = bytes(data)

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:  # noqa: ARG002
        """Replace atomically."""
        with self._lock:
            self._objects[check_relative(path)] = bytes(data)

    def barrier(self, paths: Sequence[str]) -> None:
        """What is here is as durable as memory gets; what is not here is an error."""
        for path in paths:
            if not self.exists(path):
                raise NotFoundError("object does not exist", path=path)

    def delete(self, path: str) -> None:
        """Remove one object."""
        with self._lock:
            self._objects.pop(check_relative(path), None)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove objects."""
        for path in paths:
            self.delete(path)

    def exclusive(self, path: str, owner: str) -> None:  # noqa: ARG002
        """There are no locks here: writers are told apart by the fence alone."""
        check_relative(path)

    def close(self) -> None:
        """Nothing to release."""


class MemoryWriter(WholeOrNothing):
    """A new object being collected."""

    def __init__(self, storage: MemoryStorage, path: str) -> None:
        """Begin empty."""
        self._storage = storage
        self._path = path
        self._data: bytearray | None = bytearray()

    @property
    def closed(self) -> bool:
        """Whether it was closed or aborted."""
        return self._data is None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes."""
        if self._data is None:
            raise StorageError("writer is closed", kind="closed", path=self._path)
        view = memoryview(data).cast("B")
        self._data += view
        return len(view)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Make the object whole."""
        if self._data is not None:
            data, self._data = bytes(self._data), None
            self._storage.put_new(self._path, data)

    def abort(self) -> None:
        """Forget it."""
        self._data = None
