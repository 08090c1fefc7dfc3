"""Segments: long inventories as immutable lists that manifests share.

Invariants:
- The inventory is exactly what is left of the segments, and the list: nothing twice.
- What a commit writes follows what changed. A file that leaves a segment is named by its place; a
  segment that lost many is dissolved, so that each file that leaves costs a bounded number of
  entries that are written again.
- Only files that need no order lie in segments: runs that say their epochs, and numbered blobs.
- A segment is read with the digest that the manifest has for it: damage in it is damage of every
  checkpoint that refers to it.

Spec: spec/format-v2.md, section 3.5.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.artifact import ArtifactWriter
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.errors import CorruptionError, HoldfastError, NotFoundError
from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST, sha256_hex
from holdfast.format.inventory import FileEntry, Segment, SegmentEntry, SharedPart
from holdfast.format.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    parse_segment,
    segment_bytes,
    with_segments,
)
from holdfast.storage.base import Storage

LISTED_MAX = 256
"""A manifest that would list more files itself puts them into a segment. More: fewer segments to
read when a store is opened; fewer: less in every manifest."""
SEGMENT_FILES = 1_024
"""Files of a segment, at most. More: fewer requests to open a store; fewer: less written again when
it is dissolved."""
SMALL_SEGMENTS = 8
"""Segments of less than half the size become larger ones when there are so many."""
GONE_MAX = 128
"""A segment that lost more files than this, or half of them, is dissolved. More: less is written
again; fewer: less in every manifest."""

Segments = MutableMapping[tuple[str, str], Segment]
"""Segments that were read, by path and digest."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Where the files of an inventory are listed; `new`: one list for each new segment."""

    kept: list[SharedPart]
    new: list[list[FileEntry]]
    listed: list[FileEntry]


def arrange(
    parts: Sequence[SharedPart],
    listed: Sequence[FileEntry],
    *,
    listed_max: int | None = None,
    segment_files: int | None = None,
) -> Arrangement:
    """Decide which segments stay, and what goes into new ones. What is listed keeps its order.

    parts: the segments of the parent, without what has left the inventory.
    listed: all files that lie in none of them.
    """
    listed_max = LISTED_MAX if listed_max is None else listed_max
    segment_files = SEGMENT_FILES if segment_files is None else segment_files
    kept = [part for part in parts if len(part.gone) <= min(GONE_MAX, part.entry.files // 2)]
    stay = {part.entry.path for part in kept}
    rest = [e for part in parts if part.entry.path not in stay for e in part]
    rest += listed
    free = [entry for entry in rest if _free(entry)]
    if len(free) <= listed_max:
        return Arrangement(kept, [], rest)
    small = [part for part in kept if part.entry.files < segment_files // 2]
    if len(small) >= SMALL_SEGMENTS:
        again = [entry for part in small for entry in part]
        rest, free = [*again, *rest], [*again, *free]
        kept = [part for part in kept if part.entry.files >= segment_files // 2]
    new = [free[start : start + segment_files] for start in range(0, len(free), segment_files)]
    if len(new) > 1 and len(new[-1]) <= listed_max:
        new.pop()  # a few of them stay in the list
    moved = {entry.key for entries in new for entry in entries}
    return Arrangement(kept, new, [entry for entry in rest if entry.key not in moved])


def _free(entry: FileEntry) -> bool:
    """Whether the order of the list means nothing for this file."""
    return entry.kind == "blob" or entry.epoch_low is not None


def write_segment(
    storage: Storage, directory: PipelineDirectory, path: str, entries: list[FileEntry]
) -> SharedPart:
    """A list of files as a file of its own; durable with the others of its checkpoint."""
    segment = Segment(format=FORMAT_VERSION, sha256=NO_DIGEST, files=entries)
    with ArtifactWriter(storage, directory.at(path)) as writer:
        writer.write(segment_bytes(segment))
    entry = SegmentEntry(
        path=path,
        size=writer.size,
        sha256=writer.sha256,
        files=len(entries),
        bytes=sum(file.size for file in entries),
    )
    return SharedPart(entry, segment)


def load_segments(
    directory: PipelineDirectory, manifest: Manifest, *, known: Segments | None = None
) -> Manifest:
    """Read what a manifest's segments list. Without segments this costs nothing.

    known: segments that need not be read again; what is read is added.
    """
    if not manifest.segments:
        return manifest
    known = {} if known is None else known
    # Held until the end: `known` may forget what nobody uses.
    segments = {_name(entry): known.get(_name(entry)) for entry in manifest.segments}
    missing = [entry for entry in manifest.segments if segments[_name(entry)] is None]
    contents = directory.get_many([e.path for e in missing], bytes_max=MANIFEST_BYTES_MAX)
    for entry, content in zip(missing, contents, strict=True):
        segment = _segment(directory, entry, content)
        segments[_name(entry)] = known[_name(entry)] = segment
    whole = [segment for segment in segments.values() if segment is not None]
    return with_segments(manifest, whole)


def _name(entry: SegmentEntry) -> tuple[str, str]:
    return entry.path, entry.sha256


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
