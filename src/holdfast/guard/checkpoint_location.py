"""A live checkpoint location, for reading. The guard never writes into one.

Invariants:
- What vanishes while it is being read is `MovedError`, never a missing part of a result.
- Symbolic links are not followed: a savepoint holds what lies below the location itself.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import IO, Any, Self

from holdfast.errors import HoldfastError, IncompatibleError, NotFoundError
from holdfast.guard.spark_files.layout import SparkPath, classify
from holdfast.storage.base import Entry, StorageReader
from holdfast.storage.open import open_storage

_CHUNK_BYTES = 8 * 1024 * 1024
_SMALL_FILE_BYTES = 1024 * 1024


class MovedError(HoldfastError):
    """The running query deleted or replaced a file meanwhile: look again, at another batch."""

    kind_default = "moved"


def normal(location: str | PathLike[str]) -> str:
    """One spelling for a location: an absolute path, or an address that storage understands."""
    text = os.fspath(location)
    if text.startswith("file:"):
        text = re.sub(r"^file:/*", "/", text)
    if "://" in text:
        return re.sub(r"^s3[an]://", "s3://", text).rstrip("/")
    return os.path.realpath(os.path.expanduser(text))


def derived_name(location: str | PathLike[str]) -> str:
    """The pipeline's name for a location when none was given: readable, and unique by digest."""
    text = normal(location)
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", text.rsplit("/", 1)[-1]).lstrip("._-")[:60] or "query"
    return f"{base}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class LocationListing:
    """Everything below the location at one moment."""

    entries: Mapping[str, Entry]
    meanings: Mapping[str, SparkPath]
    foreign: tuple[str, ...]

    def of(self, *kinds: str) -> Iterator[tuple[str, SparkPath]]:
        """Paths of some kinds."""
        return ((path, m) for path, m in self.meanings.items() if m.kind in kinds)

    def batches(self, kind: str) -> list[int]:
        """Numbers of the offset or commit log, ascending."""
        return sorted(m.batch for _, m in self.of(kind) if m.batch is not None)

    def refuse_foreign(self) -> None:
        """An unknown layout is refused, not guessed."""
        if self.foreign:
            raise IncompatibleError(
                "the checkpoint holds files that the guard does not know",
                kind="unknown_layout",
                path=self.foreign[0],
                files=len(self.foreign),
                remedy="check that this is a checkpoint of a supported Spark version; "
                "nothing was changed",
            )


class CheckpointLocation:
    """One checkpoint location."""

    def __init__(self, storage: StorageReader, location: str) -> None:
        """Use `CheckpointLocation.open`."""
        self.storage = storage
        self.location = location

    @classmethod
    def open(cls, location: str | PathLike[str], *, options: dict[str, Any] | None = None) -> Self:
        """Open a location that exists."""
        text = normal(location)
        return cls(open_storage(text, create=False, options=options), text)

    def close(self) -> None:
        """Release the handles."""
        close = getattr(self.storage, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def list(self) -> LocationListing:
        """One walk over everything; unfinished files of Spark are left out."""
        entries: dict[str, Entry] = {}
        meanings: dict[str, SparkPath] = {}
        foreign: list[str] = []
        for entry in self.storage.list(""):
            meaning = classify(entry.path)
            if meaning is None:
                if not entry.path.rsplit("/", 1)[-1].startswith("."):
                    foreign.append(entry.path)
            elif meaning.kind != "temporary":
                entries[entry.path] = entry
                meanings[entry.path] = meaning
        return LocationListing(entries, meanings, tuple(foreign))

    def read(self, path: str) -> bytes:
        """One whole file."""
        try:
            return self.storage.get(path)
        except NotFoundError as error:
            raise moved(path) from error

    def open_file(self, path: str) -> IO[bytes] | None:
        """A handle that outlives a deletion, where the location is on local disk."""
        local = self.storage.local_path(path)
        if local is None:
            return None
        try:
            return local.open("rb")
        except FileNotFoundError as error:
            raise moved(path) from error

    def chunks(self, path: str, size: int) -> Iterator[bytes]:
        """One large file, piece by piece."""
        try:
            for start in range(0, size, _CHUNK_BYTES):
                yield self.storage.get_range(path, start, min(_CHUNK_BYTES, size - start))
        except NotFoundError as error:
            raise moved(path) from error

    def stat(self, path: str) -> Entry:
        """Size and time."""
        try:
            return self.storage.stat(path)
        except NotFoundError as error:
            raise moved(path) from error


def moved(path: str) -> MovedError:
    """A file is gone or has become another one."""
    return MovedError(
        "the checkpoint changed while it was being read",
        path=path,
        remedy="try again; if the query is stopped, run `holdfast guard verify`",
    )


def is_small(entry: Entry) -> bool:
    """Whether a file is read at once and packed with others."""
    return entry.size < _SMALL_FILE_BYTES
