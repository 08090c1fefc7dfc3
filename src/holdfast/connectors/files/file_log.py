"""The log of files that were read, and what may be forgotten of it.

Invariants:
- Files have numbers, in the order in which they were read. Only a prefix is ever forgotten, so a
  position says with one number which files the log no longer lists.
- What is forgotten is still known to be read: by its name where names ascend (`after`), by its age
  (`old_us`), or because it was archived or deleted.
- A file of which only some rows were read stands in `part` alone; it is in the log when all were.
- The log is written again only when it has grown by a tenth or shrunk to a half: an epoch writes
  what changed.
"""

from __future__ import annotations

import hashlib
import os
import zlib

import msgspec

from holdfast.checkpoint import Draft, StoreReader
from holdfast.errors import CorruptionError, IncompatibleError
from holdfast.format.canonical import sha256_hex
from holdfast.format.manifest import Manifest
from holdfast.format.position import FilePart, FilesPosition
from holdfast.storage import Entry

RECENT_MAX = 500
_LOG_BYTES_MAX = 256 * 1024 * 1024
_BLOCK = 64 * 1024
_BLOCKS = 16


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One file that was read. digest: of its content, or the object store's tag for it."""

    path: str
    size: int
    modified_us: int
    digest: str = ""


def content_digest(path: str, size: int) -> str:
    """A digest of a file: of all of it up to a megabyte, of sixteen blocks of a larger one."""
    digest = hashlib.blake2b(str(size).encode(), digest_size=8)
    with open(path, "rb", buffering=0) as file:
        if size <= _BLOCK * _BLOCKS:
            digest.update(file.read())
        else:
            for number in range(_BLOCKS):
                offset = (size - _BLOCK) * number // (_BLOCKS - 1)
                digest.update(os.pread(file.fileno(), _BLOCK, offset))
    return digest.hexdigest()


class FileLog:
    """Which files were read."""

    def __init__(self, name: str, *, ordered: bool, forget_us: int | None, cleans: bool) -> None:
        """cleans: files are archived or deleted later, so none is forgotten before that."""
        self._name = name
        self._ordered, self._forget_us, self._cleans = ordered, forget_us, cleans
        self.order: list[Seen] = []
        self._seen: dict[str, Seen] = {}
        self.forgotten = 0
        self.after: str | None = None
        self.old_us: int | None = None
        self.part: FilePart | None = None
        self.bytes_read = 0
        self._logged = 0
        self._log: str | None = None
        self._log_from = 0  # the number of the first file in the log that was written last

    @property
    def files(self) -> int:
        """How many files were read in all."""
        return self.forgotten + len(self.order)

    def find(self, path: str) -> Seen | None:
        """What is remembered of a file."""
        return self._seen.get(path)

    def knows(self, path: str) -> bool:
        """Whether a file was read, as far as its name can tell."""
        if self.part is not None and path == self.part.path:
            return False
        return path in self._seen or (
            self._ordered and self.after is not None and path <= self.after
        )

    def old(self, entry: Entry) -> bool:
        """Whether a file is so old that it counts as read."""
        if self.part is not None and entry.path == self.part.path:
            return False
        return self.old_us is not None and (entry.modified_us or 0) < self.old_us

    def add(self, seen: Seen) -> None:
        """One more file was read."""
        self._seen[seen.path] = seen
        self.order.append(seen)
        self.bytes_read += seen.size

    def touch(self, seen: Seen) -> None:
        """The same file with another time of change; noted for this process."""
        self._seen[seen.path] = seen

    def forget(self, count: int) -> None:
        """Drop the oldest entries."""
        for seen in self.order[:count]:
            self._seen.pop(seen.path, None)
            if self._ordered:
                self.after = max(self.after or "", seen.path)
        del self.order[:count]
        self.forgotten += count

    def trim(self, cleaned: int) -> None:
        """Forget what the source allows. cleaned: the number below which files are cleaned up."""
        behind = max(0, min(cleaned - self.forgotten, len(self.order))) if self._cleans else None
        if behind:
            self.forget(behind)
            behind = 0
        limit = len(self.order) if behind is None else behind
        if self._ordered:
            self.forget(min(limit, max(0, len(self.order) - RECENT_MAX)))
        if self._forget_us is not None and self.order:
            newest = max(seen.modified_us for seen in self.order[-RECENT_MAX:])
            self.old_us = max(self.old_us or 0, newest - self._forget_us)
            limit = len(self.order) if behind is None else behind
            gone = 0
            while gone < limit and self.order[gone].modified_us < self.old_us:
                gone += 1
            self.forget(gone)

    # Positions

    def restore(self, manifest: Manifest, reader: StoreReader) -> bool:
        """Read the log of a checkpoint; False when it does not have this source."""
        entry = manifest.source(self._name)
        if entry is None:
            return False
        position = entry.position
        if not isinstance(position, FilesPosition):
            raise IncompatibleError("the position is not a file source's", source=self._name)
        logged = self._read(manifest, reader, position.log) if position.log else []
        recent = [msgspec.json.decode(text, type=Seen) for text in position.recent]
        listed = [*logged, *recent]
        before = position.files - len(listed)
        if not 0 <= before <= position.forgotten <= position.files:
            raise CorruptionError(
                "the log of read files does not match its count",
                kind="file_log_differs",
                source=self._name,
                expected=position.files - position.forgotten,
                actual=len(listed),
            )
        self.order = listed[position.forgotten - before :]
        self._seen = {seen.path: seen for seen in self.order}
        self.forgotten = position.forgotten
        self.after, self.old_us, self.part = position.after, position.old_us, position.part
        self._logged, self._log = before + len(logged), position.log
        self._log_from = before
        self.bytes_read = sum(seen.size for seen in self.order)
        return True

    def _read(self, manifest: Manifest, reader: StoreReader, path: str) -> list[Seen]:
        file = next((file for file in manifest.files if file.path == path), None)
        if file is None:
            raise CorruptionError(
                "the manifest does not list the log of read files",
                kind="file_log_differs",
                source=self._name,
                path=path,
            )
        data = reader.directory.storage.get(reader.directory.file(file), bytes_max=_LOG_BYTES_MAX)
        if sha256_hex(data) != file.sha256:
            raise CorruptionError(
                "the log of read files differs from its digest",
                kind="digest_differs",
                path=reader.directory.file(file),
                expected=file.sha256,
                actual=sha256_hex(data),
            )
        inflate = zlib.decompressobj()
        text = inflate.decompress(data, _LOG_BYTES_MAX)
        return msgspec.json.decode(text, type=list[Seen])

    def save(self, draft: Draft) -> FilesPosition:
        """The recent part inline; the whole log in a file when the recent part has grown."""
        inside = max(0, self._logged - self.forgotten)
        recent = len(self.order) - inside
        grown = recent > max(RECENT_MAX, inside // 10)
        shrunk = self._log is not None and inside * 2 < self._logged - self._log_from
        if grown or shrunk:
            self._log_from = self.forgotten
            data = zlib.compress(msgspec.json.encode(self.order), 6)
            self._log = draft.put_offsets(self._name, data)
            self._logged, inside = self.files, len(self.order)
        texts = [msgspec.json.encode(seen).decode() for seen in self.order[inside:]]
        return FilesPosition(
            files=self.files,
            recent=texts,
            log=self._log,
            forgotten=self.forgotten,
            after=self.after,
            old_us=self.old_us,
            part=self.part,
        )
