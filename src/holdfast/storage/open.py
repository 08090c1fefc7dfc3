"""From an address to a storage.

Invariant: secrets are taken from options or the environment, never from the address, which people
print.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast.errors import InvalidInputError
from holdfast.storage.base import Storage
from holdfast.storage.local.storage import BarrierMode, LocalStorage
from holdfast.storage.memory import MemoryStorage

_memory: dict[str, MemoryStorage] = {}
_memory_lock = threading.Lock()

OBJECT_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")


def open_storage(
    url: str | Path,
    *,
    create: bool = True,
    barrier: BarrierMode = "auto",
    options: dict[str, Any] | None = None,
) -> Storage:
    """Open a root by path, `file://`, `memory://name`, `s3://`, `gs://` or `az://` address.

    `options` go to the object store's client (endpoint, region, credentials, retries). They are
    never stored and never printed. Without `create`, a local directory must exist.
    """
    text = str(url)
    if isinstance(url, Path) or "://" not in text:
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
