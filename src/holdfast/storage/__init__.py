"""Storage: the only I/O. Local disk, memory and object stores behind one small protocol."""

from holdfast.storage.api import Entry, Lease, ObjectWriter, Storage, StorageReader
from holdfast.storage.local import LocalStorage
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.open import open_storage

__all__ = [
    "Entry",
    "Lease",
    "LocalStorage",
    "MemoryStorage",
    "ObjectWriter",
    "Storage",
    "StorageReader",
    "open_storage",
]
