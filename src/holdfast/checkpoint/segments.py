"""Segments: long inventories as immutable lists that manifests share.

Invariants:
- A segment is kept only while every file that it lists is in the inventory; otherwise what is left
  of it is listed again. So the inventory is always exactly segments and list, nothing twice.
- Only files that need no order lie in segments: runs that say their epochs, and numbered blobs.
- A segment is read with the digest that the manifest has for it: damage in it is damage of every
  checkpoint that refers to it.

Spec: spec/format-v2.md, section 3.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.errors import CorruptionError, HoldfastError, NotFoundError
from holdfast.format.canonical import sha256_hex
from holdfast.format.manifest import (
    MANIFEST_BYTES_MAX,
    FileEntry,
    Manifest,
    Segment,
    SegmentEntry,
    parse_segment,
    with_segments,
)

LISTED_MAX = 2_048
"""A manifest that would list more files itself puts the oldest into segments."""
SEGMENT_FILES = 1_024
"""Files of a segment. More: fewer requests to open a store; fewer: less written again when one of
them goes."""


@dataclass(frozen=True, slots=True)
class KeptSegment:
    """A segment with what it lists."""

    entry: SegmentEntry
    segment: Segment


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Where the files of an inventory are listed; `new`: one list for each new segment."""

    kept: list[KeptSegment]
    new: list[list[FileEntry]]
    listed: list[FileEntry]


def segments_of(manifest: Manifest) -> list[KeptSegment]:
    """The segments of a manifest whose inventory was read."""
    segments, start = [], len(manifest.segments)
    for entry in manifest.segments:
        files = manifest.files[start : start + entry.files]
        segments.append(KeptSegment(entry, Segment(format=0, sha256="", files=files)))
        start += entry.files
    return segments


def arrange(
    files: Sequence[FileEntry],
    segments: Sequence[KeptSegment],
    *,
    listed_max: int | None = None,
    segment_files: int | None = None,
) -> Arrangement:
    """Decide which segments stay, and what goes into new ones. What is listed keeps its order."""
    listed_max = LISTED_MAX if listed_max is None else listed_max
    segment_files = SEGMENT_FILES if segment_files is None else segment_files
    if not segments and len(files) <= listed_max:
        return Arrangement([], [], list(files))
    by_path = {entry.path: entry for entry in files if entry.pipeline is None}
    kept_segments = [
        segment
        for segment in segments
        if all(by_path.get(entry.path) == entry for entry in segment.segment.files)
    ]
    covered = {entry.path for segment in kept_segments for entry in segment.segment.files}
    rest = [e for e in files if e.pipeline is not None or e.path not in covered]
    if len(rest) <= listed_max:
        return Arrangement(kept_segments, [], rest)
    free = [entry for entry in rest if _free(entry)]
    free = free[: len(free) - len(free) % segment_files]
    moved = {id(entry) for entry in free}
    new = [free[start : start + segment_files] for start in range(0, len(free), segment_files)]
    return Arrangement(kept_segments, new, [entry for entry in rest if id(entry) not in moved])


def _free(entry: FileEntry) -> bool:
    """Whether the order of the list means nothing for this file."""
    return entry.kind == "blob" or entry.epoch_low is not None


def load_segments(directory: PipelineDirectory, manifest: Manifest) -> Manifest:
    """Read what a manifest's segments list. Without segments this costs nothing."""
    if not manifest.segments:
        return manifest
    segment_paths = [entry.path for entry in manifest.segments]
    contents = directory.get_many(segment_paths, bytes_max=MANIFEST_BYTES_MAX)
    segments = [
        _segment(directory, entry, content)
        for entry, content in zip(manifest.segments, contents, strict=True)
    ]
    return with_segments(manifest, segments)


def _segment(
    directory: PipelineDirectory, entry: SegmentEntry, content: bytes | HoldfastError
) -> Segment:
    path = directory.at(entry.path)
    if isinstance(content, NotFoundError):
        raise CorruptionError(
            "a segment of the inventory is missing", kind="missing", path=path, remedy=_REMEDY
        ) from None
    if isinstance(content, HoldfastError):
        raise content
    actual = sha256_hex(content)
    if actual != entry.sha256 or len(content) != entry.size:
        raise CorruptionError(
            "segment digest differs",
            kind="digest_differs",
            path=path,
            expected=entry.sha256,
            actual=actual,
            remedy=_REMEDY,
        )
    return parse_segment(content, path)


_REMEDY = "run `holdfast recover --plan` to see the newest intact checkpoint"
