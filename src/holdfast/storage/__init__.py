"""Storage: the only I/O. Local disk, memory and object stores behind one small protocol."""

from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_name

if TYPE_CHECKING:
    from holdfast.storage.base import Entry, Lease, ObjectWriter, Storage, StorageReader
    from holdfast.storage.local.storage import LocalStorage
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
    "Entry": "holdfast.storage.base",
    "Lease": "holdfast.storage.base",
    "LocalStorage": "holdfast.storage.local.storage",
    "MemoryStorage": "holdfast.storage.memory",
    "ObjectWriter": "holdfast.storage.base",
    "Storage": "holdfast.storage.base",
    "StorageReader": "holdfast.storage.base",
    "open_storage": "holdfast.storage.open",
}


def __getattr__(name: str) -> Any:
    """A name of `__all__`, from its module."""
    return lazy_name(__name__, _WHERE, name)
