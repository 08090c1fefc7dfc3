"""A journal as a source: Spark tasks read its segments in parallel.

Invariants:
- A position holds the chain hash there: a log that was replaced or cut short is noticed.
- The journal keeps what the oldest retained checkpoint still needs: after each commit the source
  holds that position, and truncation never passes a hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.checkpoint import Draft, StoreReader
from holdfast.clock import SystemClock
from holdfast.errors import IncompatibleError, InvalidInputError
from holdfast.format.manifest import Manifest
from holdfast.format.position import JournalPosition, Position
from holdfast.pipeline.columns import ddl_columns
from holdfast.pipeline.sources.api import Backlog, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.journal import Position as LogPosition
    from holdfast.journal import Slice as LogSlice

_HEAD = (
    "sequence long, id binary, correlation binary, causation binary, entity string, scope string, "
    "kind string, at timestamp, clock long"
)
_EVENT = f"{_HEAD}, payload binary"


class Journal:
    """Events of a journal on local disk.

    payload: schema of JSON payloads, as SQL writes it; its columns then stand beside the event's,
    in place of `payload`. typed: the payloads are typed columns of that schema, not JSON.
    events_max: limit of one epoch, which takes whole appends, and always one, even if it is larger.
    """

    what = "journal"
    weight: str | None = None

    def __init__(
        self,
        path: str | Path,
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
        if events_max < 1:
            raise InvalidInputError("events_max must be positive", kind="invalid_limit")
        self.path = str(Path(path).expanduser().absolute())
        self.payload, self.typed, self.events_max = payload, typed, events_max
        names = ddl_columns(_EVENT, "journal")
        if payload is not None:
            names = [*names[:-1], *ddl_columns(payload, f"journal {path}")]
        self._columns = names
        self.schema_text = _EVENT if payload is None else f"{_EVENT}; {payload}"

    def columns(self) -> list[str]:
        """Columns of an event, and of its payload."""
        return list(self._columns)

    def empty(self, spark: Any) -> Any:
        """A DataFrame of the right shape without rows."""
        return self.shaped(spark.createDataFrame([], self.raw_schema()))

    def raw_schema(self) -> str:
        """What tasks give: events with their payloads, or with the columns of typed payloads."""
        return f"{_HEAD}, {self.payload}" if self.typed else _EVENT

    def shaped(self, events: Any) -> Any:
        """Take the payload apart, if it has a schema."""
        if self.payload is None or self.typed:
            return events
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        parsed = F.from_json(F.col("payload").cast("string"), self.payload, {"mode": "FAILFAST"})
        return events.withColumn("payload", parsed).select(*self._event_names(), "payload.*")

    def _event_names(self) -> list[str]:
        return ddl_columns(_EVENT, "journal")[:-1]

    def open(self, name: str) -> JournalSourceReader:
        """Begin at the journal's base."""
        return JournalSourceReader(name, self)


class JournalSourceReader:
    """A journal while the pipeline runs."""

    def __init__(self, name: str, source: Journal) -> None:
        """Open the journal for reading; it must exist."""
        from holdfast.journal import JournalReader

        self._name, self._source = name, source
        self._journal = JournalReader(source.path)
        view = self._journal.view()
        self._at: LogPosition = view.position(view.base_sequence)
        self._visible = view.visible

    def restore(self, manifest: Manifest, reader: StoreReader) -> None:
        """Go to where a checkpoint stands; the log must still be the same one."""
        from holdfast.journal import Position as LogPosition

        del reader
        entry = manifest.source(self._name)
        if entry is None:
            return
        known = entry.position
        if not isinstance(known, JournalPosition):
            raise IncompatibleError("the position is not a journal's", source=self._name)
        position = LogPosition(
            journal_id=known.journal, segment=known.segment, offset=known.offset,
            sequence=known.sequence, chain_hash=known.chain,
        )  # fmt: skip
        self._at = self._journal.view().check_position(position)

    def plan(self, after: Slice | None = None) -> Slice | None:
        """Whole batches after the position, up to the limit."""
        from holdfast.journal import plan_end, plan_slices

        self._visible = self._journal.refresh()
        view = self._journal.view()
        start: LogPosition = self._at if after is None else after.detail[0]
        end = plan_end(view, start, events_max=self._source.events_max)
        if end.sequence <= start.sequence:
            return None
        pieces = plan_slices(self._source.path, view, start, end)
        size = sum(piece.bytes for piece in pieces)
        return Slice(self._name, end.sequence - start.sequence, size, (end, tuple(pieces)))

    def read(self, spark: Any, piece: Slice) -> Any:
        """The events of a slice, each byte range in a task of its own."""
        from holdfast.pipeline.resolving.common import arrow_schema

        pieces: tuple[LogSlice, ...] = piece.detail[1]
        schema = self._source.raw_schema()
        shape = (
            arrow_schema(spark.createDataFrame([], schema).schema) if self._source.typed else None
        )

        def read_pieces(batches: Any) -> Iterator[Any]:
            from holdfast.journal import read_slice

            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for events in read_slice(pieces[number]):
                        yield event_batch(events, shape)

        count = len(pieces)
        numbers = spark.range(0, count, 1, count)
        return self._source.shaped(numbers.mapInArrow(read_pieces, schema))

    def advance(self, piece: Slice) -> None:
        """Behind the slice."""
        self._at = piece.detail[0]

    def save(self, draft: Draft) -> Position:
        """Where it stands, with the chain hash."""
        del draft
        at = self._at
        return JournalPosition(
            journal=at.journal_id, segment=at.segment, offset=at.offset, sequence=at.sequence,
            chain=at.chain_hash,
        )  # fmt: skip

    def committed(self, manifest: Manifest, floor: Position | None) -> None:
        """Hold what the oldest retained checkpoint needs."""
        from holdfast.journal import Files, HoldStore
        from holdfast.journal import Position as LogPosition
        from holdfast.journal.layout import Layout

        if not isinstance(floor, JournalPosition):
            return
        holds = HoldStore(Files(), Layout(Path(self._source.path)), SystemClock())
        holds.set(
            f"{manifest.pipeline}-{self._name}",
            LogPosition(
                journal_id=floor.journal, segment=floor.segment, offset=floor.offset,
                sequence=floor.sequence, chain_hash=floor.chain,
            ),
        )  # fmt: skip

    def history(self) -> list[Slice]:
        """Everything that is still in the journal up to the position."""
        from holdfast.journal import plan_slices

        view = self._journal.view()
        start = view.position(view.base_sequence)
        if start.sequence > 0:
            raise InvalidInputError(
                "the journal was truncated, so a new operator cannot be filled from it",
                kind="history_lost", source=self._name, first=start.sequence,
            )  # fmt: skip
        if self._at.sequence <= start.sequence:
            return []
        pieces = plan_slices(self._source.path, view, start, self._at)
        return [Slice(self._name, self._at.sequence, 0, (self._at, tuple(pieces)))]

    def backlog(self) -> Backlog:
        """Events."""
        return Backlog(self._at.sequence, max(self._visible, self._at.sequence), "events")


def event_batch(events: Any, shape: Any = None) -> Any:
    """Events as Spark takes them; with `shape`, the payload's columns take the payload's place."""
    columns = [
        events.column("sequence").cast(pa.int64()),
        *(events.column(name).cast(pa.binary()) for name in ("id", "correlation", "causation")),
        *(events.column(name).cast(pa.string()) for name in ("entity", "scope", "kind")),
        events.column("wall_time").cast(pa.timestamp("us", tz="UTC")),
        events.column("clock").cast(pa.int64()),
    ]
    payload = events.column("payload")
    if pa.types.is_struct(payload.type) != (shape is not None):
        raise InvalidInputError(
            "the payloads are not of the kind that the source expects",
            kind="payload_differs", type=str(payload.type)[:200],
            remedy="say typed=True for typed columns, and leave it out for bytes and JSON",
        )  # fmt: skip
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


_HEAD_NAMES = [part.split()[0] for part in _HEAD.split(", ")]
