"""Files in a directory: new ones are found by listing, each is read exactly once.

Invariants:
- A file is one unit: it belongs to exactly one epoch.
- What was read is remembered by path, size and time of change; a file that changed afterwards is an
  error that names it, never silently read again or skipped.
- The log of read files is written anew only when it has grown by a tenth: an epoch writes what
  changed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast.checkpoint import Draft, StoreReader
from holdfast.clock import Clock, SystemClock
from holdfast.errors import CorruptionError, IncompatibleError, InvalidInputError
from holdfast.format.canonical import sha256_hex
from holdfast.format.manifest import Manifest
from holdfast.format.position import FilesPosition, Position
from holdfast.pipeline.columns import ddl_columns
from holdfast.pipeline.sources.api import Backlog, Slice
from holdfast.storage import Entry, StorageReader, open_storage
from holdfast.storage.open import OBJECT_SCHEMES

Format = Literal["parquet", "json", "csv"]
_RECENT_MAX = 500
_LOG_BYTES_MAX = 256 * 1024 * 1024


class Files:
    """Parquet, JSON or CSV files below a directory or prefix.

    schema: as SQL writes it, `customer string, amount double`. Never guessed: a guess from one file
        would be wrong for the next. files_max, bytes_max: limits of one epoch. min_age_ms: leave
        files alone that were changed more recently than this, for writers that do not rename.
    weight: a column with the weight of each row (+1 adds it, -1 takes it back).
    """

    what = "files"

    def __init__(
        self,
        path: str,
        *,
        schema: str,
        format: Format = "parquet",  # noqa: A002 - everybody's name for it
        files_max: int = 1_000,
        bytes_max: int = 1 << 30,
        min_age_ms: int = 0,
        weight: str | None = None,
        options: Mapping[str, str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Refuse what can never work."""
        if format not in ("parquet", "json", "csv"):
            raise InvalidInputError(
                "unknown file format", kind="unknown_format", format=format,
                remedy="use parquet, json or csv",
            )  # fmt: skip
        if files_max < 1 or bytes_max < 1 or min_age_ms < 0:
            raise InvalidInputError(
                "limits of a file source must be positive", kind="invalid_limit",
                files_max=files_max, bytes_max=bytes_max, min_age_ms=min_age_ms,
            )  # fmt: skip
        self.path, self.format, self.weight = str(path), format, weight
        self.schema_text = schema
        self.files_max, self.bytes_max, self.min_age_ms = files_max, bytes_max, min_age_ms
        self.options = dict(options or {})
        self.storage_options = dict(storage_options or {})
        self.clock = clock or SystemClock()
        names = ddl_columns(schema, f"files {path}")
        if weight is not None and weight not in names:
            raise InvalidInputError("the weight is not one of the columns", kind="unknown_column",
                                    column=weight, known=",".join(names))  # fmt: skip
        self._columns = [name for name in names if name != weight]

    def columns(self) -> list[str]:
        """Column names without the weight."""
        return list(self._columns)

    def empty(self, spark: Any) -> Any:
        """A DataFrame of the right shape without rows."""
        return spark.createDataFrame([], self.schema_text)

    def open(self, name: str) -> FilesReader:
        """Begin with every file unread."""
        return FilesReader(name, self)


class _Log(msgspec.Struct, frozen=True, array_like=True):
    """One file that was read: path, size, time of change."""

    path: str
    size: int
    modified_us: int


class FilesReader:
    """A directory while the pipeline runs."""

    def __init__(self, name: str, source: Files) -> None:
        """Begin with every file unread."""
        self._name = name
        self._source = source
        self._storage: StorageReader = open_storage(
            source.path, create=False, options=source.storage_options or None
        )
        self._seen: dict[str, _Log] = {}
        self._order: list[_Log] = []
        self._logged = 0
        self._log: str | None = None
        self._waiting: list[Entry] = []
        self._bytes_done = 0
        self._reader: tuple[Any, Any] | None = None

    # Positions

    def restore(self, manifest: Manifest, reader: StoreReader) -> None:
        """Read the log of a checkpoint."""
        entry = manifest.source(self._name)
        if entry is None:
            return
        position = entry.position
        if not isinstance(position, FilesPosition):
            raise IncompatibleError("the position is not a file source's", source=self._name)
        logged = self._read_log(manifest, reader, position.log) if position.log else []
        recent = [msgspec.json.decode(text, type=_Log) for text in position.recent]
        self._order = [*logged, *recent]
        if len(self._order) != position.files:
            raise CorruptionError(
                "the log of read files does not match its count", kind="file_log_differs",
                source=self._name, expected=position.files, actual=len(self._order),
            )  # fmt: skip
        self._seen = {log.path: log for log in self._order}
        self._logged, self._log = len(logged), position.log
        self._bytes_done = sum(log.size for log in self._order)

    def _read_log(self, manifest: Manifest, reader: StoreReader, path: str) -> list[_Log]:
        file = next(file for file in manifest.files if file.path == path)
        data = reader.home.storage.get(reader.home.file(file), bytes_max=_LOG_BYTES_MAX)
        if sha256_hex(data) != file.sha256:
            raise CorruptionError(
                "the log of read files differs from its digest", kind="digest_differs",
                path=reader.home.file(file), expected=file.sha256, actual=sha256_hex(data),
            )  # fmt: skip
        inflate = zlib.decompressobj()
        text = inflate.decompress(data, _LOG_BYTES_MAX)
        return msgspec.json.decode(text, type=list[_Log])

    def save(self, draft: Draft) -> Position:
        """The recent part inline; the whole log in a file when the recent part has grown."""
        recent = len(self._order) - self._logged
        if recent > max(_RECENT_MAX, self._logged // 10):
            data = zlib.compress(msgspec.json.encode(self._order), 6)
            self._log = draft.put_offsets(self._name, data)
            self._logged = len(self._order)
        texts = [msgspec.json.encode(log).decode() for log in self._order[self._logged :]]
        return FilesPosition(files=len(self._order), recent=texts, log=self._log)

    def committed(self, manifest: Manifest, floor: Position | None) -> None:
        """Nothing to acknowledge: files stay where they are."""

    # Slices

    def plan(self, after: Slice | None = None) -> Slice | None:
        """The oldest unread files, as many as the limits allow; at least one."""
        self._waiting = self._list_new()
        in_work = {entry.path for entry in after.detail} if after is not None else ()
        taken: list[Entry] = []
        size = 0
        for entry in self._waiting:
            if entry.path in in_work:
                continue
            if len(taken) >= self._source.files_max:
                break
            if taken and size + entry.size > self._source.bytes_max:
                break
            taken.append(entry)
            size += entry.size
        return Slice(self._name, None, size, tuple(taken)) if taken else None

    def _list_new(self) -> list[Entry]:
        youngest = self._source.clock.wall_us() - self._source.min_age_ms * 1_000
        found = []
        for entry in self._storage.list(""):
            parts = entry.path.split("/")
            if any(part.startswith((".", "_")) for part in parts):
                continue
            seen = self._seen.get(entry.path)
            if seen is not None:
                self._check_unchanged(entry, seen)
            elif self._source.min_age_ms == 0 or (entry.modified_us or 0) <= youngest:
                found.append(entry)
        return sorted(found, key=lambda entry: (entry.modified_us or 0, entry.path))

    def _check_unchanged(self, entry: Entry, seen: _Log) -> None:
        if (entry.size, entry.modified_us or 0) != (seen.size, seen.modified_us):
            raise InvalidInputError(
                "a file was changed after it was read",
                kind="file_changed",
                source=self._name,
                path=entry.path,
                size_then=seen.size,
                size_now=entry.size,
                remedy="put new rows into new files; restore the old content to go on",
            )

    def read(self, spark: Any, piece: Slice) -> Any:
        """The rows of some files."""
        base = self._source.path
        if base.split("://", 1)[0] in OBJECT_SCHEMES:
            base = "s3a://" + base.split("://", 1)[1] if base.startswith("s3://") else base
        else:
            base = self._storage.url
        paths = [f"{base.rstrip('/')}/{entry.path}" for entry in piece.detail]
        if self._reader is None or self._reader[0] is not spark:
            options = self._source.options
            if self._source.format != "parquet":
                options = {"mode": "FAILFAST", **options}
            reader = spark.read.schema(self._source.schema_text).options(**options)
            self._reader = spark, reader.format(self._source.format)
        return self._reader[1].load(paths[0] if len(paths) == 1 else paths)

    def advance(self, piece: Slice) -> None:
        """These files were read."""
        for entry in piece.detail:
            log = _Log(entry.path, entry.size, entry.modified_us or 0)
            self._seen[log.path] = log
            self._order.append(log)
        self._bytes_done += piece.bytes
        self._waiting = [entry for entry in self._waiting if entry.path not in self._seen]

    def history(self) -> list[Slice]:
        """All files that were read, if every one is still there and unchanged."""
        there = {entry.path: entry for entry in self._storage.list("")}
        missing = [log.path for log in self._order if log.path not in there]
        if missing:
            raise InvalidInputError(
                "files that were read are gone, so a new operator cannot be filled from them",
                kind="history_lost", source=self._name, missing=len(missing), first=missing[0],
                remedy="bring the files back, or start a new pipeline",
            )  # fmt: skip
        found: list[Slice] = []
        taken: list[Entry] = []
        for log in self._order:
            entry = there[log.path]
            self._check_unchanged(entry, log)
            size = sum(file.size for file in taken)
            if len(taken) >= self._source.files_max or (
                taken and size + entry.size > self._source.bytes_max
            ):
                found.append(Slice(self._name, None, size, tuple(taken)))
                taken = []
            taken.append(entry)
        if taken:
            found.append(Slice(self._name, None, sum(e.size for e in taken), tuple(taken)))
        return found

    def backlog(self) -> Backlog:
        """Bytes."""
        waiting = sum(entry.size for entry in self._waiting)
        return Backlog(self._bytes_done, self._bytes_done + waiting, "bytes")
