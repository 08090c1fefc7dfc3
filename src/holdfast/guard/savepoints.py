"""The savepoints of a store, found by label, id or batch, and read back file by file.

Invariants:
- A file that is read back has the size and SHA-256 that the index says, or it is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from holdfast.checkpoint import StoreReader, read_store
from holdfast.checkpoint.reference import Ref, find_checkpoint
from holdfast.clock import SystemClock
from holdfast.errors import CorruptionError, HoldfastError, InvalidInputError, NotFoundError
from holdfast.format.canonical import sha256_hex
from holdfast.format.documents import Summary
from holdfast.format.manifest import Manifest
from holdfast.guard.checkpoint_location import derived_name
from holdfast.guard.index import Index, StoredFile, read_index
from holdfast.storage.base import StorageReader

_GATHER_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True)
class Listed:
    """One savepoint as `ls` shows it."""

    checkpoint: str
    batch: int
    label: str
    pins: tuple[str, ...]
    created_us: int
    layout: str
    query: str
    bytes: int
    bytes_new: int
    abandoned: bool
    damage: str = ""


class Savepoints:
    """One query's savepoints, for reading."""

    def __init__(self, reader: StoreReader) -> None:
        """Use `Savepoints.open`."""
        self.reader = reader

    @classmethod
    def open(
        cls,
        store: str | PathLike[str] | StorageReader,
        *,
        location: str | PathLike[str] | None = None,
        name: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> Savepoints:
        """By name, or by the location from which the name was derived."""
        wanted = name or derived_name(location or "")
        return cls(read_store(store, wanted, options=options))

    def list(self) -> Sequence[Listed]:
        """Newest first. What cannot be read is shown as damaged, never skipped."""
        pins: dict[str, list[str]] = {}
        for pin in self.reader.pins():
            pins.setdefault(pin.checkpoint, []).append(pin.label)
        return [self._listed(s, tuple(pins.get(s.checkpoint, ()))) for s in self.reader.list()]

    def _listed(self, summary: Summary, pins: tuple[str, ...]) -> Listed:
        facts: dict[str, str] = {}
        damage = ""
        try:
            facts = self.reader.manifest(summary).properties
        except HoldfastError as error:
            damage = str(error)
        return Listed(
            checkpoint=summary.checkpoint,
            batch=int(facts.get("batch", -1)),
            label=summary.label or "",
            pins=pins,
            created_us=summary.created_us,
            layout=facts.get("layout", ""),
            query=facts.get("query", ""),
            bytes=summary.bytes_total,
            bytes_new=summary.bytes_new,
            abandoned=summary.abandoned,
            damage=damage,
        )

    def find(self, ref: Ref) -> Manifest:
        """A savepoint by its name: as a checkpoint is named, but a number is a batch."""
        try:
            found = find_checkpoint(
                self.reader, ref, SystemClock().wall_us(), numbered=self._of_batch
            )
        except NotFoundError as error:
            raise NotFoundError(
                "no such savepoint",
                kind="no_savepoint",
                ref=repr(ref)[:100],
                remedy="run `holdfast guard ls` to see batches and labels",
            ) from error
        return self.reader.manifest(found)

    def _of_batch(self, batch: int) -> Summary | None:
        for summary in self._newest_first():
            if self.reader.manifest(summary).properties.get("batch") == str(batch):
                return summary
        return None

    def _newest_first(self) -> Sequence[Summary]:
        live = [*reversed(self.reader.catalog().live)]
        return sorted(live, key=lambda summary: summary.abandoned)

    def latest(self) -> tuple[Manifest, Index] | None:
        """The last savepoint that was not abandoned; None before the first."""
        candidates = self.reader.catalog().candidates
        if not candidates:
            return None
        manifest = self.reader.manifest(candidates[0])
        return manifest, read_index(self.reader, manifest)

    def index(self, manifest: Manifest) -> Index:
        """What a savepoint holds."""
        return read_index(self.reader, manifest)

    def read(self, index: Index, file: StoredFile) -> bytes:
        """One file of a savepoint, checked against its digest."""
        path = self.reader.directory.at(index.blobs[file.blob])
        return _checked(_range(self.reader.directory.storage, path, file.offset, file.size), file)

    def chunked(self, index: Index) -> Iterator[tuple[StoredFile, Iterable[bytes]]]:
        """All files: small neighbours of one blob in one request, large files piece by piece.

        Every file's digest is checked when its last piece has been taken.
        """
        storage = self.reader.directory.storage
        for number, files in index.of_blob().items():
            path = self.reader.directory.at(index.blobs[number])
            for group in _groups(files):
                start = group[0].offset
                end = max(file.offset + file.size for file in group)
                if end - start > _GATHER_BYTES_MAX:
                    yield group[0], self._pieces(path, group[0])
                    continue
                data = _range(storage, path, start, end - start)
                for file in group:
                    begin = file.offset - start
                    yield file, [_checked(data[begin : begin + file.size], file)]

    def _pieces(self, path: str, file: StoredFile) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for at in range(0, file.size, _GATHER_BYTES_MAX):
            length = min(_GATHER_BYTES_MAX, file.size - at)
            piece = _range(self.reader.directory.storage, path, file.offset + at, length)
            digest.update(piece)
            yield piece
        _same(digest.hexdigest(), file)


def _range(storage: StorageReader, path: str, start: int, length: int) -> bytes:
    try:
        return storage.get_range(path, start, length)
    except (NotFoundError, InvalidInputError) as error:
        raise CorruptionError(
            "blob of the savepoint is missing or cut off",
            kind="missing",
            path=path,
            remedy="choose another savepoint; `holdfast guard verify` names the damaged ones",
        ) from error


def _groups(files: list[StoredFile]) -> Iterator[list[StoredFile]]:
    group: list[StoredFile] = []
    for file in files:
        if group and file.offset + file.size - group[0].offset > _GATHER_BYTES_MAX:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _checked(data: bytes, file: StoredFile) -> bytes:
    _same(sha256_hex(data), file)
    return data


def _same(actual: str, file: StoredFile) -> None:
    if actual != file.sha256:
        raise CorruptionError(
            "file of the savepoint has other content",
            kind="digest_differs",
            path=file.path,
            expected=file.sha256,
            actual=actual,
            remedy="choose another savepoint; `holdfast guard verify` names the damaged ones",
        )
