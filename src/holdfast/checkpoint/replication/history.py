"""Whether one store is an earlier state of another, and the record that brings it forward.

Invariants:
- A record number with the hash of its file is a point of a history: two stores that share one have
  the same history up to it.
- A base record that a sync wrote stands for the source's record before it: both are points.
- What cannot be shown is refused, never assumed.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint.commit.catalog import NO_PREVIOUS, CatalogState
from holdfast.checkpoint.reader import StoreReader
from holdfast.errors import ConflictError, CorruptionError, NotFoundError, RefusedError, invariant
from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST
from holdfast.format.documents import (
    RECORD_BYTES_MAX,
    BaseBody,
    Record,
    Summary,
    parse_record,
    record_bytes,
)
from holdfast.ids import Sequence, WriterId

Point = tuple[int, str]
_NOBODY = WriterId("00000000-0000-4000-8000-000000000000")


@dataclass(frozen=True)
class EncodedRecord:
    """A record to be put, and its bytes."""

    sequence: Sequence
    data: bytes


@dataclass(frozen=True)
class Ends:
    """Both catalogs, and the newest record of each."""

    source: CatalogState
    source_head: Record
    history: frozenset[Point]
    target: CatalogState
    target_head: Record | None
    lineage: str | None

    @classmethod
    def look(cls, there: StoreReader, here: StoreReader) -> Ends:
        """Read both, the target first: a replica that another sync advances is never ahead."""
        lineage, target, newest = None, CatalogState(), None
        with suppress(NotFoundError):
            lineage = here.header().lineage
        if lineage is not None:
            target = here.catalog()
            newest = _record(here, target.head) if target.head >= 0 else None
        state = there.catalog()
        if state.head < 0:
            raise NotFoundError(
                "nothing was ever committed or opened in the source",
                kind="empty_source",
                pipeline=there.directory.pipeline,
                remedy="run the pipeline first",
            )
        history = _history(there, state)
        return cls(state, _record(there, state.head), history, target, newest, lineage)


def _record(reader: StoreReader, number: Sequence) -> Record:
    path = paths.record(number)
    data = reader.directory.get(path, bytes_max=RECORD_BYTES_MAX)
    return parse_record(data, reader.directory.at(path), number)


def _history(reader: StoreReader, state: CatalogState) -> frozenset[Point]:
    """Every point of a store's history that its readable records prove."""
    points: set[Point] = set()
    for number in range(state.base, state.head + 1):
        path = paths.record(Sequence(number))
        data = reader.directory.get(path, bytes_max=RECORD_BYTES_MAX)
        points.add((number, hashlib.sha256(data).hexdigest()))
        if number == state.base:
            record = parse_record(data, reader.directory.at(path), Sequence(number))
            points.add((number - 1, record.previous))
    return frozenset(points)


def check_replaceable(ends: Ends, lineage: str) -> None:
    """Refuse a destination that is not an earlier state of the source."""
    if ends.lineage is not None and ends.lineage != lineage:
        raise RefusedError(
            "the destination holds another pipeline of the same name",
            kind="other_lineage",
            source=lineage,
            destination=ends.lineage,
            remedy="choose another root as the destination; nothing was changed",
        )
    head = ends.target_head
    if head is None:
        return
    if ends.target.damage:
        raise CorruptionError(
            "the destination's catalog is damaged",
            kind="catalog_damaged",
            path=ends.target.damage[0].path,
            remedy="sync into an empty place, or rebuild it; nothing was changed",
        )
    synced = isinstance(head.body, BaseBody) and head.body.synced
    points = {(int(ends.target.head), ends.target.head_sha256)}
    if synced:
        points.add((head.sequence - 1, head.previous))
    if points & ends.history or (synced and not ends.target.live):
        return
    behind = ends.target.head < ends.source.base and _no_rivals(ends)
    if synced and behind:
        return
    raise ConflictError(
        "the destination was written to by itself: it is not an earlier state of the source",
        kind="diverged",
        source_record=ends.source.head,
        destination_record=ends.target.head,
        remedy="sync the other way, or into an empty place; nothing was changed",
    )


def _no_rivals(ends: Ends) -> bool:
    """No record number was used for different checkpoints."""
    mine = {summary.sequence: summary.checkpoint for summary in ends.source.live}
    return all(mine.get(s.sequence, s.checkpoint) == s.checkpoint for s in ends.target.live)


def first_record(there: StoreReader) -> EncodedRecord:
    """The record of an empty replica; nothing in it depends on when it was written."""
    header = there.header()
    body = BaseBody(live=[], epoch_max=-1, synced=True)
    return _written(Sequence(0), NO_PREVIOUS, _NOBODY, header.created_us, body)


def next_record(ends: Ends, live: tuple[Summary, ...]) -> EncodedRecord | None:
    """The record that makes the target the source's replica; None when it is that already."""
    head = ends.target_head
    invariant(head is not None, "a replica without a record")
    mark = (int(ends.source.head), ends.source.head_sha256)
    at = (int(ends.target.head), ends.target.head_sha256)
    through = (head.sequence - 1, head.previous) if head else at
    if mark == at or (_is_synced(head) and mark == through):
        return None
    if _is_synced(ends.source_head) and at == (
        ends.source_head.sequence - 1,
        ends.source_head.previous,
    ):
        return None  # the source is itself a replica of the target
    if _is_synced(ends.source_head) and list(live) == list(ends.source.live):
        # A replica of a replica is a replica of the first one: the same record says so.
        return EncodedRecord(ends.source.head, record_bytes(ends.source_head))
    number = Sequence(ends.source.head + 1)
    invariant(number > ends.target.head, "a replica is ahead of its source")
    body = BaseBody(live=list(live), epoch_max=ends.source.epoch_max, synced=True)
    return _written(
        number, ends.source.head_sha256, ends.source_head.writer, ends.source_head.at_us, body
    )


def _is_synced(record: Record | None) -> bool:
    return record is not None and isinstance(record.body, BaseBody) and record.body.synced


def _written(
    number: Sequence, previous: str, writer: WriterId, at_us: int, body: BaseBody
) -> EncodedRecord:
    record = Record(
        format=FORMAT_VERSION,
        sha256=NO_DIGEST,
        sequence=number,
        base=number,
        previous=previous,
        writer=writer,
        at_us=at_us,
        body=body,
    )
    return EncodedRecord(number, record_bytes(record))
