"""The reader: any number of them, in any process, while a writer runs. It never writes.

Invariants:
- A reader shows only what is known to be durable: by the writer's mark, by an index checkpoint, or
  by what later frames say. After a power cut the last batches may stay hidden until a writer has
  opened the journal and made them durable.
- A writer that truncates or compacts meanwhile is no damage: what looks like it is looked at again,
  and counts only if the files have not changed since.
- Opening and refreshing change nothing on disk: no repair, no lock, no index.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from holdfast.clock import Clock, SystemClock
from holdfast.errors import CorruptionError, HoldfastError, NotFoundError
from holdfast.journal.files import JournalFiles
from holdfast.journal.format.blob import CURSOR_MAGIC
from holdfast.journal.format.layout import Layout
from holdfast.journal.frame_scan import FrameScan, scan_frames
from holdfast.journal.maintenance import load_position, store_position
from holdfast.journal.open import (
    JournalFingerprint,
    LoadedLog,
    journal_fingerprint,
    load_log,
    read_mark,
    read_meta,
)
from holdfast.journal.query import JournalView, Query, QueryResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    import pyarrow as pa

    from holdfast.journal.types import OpenReport, Position

LOAD_ATTEMPTS = 20
T = TypeVar("T")


class JournalReader:
    """A journal opened for reading."""

    def __init__(
        self,
        root: str | PathLike[str],
        *,
        files: JournalFiles | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Open; raises `NotFoundError` where there is no journal."""
        self.layout = Layout(Path(root))
        self._files = files or JournalFiles()
        self.clock = clock or SystemClock()
        self._log = self._load()

    @property
    def report(self) -> OpenReport:
        """How the journal was opened, and why so."""
        return self._log.report

    def _load(self) -> LoadedLog:
        return self._steady(lambda: load_log(self._files, self.layout))

    def _steady(self, look: Callable[[], T], again: Callable[[], object] | None = None) -> T:
        """What `look` finds; what looks damaged counts only if the files have not changed since.

        A writer truncates and compacts at any moment: what was listed is gone when it is opened.
        """
        seen: JournalFingerprint | None = None
        for attempt in range(LOAD_ATTEMPTS):
            try:
                return look()
            except (NotFoundError, CorruptionError) as error:
                now = journal_fingerprint(self._files, self.layout)
                if not _may_pass(error) or now == seen or attempt == LOAD_ATTEMPTS - 1:
                    raise
                seen = now
                if again is not None:
                    again()
        raise NotFoundError("the journal kept changing while it was opened", path=self.layout.root)

    def _reload(self) -> None:
        self._log = self._load()

    def refresh(self) -> int:
        """Take notice of what was appended, truncated or compacted; returns `visible`."""
        return self._steady(self._refresh, self._reload)

    def _refresh(self) -> int:
        log = self._log
        tail = log.tail
        changed = read_meta(self._files, self.layout) != log.meta
        if tail is None or changed or not self._same_files():
            self._reload()
            return self.view().visible
        durable = read_mark(self._files, self.layout, log.meta.journal_id)
        walk = FrameScan(log.meta.journal_id, tail.end_offset, tail.next_sequence, tail.chain_hash)
        fd = self._files.open_read(tail.path)
        try:
            read = lambda at, length: self._files.read_at(fd, tail.path, at, length)  # noqa: E731
            for _, frame in scan_frames(read, walk, self._files.size(fd, tail.path)):
                tail.add(frame.header, frame.chain_hash)
        finally:
            self._files.close(fd)
        log.durable = min(max(log.durable, durable, walk.durable), tail.next_sequence)
        return log.durable

    def _same_files(self) -> bool:
        """Whether the tail is still the last segment and no sealed one was merged away."""
        names = self._files.entries(self.layout.segments)
        known = {s.path.name: s.summary.file_bytes for s in self._log.sealed}
        actual = {name: size for name, size in names.items() if name.endswith(".seg")}
        if self._log.tail is not None:
            actual.pop(self._log.tail.path.name, None)
        return actual == known

    def view(self) -> JournalView:
        """A snapshot of what is visible, for queries."""
        log = self._log
        segments = (*log.sealed, log.tail) if log.tail is not None else tuple(log.sealed)
        return JournalView(log.meta, segments, max(log.durable, log.meta.base_sequence))

    def query(self, query: Query) -> QueryResult:
        """Answer a query on a fresh view; a journal compacted meanwhile is opened again."""
        self.refresh()
        return self._steady(lambda: self.view().query(query), self._reload)

    def follow(
        self, start: Position | None = None, *, timeout_ms: int | None = None, poll_ms: int = 50
    ) -> Iterator[tuple[pa.RecordBatch, Position]]:
        """Yield every batch from a position on, with the position behind it; waits for more.

        Args:
            start: Where to begin; the journal's base if None. Checked against the chain hash.
            timeout_ms: End after so long without a new batch; None waits for ever.
            poll_ms: Time between looks.
        """
        self.refresh()
        at = self._steady(lambda: self._begin(start), self._reload)
        idle = 0
        seen: JournalFingerprint | None = None
        while True:
            try:
                view = self.view()
                at = view.check_position(at)
                waiting = at.sequence < view.visible
                for batch in view.scan(at.sequence) if waiting else ():
                    at = view.position(batch.column(0)[-1].as_py() + 1)
                    yield batch, at
                    seen = None
            except (NotFoundError, CorruptionError) as error:
                now = journal_fingerprint(self._files, self.layout)
                if not _may_pass(error) or now == seen:
                    raise
                seen = now
                self._reload()
                continue
            if waiting:
                idle = 0
            elif timeout_ms is not None and idle >= timeout_ms:
                return
            else:
                self.clock.sleep_ms(poll_ms)
                idle += poll_ms
            self.refresh()

    def _begin(self, start: Position | None) -> Position:
        view = self.view()
        return view.check_position(start) if start else view.position(view.base_sequence)

    def cursor(self, name: str) -> Cursor:
        """A durable cursor: remembers under a name how far somebody has read."""
        return Cursor(self, name, self._files, self.clock)

    def close(self) -> None:
        """Release the files."""
        self._log.sealed.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _may_pass(error: HoldfastError) -> bool:
    """Whether a writer at work can be the reason."""
    return isinstance(error, CorruptionError) or error.kind == "file_missing"


class Cursor:
    """A named, durable reading position. It belongs to its reader, not to the writer."""

    def __init__(self, reader: JournalReader, name: str, files: JournalFiles, clock: Clock) -> None:
        """A cursor of that name; it need not exist yet."""
        self._reader = reader
        self._files = files
        self._clock = clock
        self.path = reader.layout.cursor(name)

    def position(self) -> Position | None:
        """Where it stands; None if it was never set."""
        try:
            return load_position(self._files, self.path, CURSOR_MAGIC)
        except NotFoundError:
            return None

    def commit(self, position: Position) -> None:
        """Remember durably that everything before `position` is done with."""
        self._reader.view().check_position(position)
        store_position(self._files, self.path, CURSOR_MAGIC, position, self._clock.wall_us())

    def follow(
        self, *, timeout_ms: int | None = None, poll_ms: int = 50
    ) -> Iterator[tuple[pa.RecordBatch, Position]]:
        """Continue behind the cursor. Commit the position of a batch once it is done with."""
        return self._reader.follow(self.position(), timeout_ms=timeout_ms, poll_ms=poll_ms)
