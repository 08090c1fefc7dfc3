"""Storage: the only I/O. Local disk, memory and object stores behind one small protocol."""

from typing import TYPE_CHECKING, Any

from holdfast.lazy import lazy_name

if TYPE_CHECKING:
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

# Loaded when first asked for: who reads a store does not pay for what writes one.
_WHERE = {
    "Entry": "holdfast.storage.api",
    "Lease": "holdfast.storage.api",
    "LocalStorage": "holdfast.storage.local",
    "MemoryStorage": "holdfast.storage.memory",
    "ObjectWriter": "holdfast.storage.api",
    "Storage": "holdfast.storage.api",
    "StorageReader": "holdfast.storage.api",
    "open_storage": "holdfast.storage.open",
}


def __getattr__(name: str) -> Any:
    """A name of `__all__`, from its module."""
    return lazy_name(__name__, _WHERE, name)
