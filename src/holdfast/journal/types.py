"""Values of the journal: events, positions, receipts, settings and the open report.

Invariants:
- All are frozen. A position and a receipt are plain facts: they open no file and can be stored
  as JSON by their holder.
- A receipt holds the frame header, so it can be checked against a segment, or against the bytes
  of the frame, with no index and no journal object.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from holdfast.errors import CorruptionError, InvalidInputError
from holdfast.journal.format.frame import (
    HEADER_BYTES,
    BadFrameError,
    FrameHeader,
    hash_bytes,
    unpack_header,
)

S = TypeVar("S", "Position", "Receipt")


class Durability(StrEnum):
    """When an append counts as durable, and what it costs.

    `BATCH`: every batch has its own fsync. The simplest to reason about; one producer at a time.
    `GROUP`: what concurrent producers wrote meanwhile shares one fsync. The same promise for less.
    `INTERVAL`: an fsync every `interval_ms`; an append returns once it is accepted, and a power cut
    may take the last interval. `wait_durable` tells when it is safe.
    """

    BATCH = "batch"
    GROUP = "group"
    INTERVAL = "interval"


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalSettings:
    """How a journal is written. Reading needs none of it.

    Attributes:
        durability: When an append is durable; see `Durability`.
        interval_ms: Time between fsyncs with `Durability.INTERVAL`; with all of them, time until
            a durable mark that could not be written is written again.
        segment_bytes: A segment is sealed once it is this large. Larger ones mean fewer files and
            a longer replay of the tail; truncation works in whole segments.
        group_bytes_max: The most that one group commit writes before its fsync.
        checkpoint_bytes: An index checkpoint is written after this much was appended, and on
            close. Smaller values shorten the tail that is replayed after a crash.
        compact_bytes: Sealed segments smaller than this are merged by `compact`.
    """

    durability: Durability = Durability.GROUP
    interval_ms: int = 50
    segment_bytes: int = 64 << 20
    group_bytes_max: int = 8 << 20
    checkpoint_bytes: int = 32 << 20
    compact_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        """Refuse what can never work; a durability may be given by its name."""
        try:
            object.__setattr__(self, "durability", Durability(self.durability))
        except ValueError as error:
            raise InvalidInputError(
                "no such durability",
                kind="invalid_setting",
                setting="durability",
                value=repr(self.durability)[:100],
                remedy="give 'batch', 'group' or 'interval'",
            ) from error
        for name in (
            "interval_ms",
            "segment_bytes",
            "group_bytes_max",
            "checkpoint_bytes",
            "compact_bytes",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInputError(
                    "setting must be positive",
                    kind="invalid_setting",
                    setting=name,
                    value=repr(value)[:100],
                    remedy="give a whole number of at least 1",
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event. What is None is filled in by the journal when it is appended."""

    entity: str
    kind: str
    payload: Any = b""
    scope: str = ""
    id: uuid.UUID | None = None
    correlation: uuid.UUID | None = None
    causation: uuid.UUID | None = None
    wall_us: int | None = None
    clock: int | None = None
    sequence: int | None = None


class Position(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a reader stands: before `sequence`, with the chain hash of all that lies before.

    `segment` (its first sequence) and `offset` say where to look; compaction may move the frame,
    then it is found by `sequence`. `chain_hash` says whether it is still the same log.
    """

    journal_id: str
    segment: int
    offset: int
    sequence: int
    chain_hash: str

    def to_json(self) -> str:
        """As JSON text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Position:
        """Read what `to_json` wrote."""
        return _decode(text, cls)


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Proof of one append: what was written where in the chain."""

    journal_id: str
    first_sequence: int
    count: int
    body_hash: str
    chain_before: str
    chain_after: str
    header: bytes
    duplicate: bool = False

    @property
    def last_sequence(self) -> int:
        """The sequence of the last event of the batch."""
        return self.first_sequence + self.count - 1

    @property
    def next_sequence(self) -> int:
        """The sequence after the last event of the batch."""
        return self.first_sequence + self.count

    def to_json(self) -> str:
        """As JSON text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Read what `to_json` wrote and check that it agrees with itself."""
        receipt = _decode(text, cls)
        receipt.check()
        return receipt

    def check(self) -> FrameHeader:
        """Check that the fields follow from the header bytes; returns the header."""
        try:
            header = unpack_header(self.header)
        except BadFrameError as error:
            raise CorruptionError(
                "receipt is damaged", kind="receipt", reason=str(error)
            ) from error
        wanted = (
            header.first_sequence,
            header.count,
            header.body_hash.hex(),
            header.previous_hash.hex(),
            hash_bytes(self.header).hex(),
            HEADER_BYTES,
        )
        actual = (
            self.first_sequence,
            self.count,
            self.body_hash,
            self.chain_before,
            self.chain_after,
            len(self.header),
        )
        if wanted != actual:
            raise CorruptionError(
                "receipt does not agree with its frame header",
                kind="receipt",
                sequence=self.first_sequence,
            )
        return header


def make_receipt(
    journal_id: bytes, header: FrameHeader, header_bytes: bytes, *, duplicate: bool = False
) -> Receipt:
    """The receipt of a frame."""
    return Receipt(
        journal_id=journal_id.hex(),
        first_sequence=header.first_sequence,
        count=header.count,
        body_hash=header.body_hash.hex(),
        chain_before=header.previous_hash.hex(),
        chain_after=hash_bytes(header_bytes).hex(),
        header=header_bytes,
        duplicate=duplicate,
    )


def _decode(text: str, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidInputError(
            f"not a journal {kind.__name__.lower()}",
            kind="invalid_position",
            reason=str(error),
            remedy="give the JSON that the journal wrote",
        ) from error


class OpenPath(StrEnum):
    """How the index came to be."""

    FRESH = "fresh"
    CHECKPOINT = "checkpoint"
    REPLAY = "replay"


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenReport:
    """What opening did and why."""

    path: OpenPath
    reason: str
    detail: str = ""
    checkpoint_kept: bool = False
    segments: int = 0
    frames_read: int = 0
    bytes_read: int = 0
    next_sequence: int = 0
    torn_bytes: int = 0
    torn_file: str = ""
    leftovers: tuple[str, ...] = field(default=())
