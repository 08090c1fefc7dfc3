"""The inventory of a checkpoint: files, the segments that list them, and what differs between two.

Invariants:
- An inventory is: every segment as a file, what each of them lists without what has left it, and a
  list of its own. No file is in it twice.
- Inventories share segments. What an operation costs follows what two inventories do not share;
  only iterating walks all files.

Spec: spec/format-v2.md, section 3.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec

from holdfast.errors import CorruptionError
from holdfast.format.canonical import Document
from holdfast.ids import CheckpointId

FileKind = Literal["snapshot", "delta", "blob", "pack", "offsets", "segment"]
STATE_KINDS = ("snapshot", "delta", "blob")
"""Files that are state of an operator."""

Key = tuple[str | None, str]
"""Names a file: the pipeline that it lies in, if another, and its path there."""


class _Value(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    pass


class FileEntry(_Value, frozen=True, kw_only=True, gc=False):
    """One file of the inventory.

    path: relative to the pipeline's directory. base: for a delta, the checkpoint on whose state it
    was computed. pipeline: set when a fork shares the file of another pipeline of the same root.
    hash_min, hash_max: range of the unsigned 64-bit key hash, both inclusive. For a run, which
    vnodes (from low to before high) and epochs (both inclusive) it speaks for, and how many
    compactions deep it is: spec/run-v1.md, section 5.
    """

    path: str
    size: int
    sha256: str
    kind: FileKind
    operator: str | None = None
    partition: int | None = None
    base: CheckpointId | None = None
    rows: int = 0
    hash_min: int | None = None
    hash_max: int | None = None
    time_min_us: int | None = None
    time_max_us: int | None = None
    vnode_low: int | None = None
    vnode_high: int | None = None
    epoch_low: int | None = None
    epoch_high: int | None = None
    generation: int = 0
    pipeline: str | None = None

    @property
    def key(self) -> Key:
        """What no two files of an inventory have in common."""
        return self.pipeline, self.path


class SegmentEntry(_Value, frozen=True, kw_only=True):
    """One segment of an inventory.

    files, bytes: how many it lists, and the sum of their sizes. gone: the places in its list,
    counted from 0 and ascending, of files that have left the inventory.
    """

    path: str
    size: int
    sha256: str
    files: int
    bytes: int
    gone: list[int] = []


class Segment(Document, frozen=True, kw_only=True, dict=True, weakref=True):
    """A list of files that does not change; manifests refer to it instead of repeating it."""

    files: list[FileEntry]

    def beyond_v1(self) -> str | None:
        """The whole document."""
        return "a segment"

    @property
    def places(self) -> dict[Key, int]:
        """Where in the list each file stands."""
        known: dict[Key, int] | None = self.__dict__.get("places")
        if known is None:
            known = {entry.key: place for place, entry in enumerate(self.files)}
            self.__dict__["places"] = known
        return known

    @property
    def other(self) -> list[int]:
        """Where files stand that are no state of an operator."""
        known: list[int] | None = self.__dict__.get("other")
        if known is None:
            known = [n for n, entry in enumerate(self.files) if entry.kind not in STATE_KINDS]
            self.__dict__["other"] = known
        return known


def segment_file(entry: SegmentEntry) -> FileEntry:
    """A segment as a file of the inventory, which it is as well."""
    return FileEntry(path=entry.path, size=entry.size, sha256=entry.sha256, kind="segment")


class SharedPart:
    """A segment as one inventory has it: without what has left."""

    __slots__ = ("bytes", "entry", "file", "gone", "segment")

    def __init__(self, entry: SegmentEntry, segment: Segment) -> None:
        """Use `shared_part`, which looks whether the segment is as its entry says."""
        self.entry, self.segment = entry, segment
        self.gone = frozenset(entry.gone)
        if not all(0 <= place < entry.files for place in self.gone):
            raise _differs(entry, f"places below {entry.files}", str(max(self.gone)))
        self.file = segment_file(entry)
        self.bytes = entry.bytes - sum(segment.files[place].size for place in self.gone)

    def without(self, places: Iterable[int]) -> SharedPart:
        """The same segment after more of its files have left."""
        gone = sorted(self.gone.union(places))
        return SharedPart(msgspec.structs.replace(self.entry, gone=gone), self.segment)

    def __len__(self) -> int:
        """How many of its files are left."""
        return self.entry.files - len(self.gone)

    def __iter__(self) -> Iterator[FileEntry]:
        """The files that are left, in order."""
        if not self.gone:
            return iter(self.segment.files)
        return (entry for place, entry in enumerate(self.segment.files) if place not in self.gone)

    def place(self, key: Key) -> int | None:
        """Where a file stands that is left."""
        place = self.segment.places.get(key)
        return None if place in self.gone else place


def shared_part(entry: SegmentEntry, segment: Segment) -> SharedPart:
    """A segment that was read, if it is as a manifest says."""
    size = sum(file.size for file in segment.files)
    if (entry.files, entry.bytes) != (len(segment.files), size):
        raise _differs(
            entry,
            f"{entry.files} files, {entry.bytes} bytes",
            f"{len(segment.files)} files, {size} bytes",
        )
    return SharedPart(entry, segment)


def _differs(entry: SegmentEntry, expected: str, actual: str) -> CorruptionError:
    return CorruptionError(
        "segment lists other files than the manifest says",
        kind="segment_differs",
        path=entry.path,
        expected=expected,
        actual=actual,
    )


class Tally(NamedTuple):
    """How many files, and how large."""

    files: int = 0
    bytes: int = 0

    def plus(self, entry: FileEntry) -> Tally:
        """With one more."""
        return Tally(self.files + 1, self.bytes + entry.size)

    def minus(self, entry: FileEntry) -> Tally:
        """With one less."""
        return Tally(self.files - 1, self.bytes - entry.size)


NO_STATE = Tally()


class Inventory:
    """All files of a checkpoint, without walking them where that is not needed."""

    def __init__(
        self,
        parts: Sequence[SharedPart],
        listed: Sequence[FileEntry],
        *,
        by_operator: Mapping[str, Tally] | None = None,
    ) -> None:
        """Of segments, and a list."""
        self.parts, self.listed = parts, listed
        self._by_operator = by_operator

    def __len__(self) -> int:
        """How many files, segments included."""
        return len(self.parts) + sum(len(part) for part in self.parts) + len(self.listed)

    def __iter__(self) -> Iterator[FileEntry]:
        """Segments, what they list, and the own list. Walks all files."""
        for part in self.parts:
            yield part.file
        for part in self.parts:
            yield from part
        yield from self.listed

    @cached_property
    def bytes(self) -> int:
        """The sum of all sizes."""
        shared = sum(part.bytes + part.file.size for part in self.parts)
        return shared + sum(entry.size for entry in self.listed)

    @property
    def by_operator(self) -> Mapping[str, Tally]:
        """State files of each operator. Walks all files once, if nobody has counted them."""
        if self._by_operator is None:
            tallies: dict[str, Tally] = {}
            for entry in self:
                if entry.kind in STATE_KINDS:
                    name = str(entry.operator)
                    tallies[name] = tallies.get(name, NO_STATE).plus(entry)
            self._by_operator = tallies
        return self._by_operator

    @cached_property
    def _by_path(self) -> dict[str, SharedPart]:
        return {part.entry.path: part for part in self.parts}

    @cached_property
    def other(self) -> list[FileEntry]:
        """Files that are no state of an operator: packs, offsets. No segments of this inventory."""
        shared = [
            part.segment.files[place]
            for part in self.parts
            for place in part.segment.other
            if place not in part.gone
        ]
        return shared + [entry for entry in self.listed if entry.kind not in STATE_KINDS]

    @cached_property
    def _by_key(self) -> dict[Key, FileEntry]:
        own = [*(part.file for part in self.parts), *self.listed]
        return {entry.key: entry for entry in own}

    def find(self, key: Key) -> FileEntry | None:
        """A file by its name."""
        for part in self.parts:
            place = part.place(key)
            if place is not None:
                return part.segment.files[place]
        return self._by_key.get(key)

    def apart(self, other: Inventory) -> list[FileEntry]:
        """Files of this inventory that are not in a segment which the other one has as well.

        What is in both is in both results, or in none.
        """
        files: list[FileEntry] = []
        for part in self.parts:
            twin = other._by_path.get(part.entry.path)
            if twin is None or twin.entry.sha256 != part.entry.sha256:
                files += [part.file, *part]
            elif twin is not part:
                files += [part.segment.files[place] for place in sorted(twin.gone - part.gone)]
        return [*files, *self.listed]

    def beyond(self, other: Inventory) -> list[FileEntry]:
        """Files that the other inventory does not have at all."""
        known = {entry.key for entry in other.apart(self)}
        return [entry for entry in self.apart(other) if entry.key not in known]

    def unlike(self, other: Inventory) -> list[FileEntry]:
        """Files that the other inventory does not have, or has otherwise."""
        known = {entry.key: entry for entry in other.apart(self)}
        return [entry for entry in self.apart(other) if known.get(entry.key) != entry]

    def repeated(self, other: Inventory, new: Iterable[FileEntry]) -> list[str]:
        """Paths that are here more than once; `new`: what `unlike` gave for a valid other one."""
        common = [part for part in self.parts if part.entry.path in other._by_path]
        own = [part for part in self.parts if part.entry.path not in other._by_path]
        files = Counter(entry.key for part in own for entry in (part.file, *part))
        files.update(entry.key for entry in self.listed)
        twice = {key for key, count in files.items() if count > 1}
        for entry in new if common else ():
            shared = sum(part.place(entry.key) is not None for part in common)
            if files[entry.key] + shared > 1:
                twice.add(entry.key)
        return sorted(path for _, path in twice)


NO_FILES = Inventory((), ())
