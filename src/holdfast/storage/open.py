"""From an address to a storage.

Invariant: secrets are taken from options or the environment, never from the address, which people
print.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

from holdfast.errors import InvalidInputError
from holdfast.storage.base import Storage
from holdfast.storage.local.storage import BarrierMode, LocalStorage
from holdfast.storage.memory import MemoryStorage

R = TypeVar("R")
_memory: dict[str, MemoryStorage] = {}
_memory_lock = threading.Lock()

OBJECT_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")


@dataclass(frozen=True)
class StorageLocation:
    """A storage that a process opens by itself; options may hold secrets and are never stored.

    cache: a directory for what is read of a remote storage, up to `cache_bytes_max`.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    cache: str | None = None
    cache_bytes_max: int = 8 << 30

    @property
    def key(self) -> tuple[str, str]:
        """What tells two locations apart."""
        return self.url, repr(sorted(self.options.items()))


_opened: dict[tuple[str, str], Storage] = {}


def storage_of(location: StorageLocation) -> Storage:
    """The storage of a location, opened once in each process."""
    storage = _opened.get(location.key)
    if storage is None:
        storage = open_storage(location.url, options=dict(location.options) or None)
        _opened[location.key] = storage
    return storage


def location_text(location: str | PathLike[str]) -> str:
    """A path or an address as text; refuses what is neither."""
    try:
        text: object = fspath(location)
    except TypeError:
        text = None
    if isinstance(text, str) and text and "\0" not in text:
        return text
    raise InvalidInputError(
        "not a path",
        kind="bad_url",
        value=repr(location)[:80],
        remedy="give text or a PathLike: a directory, or an address such as s3://bucket/prefix",
    )


def storage_at(
    root: str | PathLike[str] | R, *, create: bool = True, options: dict[str, Any] | None = None
) -> Storage | R:
    """A storage that was given as such, or the one at a path or address."""
    if isinstance(root, (str, PathLike)) or not hasattr(root, "parallel"):
        return open_storage(cast("str", root), create=create, options=options)
    return root


def open_storage(
    url: str | PathLike[str],
    *,
    create: bool = True,
    barrier: BarrierMode = "auto",
    options: dict[str, Any] | None = None,
) -> Storage:
    """Open a root by path, `file://`, `memory://name`, `s3://`, `gs://` or `az://` address.

    `options` go to the object store's client (endpoint, region, credentials, retries). They are
    never stored and never printed. Without `create`, a local directory must exist.
    """
    text = location_text(url)
    if isinstance(url, PathLike) or "://" not in text:
        return LocalStorage(url, create=create, barrier=barrier)
    parts = urlsplit(text)
    if parts.username or parts.password or parts.query:
        raise InvalidInputError(
            "the address of a store may not carry credentials or parameters",
            kind="secret_in_url",
            scheme=parts.scheme,
            remedy="give them through options or the environment",
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InvalidInputError(
                "a file address cannot name another host", kind="bad_url", host=parts.netloc
            )
        return LocalStorage(unquote(parts.path), create=create, barrier=barrier)
    if parts.scheme == "memory":
        with _memory_lock:
            return _memory.setdefault(parts.netloc, MemoryStorage(parts.netloc))
    if parts.scheme in OBJECT_SCHEMES:
        return _open_object(text, options or {})
    raise InvalidInputError(
        "unknown kind of store",
        kind="unknown_scheme",
        scheme=parts.scheme,
        remedy="use a path, file://, memory://, s3://, gs:// or az://",
    )


def _open_object(url: str, options: dict[str, Any]) -> Storage:
    try:
        from obstore.store import from_url

        from holdfast.storage.object_store import ObjectStorage
    except ImportError as error:
        raise InvalidInputError(
            "object stores need an extra package",
            kind="missing_extra",
            remedy="pip install 'holdfast-spark[object]'",
        ) from error
    try:
        return ObjectStorage(from_url(url.replace("s3a://", "s3://", 1), **options), url)
    except (KeyboardInterrupt, SystemExit):
        raise
    except (
        BaseException
    ) as error:  # an unknown option makes the client panic, which is no Exception
        raise InvalidInputError(
            "the object store cannot be opened with these options",
            kind="bad_url",
            url=url,
            reason=type(error).__name__,
            remedy="check bucket, prefix and option names",
        ) from error
