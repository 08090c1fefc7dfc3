"""Upkeep of a journal: look-up indexes, index checkpoint, holds, truncation, compaction.

Invariants:
- Indexes and checkpoints are derived and replaced atomically; one of a newer version is kept.
- Truncation works on whole sealed segments, oldest first, and never past a hold. The new base is
  durable before the first file goes, so a crash leaves leftovers and never a gap.
- Compaction copies frames byte for byte, after checking each; sequences and chain do not change.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import CorruptionError, HoldfastError, InvalidInputError, NotFoundError
from holdfast.failpoints import failpoint
from holdfast.journal.format.blob import (
    CHECKPOINT_MAGIC,
    HOLD_MAGIC,
    META_MAGIC,
    BlobError,
    IndexCheckpoint,
    JournalMeta,
    SegmentSummary,
    StoredPosition,
    pack_blob,
    unpack_blob,
)
from holdfast.journal.format.index import build_index, pack_index
from holdfast.journal.format.segment import FrameDirectory, pack_footer
from holdfast.journal.open import read_checkpoint, read_meta
from holdfast.journal.segments import SealedSegment, TailSegment
from holdfast.journal.types import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.journal.files import JournalFiles
    from holdfast.journal.format.layout import Layout
    from holdfast.journal.query import JournalView

STORED_BYTES_MAX = 4096
FRAMES_PER_PAUSE = 4


def write_index(
    files: JournalFiles,
    layout: Layout,
    journal_id: bytes,
    segment: SealedSegment,
    pause: Callable[[], None] | None = None,
) -> None:
    """Build the look-up index of a sealed segment and put it next to it.

    `pause` is called now and then: in the background it lets producers have the interpreter.
    """
    bodies = []
    for number in range(len(segment.directory())):
        bodies.append(segment.body(number))
        if pause is not None and number % FRAMES_PER_PAUSE == 0:
            pause()
    index = build_index(segment.first_sequence, bodies)
    data = pack_index(index, journal_id, segment.next_sequence, segment.chain_hash)
    files.replace(layout.index(segment.first_sequence), [data])
    segment.use_index_file()


def write_checkpoint(
    files: JournalFiles,
    layout: Layout,
    meta: JournalMeta,
    sealed: Sequence[SealedSegment],
    tail: TailSegment,
    state: tuple[int, int, bytes, int],
    logical: int,
) -> bool:
    """Write the index checkpoint; False if a newer version's is there, which is kept.

    Its size follows the number of segments and of frames in the tail, not the number of events.
    """
    if read_checkpoint(files, layout)[1] == "future":
        return False
    offset, following, chain, frames = state
    grown = tail.directory()
    directory = FrameDirectory(
        grown.offsets[:frames],
        grown.firsts[:frames],
        grown.wall_mins[:frames],
        grown.wall_maxs[:frames],
    )
    checkpoint = IndexCheckpoint(
        journal_id=meta.journal_id,
        base_sequence=meta.base_sequence,
        sealed=[segment.summary for segment in sealed],
        tail_segment=tail.first_sequence,
        tail_offset=offset,
        next_sequence=following,
        chain_hash=chain,
        clock=logical,
        directory=directory.pack(),
    )
    files.replace(layout.checkpoint, [pack_blob(CHECKPOINT_MAGIC, checkpoint)])
    return True


def store_position(
    files: JournalFiles, path: Path, magic: bytes, position: Position, wall_us: int
) -> None:
    """Keep a position durably: a cursor or a hold."""
    files.make_directory(path.parent)
    stored = StoredPosition(
        bytes.fromhex(position.journal_id),
        position.segment,
        position.offset,
        position.sequence,
        bytes.fromhex(position.chain_hash),
        wall_us,
    )
    files.replace(path, [pack_blob(magic, stored)])


def load_position(files: JournalFiles, path: Path, magic: bytes) -> Position:
    """Read a stored position; a damaged one is an error, never a fresh start."""
    try:
        stored = unpack_blob(files.read(path, STORED_BYTES_MAX), magic, StoredPosition)
    except BlobError as error:
        raise CorruptionError(
            "stored position is damaged",
            kind="position_damaged",
            path=path,
            reason=str(error),
            remedy="find the right position in the reader's own records, then set it again",
        ) from error
    return Position(
        journal_id=stored.journal_id.hex(),
        segment=stored.segment,
        offset=stored.offset,
        sequence=stored.sequence,
        chain_hash=stored.chain_hash.hex(),
    )


class HoldStore:
    """Named holds: truncation leaves everything from the oldest one on."""

    def __init__(self, files: JournalFiles, layout: Layout, clock: Clock) -> None:
        """The holds of one journal."""
        self._files = files
        self._layout = layout
        self._clock = clock

    def set(self, name: str, position: Position) -> None:
        """Hold everything from a position on, under a name; replaces the name's older hold.

        Works while a writer runs: the hold is removed, and refused, if the log was truncated past
        it meanwhile. Truncation reads the holds again before the first file goes.
        """
        path = self._layout.hold(name)
        older = self.get(name)
        if older == position:
            return
        store_position(self._files, path, HOLD_MAGIC, position, self._clock.wall_us())
        base = read_meta(self._files, self._layout).base_sequence
        if position.sequence < base:
            if older is None:
                self.release(name)
            else:
                store_position(self._files, path, HOLD_MAGIC, older, self._clock.wall_us())
            raise NotFoundError(
                "the journal was truncated past this position",
                kind="position_truncated",
                sequence=position.sequence,
                first=base,
                remedy="hold a later position",
            )

    def get(self, name: str) -> Position | None:
        """One hold; None if there is none of that name."""
        try:
            return load_position(self._files, self._layout.hold(name), HOLD_MAGIC)
        except NotFoundError:
            return None

    def all(self) -> dict[str, Position]:
        """All holds. One that cannot be read stops truncation: it is an error."""
        found = {}
        for name in sorted(self._files.entries(self._layout.holds)):
            if name.endswith(".hold"):
                path = self._layout.holds / name
                with suppress(NotFoundError):  # released since it was listed
                    found[name.removesuffix(".hold")] = load_position(self._files, path, HOLD_MAGIC)
        return found

    def release(self, name: str) -> None:
        """Release a hold."""
        path = self._layout.hold(name)
        if not self._files.exists(path):
            raise NotFoundError("no such hold", kind="hold_missing", hold=name)
        self._files.remove(path)
        self._files.sync_directory(path.parent)


@dataclass(frozen=True, slots=True)
class TruncateReport:
    """What a truncation removes, and what kept it from removing more."""

    requested: int
    base_sequence: int
    base_hash: bytes
    segments: tuple[int, ...]
    bytes_freed: int
    held_by: str | None


def plan_truncation(
    view: JournalView, sequence: int, holds: Mapping[str, Position]
) -> TruncateReport:
    """Decide which segments go. Every hold must lie in this log; the oldest one is the limit."""
    if sequence > view.visible:
        raise InvalidInputError(
            "cannot truncate past the end",
            kind="invalid_truncation",
            sequence=sequence,
            end=view.visible,
            remedy="give a sequence up to the visible end",
        )
    limit, held_by = sequence, None
    for name, position in sorted(holds.items()):
        view.check_position(position)
        if position.sequence < limit:
            limit, held_by = position.sequence, name
    going = []
    base, base_hash = view.base_sequence, view.meta.base_hash
    for segment in view.segments:
        if not isinstance(segment, SealedSegment) or segment.next_sequence > limit:
            break
        going.append(segment)
        base, base_hash = segment.next_sequence, segment.chain_hash
    return TruncateReport(
        sequence,
        base,
        base_hash,
        tuple(s.first_sequence for s in going),
        sum(s.summary.file_bytes for s in going),
        held_by,
    )


def move_base(
    files: JournalFiles,
    layout: Layout,
    view: JournalView,
    plan: TruncateReport,
    holds: Callable[[], Mapping[str, Position]],
) -> tuple[JournalMeta, TruncateReport]:
    """Execute the first half of a plan: the new base becomes durable, no file goes yet.

    `holds` is asked again: one that came since the plan was made cuts it short.
    """
    meta = _write_base(files, layout, view, plan)
    try:
        late = plan_truncation(view, plan.requested, holds())
    except HoldfastError:
        files.replace(layout.meta, [pack_blob(META_MAGIC, view.meta)])
        raise
    if late.base_sequence < plan.base_sequence:
        plan, meta = late, _write_base(files, layout, view, late)
    failpoint("journal_truncate.after_meta")
    return meta, plan


def remove_segments(files: JournalFiles, layout: Layout, plan: TruncateReport) -> None:
    """Execute the second half: files before the base go, oldest first. The rest goes at opening."""
    for number, first in enumerate(plan.segments):
        files.remove(layout.segment(first))
        files.remove(layout.index(first))
        if number == 0:
            failpoint("journal_truncate.after_first_delete")
    files.sync_directory(layout.segments)


def _write_base(
    files: JournalFiles, layout: Layout, view: JournalView, plan: TruncateReport
) -> JournalMeta:
    meta = JournalMeta(
        view.meta.journal_id, view.meta.created_us, plan.base_sequence, plan.base_hash
    )
    files.replace(layout.meta, [pack_blob(META_MAGIC, meta)])
    return meta


def plan_segment_compaction(
    sealed: Sequence[SealedSegment], small_bytes: int, target_bytes: int
) -> list[list[SealedSegment]]:
    """Runs of neighbouring small segments that fit into one."""
    groups: list[list[SealedSegment]] = []
    run: list[SealedSegment] = []
    size = 0
    for segment in sealed:
        wide = segment.summary.file_bytes
        if wide >= small_bytes or size + wide > target_bytes:
            groups.append(run)
            run, size = [], 0
        if wide < small_bytes:
            run.append(segment)
            size += wide
    groups.append(run)
    return [group for group in groups if len(group) > 1]


def compact_segments(
    files: JournalFiles,
    layout: Layout,
    meta: JournalMeta,
    sealed: Sequence[SealedSegment],
    small_bytes: int,
    target_bytes: int,
    unknown: Callable[[HoldfastError], None],
) -> tuple[list[tuple[int, int]], list[SealedSegment]]:
    """Merge small sealed segments; returns what was merged and the new list of segments.

    `unknown` hears of a failure after which the list in memory may not be what lies on disk.
    """
    merged = {}
    gone: set[int] = set()
    for group in plan_segment_compaction(sealed, small_bytes, target_bytes):
        new = _merge(files, layout, meta, group, unknown)
        merged[new.first_sequence] = (new, len(group))
        gone.update(segment.first_sequence for segment in group[1:])
    result = [
        merged[s.first_sequence][0] if s.first_sequence in merged else s
        for s in sealed
        if s.first_sequence not in gone
    ]
    return [(first, count) for first, (_, count) in merged.items()], result


def _merge(
    files: JournalFiles,
    layout: Layout,
    meta: JournalMeta,
    group: Sequence[SealedSegment],
    unknown: Callable[[HoldfastError], None],
) -> SealedSegment:
    parts: list[memoryview | bytes] = [group[0].raw(0, 128)]
    directory = FrameDirectory()
    at = 128
    for segment in group:
        parts.append(segment.raw(128, segment.end_offset - 128))
        for number in range(len(segment.directory())):
            header = segment.frame(number, hash_body=True).header
            directory.add(at, header)
            at += header.frame_bytes
    last = group[-1]
    footer = pack_footer(
        meta.journal_id,
        group[0].first_sequence,
        last.next_sequence,
        at,
        last.chain_hash,
        directory.pack(),
    )
    # The old index must be gone before the new segment has its name, or it would look like its own.
    files.remove(layout.index(group[0].first_sequence))
    files.sync_directory(layout.segments)
    target = layout.segment(group[0].first_sequence)
    staged = files.stage(target, [*parts, footer])
    try:
        _swap(files, layout, staged, target, group)
    except HoldfastError as error:
        # The merged file may have the first one's name: truncating by the old list would lose it.
        unknown(error)
        raise
    summary = SegmentSummary(
        group[0].first_sequence,
        last.next_sequence,
        at + len(footer),
        min(s.summary.wall_min_us for s in group),
        max(s.summary.wall_max_us for s in group),
        group[0].previous_hash,
        last.chain_hash,
    )
    return SealedSegment(files, layout, meta.journal_id, summary)


def _swap(
    files: JournalFiles, layout: Layout, staged: Path, target: Path, group: Sequence[SealedSegment]
) -> None:
    """Give the merged segment its name, then remove the others."""
    files.install(staged, target)
    failpoint("journal_compact.after_rename")
    for number, segment in enumerate(group[1:]):
        files.remove(segment.path)
        files.remove(layout.index(segment.first_sequence))
        if number == 0:
            failpoint("journal_compact.after_first_delete")
    files.sync_directory(layout.segments)
