"""Source: files in a directory; new ones are found by listing, each is read exactly once.

Invariants:
- A file is one unit: it belongs to exactly one epoch.
- What was read is remembered by path, size, time of change and a digest. The same bytes with a new
  time are the same file; other bytes under an old name are an error that names the file.
- A file that changes while its epoch reads it fails the epoch: half a file is never committed.
- A file that cannot be named stops the source only when nothing else is left to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from holdfast.arguments import value_map, whole_number
from holdfast.checkpoint import Draft, StoreReader
from holdfast.clock import Clock, SystemClock
from holdfast.connectors.bad_rows import BAD_SCHEMA
from holdfast.connectors.base import Backlog, OnBad, Source, SourceReader, Split
from holdfast.connectors.files.after_read import AfterRead, Cleaner, checked_archive
from holdfast.connectors.files.file_log import FileLog, Seen, content_digest, file_groups
from holdfast.connectors.files.formats import (
    FormatGuess,
    checked_format,
    checked_options,
    keeps_bad_rows,
)
from holdfast.connectors.files.frames import FileFrames, bad_record, footer_rows
from holdfast.connectors.files.listing import FileListing, Lister, stat_entry
from holdfast.connectors.locations import Location, Use
from holdfast.durations import Duration, duration_us
from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.format.manifest import Manifest
from holdfast.format.position import FilesPosition, Position
from holdfast.spark.ddl import check_weight, ddl_columns, schema_ddl
from holdfast.storage import Entry, open_storage
from holdfast.storage.open import OBJECT_SCHEMES, location_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from holdfast.spark.classic import Scan

Format = Literal["parquet", "json", "csv"]
OnChange = Literal["refuse", "keep"]

MIN_AGE_MS = 250
_WAIT_MS_MAX = 1_000
_LOOKS_MAX = 4
_FOOTERS_MAX = 64
_CHECK_EVERY_MS = 60_000


class Files(Source):
    """Parquet, JSON or CSV files below a directory or prefix.

    schema: as SQL writes it, `customer string, amount double`, or a `StructType`. Never guessed: a
        guess from one file would be wrong for the next. Columns that directories name
        (`day=2024-01-01/`) are filled from there, as in Spark.
    format: by default what the extensions say, through compressions: `.parquet`, `.json`, `.jsonl`,
        `.ndjson`, `.csv`. pattern: only files whose name (with `/`: whose path) fits.
    files_max, bytes_max: limits of one epoch.
    min_age_ms: leave files alone that were changed more recently than this, for writers that do not
        rename. By default 250 on local disk, 0 on object stores, where objects appear whole.
    weight: a column with the weight of each row (+1 adds it, -1 retracts it).
    options: of Spark's reader, such as `{"header": True}`.
    ordered: names ascend. Then only the last 500 names are remembered, and an object store is
        listed from there; a file with a smaller name than those counts as read.
    forget_after: files older than this, behind the newest one read, count as read and are forgotten
        ("30 days"). Without it and `ordered`, every name is remembered.
    after_read: "archive" moves files to `archive`, "delete" deletes them, once no retained
        checkpoint would read them again.
    on_change: what to do about other bytes under the name of a file that was read: "refuse", or
        "keep" what was read and leave the new bytes unread.
    on_bad: what to do about records of JSON and CSV that do not fit the schema: "keep" gives them
        to `stream.bad`, the usual way; "fail" fails the epoch. With a `mode` among the options
        Spark does as that says.
    """

    kind = "files"

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        schema: str | StructType,
        format: Format | None = None,  # noqa: A002 - everybody's name for it
        pattern: str | None = None,
        files_max: int = 1_000,
        bytes_max: int = 1 << 30,
        min_age_ms: int | None = None,
        weight: str | None = None,
        options: Mapping[str, Any] | None = None,
        ordered: bool = False,
        forget_after: Duration | None = None,
        after_read: AfterRead = "keep",
        archive: str | PathLike[str] | None = None,
        on_change: OnChange = "refuse",
        on_bad: OnBad | None = None,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Refuse what can never work."""
        self.format = checked_format(format)
        self.path, self.weight = location_text(path), weight
        self.remote = self.path.split("://", 1)[0] in OBJECT_SCHEMES
        if min_age_ms is None:
            min_age_ms = 0 if self.remote else MIN_AGE_MS
        whole_number(files_max, "files_max", least=1, kind="invalid_limit")
        whole_number(bytes_max, "bytes_max", least=1, kind="invalid_limit")
        whole_number(min_age_ms, "min_age_ms", least=0, kind="invalid_limit")
        if on_change not in ("refuse", "keep"):
            raise InvalidInputError(
                "unknown way to treat changed files",
                kind="invalid_option",
                on_change=str(on_change)[:60],
                remedy="use refuse or keep",
            )
        self.schema_text = schema_ddl(schema, f"files {path}")
        self.files_max, self.bytes_max, self.min_age_ms = files_max, bytes_max, min_age_ms
        self.pattern, self.ordered, self.on_change = pattern, ordered, on_change
        self.forget_us = None if forget_after is None else duration_us(forget_after)
        self.after_read: AfterRead = after_read
        self.archive = checked_archive(self.path, after_read, archive)
        self.options = checked_options(value_map(options, "options"), self.format)
        self.keeps_bad = keeps_bad_rows(on_bad, self.format, self.options)
        self.bad = BAD_SCHEMA if self.keeps_bad else None
        self.storage_options = value_map(storage_options, "storage_options")
        self.clock = clock or SystemClock()
        self._names = ddl_columns(self.schema_text, f"files {path}")
        check_weight(weight, self._names)

    def columns(self) -> list[str]:
        """Column names without the weight."""
        return [name for name in self._names if name != self.weight]

    def all_columns(self) -> list[str]:
        """Column names in the order of the schema."""
        return list(self._names)

    def empty(self, spark: SparkSession) -> DataFrame:
        """A DataFrame of the right shape without rows."""
        return spark.createDataFrame([], self.schema_text)

    def locations(self) -> list[Location]:
        """The directory, and where files go that were read."""
        use: Use = "reads" if self.after_read == "keep" else "consumes"
        directory = Location(self.path, use, self.pattern)
        return [directory, *([Location(self.archive, "archives")] if self.archive else [])]

    def open(self, name: str) -> FilesReader:
        """Begin with every file unread."""
        return FilesReader(name, self)


class FilesReader(SourceReader):
    """A directory while the pipeline runs."""

    def __init__(self, name: str, source: Files) -> None:
        """Begin with every file unread; the directory must exist."""
        self._name, self._source = name, source
        try:
            self._storage = open_storage(
                source.path, create=False, options=source.storage_options or None
            )
        except HoldfastError as error:
            error.facts.setdefault("source", name)
            error.remedy = error.remedy or "create the directory, or correct the path"
            raise
        self._root = None if source.remote else self._storage.url
        cleans = source.after_read != "keep"
        self._log = FileLog(name, ordered=source.ordered, forget_us=source.forget_us, cleans=cleans)
        self._lister = Lister(
            self._storage,
            root=self._root,
            pattern=source.pattern,
            min_age_ms=source.min_age_ms,
            clock=source.clock,
        )
        self._guess = FormatGuess(name, source.format)
        self._cleaner = (
            Cleaner(name, self._storage, self._root, source.after_read, source.archive)
            if cleans
            else None
        )
        self._cleaned = 0  # files with smaller numbers were archived or deleted
        self._waiting: list[Entry] = []
        self._checked_ms: int | None = None
        self._frames: FileFrames | None = None

    def check(self) -> None:
        """Look at the names before Spark starts: formats that do not fit are refused."""
        if self._source.format is None:
            for path in self._lister.names():
                self._guess.note(path)

    # Positions

    def restore(self, manifest: Manifest, reader: StoreReader) -> None:
        """Read the log of a checkpoint."""
        if self._log.restore(manifest, reader) and self._log.order:
            self._guess = FormatGuess(self._name, self._source.format)
            self._guess.note(self._log.order[0].path, settled=True)
        self._cleaned = self._log.forgotten

    def save(self, draft: Draft) -> Position:
        """The recent part inline; the whole log in a file when the recent part has grown."""
        self._log.trim(self._cleaned)
        return self._log.save(draft)

    def committed(self, manifest: Manifest, floor: Position | None) -> None:
        """Archive or delete what no retained checkpoint would read again."""
        del manifest
        if self._cleaner is None or not isinstance(floor, FilesPosition):
            return
        first = self._log.forgotten  # only moves in `save`, which waits for this call
        behind = self._log.order[max(0, self._cleaned - first) : max(0, floor.files - first)]
        done = self._cleaner.clean([self._log.find(seen.path) or seen for seen in behind])
        self._cleaned = max(self._cleaned, first) + done

    # Slices

    def plan(self, after: Split | None = None) -> Split | None:
        """The oldest unread files, as many as the limits allow; at least one."""
        busy = {entry.path for entry in after.detail} if after is not None else set()
        entries = self._fresh(busy)
        for _ in range(_LOOKS_MAX):
            if entries:
                break
            listing = self._look()
            entries = self._fresh(busy)
            if entries or after is not None:
                break
            if listing.young_ms is None or listing.young_ms > _WAIT_MS_MAX:
                self._refuse_unreadable(listing)
                break
            self._source.clock.sleep_ms(listing.young_ms)
        size = sum(entry.size for entry in entries)
        return Split(self._name, None, size, entries) if entries else None

    def _look(self) -> FileListing:
        """List the directory; known files are checked when a run starts, and once a minute."""
        now_ms = self._source.clock.monotonic_ms()
        due = self._checked_ms is None or now_ms - self._checked_ms >= _CHECK_EVERY_MS
        if due:
            self._checked_ms = now_ms
        listing = self._lister.look(
            self._log, check=self._check_known if due else None, after=self._log.after
        )
        for entry in listing.ready:
            self._guess.note(entry.path)
        by_time = (lambda e: e.path) if self._source.ordered else _time_and_path
        self._waiting = sorted(listing.ready, key=by_time)
        return listing

    def _fresh(self, busy: set[str]) -> tuple[Entry, ...]:
        """The next slice of files that are as they were listed; others are listed again."""
        unread = [entry for entry in self._waiting if entry.path not in busy]
        while unread:
            piece = file_groups(
                unread[: self._source.files_max], self._source.files_max, self._source.bytes_max
            )[0]
            entries = [(entry, self._lister.again(entry)) for entry in piece]
            moved = {old.path for old, new in entries if new != old}
            if not moved:
                return piece
            unread = [entry for entry in unread if entry.path not in moved]
            self._waiting = [entry for entry in self._waiting if entry.path not in moved]
        return ()

    def _refuse_unreadable(self, listing: FileListing) -> None:
        if listing.unreadable:
            raise InvalidInputError(
                "a file has a name that is no text, so Spark cannot open it",
                kind="unreadable_name",
                source=self._name,
                path=listing.unreadable[0],
                files=len(listing.unreadable),
                remedy="rename it; all other files were read",
            )

    def _check_known(self, entry: Entry) -> None:
        """The same size and time, or the same bytes: otherwise the file is another one."""
        seen = self._log.find(entry.path)
        if seen is None or self._source.on_change == "keep":
            return
        if (entry.size, entry.modified_us or 0) == (seen.size, seen.modified_us):
            return
        digest = self._digest(entry) if seen.digest and entry.size == seen.size else seen.digest
        if entry.size != seen.size or digest != seen.digest:
            raise InvalidInputError(
                "a file was changed after it was read",
                kind="file_changed",
                source=self._name,
                path=entry.path,
                size_then=seen.size,
                size_now=entry.size,
                modified_then_us=seen.modified_us,
                modified_now_us=entry.modified_us,
                remedy="bring the old bytes back and put new rows into new files; or rename the "
                "file, and all of it is read as a new one; or say on_change='keep', and what was "
                "read stays while the new bytes are not read",
            )
        self._log.touch(Seen(entry.path, entry.size, entry.modified_us or 0, seen.digest))

    def _digest(self, entry: Entry) -> str:
        if self._root is None:
            return entry.tag or ""
        try:
            return content_digest(f"{self._root}/{entry.path}", entry.size)
        except OSError:
            return ""  # gone or unreadable by now: nothing to compare with

    def read(self, spark: SparkSession, split: Split) -> DataFrame:
        """The rows of some files."""
        if self._frames is None:
            base = self._root or self._source.path.rstrip("/")
            if base.startswith("s3://"):
                base = "s3a://" + base.split("://", 1)[1]
            self._frames = FileFrames(
                base=base,
                local=self._root is not None,
                schema=self._source.schema_text,
                columns=self._source.all_columns(),
                format=self._guess.format,
                options=self._source.options,
                keeps_bad=self._source.keeps_bad and self._guess.format != "parquet",
            )
        return self._frames.read(spark, [entry.path for entry in split.detail])

    def advance(self, split: Split) -> None:
        """These files were read; one that changed meanwhile may have been read in part."""
        for entry in split.detail:
            digest = self._digest(entry)
            now = self._lister.again(entry)
            if now is not None and now != entry:
                raise InvalidInputError(
                    "a file was changed while it was read",
                    kind="file_changed",
                    source=self._name,
                    path=entry.path,
                    size_then=entry.size,
                    size_now=now.size,
                    remedy="nothing was committed: run again when it is complete. Write files "
                    "elsewhere and rename them, or raise min_age_ms",
                )
            self._log.add(Seen(entry.path, entry.size, entry.modified_us or 0, digest))
        done = {entry.path for entry in split.detail}
        self._waiting = [entry for entry in self._waiting if entry.path not in done]

    def rows_read(self, split: Split, scans: Sequence[Scan]) -> int | None:
        """How many rows a slice had, from what Spark has counted; None where it has not."""
        paths = {entry.path for entry in split.detail}
        found: dict[tuple[str, int], Scan] = {}
        for scan in scans:
            if self._path_of(scan.url) in paths:
                key = (scan.url, scan.files)
                known = found.get(key)
                found[key] = scan if known is None or known.rows < scan.rows else known
        if not found:
            return None
        counted = sum(scan.rows for scan in found.values())
        skipped = self._guess.format == "parquet" and any(s.pushed for s in found.values())
        if skipped and self._root is not None and len(paths) <= _FOOTERS_MAX:
            return footer_rows([f"{self._root}/{path}" for path in paths]) or counted
        return counted

    def history(self) -> list[Split]:
        """All files that were read, if every one is still there and unchanged."""
        there = {
            seen.path: stat_entry(self._root, seen.path) if self._root else None
            for seen in self._log.order
        }
        if self._root is None:
            there |= {entry.path: entry for entry in self._storage.list("")}
        missing = [path for path, entry in there.items() if entry is None]
        if missing or self._log.forgotten:
            raise InvalidInputError(
                "files that were read are gone or forgotten, so a new operator cannot be filled "
                "from them",
                kind="history_lost",
                source=self._name,
                missing=len(missing) + self._log.forgotten,
                first=missing[0] if missing else None,
                remedy='bring the files back; let a new output begin empty, outputs={"sink": '
                '"empty"}; or start a new pipeline',
            )
        entries = [entry for seen in self._log.order if (entry := there[seen.path]) is not None]
        for entry in entries:
            self._check_known(entry)
        pieces = file_groups(entries, self._source.files_max, self._source.bytes_max)
        return [Split(self._name, None, sum(e.size for e in some), some) for some in pieces]

    def backlog(self) -> Backlog:
        """Bytes, and the age of the oldest file that is not read."""
        waiting = self._waiting
        size, read = sum(entry.size for entry in waiting), self._log.bytes_read
        times = [entry.modified_us for entry in waiting if entry.modified_us is not None]
        seconds = max(0, self._source.clock.wall_us() - min(times)) / 1e6 if times else None
        return Backlog(read, read + size, "bytes", seconds=seconds)

    # What went wrong

    def explain(self, spark: SparkSession, url: str) -> dict[str, object] | None:
        """Facts about a file that Spark could not read, if it is one of this source's."""
        path = self._path_of(url)
        if path is None:
            return None
        facts: dict[str, object] = {"source": self._name, "path": path}
        if self._guess.format != "parquet" and self._frames is not None:
            facts |= bad_record(spark, self._frames, self._root, path, self._guess.format)
        return facts

    def _path_of(self, url: str) -> str | None:
        from urllib.parse import unquote

        base = self._root or self._source.path.split("://", 1)[-1]
        for text in (url, unquote(url)):
            start = text.find(f"{base.rstrip('/')}/")
            if start >= 0:
                return text[start + len(base.rstrip("/")) + 1 :]
        return None


def _time_and_path(entry: Entry) -> tuple[int, str]:
    return entry.modified_us or 0, entry.path
