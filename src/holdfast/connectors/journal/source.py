"""Source: a journal; Spark tasks read its segments in parallel.

Invariants:
- A position holds the chain hash there: a log that was replaced or cut short is noticed.
- The journal keeps what the oldest retained checkpoint still needs: after each commit the source
  holds that position, and truncation never passes a hold. Without a floor (`truncate_log` off)
  it holds the journal's base.
- A hold belongs to one source of one pipeline in one store: none moves another's.
"""

from __future__ import annotations

import hashlib
import logging
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.arguments import text_of, whole_number
from holdfast.checkpoint import Draft, StoreReader
from holdfast.clock import SystemClock
from holdfast.connectors.base import Backlog, Source, SourceReader, Split
from holdfast.connectors.locations import Location, local_path
from holdfast.errors import IncompatibleError, InvalidInputError, NotFoundError
from holdfast.format.manifest import Manifest
from holdfast.format.position import JournalPosition, Position
from holdfast.spark.ddl import ddl_columns
from holdfast.storage.open import location_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from holdfast.journal import JournalSplit as LogSlice
    from holdfast.journal import Position as LogPosition

log = logging.getLogger("holdfast.pipeline")

_HEAD = (
    "sequence long, id binary, correlation binary, causation binary, entity string, scope string, "
    "kind string, at timestamp, clock long"
)
_EVENT = f"{_HEAD}, payload binary"
_HEAD_NAMES = [part.split()[0] for part in _HEAD.split(", ")]


class JournalSource(Source):
    """Events of a journal on local disk.

    payload: schema of JSON payloads, as SQL writes it; its columns then follow the event's, in
    place of `payload`. Where both have a column of one name, it is the payload's.
    typed: the payloads are typed columns of that schema, not JSON.
    events_max: limit of one epoch, which takes whole appends, and always one, even if it is larger.
    """

    kind = "journal"

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        payload: str | None = None,
        typed: bool = False,
        events_max: int = 1_000_000,
    ) -> None:
        """Refuse what can never work."""
        if typed and payload is None:
            raise InvalidInputError(
                "typed payloads need a schema", kind="invalid_schema", remedy="give payload=..."
            )
        whole_number(events_max, "events_max", least=1, kind="invalid_limit")
        if payload is not None:
            text_of(payload, "payload", "journal", "customer string, amount double")
        self.path = local_path(location_text(path))
        self.payload, self.typed, self.events_max = payload, typed, events_max
        own = [] if payload is None else ddl_columns(payload, f"journal {path}")
        taken = {name.lower() for name in own}
        self._head = [name for name in _HEAD_NAMES if name not in taken]
        self._columns = [*self._head, *(own or ["payload"])]
        self.schema_text = _EVENT if payload is None else f"{_EVENT}; {payload}"

    def columns(self) -> list[str]:
        """Columns of an event, and of its payload."""
        return list(self._columns)

    def head(self) -> list[str]:
        """The event's own columns: all that the payload does not have."""
        return list(self._head)

    def empty(self, spark: SparkSession) -> DataFrame:
        """A DataFrame of the right shape without rows."""
        return self.shaped(spark.createDataFrame([], self.raw_schema()))

    def raw_schema(self) -> str:
        """What tasks give: events with their payloads, or with the columns of typed payloads."""
        if not self.typed:
            return _EVENT
        head = [part for part in _HEAD.split(", ") if part.split()[0] in self._head]
        return ", ".join([*head, str(self.payload)])

    def shaped(self, events: DataFrame) -> DataFrame:
        """Take the payload apart, if it has a schema."""
        if self.payload is None or self.typed:
            return events
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        from holdfast.connectors.journal.decode import parse_payload

        parsed = parse_payload(F.col("payload").cast("string"), self.payload)
        return events.withColumn("payload", parsed).select(*self._head, "payload.*")

    def locations(self) -> list[Location]:
        """The journal."""
        return [Location(self.path, "reads")]

    def open(self, name: str) -> JournalSourceReader:
        """Begin at the journal's base."""
        return JournalSourceReader(name, self)


class JournalSourceReader(SourceReader):
    """A journal while the pipeline runs."""

    is_log = True

    def __init__(self, name: str, source: JournalSource) -> None:
        """Open the journal for reading; it must exist."""
        from holdfast.journal import JournalReader

        self._name, self._source = name, source
        self._journal = JournalReader(source.path)
        view = self._journal.view()
        self._at: LogPosition = view.position(view.base_sequence)
        self._visible = view.visible
        self._held: LogPosition | None = None
        self._most = source.events_max

    def restore(self, manifest: Manifest, reader: StoreReader) -> None:
        """Go to where a checkpoint stands; the log must still be the same one."""
        del reader
        entry = manifest.source(self._name)
        if entry is None:
            return
        known = entry.position
        if not isinstance(known, JournalPosition):
            raise IncompatibleError("the position is not a journal's", source=self._name)
        self._at = self._journal.view().check_position(_log_position(known))

    def limit_rows(self, rows: int | None) -> None:
        """Limit the next splits; an epoch takes whole appends."""
        most = self._source.events_max
        self._most = most if rows is None else min(most, rows)

    def plan(self, after: Split | None = None) -> Split | None:
        """Whole batches after the position, up to the limit."""
        from holdfast.journal import plan_end, plan_splits

        self._visible = self._journal.refresh()
        view = self._journal.view()
        start: LogPosition = self._at if after is None else after.detail[0]
        end = plan_end(view, start, events_max=self._most)
        if end.sequence <= start.sequence:
            return None
        pieces = plan_splits(self._source.path, view, start, end)
        size = sum(piece.bytes for piece in pieces)
        return Split(self._name, end.sequence - start.sequence, size, (end, tuple(pieces)))

    def read(self, spark: SparkSession, split: Split) -> DataFrame:
        """The events of a split, each byte range in a task of its own."""
        from holdfast.operators.analyze import arrow_schema

        pieces: tuple[LogSlice, ...] = split.detail[1]
        schema, head = self._source.raw_schema(), self._source.head()
        shape = (
            arrow_schema(spark.createDataFrame([], schema).schema) if self._source.typed else None
        )

        def read_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from holdfast.journal import read_split

            for batch in batches:
                picked: list[Any] = batch.column(0).to_pylist()
                for number in picked:
                    for events in read_split(pieces[number]):
                        yield event_batch(events, shape, head)

        count = len(pieces)
        numbers = spark.range(0, count, 1, count)
        return self._source.shaped(numbers.mapInArrow(read_pieces, schema))

    def advance(self, split: Split) -> None:
        """Behind the split."""
        self._at = split.detail[0]

    def save(self, draft: Draft) -> Position:
        """Where it stands, with the chain hash."""
        del draft
        at = self._at
        return JournalPosition(
            journal=at.journal_id,
            segment=at.segment,
            offset=at.offset,
            sequence=at.sequence,
            chain=at.chain_hash,
        )

    def committed(self, manifest: Manifest, floor: Position | None) -> None:
        """Hold what the oldest retained checkpoint needs; without a floor, everything."""
        from holdfast.journal import JournalReader

        if isinstance(floor, JournalPosition):
            try:
                self._hold(manifest, _log_position(floor))
            except NotFoundError as error:
                if error.kind != "position_truncated":
                    raise
                log.warning("the journal was cut past retained checkpoints: %s", error)
            else:
                return
        elif self._held is not None:
            return  # the base cannot have moved past it
        # A reader of its own: the epoch loop plans with the other one at the same time.
        with JournalReader(self._source.path) as journal:
            view = journal.view()
            self._hold(manifest, view.position(view.base_sequence))

    def _hold(self, manifest: Manifest, at: LogPosition) -> None:
        from holdfast.journal import HoldStore, JournalFiles
        from holdfast.journal.format.layout import Layout

        if at != self._held:
            holds = HoldStore(JournalFiles(), Layout(Path(self._source.path)), SystemClock())
            holds.set(hold_name(manifest.lineage, manifest.pipeline, self._name), at)
            self._held = at

    def history(self) -> list[Split]:
        """Everything that is still in the journal up to the position."""
        from holdfast.journal import plan_splits

        view = self._journal.view()
        start = view.position(view.base_sequence)
        if start.sequence > 0:
            raise InvalidInputError(
                "the journal was truncated, so a new operator cannot be filled from it",
                kind="history_lost",
                source=self._name,
                first=start.sequence,
            )
        if self._at.sequence <= start.sequence:
            return []
        pieces = plan_splits(self._source.path, view, start, self._at)
        return [Split(self._name, self._at.sequence, 0, (self._at, tuple(pieces)))]

    def backlog(self) -> Backlog:
        """Events."""
        return Backlog(self._at.sequence, max(self._visible, self._at.sequence), "events")


def hold_name(lineage: str, pipeline: str, source: str) -> str:
    """The name of a source's hold: readable, and its own, whatever else has the same names."""
    own = hashlib.sha256(f"{lineage}\0{pipeline}\0{source}".encode()).hexdigest()[:12]
    return f"{pipeline}-{source}"[:100] + f"-{own}"


def _log_position(known: JournalPosition) -> LogPosition:
    from holdfast.journal import Position as LogPosition

    return LogPosition(
        journal_id=known.journal,
        segment=known.segment,
        offset=known.offset,
        sequence=known.sequence,
        chain_hash=known.chain,
    )


def event_batch(
    events: pa.RecordBatch, shape: pa.Schema | None = None, head: Collection[str] = ()
) -> pa.RecordBatch:
    """Events as Spark takes them; with `shape`, the payload's columns take the payload's place.

    head: with `shape`, the event's own columns, which come first.
    """
    kinds: dict[str, pa.DataType] = {
        name: pa.binary() for name in ("id", "correlation", "causation")
    }
    kinds.update(dict.fromkeys(("entity", "scope", "kind"), pa.string()))
    kinds["at"] = pa.timestamp("us", tz="UTC")
    columns = [
        events.column("wall_time" if name == "at" else name).cast(kinds.get(name, pa.int64()))
        for name in (head if shape is not None else _HEAD_NAMES)
    ]
    payload: Any = events.column("payload")
    if pa.types.is_struct(payload.type) != (shape is not None):
        raise InvalidInputError(
            "the payloads are not of the kind that the source expects",
            kind="payload_differs",
            type=str(payload.type)[:200],
            remedy="say typed=True for typed columns, and leave it out for bytes and JSON",
        )
    if shape is None:
        names = [*_HEAD_NAMES, "payload"]
        return pa.RecordBatch.from_arrays([*columns, payload.cast(pa.binary())], names=names)
    known = {field.name: i for i, field in enumerate(payload.type)}
    parts = payload.flatten()
    for field in list(shape)[len(columns) :]:
        at = known.get(field.name)
        columns.append(
            parts[at].cast(field.type) if at is not None else pa.nulls(len(payload), field.type)
        )
    return pa.RecordBatch.from_arrays(columns, schema=shape)
