"""Files of a checkpoint, hashed while they are written; files between storages, piece by piece."""

from __future__ import annotations

import hashlib

from holdfast.errors import AlreadyExistsError, invariant
from holdfast.storage.base import Storage, StorageReader, WholeOrNothing, close_own

_CHUNK_BYTES = 4 << 20


class ArtifactWriter(WholeOrNothing):
    """Writes a new object and knows its size and SHA-256 when it is closed."""

    def __init__(self, storage: Storage, path: str) -> None:
        """Begin a new object."""
        self._storage, self._path = storage, path
        self._writer = storage.create(path)
        self._digest = hashlib.sha256()
        self._size = 0
        self._done = False

    @property
    def closed(self) -> bool:
        """Whether it was closed or aborted."""
        return self._done

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._size

    @property
    def sha256(self) -> str:
        """The digest; only when closed."""
        invariant(self._done, "digest of an artifact that is still being written")
        return self._digest.hexdigest()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._size += len(view)
        self._writer.write(view)
        return len(view)

    def flush(self) -> None:
        """The storage decides when to write."""

    def close(self) -> None:
        """Make the object whole."""
        if not self._done:
            digest = self._digest.hexdigest()
            close_own(self._storage, self._path, self._writer, size=self._size, sha256=digest)
            self._done = True

    def abort(self) -> None:
        """Give up: nothing of it stays."""
        if not self._done:
            self._writer.abort()
            self._done = True


def copy_object(source: StorageReader, path: str, target: Storage, to: str) -> None:
    """Copy an object between storages, a part at a time; durable. What is there is kept."""
    size = source.stat(path).size
    try:
        with ArtifactWriter(target, to) as writer:
            for start in range(0, size, _CHUNK_BYTES):
                writer.write(source.get_range(path, start, min(_CHUNK_BYTES, size - start)))
    except AlreadyExistsError:
        if target.stat(to).size != size:
            raise
    target.barrier([to])
