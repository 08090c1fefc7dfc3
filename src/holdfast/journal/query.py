"""Queries over a view of the journal: candidates from the indexes, answers from the frames.

Invariants:
- A view is a snapshot: segments and the `visible` bound do not change under a query.
- Indexes only narrow down; every event in an answer was compared with the question.
- Answers come in order of sequence, and are the same whichever way the journal was opened.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.errors import IncompatibleError, InvalidInputError, NotFoundError
from holdfast.journal.format.columns import ID_TYPE, TIME_TYPE
from holdfast.journal.format.frame import BadFrameError
from holdfast.journal.format.index import TEXT_BASES, mix_keys
from holdfast.journal.segments import JournalSegment, corrupt
from holdfast.journal.types import Event, Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.journal.format.blob import JournalMeta
    from holdfast.journal.format.columns import BodyReader

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """What to look for; every part that is given must hold. Ranges exclude their end."""

    entity: str | None = None
    scope: str | None = None
    kind: str | None = None
    correlation: uuid.UUID | None = None
    ids: tuple[uuid.UUID, ...] | None = None
    from_sequence: int = 0
    to_sequence: int | None = None
    from_wall_us: int | None = None
    to_wall_us: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 0:
            raise InvalidInputError("limit is negative", kind="invalid_query", limit=self.limit)


@dataclass(frozen=True, slots=True)
class JournalView:
    """A snapshot: all events from the base to `visible` (exclusive)."""

    meta: JournalMeta
    segments: tuple[JournalSegment, ...]
    visible: int

    @property
    def base_sequence(self) -> int:
        """The first retained sequence."""
        return self.meta.base_sequence

    def __len__(self) -> int:
        return self.visible - self.base_sequence

    def segment_of(self, sequence: int) -> JournalSegment:
        """The segment that holds a visible event."""
        if not self.base_sequence <= sequence < self.visible:
            raise NotFoundError(
                "no such event",
                kind="event_missing",
                sequence=sequence,
                first=self.base_sequence,
                end=self.visible,
                remedy="ask for a sequence inside the retained, visible range",
            )
        for segment in reversed(self.segments):
            if segment.first_sequence <= sequence:
                return segment
        raise NotFoundError("no such event", kind="event_missing", sequence=sequence)

    def frames(self, start: int, end: int) -> Iterator[tuple[JournalSegment, int]]:
        """(segment, frame number) of all frames that overlap a range of sequences."""
        end = min(end, self.visible)
        for segment in self.segments:
            if segment.next_sequence <= start or segment.first_sequence >= end:
                continue
            firsts = segment.directory().firsts
            number = max(segment.number_of(start), 0)
            while number < len(firsts) and firsts[number] < end:
                yield segment, number
                number += 1

    def scan(self, start: int = 0, end: int | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of a range of sequences, one per frame."""
        end = self.visible if end is None else min(end, self.visible)
        for segment, number in self.frames(start, end):
            batch = read_batch(segment, number)
            first = batch.column(0)[0].as_py()
            low, high = max(start - first, 0), min(end - first, batch.num_rows)
            yield batch if high - low == batch.num_rows else batch.slice(low, high - low)

    def query(self, query: Query) -> QueryResult:
        """Answer a query."""
        return QueryResult(list(_run(self, query)))

    def get(self, sequence: int) -> Event:
        """One event by its sequence."""
        segment = self.segment_of(sequence)
        batch = read_batch(segment, segment.number_of(sequence))
        return next(to_events(batch.slice(sequence - batch.column(0)[0].as_py(), 1)))

    def find(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
        """Sequences of those ids that are in the visible log."""
        if not ids:
            return {}
        keys = np.frombuffer(b"".join(one.bytes for one in ids), ">u8").reshape(-1, 2)
        mixed = mix_keys(keys)
        found: dict[uuid.UUID, int] = {}
        for segment in self.segments:
            which, sequences = segment.find_ids(mixed)
            for one, sequence in zip(which.tolist(), sequences.tolist(), strict=True):
                if sequence >= self.visible:
                    continue
                body = segment.body(segment.number_of(sequence))
                if (body.keys(0)[sequence - body.header.first_sequence] == keys[one]).all():
                    found[ids[one]] = sequence
        return found

    def causes(self, event: uuid.UUID | int, *, depth_max: int = 1_000) -> list[Event]:
        """Walk causation back: the event, its cause, the cause's cause, and so on.

        Ends where there is no cause, where the cause is not in the retained log, at a loop,
        or after `depth_max` events.
        """
        sequence: int | None = event if isinstance(event, int) else self.find([event]).get(event)
        if sequence is None:
            raise NotFoundError("no such event", kind="event_missing", id=event)
        chain: list[Event] = []
        seen: set[int] = set()
        while sequence is not None and sequence not in seen and len(chain) < depth_max:
            seen.add(sequence)
            chain.append(self.get(sequence))
            cause = chain[-1].causation
            sequence = self.find([cause]).get(cause) if cause is not None else None
        return chain

    def position(self, sequence: int | None = None) -> Position:
        """The position before the frame that begins at `sequence`; the end if it is None."""
        sequence = self.visible if sequence is None else sequence
        if not self.base_sequence <= sequence <= self.visible:
            self.segment_of(sequence)
        for segment in reversed(self.segments):
            if segment.first_sequence > sequence:
                continue
            if sequence == segment.next_sequence:
                return self._at(segment, segment.end_offset, sequence, segment.chain_hash)
            frame = segment.frame(segment.number_of(sequence))
            if frame.header.first_sequence != sequence:
                raise InvalidInputError(
                    "a position lies between batches",
                    kind="invalid_position",
                    sequence=sequence,
                    batch_first=frame.header.first_sequence,
                    remedy="use the first sequence of a batch",
                )
            offset = segment.directory().offsets[segment.number_of(sequence)]
            return self._at(segment, offset, sequence, frame.header.previous_hash)
        return self._at(None, 0, sequence, self.meta.base_hash)

    def _at(
        self, segment: JournalSegment | None, offset: int, sequence: int, chain: bytes
    ) -> Position:
        return Position(
            journal_id=self.meta.journal_id.hex(),
            segment=segment.first_sequence if segment is not None else sequence,
            offset=offset,
            sequence=sequence,
            chain_hash=chain.hex(),
        )

    def check_position(self, position: Position) -> Position:
        """Check that a position still lies in this log; returns where it is now.

        Raises:
            IncompatibleError: The log was replaced, or is shorter than the position.
            NotFoundError: The log was truncated past the position.
        """
        facts = {"sequence": position.sequence, "first": self.base_sequence, "end": self.visible}
        if position.journal_id != self.meta.journal_id.hex():
            raise IncompatibleError(
                "the position belongs to another journal",
                kind="journal_replaced",
                **facts,
                remedy="point the reader at its own journal, or begin from the start",
            )
        if position.sequence < self.base_sequence:
            raise NotFoundError(
                "the journal was truncated past this position",
                kind="position_truncated",
                **facts,
                remedy="begin at the journal's base, or restore older segments",
            )
        if position.sequence > self.visible:
            raise IncompatibleError(
                "the journal is shorter than this position",
                kind="journal_shortened",
                **facts,
                remedy="the log lost events that were read before; restore it from a copy",
            )
        actual = self.position(position.sequence)
        if actual.chain_hash != position.chain_hash:
            raise IncompatibleError(
                "the journal has another history before this position",
                kind="journal_replaced",
                expected=position.chain_hash,
                actual=actual.chain_hash,
                **facts,
                remedy="restore the journal that this position was read from, or begin from "
                "scratch",
            )
        return actual


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Matching events as record batches, in order."""

    batches: list[pa.RecordBatch]

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def events(self) -> list[Event]:
        """As single events; for small answers."""
        return [event for batch in self.batches for event in to_events(batch)]

    def to_table(self) -> pa.Table:
        """As one Arrow table with plain text columns; the payloads must be of one type."""
        return to_table(self.batches)


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with plain instead of dictionary-encoded text: what Spark and others expect."""
    names = batch.schema.names
    columns = [
        column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=names)


def to_table(batches: list[pa.RecordBatch]) -> pa.Table:
    """One table of many batches."""
    if not batches:
        return empty_table()
    kinds = {str(batch.schema.field("payload").type) for batch in batches}
    if len(kinds) > 1 and kinds <= {"binary", "string"}:
        at = batches[0].schema.get_field_index("payload")
        batches = [b.set_column(at, "payload", b.column(at).cast(pa.binary())) for b in batches]
    elif len(kinds) > 1:
        raise InvalidInputError(
            "the events have payloads of different types",
            kind="mixed_payloads",
            types=" | ".join(sorted(kinds)),
            remedy="ask for one kind of event, or use the batches",
        )
    return pa.Table.from_batches([plain(batch) for batch in batches])


def empty_table() -> pa.Table:
    """A table of no events."""
    return pa.table(
        {
            "sequence": pa.array([], pa.uint64()),
            "id": pa.array([], ID_TYPE),
            "correlation": pa.array([], ID_TYPE),
            "causation": pa.array([], ID_TYPE),
            "entity": pa.array([], pa.string()),
            "scope": pa.array([], pa.string()),
            "kind": pa.array([], pa.string()),
            "wall_time": pa.array([], TIME_TYPE),
            "clock": pa.array([], pa.uint64()),
            "payload": pa.array([], pa.binary()),
        }
    )


def to_events(batch: pa.RecordBatch) -> Iterator[Event]:
    """Single events of a record batch."""
    walls = batch.column("wall_time").cast(pa.int64())
    for row, wall in zip(batch.to_pylist(), walls.to_pylist(), strict=True):
        yield Event(
            entity=row["entity"],
            kind=row["kind"],
            payload=row["payload"],
            scope=row["scope"],
            id=uuid.UUID(bytes=row["id"]),
            correlation=uuid.UUID(bytes=row["correlation"]) if row["correlation"] else None,
            causation=uuid.UUID(bytes=row["causation"]) if row["causation"] else None,
            wall_us=wall,
            clock=row["clock"],
            sequence=row["sequence"],
        )


def read_batch(segment: JournalSegment, number: int) -> pa.RecordBatch:
    """One frame as a record batch."""
    return decode(segment, number, segment.body(number))


def decode(
    segment: JournalSegment, number: int, body: BodyReader, rows: Array | None = None
) -> pa.RecordBatch:
    """A body, or some rows of it, as a record batch; damage names the segment's file."""
    try:
        return body.batch(rows)
    except BadFrameError as error:
        raise corrupt(segment.path, segment.directory().offsets[number], error) from error


def _run(view: JournalView, query: Query) -> Iterator[pa.RecordBatch]:
    left = query.limit
    start = max(query.from_sequence, view.base_sequence)
    end = view.visible if query.to_sequence is None else min(query.to_sequence, view.visible)
    rows = None
    if query.ids is not None:
        rows = np.array(sorted(set(view.find(list(query.ids)).values())), dtype="<u8")
    for segment in view.segments:
        if left == 0 or segment.first_sequence >= end:
            return
        if segment.next_sequence <= start:
            continue
        for number in _candidates(segment, query, rows, start, end):
            body = segment.body(number)
            mask = _mask(body, query, rows, start, end)
            if not mask.any():
                continue
            batch = decode(segment, number, body, None if mask.all() else np.flatnonzero(mask))
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            yield batch
            if left == 0:
                return


def _candidates(
    segment: JournalSegment, query: Query, rows: Array | None, start: int, end: int
) -> list[int]:
    """Numbers of the frames that may hold an answer, ascending."""
    summary = getattr(segment, "summary", None)
    if summary is not None and not _overlaps(query, summary.wall_min_us, summary.wall_max_us):
        return []
    chosen: set[int] | None = None
    for column in TEXT_BASES:
        value = getattr(query, column)
        if value is not None:
            found = set(segment.frames_with(column, value))
            chosen = found if chosen is None else chosen & found
    if query.correlation is not None:
        key = np.frombuffer(query.correlation.bytes, ">u8").reshape(1, 2)
        found = set(segment.frames_correlated(key))
        chosen = found if chosen is None else chosen & found
    if rows is not None:
        found = {
            segment.number_of(int(row))
            for row in rows
            if segment.first_sequence <= row < segment.next_sequence
        }
        chosen = found if chosen is None else chosen & found
    directory = segment.directory()
    low, high = max(segment.number_of(start), 0), segment.number_of(end - 1) + 1
    numbers = range(low, high) if chosen is None else sorted(n for n in chosen if low <= n < high)
    return [n for n in numbers if _overlaps(query, directory.wall_mins[n], directory.wall_maxs[n])]


def _overlaps(query: Query, least: int, most: int) -> bool:
    if query.from_wall_us is not None and most < query.from_wall_us:
        return False
    return query.to_wall_us is None or least < query.to_wall_us


def _mask(body: BodyReader, query: Query, rows: Array | None, start: int, end: int) -> Array:
    first = body.header.first_sequence
    sequences = np.arange(first, first + body.header.count, dtype="<u8")
    mask = (sequences >= start) & (sequences < end)
    for column, base in TEXT_BASES.items():
        value = getattr(query, column)
        if value is not None:
            mask &= body.matches(base, value)
    if query.correlation is not None:
        key = np.frombuffer(query.correlation.bytes, ">u8")
        words = body.keys(1)
        mask &= (words == key).all(axis=1) if len(words) else False
    if rows is not None:
        mask &= np.isin(sequences, rows)
    if query.from_wall_us is not None:
        mask &= body.walls() >= query.from_wall_us
    if query.to_wall_us is not None:
        mask &= body.walls() < query.to_wall_us
    return mask
