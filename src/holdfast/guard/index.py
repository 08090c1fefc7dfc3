"""The index of a savepoint: which of Spark's files it holds, and where their bytes lie.

Invariants:
- Every file has size and SHA-256 of its own, and lies in exactly one range of one blob of the
  manifest's inventory. Ranges never run past their blob.
- The index is the small state of the operator `index`, so the manifest covers it by digest.

Spec: spec/guard-v1.md, section 4.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from holdfast.checkpoint.reader import StoreReader
from holdfast.errors import CorruptionError
from holdfast.format.canonical import Document, decode, seal
from holdfast.format.manifest import Manifest
from holdfast.format.topology import Part, Topology, topology

INDEX_FORMAT = 1
INDEX_BYTES_MAX = 256 * 1024 * 1024
FILES, INDEX, BATCHES = "files", "index", "batches"


class StoredFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One of Spark's files. `modified_us` tells an unchanged file without reading it."""

    path: str
    size: int
    sha256: str
    blob: int
    offset: int
    modified_us: int


class SourceFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one source stands, in Spark's own words."""

    name: str
    offset: str


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One state store of one partition: its files, newest state first."""

    partition: int
    store: str
    files: list[str]


class OperatorFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stateful operator."""

    operator: int
    name: str
    partitions: int
    bytes: int
    stores: list[StoreFacts]


class Index(Document, frozen=True, kw_only=True):
    """Everything about one savepoint of a Structured Streaming query."""

    newest_format: ClassVar[int] = INDEX_FORMAT

    query: str
    batch: int
    location: str
    layout: str
    watermark_ms: int
    next_watermark_ms: int
    timestamp_ms: int
    shuffle_partitions: str = ""
    codec: str = ""
    sink: str = ""
    sources: list[SourceFacts] = []
    operators: list[OperatorFacts] = []
    blobs: list[str] = []
    files: list[StoredFile] = []

    def by_path(self) -> dict[str, StoredFile]:
        """Files by Spark's path."""
        return {file.path: file for file in self.files}

    def of_blob(self) -> dict[int, list[StoredFile]]:
        """Files by blob, in order of their place."""
        found: dict[int, list[StoredFile]] = {}
        for file in sorted(self.files, key=lambda file: (file.blob, file.offset)):
            found.setdefault(file.blob, []).append(file)
        return found


def index_bytes(index: Index) -> bytes:
    """Canonical bytes of an index, its digest filled in."""
    return seal(index, bytes_max=INDEX_BYTES_MAX)[1]


def parse_index(data: bytes, path: str, manifest: Manifest) -> Index:
    """The index in these bytes; every range must lie inside its blob."""
    index = decode(data, Index, path=path, bytes_max=INDEX_BYTES_MAX)
    sizes = {entry.path: entry.size for entry in manifest.files}
    for file in index.files:
        inside = 0 <= file.blob < len(index.blobs) and file.offset >= 0 and file.size >= 0
        end = sizes.get(index.blobs[file.blob], -1) if inside else -1
        if file.offset + file.size > end:
            raise CorruptionError(
                "index names bytes outside of their blob",
                kind="index_outside",
                path=path,
                file=file.path,
            )
    return index


def read_index(reader: StoreReader, manifest: Manifest) -> Index:
    """The index of a savepoint."""
    path = reader.directory.at(f"checkpoints/{manifest.checkpoint}/{INDEX}")
    return parse_index(reader.small_state(manifest, INDEX), path, manifest)


def guard_topology(query: str) -> Topology:
    """What the core is told about a guarded query; another query's id is another fingerprint."""
    return topology(
        Part(name=BATCHES, kind="source", what="spark.batches"),
        Part(
            name=FILES,
            kind="operator",
            what="spark.files",
            inputs=[BATCHES],
            stateful=True,
            params={"query": query},
        ),
        Part(name=INDEX, kind="operator", what="spark.index", inputs=[FILES], stateful=True),
    )
