"""The manifest: one checkpoint, completely.

Invariants:
- The inventory is complete: own files and inherited ones, each with size and SHA-256. Restoring
  reads one manifest and its segments, and never walks a chain.
- A long inventory lies in segments: immutable lists that manifests share. `listed` is what the
  document itself lists; `inventory` is the whole, and an error before segments were read.
- Small operator state is inline or packed, never both and never neither by contradiction.
- A manifest is never rewritten. What happens later (sink outcomes, pins) lies elsewhere.

Spec: spec/format-v2.md, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from typing import Literal

import msgspec

from holdfast.errors import CorruptionError, InternalError
from holdfast.format.canonical import Document, decode, encode, seal
from holdfast.format.documents import Counts, Replay
from holdfast.format.inventory import (
    FileEntry,
    FileKind,
    Inventory,
    Segment,
    SegmentEntry,
    segment_file,
    shared_part,
)
from holdfast.format.position import Position
from holdfast.format.topology import Topology
from holdfast.ids import VNODE_COUNT, CheckpointId, Epoch, Sequence, WriterId

__all__ = [
    "MANIFEST_BYTES_MAX",
    "FileEntry",
    "FileKind",
    "InlineState",
    "Manifest",
    "OperatorEntry",
    "PackedState",
    "Segment",
    "SegmentEntry",
    "SinkEntry",
    "SourceEntry",
    "TraceKind",
    "Versions",
    "manifest_bytes",
    "parse_manifest",
    "parse_segment",
    "seal_manifest",
    "segment_bytes",
    "segment_file",
    "with_inventory",
    "with_segments",
]

MANIFEST_BYTES_MAX = 64 * 1024 * 1024

TraceKind = Literal["latest", "bag", "small", "opaque"]


class _Value(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    pass


class InlineState(_Value, frozen=True, kw_only=True, tag="inline", tag_field="where"):
    """Small state inside the manifest."""

    data: bytes
    sha256: str


class PackedState(_Value, frozen=True, kw_only=True, tag="packed", tag_field="where"):
    """Small state in a range of a pack file of the inventory."""

    path: str
    offset: int
    length: int
    sha256: str


class OperatorEntry(_Value, frozen=True, kw_only=True):
    """What one operator or reference table keeps.

    trace: `latest` and `bag` keep runs, `small` a few bytes, `opaque` blobs that the operator alone
    understands. version: of the operator's own state. position: for a reference table, where its
    source stood. counts: whether `rows` and `keys` are those that live after the epoch.
    """

    name: str
    trace: TraceKind
    version: int = 1
    partitions: int = 1
    rows: int = 0
    keys: int = 0
    bytes: int = 0
    small: InlineState | PackedState | None = None
    position: Position | None = None
    counts: Counts = "unknown"


class SourceEntry(_Value, frozen=True, kw_only=True):
    """Where one source stands; `epoch` is the one in which it last moved."""

    name: str
    position: Position
    epoch: Epoch
    watermark_us: int | None = None
    idle: bool = False


class SinkEntry(_Value, frozen=True, kw_only=True):
    """What one sink has staged: the token is enough to commit or abort it in another process."""

    name: str
    epoch: Epoch
    token: str
    replay: Replay


class Versions(_Value, frozen=True, kw_only=True):
    """Which software wrote this."""

    holdfast: str
    python: str
    spark: str = ""
    pyarrow: str = ""


class Manifest(Document, frozen=True, kw_only=True, dict=True):
    """Everything about one checkpoint.

    sequence: the catalog record that was to commit it, evidence for `rebuild-catalog`.
    """

    checkpoint: CheckpointId
    pipeline: str
    lineage: str
    epoch: Epoch
    sequence: Sequence
    writer: WriterId
    created_us: int
    topology: Topology
    fingerprint: str
    versions: Versions
    parent: CheckpointId | None = None
    label: str | None = None
    incremental: bool = False
    watermark_us: int | None = None
    log: Position | None = None
    processed: int = 0
    rows: int = 0
    keys: int = 0
    bytes_new: int = 0
    bytes_total: int = 0
    sources: list[SourceEntry] = []
    operators: list[OperatorEntry] = []
    sinks: list[SinkEntry] = []
    listed: list[FileEntry] = msgspec.field(default_factory=list, name="files")
    segments: list[SegmentEntry] = []
    counts: Counts = "unknown"
    properties: dict[str, str] = {}

    @property
    def inventory(self) -> Inventory:
        """The whole inventory, without walking it."""
        known: Inventory | None = self.__dict__.get("inventory")
        if known is None:
            if self.segments:
                raise InternalError(
                    "segments of a manifest were not read",
                    path=self.segments[0].path,
                    checkpoint=self.checkpoint,
                )
            known = self.__dict__["inventory"] = Inventory((), self.listed)
        return known

    @property
    def files(self) -> list[FileEntry]:
        """The whole inventory as a list; makes it when it is first asked for."""
        if not self.segments:
            return self.listed
        whole: list[FileEntry] | None = self.__dict__.get("files")
        if whole is None:
            whole = self.__dict__["files"] = [*self.inventory]
        return whole

    def beyond_v1(self) -> str | None:
        """Format 1 has no segments, no counts, 256 vnodes and plainer positions."""
        if self.segments:
            return "segments"
        if self.counts != "unknown" or any(e.counts != "unknown" for e in self.operators):
            return "counts"
        if self.topology.vnodes != VNODE_COUNT:
            return "another number of vnodes"
        where = [*(s.position for s in self.sources), self.log]
        where += [entry.position for entry in self.operators]
        later = any(position is not None and position.beyond_v1() for position in where)
        return "a position" if later else None

    def operator(self, name: str) -> OperatorEntry | None:
        """The entry of one operator."""
        return next((entry for entry in self.operators if entry.name == name), None)

    def source(self, name: str) -> SourceEntry | None:
        """The entry of one source."""
        return next((entry for entry in self.sources if entry.name == name), None)

    def files_of(self, operator: str) -> list[FileEntry]:
        """One operator's files, oldest first."""
        return [entry for entry in self.files if entry.operator == operator]

    def own_prefix(self) -> str:
        """Below this path lies what this checkpoint created."""
        return f"checkpoints/{self.checkpoint}/"


def with_segments(manifest: Manifest, segments: Sequence_[Segment]) -> Manifest:
    """Give a manifest what its segments list, in their order; they must be as it says."""
    pairs = zip(manifest.segments, segments, strict=True)
    return with_inventory(
        manifest, Inventory([shared_part(*pair) for pair in pairs], manifest.listed)
    )


def with_inventory(manifest: Manifest, inventory: Inventory) -> Manifest:
    """Give a manifest the inventory that belongs to it."""
    manifest.__dict__["inventory"] = inventory
    return manifest


def segment_bytes(segment: Segment) -> bytes:
    """Canonical bytes of a segment."""
    return encode(segment, bytes_max=MANIFEST_BYTES_MAX)


def parse_segment(data: bytes, path: str) -> Segment:
    """The segment in these bytes."""
    return decode(data, Segment, path=path, bytes_max=MANIFEST_BYTES_MAX)


def seal_manifest(manifest: Manifest) -> tuple[Manifest, bytes]:
    """A manifest with its digest filled in, and its canonical bytes."""
    sealed, data = seal(manifest, bytes_max=MANIFEST_BYTES_MAX)
    sealed.__dict__.update(manifest.__dict__)
    return sealed, data


def manifest_bytes(manifest: Manifest) -> bytes:
    """Canonical bytes of a manifest."""
    return encode(manifest, bytes_max=MANIFEST_BYTES_MAX)


def parse_manifest(data: bytes, path: str, checkpoint: CheckpointId) -> Manifest:
    """The manifest in these bytes; it must be the one that its directory promises."""
    manifest = decode(data, Manifest, path=path, bytes_max=MANIFEST_BYTES_MAX)
    if manifest.checkpoint != checkpoint:
        raise CorruptionError(
            "manifest lies in the directory of another checkpoint",
            kind="misplaced",
            path=path,
            expected=checkpoint,
            actual=manifest.checkpoint,
        )
    return manifest
