"""What each verb says, as plain values. `--json` prints exactly these: docs/reference/json.md.

Invariants:
- Fields are only ever added; a change of meaning gets a new number in `schema`.
- Times are microseconds since 1970-01-01 UTC, sizes are bytes. Nothing is rounded or translated.
- No sink token and no secret is ever part of a value.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.console import Failure as Failure  # noqa: PLC0414 - a document as the others
from holdfast.format.documents import Counts
from holdfast.format.findings import Finding

Health = Literal["ok", "damaged"]
Status = Literal["committed", "pending", "failed", "aborted", "abandoned"]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a document."""


class PipelineRow(Value, frozen=True, kw_only=True):
    """One pipeline of a root."""

    pipeline: str
    checkpoints: int
    epoch: int | None
    created_us: int | None
    problem: str = ""


class Pipelines(Value, frozen=True, kw_only=True, tag="holdfast.pipelines/1", tag_field="schema"):
    """`ls` of a root with several pipelines."""

    root: str
    pipelines: list[PipelineRow]


class CheckpointRow(Value, frozen=True, kw_only=True):
    """One checkpoint of a listing."""

    checkpoint: str
    epoch: int
    created_us: int
    age_us: int
    label: str | None
    pins: list[str]
    rows: int | None
    keys: int | None
    counts: Counts
    processed: int
    bytes_new: int
    bytes_total: int
    bytes_exclusive: int | None
    incremental: bool
    parent: str | None
    status: Status
    health: Health
    problem: str = ""


class Listing(Value, frozen=True, kw_only=True, tag="holdfast.ls/1", tag_field="schema"):
    """`ls`."""

    root: str
    pipeline: str
    lineage: str
    total: int
    checkpoints: list[CheckpointRow]
    findings: list[Finding]


class SourceView(Value, frozen=True, kw_only=True):
    """Where a source stands."""

    name: str
    connector: str
    position: dict[str, str]
    epoch: int
    watermark_us: int | None
    idle: bool


class PartitionView(Value, frozen=True, kw_only=True):
    """State of one partition of an operator."""

    partition: int
    files: int
    rows: int
    bytes: int


class OperatorView(Value, frozen=True, kw_only=True):
    """State of one operator."""

    name: str
    what: str
    trace: str
    version: int
    rows: int | None
    keys: int | None
    counts: Counts
    bytes: int
    files: int
    partitions: list[PartitionView]


class SinkView(Value, frozen=True, kw_only=True):
    """What a sink has staged and what became of it."""

    name: str
    replay: str
    status: str
    token_bytes: int
    reason: str = ""


class FileView(Value, frozen=True, kw_only=True):
    """One file of the inventory."""

    path: str
    kind: str
    operator: str | None
    partition: int | None
    rows: int
    bytes: int
    sha256: str
    own: bool
    pipeline: str


class CheckpointView(Value, frozen=True, kw_only=True, tag="holdfast.show/1", tag_field="schema"):
    """`show`."""

    root: str
    pipeline: str
    lineage: str
    checkpoint: str
    epoch: int
    sequence: int
    created_us: int
    age_us: int
    label: str | None
    pins: list[str]
    parent: str | None
    ancestors: list[str]
    children: list[str]
    incremental: bool
    abandoned: bool
    status: Status
    writer: str
    versions: dict[str, str]
    fingerprint: str
    vnodes: int
    watermark_us: int | None
    processed: int
    rows: int | None
    keys: int | None
    counts: Counts
    bytes_new: int
    bytes_total: int
    sources: list[SourceView]
    operators: list[OperatorView]
    sinks: list[SinkView]
    properties: dict[str, str]
    files: list[FileView]
    findings: list[Finding]


class Verification(Value, frozen=True, kw_only=True, tag="holdfast.verify/1", tag_field="schema"):
    """`verify`."""

    root: str
    pipeline: str
    ok: bool
    deep: bool
    checkpoints: int
    damaged: list[str]
    files: int
    bytes: int
    seconds: float
    bytes_per_second: float
    findings: list[Finding]


class CandidateView(Value, frozen=True, kw_only=True):
    """A checkpoint that recovery looked at, or did not need to."""

    checkpoint: str
    epoch: int
    created_us: int
    verdict: str
    findings: list[Finding]


class TokenView(Value, frozen=True, kw_only=True):
    """A sink's epoch that recovery will publish."""

    sink: str
    checkpoint: str
    epoch: int
    status: str
    replay: str


class Recovery(Value, frozen=True, kw_only=True, tag="holdfast.recover/1", tag_field="schema"):
    """`recover --plan`."""

    root: str
    pipeline: str
    mode: str
    checkpoint: str | None
    epoch: int | None
    epoch_next: int
    depth: str
    candidates: list[CandidateView]
    abandon: list[str]
    roll_forward: list[TokenView]
    notes: list[str]
    refusal: Failure | None


class Pinned(Value, frozen=True, kw_only=True, tag="holdfast.pin/1", tag_field="schema"):
    """`pin` and `unpin`."""

    root: str
    pipeline: str
    label: str
    checkpoint: str | None
    epoch: int | None
    pinned: bool


class KeptRow(Value, frozen=True, kw_only=True):
    """A checkpoint that stays, and why."""

    checkpoint: str
    epoch: int
    reasons: list[str]


class ForeignFile(Value, frozen=True, kw_only=True):
    """A file that Holdfast did not write. It is never touched."""

    path: str
    bytes: int


class Collection(Value, frozen=True, kw_only=True, tag="holdfast.gc/1", tag_field="schema"):
    """`gc` and `delete`."""

    root: str
    pipeline: str
    dry_run: bool
    dropped: list[str]
    kept: list[KeptRow]
    files: int
    bytes: int
    bytes_by_class: dict[str, int]
    unknown: list[ForeignFile]
    released: list[str]
    problem: str = ""


class RebuildRow(Value, frozen=True, kw_only=True):
    """A checkpoint that a rebuilt catalog lists."""

    checkpoint: str
    epoch: int
    confirmed: bool


class Rebuild(Value, frozen=True, kw_only=True, tag="holdfast.rebuild/1", tag_field="schema"):
    """`rebuild-catalog`."""

    root: str
    pipeline: str
    dry_run: bool
    take: list[RebuildRow]
    leave: dict[str, str]
    undecided: list[str]


class Upgrade(Value, frozen=True, kw_only=True, tag="holdfast.upgrade/1", tag_field="schema"):
    """`upgrade`."""

    root: str
    pipeline: str
    dry_run: bool
    format_before: int
    format_after: int
    records: int
    steps: list[str]
    kept: dict[str, int]


class SinkEffect(Value, frozen=True, kw_only=True):
    """What going back means for one sink."""

    sink: str
    replay: str
    epochs: list[int]
    safe: bool
    effect: str


class Restore(Value, frozen=True, kw_only=True, tag="holdfast.restore/1", tag_field="schema"):
    """`restore`."""

    root: str
    pipeline: str
    dry_run: bool
    restored: bool
    checkpoint: str
    epoch: int
    epoch_next: int
    abandoned: list[str]
    sinks: list[SinkEffect]
    positions: list[SourceView]
    refusal: Failure | None


class PositionChange(Value, frozen=True, kw_only=True):
    """How a source moved."""

    source: str
    order: str
    before: dict[str, str]
    after: dict[str, str]
    watermark_before_us: int | None
    watermark_after_us: int | None


class OperatorChange(Value, frozen=True, kw_only=True):
    """How an operator's state grew."""

    operator: str
    change: str
    rows_before: int | None
    rows_after: int | None
    keys_before: int | None
    keys_after: int | None
    bytes_before: int
    bytes_after: int
    files_shared: int
    files_only_before: int
    files_only_after: int


class RowChange(Value, frozen=True, kw_only=True):
    """One row that differs. `before` is None for an added one, `after` for a removed one."""

    change: Literal["added", "removed", "changed"]
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    weight: int = 1


class RowChanges(Value, frozen=True, kw_only=True):
    """How the rows of one operator differ."""

    operator: str
    trace: str
    keys: list[str]
    added: int
    removed: int
    changed: int
    sample: list[RowChange]


class Difference(Value, frozen=True, kw_only=True, tag="holdfast.diff/1", tag_field="schema"):
    """`diff`."""

    root: str
    pipeline: str
    before: str
    after: str
    epoch_before: int
    epoch_after: int
    processed: int
    topology: list[str]
    positions: list[PositionChange]
    operators: list[OperatorChange]
    rows: RowChanges | None


class Column(Value, frozen=True, kw_only=True):
    """A column of a result."""

    name: str
    type: str


class StateRows(Value, frozen=True, kw_only=True, tag="holdfast.state/1", tag_field="schema"):
    """`state`."""

    root: str
    pipeline: str
    operator: str
    checkpoint: str
    epoch: int
    columns: list[Column]
    rows: list[list[Any]]
    more: bool
    written: str | None
    rows_written: int | None


class OperatorList(
    Value, frozen=True, kw_only=True, tag="holdfast.operators/1", tag_field="schema"
):
    """`state` without an operator."""

    root: str
    pipeline: str
    checkpoint: str
    epoch: int
    operators: list[OperatorView]


class Fork(Value, frozen=True, kw_only=True, tag="holdfast.fork/1", tag_field="schema"):
    """`fork`."""

    root: str
    pipeline: str
    source: str
    fork: str
    checkpoint: str
    epoch: int
    files_shared: int
    bytes_shared: int
    pin: str


class SyncedPipeline(Value, frozen=True, kw_only=True):
    """One pipeline that was brought over."""

    pipeline: str
    checkpoints: int
    new_checkpoints: int
    files_copied: int
    bytes_copied: int
    files_present: int
    bytes_present: int
    pins: int
    pins_only_there: list[str]
    removed_files: int
    removed_bytes: int
    up_to_date: bool
    notes: list[str]


class Sync(Value, frozen=True, kw_only=True, tag="holdfast.sync/1", tag_field="schema"):
    """`sync`."""

    source: str
    destination: str
    seconds: float
    pipelines: list[SyncedPipeline]
