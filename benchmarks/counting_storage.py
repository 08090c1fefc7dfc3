"""Objects in memory that count what an object store would charge for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from holdfast.errors import AlreadyExistsError, NotFoundError
from holdfast.storage.base import Entry, ObjectWriter
from holdfast.storage.memory import MemoryStorage, MemoryWriter

LIST_PAGE = 1_000  # objects of one answer to a listing
DELETE_PAGE = 1_000  # objects of one request to delete


class CountingStorage(MemoryStorage):
    """In memory, by directory, so that a listing costs what it shows; runs have a size only."""

    def __init__(self) -> None:
        """Begin empty, with nothing counted."""
        super().__init__("counting")
        self._folders: dict[str, dict[str, bytes | int]] = {}
        self._below: dict[str, set[str]] = {}
        self.requests: Counter[str] = Counter()
        self.bytes_put = 0
        self.objects = 0

    def phantom(self, path: str, size: int) -> None:
        """An object of which only the size is known: a run that a task would have written."""
        self._set(path, size)

    def _set(self, path: str, data: bytes | int) -> None:
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = {}
            part = folder
            while part:
                above = part.rpartition("/")[0]
                self._below.setdefault(above, set()).add(part)
                part = above
        self.objects += name not in self._folders[folder]
        self._folders[folder][name] = data

    def _get(self, path: str) -> bytes | int | None:
        folder, _, name = path.rpartition("/")
        return self._folders.get(folder, {}).get(name)

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        """The whole object; none of a run."""
        self.requests["GET"] += 1
        data = self._get(path)
        if not isinstance(data, bytes) or (bytes_max is not None and len(data) > bytes_max):
            raise NotFoundError("object does not exist", path=path)
        return data

    def stat(self, path: str) -> Entry:
        """The size."""
        self.requests["HEAD"] += 1
        data = self._get(path)
        if data is None:
            raise NotFoundError("object does not exist", path=path)
        return Entry(path, data if isinstance(data, int) else len(data))

    def exists(self, path: str) -> bool:
        """Whether the object is there."""
        return self._get(path) is not None

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects below a directory prefix, in order of path."""
        found: list[Entry] = []
        folders = [prefix.rstrip("/")]
        while folders:
            folder = folders.pop()
            folders += self._below.get(folder, ())
            for name, data in self._folders.get(folder, {}).items():
                size = data if isinstance(data, int) else len(data)
                found.append(Entry(f"{folder}/{name}" if folder else name, size))
        self.requests["LIST"] += 1 + len(found) // LIST_PAGE
        return iter(sorted(found, key=lambda entry: entry.path))

    def local_path(self, path: str) -> Path | None:
        """There is no file."""
        return None

    def create(self, path: str) -> ObjectWriter:
        """Begin a new object."""
        return MemoryWriter(self, path)

    def put_new(self, path: str, data: bytes) -> None:
        """Put-if-absent."""
        if self.exists(path):
            self.requests["PUT"] += 1
            raise AlreadyExistsError("object exists already", path=path)
        self.put(path, data)

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Replace atomically."""
        self.requests["PUT"] += 1
        self.bytes_put += len(data)
        self._set(path, bytes(data))

    def barrier(self, paths: Sequence[str]) -> None:
        """A completed put is durable."""

    def delete(self, path: str) -> None:
        """Remove one object."""
        self.delete_many([path])

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove objects."""
        gone = 0
        for path in paths:
            gone += 1
            folder, _, name = path.rpartition("/")
            names = self._folders.get(folder)
            if names is None or names.pop(name, None) is None:
                continue
            self.objects -= 1
            while folder and not self._folders.get(folder) and not self._below.get(folder):
                self._folders.pop(folder, None)
                above = folder.rpartition("/")[0]
                self._below.get(above, set()).discard(folder)
                folder = above
        self.requests["DELETE"] += -(-gone // DELETE_PAGE)
