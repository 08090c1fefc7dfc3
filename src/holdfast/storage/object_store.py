"""Object stores through obstore: S3, GCS, Azure.

Invariants:
- A completed PUT is the barrier. Put-if-absent is the store's own conditional PUT, single-part.
- A request without an answer is `StorageError` with `took_effect=None`: the caller reads back.
- A client that retries by itself may see its own first try as "exists already"; so
  `AlreadyExistsError` says nothing about who wrote, and callers compare the bytes.
- A replacement or a copy without an answer has happened when the bytes are there.

Spec: spec/format-v2.md, section 5.2.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions as remote

from holdfast.errors import (
    AlreadyExistsError,
    CorruptionError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from holdfast.format.paths import check_relative
from holdfast.storage.base import Entry, WholeOrNothing

_Entries = list[Entry]
_SPOOL_BYTES = 16 * 1024 * 1024
_CONDITIONAL_BYTES_MAX = 64 * 1024 * 1024
_DELETE_BATCH = 500
_PART_BYTES = 16 * 1024 * 1024


class ObjectStorage:
    """A prefix in a bucket."""

    parallel = 32

    def __init__(self, store: Any, url: str) -> None:
        """Wrap an obstore store that was opened at the prefix; `url` is for people."""
        self._store = store
        self._url = url

    @property
    def url(self) -> str:
        """Bucket and prefix, without secrets."""
        return self._url

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        """The whole object."""
        try:
            found = obstore.get(self._store, check_relative(path))
            size = found.meta["size"]
            if bytes_max is not None and size > bytes_max:
                raise CorruptionError(
                    "object is larger than allowed",
                    kind="object_too_large",
                    path=path,
                    size=size,
                    limit=bytes_max,
                )
            return bytes(found.bytes())
        except remote.BaseError as error:
            raise self._translate(error, path, took_effect=False) from error
        except OSError as error:
            raise self._translate(error, path, took_effect=False) from error

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Exactly that range."""
        check_relative(path)
        if start < 0 or length < 0:
            raise InvalidInputError("range is negative", kind="range_outside", path=path)
        if length == 0 and start <= self.stat(path).size:
            return b""  # a request cannot ask for nothing
        try:
            found = obstore.get(self._store, path, options={"range": (start, start + length)})
            if start + length <= found.meta["size"]:
                return bytes(found.bytes())
        except (remote.BaseError, OSError) as error:
            failure = self._translate(error, path, took_effect=False)
            size = self.stat(path).size  # a missing object, and a range behind the end, say so
            if start + length <= size:
                raise failure from error
        else:
            size = found.meta["size"]
        raise InvalidInputError(
            "range runs past the object",
            kind="range_outside",
            path=path,
            start=start,
            length=length,
            size=size,
        )

    def stat(self, path: str) -> Entry:
        """Size and time."""
        try:
            meta = obstore.head(self._store, check_relative(path))
        except (remote.BaseError, OSError) as error:
            raise self._translate(error, path, took_effect=False) from error
        return Entry(path, meta["size"], int(meta["last_modified"].timestamp() * 1e6))

    def exists(self, path: str) -> bool:
        """Whether the object is there."""
        try:
            self.stat(path)
        except NotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects below a directory prefix, in order of path."""
        start = prefix.rstrip("/") or None
        found: _Entries = []
        try:
            for page in obstore.list(self._store, start, chunk_size=1000):
                found.extend(_entry(meta) for meta in page)
        except (remote.BaseError, OSError) as error:
            raise self._translate(error, prefix, took_effect=False) from error
        return iter(sorted(found, key=lambda entry: entry.path))

    def list_after(self, path: str) -> Iterator[Entry]:
        """Objects whose path is greater, in order of path; what lies before is not listed."""
        try:
            for page in obstore.list(self._store, offset=path, chunk_size=1000):
                yield from (_entry(meta) for meta in page)
        except (remote.BaseError, OSError) as error:
            raise self._translate(error, path, took_effect=False) from error

    def directories(self) -> Sequence[str]:
        """Names right below the prefix that have objects below them; one request a thousand."""
        try:
            found = obstore.list_with_delimiter(self._store)
        except (remote.BaseError, OSError) as error:
            raise self._translate(error, "", took_effect=False) from error
        return sorted(prefix.strip("/").rsplit("/", 1)[-1] for prefix in found["common_prefixes"])

    def local_path(self, path: str) -> Path | None:
        """There is no file."""
        check_relative(path)
        return None

    def usage_bytes(self) -> int:
        """Bytes of all objects below the prefix, by listing."""
        return sum(entry.size for entry in self.list(""))

    def create(self, path: str) -> ObjectStorageWriter:
        """Begin a new object; it is sent when it is closed."""
        return ObjectStorageWriter(self, check_relative(path))

    def put_new(self, path: str, data: bytes) -> None:
        """Put-if-absent by the store's conditional PUT."""
        try:
            obstore.put(self._store, check_relative(path), data, mode="create", use_multipart=False)
        except remote.AlreadyExistsError as error:
            raise AlreadyExistsError("object exists already", path=path) from error
        except remote.PreconditionError as error:
            raise AlreadyExistsError("object exists already", path=path) from error
        except remote.NotSupportedError as error:
            raise StorageError(
                "this object store has no conditional put",
                kind="no_conditional_put",
                url=self._url,
                remedy="use a store that supports If-None-Match; fencing depends on it",
                took_effect=False,
            ) from error
        except (remote.BaseError, OSError) as error:
            raise self._translate(error, path, took_effect=None) from error

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:  # noqa: ARG002
        """Replace atomically."""
        try:
            obstore.put(self._store, check_relative(path), data, mode="overwrite")
        except (remote.BaseError, OSError) as error:
            failure = self._translate(error, path, took_effect=None)
            if not self._there(path, len(data), lambda start, size: data[start : start + size]):
                raise failure from error

    def copy_new(self, source: str, target: str) -> None:
        """Copy inside the store, without overwriting; not every store can refuse atomically."""
        check_relative(source)
        if self.exists(target):
            raise AlreadyExistsError("object exists already", path=target)
        try:
            obstore.copy(self._store, source, check_relative(target))
        except (remote.BaseError, OSError) as error:
            failure = self._translate(error, source, took_effect=None)
            self._check_copied(source, target, failure)

    def copy(self, source: str, target: str) -> None:
        """Copy inside the store, over what is there; a reader sees the old bytes or the new."""
        try:
            obstore.copy(self._store, check_relative(source), check_relative(target))
        except (remote.BaseError, OSError) as error:
            failure = self._translate(error, source, took_effect=None)
            self._check_copied(source, target, failure)

    def _check_copied(self, source: str, target: str, failure: HoldfastError) -> None:
        """Raise `failure` unless the target has the bytes of the source."""

        def part(start: int, size: int) -> bytes:
            return self.get_range(source, start, size)

        try:
            size = self.stat(source).size
        except HoldfastError:
            raise failure from None
        if not self._there(target, size, part):
            raise failure

    def put_stream(self, path: str, file: Any, size: int) -> None:
        """Send what a writer collected: conditionally while that is possible, else in parts."""
        try:
            if size <= _CONDITIONAL_BYTES_MAX:
                self.put_new(path, file.read())
                return
            if self.exists(path):
                raise AlreadyExistsError("object exists already", path=path)
            obstore.put(self._store, path, file, use_multipart=True, chunk_size=_PART_BYTES)
        except (remote.BaseError, OSError) as error:
            raise self._translate(error, path, took_effect=None) from error

    def _there(self, path: str, size: int, part: Callable[[int, int], bytes]) -> bool:
        """Whether the object has exactly these bytes: then an earlier try has put it."""
        try:
            if self.stat(path).size != size:
                return False
            return all(
                self.get_range(path, start, length) == part(start, length)
                for start in range(0, size, _PART_BYTES)
                if (length := min(_PART_BYTES, size - start))
            )
        except HoldfastError:
            return False  # what cannot be read is not known to be there

    def barrier(self, paths: Sequence[str]) -> None:
        """A completed PUT is durable: nothing is left to do."""
        for path in paths:
            check_relative(path)

    def delete(self, path: str) -> None:
        """Remove one object."""
        self.delete_many([path])

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove objects, many with one request where the store can."""
        batch = [check_relative(path) for path in paths]
        for start in range(0, len(batch), _DELETE_BATCH):
            some = batch[start : start + _DELETE_BATCH]
            try:
                obstore.delete(self._store, some if len(some) > 1 else some[0])
            except (remote.NotFoundError, FileNotFoundError):
                continue
            except (remote.BaseError, OSError) as error:
                raise self._translate(error, some[0], took_effect=None) from error

    def exclusive(self, path: str, owner: str) -> None:  # noqa: ARG002
        """There are no locks here: writers are told apart by the fence alone."""
        check_relative(path)

    def close(self) -> None:
        """Connections are closed by the client library."""

    def _translate(self, error: Exception, path: str, *, took_effect: bool | None) -> HoldfastError:
        """A typed error; the client's text is shortened, since it may hold a signed address."""
        text = str(error)
        if "NoSuchBucket" in text:
            return StorageError(
                "bucket does not exist",
                kind="no_bucket",
                url=self._url,
                took_effect=False,
                remedy="create the bucket or correct its name",
            )
        if isinstance(error, (remote.NotFoundError, FileNotFoundError)):
            return NotFoundError("object does not exist", path=path)
        if isinstance(error, remote.InvalidPathError):
            return StorageError(
                "an object of another program has a name that cannot be listed",
                kind="foreign_key",
                url=self._url,
                path=path,
                reason=_first_line(error),
                remedy="move that object out of the prefix",
                took_effect=False,
            )
        denied = (remote.PermissionDeniedError, remote.UnauthenticatedError, PermissionError)
        if isinstance(error, denied) or "403 Forbidden" in text or "AccessDenied" in text:
            return StorageError(
                "the object store refused the request",
                kind="denied",
                url=self._url,
                path=path,
                remedy="check credentials and the bucket's policy",
                took_effect=False,
            )
        return StorageError(
            "the object store did not answer as expected",
            kind="unreachable",
            url=self._url,
            path=path,
            reason=_first_line(error),
            remedy="check the network and the endpoint, then try again",
            retryable=True,
            took_effect=took_effect,
        )


def _entry(meta: Any) -> Entry:
    changed = int(meta["last_modified"].timestamp() * 1e6)
    return Entry(meta["path"], meta["size"], changed, meta.get("e_tag"))


def _first_line(error: Exception) -> str:
    """The head of a message, cut before anything that could be a signed query."""
    return str(error).splitlines()[0].split("?")[0][:160] if str(error) else type(error).__name__


class ObjectStorageWriter(WholeOrNothing):
    """A new object being collected, in memory while it is small and in a file beyond."""

    def __init__(self, storage: ObjectStorage, path: str) -> None:
        """Begin empty."""
        self._storage = storage
        self._path = path
        self._size = 0
        self._file: tempfile.SpooledTemporaryFile[bytes] | None = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by close or abort
            max_size=_SPOOL_BYTES
        )

    @property
    def closed(self) -> bool:
        """Whether it was closed or aborted."""
        return self._file is None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes."""
        if self._file is None:
            raise StorageError("writer is closed", kind="closed", path=self._path)
        view = memoryview(data).cast("B")
        try:
            self._file.write(view)
        except OSError as error:  # the spool file's disk
            raise StorageError(
                "the temporary directory cannot take the object",
                kind="spool_failed",
                path=self._path,
                reason=error.strerror,
                took_effect=False,
                retryable=True,
                remedy="free some space there, or set TMPDIR to another disk",
            ) from error
        self._size += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing is sent before close."""

    def close(self) -> None:
        """Send it."""
        if self._file is None:
            return
        file, self._file = self._file, None
        with file:
            file.seek(0)
            self._storage.put_stream(self._path, file, self._size)

    def abort(self) -> None:
        """Forget it."""
        if self._file is not None:
            self._file.close()
            self._file = None
