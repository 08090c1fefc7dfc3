"""The small documents: store header, commit records, `_latest`, pins, outcomes.

Invariants:
- A record names its own sequence number and the SHA-256 of the whole file before it.
- Each record says which base record starts the readable part of the catalog (`base`), so a reader
  needs one listing and never walks further back.
- A pin's file name is its label; an outcome's file name is its epoch, attempt and sink.

Spec: spec/format-v2.md, section 4.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.errors import CorruptionError
from holdfast.format.canonical import Document, decode, encode
from holdfast.ids import VNODE_COUNT, CheckpointId, Epoch, Sequence, WriterId

SMALL_BYTES_MAX = 64 * 1024
RECORD_BYTES_MAX = 64 * 1024 * 1024

Replay = Literal["deduplicates", "retracts", "none"]
OutcomeStatus = Literal["committed", "failed", "aborted"]
Counts = Literal["live", "bound", "unknown"]
"""What `rows` and `keys` are: exact, at most, or nothing to go by (as in format 1)."""


class StoreHeader(Document, frozen=True, kw_only=True):
    """`holdfast.json`: what this directory is."""

    lineage: str
    pipeline: str
    created_us: int
    vnodes: int
    holdfast: str

    def beyond_v1(self) -> str | None:
        """Format 1 knows one number of vnodes."""
        return "another number of vnodes" if self.vnodes != VNODE_COUNT else None


class SinkPromise(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What a sink can do when an epoch that it has published is run again."""

    name: str
    replay: Replay


class Summary(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One checkpoint as the catalog knows it: enough to list it without its manifest."""

    checkpoint: CheckpointId
    epoch: Epoch
    sequence: Sequence
    manifest_sha256: str
    manifest_bytes: int
    created_us: int
    fingerprint: str
    parent: CheckpointId | None = None
    label: str | None = None
    incremental: bool = False
    rows: int = 0
    keys: int = 0
    processed: int = 0
    bytes_new: int = 0
    bytes_total: int = 0
    sinks: list[SinkPromise] = []
    abandoned: bool = False
    counts: Counts = "unknown"


class OpenBody(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="open",
    tag_field="type",
    omit_defaults=True,
):
    """A writer took over, resuming from a checkpoint (None: from nothing).

    abandoned: left behind by a fallback or a rollback. revived: the resumed one and its ancestors,
    where an earlier rollback had left them behind.
    """

    resume: CheckpointId | None = None
    abandoned: list[CheckpointId] = []
    revived: list[CheckpointId] = []
    host: str = ""


class CommitBody(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="commit",
    tag_field="type",
    omit_defaults=True,
):
    """A checkpoint became durable: the only commit point."""

    summary: Summary


class DropBody(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="drop",
    tag_field="type",
    omit_defaults=True,
):
    """Checkpoints left the catalog; their files may go."""

    checkpoints: list[CheckpointId]
    reason: str = ""


class BaseBody(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="base",
    tag_field="type",
    omit_defaults=True,
):
    """All live checkpoints at once: records before this one are no longer needed.

    synced: written by a copy from another store, not by a writer of this one. `previous` of the
    record is then the hash of the newest record over there.
    """

    live: list[Summary]
    epoch_max: int
    resume: CheckpointId | None = None
    rebuilt: bool = False
    synced: bool = False


Body = OpenBody | CommitBody | DropBody | BaseBody


class Record(Document, frozen=True, kw_only=True):
    """One catalog record."""

    sequence: Sequence
    base: Sequence
    previous: str
    writer: WriterId
    at_us: int
    body: Body

    def beyond_v1(self) -> str | None:
        """Format 1 does not say what its counts are."""
        body = self.body
        listed = [body.summary] if isinstance(body, CommitBody) else getattr(body, "live", ())
        return "counts" if any(summary.counts != "unknown" for summary in listed) else None


class Latest(Document, frozen=True, kw_only=True):
    """`_latest`: a hint for people and monitors. Recovery never trusts it."""

    sequence: Sequence
    record_sha256: str
    checkpoint: CheckpointId
    epoch: Epoch


class Pin(Document, frozen=True, kw_only=True):
    """A savepoint: a checkpoint held under a label."""

    label: str
    checkpoint: CheckpointId
    epoch: Epoch
    created_us: int
    manifest_sha256: str
    note: str = ""


class Outcome(Document, frozen=True, kw_only=True):
    """What became of a sink token."""

    checkpoint: CheckpointId
    epoch: Epoch
    sink: str
    attempt: int
    status: OutcomeStatus
    replay: Replay
    at_us: int
    writer: WriterId
    reason: str = ""


def header_bytes(header: StoreHeader) -> bytes:
    """Canonical bytes of the store header."""
    return encode(header, bytes_max=SMALL_BYTES_MAX)


def parse_header(data: bytes, path: str) -> StoreHeader:
    """The store header in these bytes."""
    return decode(data, StoreHeader, path=path, bytes_max=SMALL_BYTES_MAX)


def record_bytes(record: Record) -> bytes:
    """Canonical bytes of a catalog record."""
    return encode(record, bytes_max=RECORD_BYTES_MAX)


def parse_record(data: bytes, path: str, sequence: Sequence) -> Record:
    """The catalog record in these bytes; it must be the one that its name promises."""
    record = decode(data, Record, path=path, bytes_max=RECORD_BYTES_MAX)
    _same(record.sequence, sequence, "sequence", path)
    if not 0 <= record.base <= record.sequence or (
        isinstance(record.body, BaseBody) and record.base != record.sequence
    ):
        raise CorruptionError(
            "record points at an impossible base",
            kind="impossible_base",
            path=path,
            base=record.base,
            sequence=record.sequence,
        )
    return record


def latest_bytes(latest: Latest) -> bytes:
    """Canonical bytes of the hint."""
    return encode(latest, bytes_max=SMALL_BYTES_MAX)


def parse_latest(data: bytes, path: str) -> Latest:
    """The hint in these bytes."""
    return decode(data, Latest, path=path, bytes_max=SMALL_BYTES_MAX)


def pin_bytes(pin: Pin) -> bytes:
    """Canonical bytes of a pin."""
    return encode(pin, bytes_max=SMALL_BYTES_MAX)


def parse_pin(data: bytes, path: str, label: str) -> Pin:
    """The pin in these bytes; it must be the one that its name promises."""
    pin = decode(data, Pin, path=path, bytes_max=SMALL_BYTES_MAX)
    _same(pin.label, label, "label", path)
    return pin


def outcome_bytes(outcome: Outcome) -> bytes:
    """Canonical bytes of an outcome."""
    return encode(outcome, bytes_max=SMALL_BYTES_MAX)


def parse_outcome(data: bytes, path: str, epoch: Epoch, sink: str, attempt: int) -> Outcome:
    """The outcome in these bytes; it must be the one that its name promises."""
    outcome = decode(data, Outcome, path=path, bytes_max=SMALL_BYTES_MAX)
    _same(outcome.epoch, epoch, "epoch", path)
    _same(outcome.sink, sink, "sink", path)
    _same(outcome.attempt, attempt, "attempt", path)
    return outcome


def _same(actual: object, expected: object, field: str, path: str) -> None:
    if actual != expected:
        raise CorruptionError(
            f"file name and content disagree about the {field}",
            kind="misplaced",
            path=path,
            expected=expected,
            actual=actual,
        )
