"""The files source while a pipeline runs: what is new, what an epoch takes, what was read.

Invariants:
- A row of a file belongs to exactly one epoch, and so does a file that fits into one. The epochs of
  a larger file follow one another, and the file counts as read with the last of them.
- What was read is remembered by path, size, time of change and a digest. The same bytes with a new
  time are the same file; other bytes under an old name are an error that names the file.
- A file that changes while its epoch reads it fails the epoch: half a file is never committed.
- A file that cannot be named stops the source only when nothing else is left to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.checkpoint import Draft, StoreReader
from holdfast.connectors.base import Backlog, SourceReader, Split
from holdfast.connectors.files.after_read import Cleaner
from holdfast.connectors.files.file_log import FileLog, Seen, content_digest
from holdfast.connectors.files.formats import FormatGuess
from holdfast.connectors.files.frames import FileFrames, bad_record, footer_rows
from holdfast.connectors.files.listing import FileListing, Lister, stat_entry
from holdfast.connectors.files.pieces import FileFacts, FilePiece, next_pieces
from holdfast.connectors.files.row_ranges import range_frame
from holdfast.connectors.files.sizes import SizeProbe
from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.format.manifest import Manifest
from holdfast.format.position import FilePart, FilesPosition, Position
from holdfast.storage import Entry, open_storage
from holdfast.storage.open import StorageLocation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.connectors.files.source import Files
    from holdfast.spark.classic import Scan

_WAIT_MS_MAX = 1_000
_LOOKS_MAX = 4
_FOOTERS_MAX = 64
_LOOKED_AT = 32
_CHECK_EVERY_MS = 60_000


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
        self._probe: SizeProbe | None = None
        self._limits = source.limits
        self._cuts = True  # a store of format 1 cannot say that a file was read in part
        self._resumed: FilePart | None = None  # not compared with its file yet

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
        self._resumed = self._log.part
        if self._log.part is not None:
            self._guess.note(self._log.part.path, settled=True)
        self._cuts = manifest.format > 1

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

    # Splits

    def limit_rows(self, rows: int | None) -> None:
        """Limit the next splits to about so many rows, within the source's own limits."""
        limits = self._source.limits
        self._limits = limits if rows is None else replace(limits, rows=min(limits.rows, rows))

    def plan(self, after: Split | None = None) -> Split | None:
        """The oldest unread files, as many as the limits allow; at least a part of one."""
        ahead = after.detail if after is not None else ()
        pieces = self._fresh(ahead)
        for _ in range(_LOOKS_MAX):
            if pieces:
                break
            listing = self._look()
            pieces = self._fresh(ahead)
            if pieces or after is not None:
                break
            if listing.young_ms is None or listing.young_ms > _WAIT_MS_MAX:
                self._refuse_unreadable(listing)
                self._refuse_lost_part()
                break
            self._source.clock.sleep_ms(listing.young_ms)
        return self._split(pieces) if pieces else None

    def _split(self, pieces: tuple[FilePiece, ...]) -> Split:
        """Rows are known where footers tell them and no option of Spark's leaves some out."""
        rows: int | None = None
        if self._guess.format == "parquet" and not self._source.options:
            known = [piece.rows for piece in pieces]
            rows = None if None in known else sum(count or 0 for count in known)
        size = sum(piece.file_bytes for piece in pieces)
        return Split(self._name, rows, size, pieces)

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

    def _fresh(self, ahead: Sequence[FilePiece]) -> tuple[FilePiece, ...]:
        """The next pieces of files that are as they were listed; others are listed again."""
        while True:
            pieces = next_pieces(self._rests(ahead), self._limits)
            entries = [(piece.entry, self._lister.again(piece.entry)) for piece in pieces]
            moved = {old.path for old, new in entries if new != old}
            if not moved:
                return pieces
            self._waiting = [entry for entry in self._waiting if entry.path not in moved]

    def _rests(self, ahead: Sequence[FilePiece]) -> Iterator[FilePiece]:
        """What is left of each file that waits, behind what is being worked on."""
        ends = {piece.path: piece.stop for piece in ahead}
        part = self._log.part
        begun = part.path if part is not None else None
        if ahead and ahead[-1].stop is not None:
            begun = ahead[-1].path
        # A file that was begun comes before all others, and without it none is begun.
        waiting = sorted(self._waiting, key=lambda entry: entry.path != begun)
        if begun is not None and (not waiting or waiting[0].path != begun):
            return
        left = [e for e in waiting if e.path not in ends or ends[e.path] is not None]
        for number in range(0, len(left), _LOOKED_AT):
            some = left[number : number + _LOOKED_AT]
            for entry, facts in zip(some, self._facts(some), strict=True):
                start = ends.get(entry.path)
                if start is None and part is not None and part.path == entry.path:
                    self._check_part(entry)
                    start = part.rows
                yield FilePiece(entry, facts, start or 0)

    def _facts(self, entries: Sequence[Entry]) -> list[FileFacts]:
        if self._probe is None:
            self._probe = SizeProbe(
                self._storage,
                self._root,
                format=self._guess.format,
                schema=self._source.schema_text,
                options=self._source.options,
                cuts=self._cuts,
            )
        return self._probe.facts(entries)

    def _check_part(self, entry: Entry) -> None:
        """A file of which rows were read has the bytes that it had."""
        part = self._log.part
        same = part is not None and (entry.size, entry.modified_us or 0) == (
            part.size,
            part.modified_us,
        )
        if part is None or (same and self._resumed is None):
            return
        if entry.size != part.size or self._digest(entry) != part.digest:
            raise self._changed(entry, part)
        self._resumed = None
        self._log.part = FilePart(
            path=part.path,
            size=entry.size,
            modified_us=entry.modified_us or 0,
            digest=part.digest,
            rows=part.rows,
        )

    def _refuse_lost_part(self) -> None:
        part = self._log.part
        if part is not None and all(entry.path != part.path for entry in self._waiting):
            raise InvalidInputError(
                "a file of which only some rows were read is gone",
                kind="file_part_lost",
                source=self._name,
                path=part.path,
                rows_read=part.rows,
                remedy="bring it back, with the same bytes, and run again; or go back to the "
                "checkpoint before it was begun",
            )

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
            raise self._changed(entry, seen)
        self._log.touch(Seen(entry.path, entry.size, entry.modified_us or 0, seen.digest))

    def _changed(self, entry: Entry, then: Seen | FilePart) -> InvalidInputError:
        return InvalidInputError(
            "a file was changed after it was read",
            kind="file_changed",
            source=self._name,
            path=entry.path,
            size_then=then.size,
            size_now=entry.size,
            modified_then_us=then.modified_us,
            modified_now_us=entry.modified_us,
            remedy="bring the old bytes back and put new rows into new files; or rename the "
            "file, and all of it is read as a new one; or say on_change='keep', and what was "
            "read stays while the new bytes are not read",
        )

    def _digest(self, entry: Entry) -> str:
        if self._root is None:
            return entry.tag or ""
        try:
            return content_digest(f"{self._root}/{entry.path}", entry.size)
        except OSError:
            return ""  # gone or unreadable by now: nothing to compare with

    def read(self, spark: SparkSession, split: Split) -> DataFrame:
        """The rows of some files, and of parts of files."""
        whole = [piece.path for piece in split.detail if piece.whole]
        parts = [piece for piece in split.detail if not piece.whole]
        frames = [self._whole_files(spark, whole)] if whole else []
        if parts:
            frames.append(self._parts(spark, parts))
        return frames[0] if len(frames) == 1 else frames[0].union(frames[1])

    def _whole_files(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
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
        return self._frames.read(spark, paths)

    def _parts(self, spark: SparkSession, pieces: Sequence[FilePiece]) -> DataFrame:
        from holdfast.spark.classic import is_classic

        source = self._source
        return range_frame(
            spark,
            pieces,
            place=StorageLocation(source.path, source.storage_options),
            root=self._root,
            schema=source.empty(spark).schema,
            tasks=spark.sparkContext.defaultParallelism if is_classic(spark) else 8,
        )

    def advance(self, split: Split) -> None:
        """These rows were read; a file that changed meanwhile may have been read in part."""
        done = set()
        for piece in split.detail:
            self._advance(piece)
            if piece.stop is None:
                done.add(piece.path)
        self._waiting = [entry for entry in self._waiting if entry.path not in done]

    def _advance(self, piece: FilePiece) -> None:
        entry, part = piece.entry, self._log.part
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
        if part is not None and digest != part.digest:
            raise self._changed(entry, part)
        if piece.stop is None:
            self._log.part = None
            self._log.add(Seen(entry.path, entry.size, entry.modified_us or 0, digest))
        else:
            self._log.part = FilePart(
                path=entry.path,
                size=entry.size,
                modified_us=entry.modified_us or 0,
                digest=digest,
                rows=piece.stop,
            )

    def rows_read(self, split: Split, scans: Sequence[Scan]) -> int | None:
        """How many rows a slice had, from what Spark has counted; None where it has not."""
        paths = {piece.path for piece in split.detail}
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
        paths = [seen.path for seen in self._log.order]
        there = dict(zip(paths, self._again(paths), strict=True))
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
        return self._splits_of([*entries, *self._begun()])

    def _again(self, paths: Sequence[str]) -> list[Entry | None]:
        """These files as they are now; None for one that is gone."""
        if self._root is not None:
            return [stat_entry(self._root, path) for path in paths]
        listed = {entry.path: entry for entry in self._storage.list("")}
        return [listed.get(path) for path in paths]

    def _begun(self) -> list[Entry]:
        """The file of which only some rows were read, if there is one."""
        part = self._log.part
        if part is None:
            return []
        found = next((e for e in self._again([part.path]) if e is not None), None)
        if found is None:
            self._waiting = []
            self._refuse_lost_part()
            return []
        self._check_part(found)
        return [found]

    def _splits_of(self, entries: Sequence[Entry]) -> list[Split]:
        """Files that were read, cut like the next epochs are."""
        part = self._log.part
        rests = []
        for number in range(0, len(entries), _LOOKED_AT):
            some = entries[number : number + _LOOKED_AT]
            rests += [FilePiece(e, f) for e, f in zip(some, self._facts(some), strict=True)]
        splits = []
        while rests:
            pieces = list(next_pieces(rests, self._source.limits))
            last = pieces[-1]
            rests = rests[len(pieces) :]
            if last.stop is not None:
                rests.insert(0, replace(last, start=last.stop, stop=None))
            begun = part is not None and last.path == part.path
            if part is not None and begun and (last.stop is None or last.stop >= part.rows):
                pieces[-1] = replace(last, stop=part.rows)
                rests = []
            splits.append(self._split(tuple(pieces)))
        return splits

    def backlog(self) -> Backlog:
        """Bytes, and the age of the oldest file that is not read."""
        waiting, part = self._waiting, self._log.part
        size, read = sum(entry.size for entry in waiting), self._log.bytes_read
        times = [entry.modified_us for entry in waiting if entry.modified_us is not None]
        seconds = max(0, self._source.clock.wall_us() - min(times)) / 1e6 if times else None
        rest = next((e for e in waiting if part is not None and e.path == part.path), None)
        begun = 0
        if part is not None and rest is not None:
            begun = part.size * part.rows // (self._facts([rest])[0].rows or part.rows)
        return Backlog(read + begun, read + size, "bytes", seconds=seconds)

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
