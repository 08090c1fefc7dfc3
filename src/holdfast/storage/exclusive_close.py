"""Closing an object at a name that nobody else uses, with the truth about what happened.

Invariants:
- "Exists already" and a lost reply are resolved by comparing the bytes: a client that retries by
  itself meets its own first try. What is there with this size and digest was written.
- Only for names with a random part of their own: elsewhere, equal bytes do not say whose they are.
"""

from __future__ import annotations

import hashlib

from holdfast.errors import AlreadyExistsError, HoldfastError, StorageError
from holdfast.storage.base import ObjectWriter, StorageReader

_CHUNK_BYTES = 8 * 1024 * 1024


def close_own(
    storage: StorageReader, path: str, writer: ObjectWriter, *, size: int, sha256: str
) -> None:
    """Make the object whole; an earlier try of the same writer that took effect is enough."""
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
