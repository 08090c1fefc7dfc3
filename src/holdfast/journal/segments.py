"""Segments opened for reading: sealed ones are memory-mapped, the tail is read by position.

The tail is never mapped: a writer may cut it, and touching a page behind the end of a mapped
file kills the process.

Invariants:
- Every frame that leaves this module has passed its CRC32C and its chain hash.
- Damage is a `CorruptionError` that names the file and the offset.
- Look-up indexes are loaded on first use; a missing or damaged one is rebuilt from the frames.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.errors import CorruptionError, HoldfastError
from holdfast.journal.format.columns import BodyReader
from holdfast.journal.format.frame import BadFrameError, Frame, read_frame, require
from holdfast.journal.format.index import (
    TEXT_BASES,
    IdRuns,
    SegmentIndex,
    build_index,
    mix_keys,
    unpack_index,
)
from holdfast.journal.format.segment import (
    FRAME_ENTRY_BYTES,
    SEGMENT_HEADER_BYTES,
    SEGMENT_TRAILER_BYTES,
    FrameDirectory,
    unpack_directory,
    unpack_trailer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from holdfast.journal.files import JournalFiles
    from holdfast.journal.format.blob import SegmentSummary
    from holdfast.journal.format.frame import FrameHeader
    from holdfast.journal.format.layout import Layout

Array = np.ndarray[Any, Any]


def corrupt(path: Path, offset: int, error: BadFrameError, **facts: object) -> CorruptionError:
    """A typed error that names file and offset."""
    return CorruptionError(
        f"journal segment is damaged: {error.detail or error.reason}",
        kind="segment_damaged",
        reason=error.reason,
        path=path,
        offset=offset,
        **facts,
        remedy="run `holdfast journal verify` for all findings; restore the file from a copy",
    )


class JournalSegment:
    """What sealed segments and the tail have in common: frames by number."""

    def __init__(self, files: JournalFiles, path: Path, first: int, previous_hash: bytes) -> None:
        """A segment that begins at `first`, after `previous_hash`."""
        self.files = files
        self.path = path
        self.first_sequence = first
        self.previous_hash = previous_hash
        self._lock = threading.Lock()

    @property
    def next_sequence(self) -> int:
        """The sequence after the last event."""
        raise NotImplementedError

    @property
    def chain_hash(self) -> bytes:
        """The chain hash after the last frame."""
        raise NotImplementedError

    @property
    def end_offset(self) -> int:
        """Where the last frame ends."""
        raise NotImplementedError

    def directory(self) -> FrameDirectory:
        """Offsets, first sequences and time ranges of the frames."""
        raise NotImplementedError

    def _bytes(self, offset: int, length: int) -> memoryview:
        raise NotImplementedError

    def frame(self, number: int, *, hash_body: bool = False) -> Frame:
        """Read and check one frame."""
        directory = self.directory()
        offset = directory.offsets[number]
        last = number + 1 == len(directory)
        end = self.end_offset if last else directory.offsets[number + 1]
        return self.frame_at(offset, end - offset, directory.firsts[number], hash_body=hash_body)

    def frame_at(self, offset: int, length: int, first: int, *, hash_body: bool = False) -> Frame:
        """Read and check the frame that should lie at an offset."""
        try:
            frame = read_frame(self._bytes(offset, length), hash_body=hash_body)
            same = (frame.header.first_sequence, frame.frame_bytes) == (first, length)
            require(same, "order", "another frame lies here than the index says")
        except BadFrameError as error:
            raise corrupt(self.path, offset, error) from error
        return frame

    def body(self, number: int) -> BodyReader:
        """One frame's body, to read columns of."""
        frame = self.frame(number)
        try:
            return BodyReader(frame.body, frame.header)
        except BadFrameError as error:
            raise corrupt(self.path, self.directory().offsets[number], error) from error

    def bodies(self) -> list[BodyReader]:
        """All bodies, in order."""
        return [self.body(number) for number in range(len(self.directory()))]

    def number_of(self, sequence: int) -> int:
        """The number of the frame that holds a sequence."""
        return bisect_right(self.directory().firsts, sequence) - 1

    def find_ids(self, mixed: Array) -> tuple[Array, Array]:
        """Candidates for mixed id keys: (which key, sequence)."""
        raise NotImplementedError

    def frames_with(self, column: str, value: str) -> list[int]:
        """Numbers of the frames that hold an entity, scope or kind."""
        raise NotImplementedError

    def frames_correlated(self, key: Array) -> list[int]:
        """Numbers of the frames that may hold a correlation id (one row of two words)."""
        raise NotImplementedError


class SealedSegment(JournalSegment):
    """An immutable segment: footer and index are read on first use."""

    def __init__(
        self, files: JournalFiles, layout: Layout, journal_id: bytes, s: SegmentSummary
    ) -> None:
        """A sealed segment as a summary (from a checkpoint or a replay) describes it."""
        super().__init__(files, layout.segment(s.first_sequence), s.first_sequence, s.previous_hash)
        self.summary = s
        self._index_path = layout.index(s.first_sequence)
        self._journal_id = journal_id
        self._data: memoryview | None = None
        self._directory: FrameDirectory | None = None
        self._index: SegmentIndex | None = None
        self._end = 0
        self._before: TailSegment | None = None
        self.index_problem: str | None = None

    def take_over(self, tail: TailSegment) -> None:
        """Answer from the tail's memory until the index file has been written."""
        self._before = tail

    def use_index_file(self) -> None:
        """The index file is there now: forget the tail's, map the file on next use."""
        self._index = None
        self._before = None

    def raw(self, offset: int, length: int) -> memoryview:
        """Bytes as they are stored."""
        return self._bytes(offset, length)

    @property
    def next_sequence(self) -> int:
        """The sequence after the last event."""
        return self.summary.next_sequence

    @property
    def chain_hash(self) -> bytes:
        """The chain hash after the last frame."""
        return self.summary.chain_hash

    @property
    def end_offset(self) -> int:
        """Where the last frame ends and the footer begins."""
        self.directory()
        return self._end

    def _load(self) -> FrameDirectory:
        data = self.files.map(self.path)
        at = max(len(data) - SEGMENT_TRAILER_BYTES, 0)
        try:
            trailer = unpack_trailer(bytes(data[at:]), len(data))
            stored = data[trailer.footer_offset : at]
            table = unpack_directory(stored, trailer)
            found = (
                trailer.journal_id,
                trailer.first_sequence,
                trailer.next_sequence,
                trailer.chain_hash,
                len(stored),
            )
            wanted = (
                self._journal_id,
                self.first_sequence,
                self.next_sequence,
                self.chain_hash,
                trailer.frames * FRAME_ENTRY_BYTES,
            )
            require(found == wanted, "footer", "the footer is not the one that was sealed")
        except BadFrameError as error:
            raise corrupt(self.path, at, error) from error
        self._data, self._end = data, trailer.footer_offset
        return table.directory()

    def directory(self) -> FrameDirectory:
        """Offsets, first sequences and time ranges of the frames, from the footer."""
        if self._directory is None:
            with self._lock:
                if self._directory is None:
                    self._directory = self._load()
        return self._directory

    def _bytes(self, offset: int, length: int) -> memoryview:
        self.directory()
        return self._data[offset : offset + length]  # type: ignore[index]

    def index(self) -> SegmentIndex:
        """The look-up index: mapped from its file, or rebuilt."""
        if self._index is None:
            try:
                loaded = unpack_index(
                    self.files.map(self._index_path),
                    self._journal_id,
                    self.first_sequence,
                    self.next_sequence,
                    self.chain_hash,
                )
            except (BadFrameError, HoldfastError) as error:
                self.index_problem = str(error)
                loaded = build_index(self.first_sequence, self.bodies())
            self._index = loaded
        return self._index

    def find_ids(self, mixed: Array) -> tuple[Array, Array]:
        """Candidates for mixed id keys: (which key, sequence)."""
        before = self._before
        return before.find_ids(mixed) if before is not None else self.index().find_ids(mixed)

    def frames_with(self, column: str, value: str) -> list[int]:
        """Numbers of the frames that hold an entity, scope or kind."""
        before = self._before
        if before is not None:
            return before.frames_with(column, value)
        return self._known(self.index().texts[column].find(value))

    def frames_correlated(self, key: Array) -> list[int]:
        """Numbers of the frames that may hold a correlation id."""
        before = self._before
        if before is not None:
            return before.frames_correlated(key)
        return self._known(self.index().find_correlation(mix_keys(key)))

    def _known(self, numbers: Array) -> list[int]:
        return [int(number) for number in numbers if number < len(self.directory())]


class TailSegment(JournalSegment):
    """The segment that still grows. Its look-up index lives in memory and follows lazily."""

    def __init__(self, files: JournalFiles, path: Path, first: int, previous_hash: bytes) -> None:
        """An empty tail; frames are added as they are read or published."""
        super().__init__(files, path, first, previous_hash)
        self._frames = FrameDirectory()
        self._end = SEGMENT_HEADER_BYTES
        self._next = first
        self._chain = previous_hash
        self._fd: int | None = None
        self._indexed_ids = 0
        self._indexed_texts = 0
        self._ids = IdRuns()
        self._texts: dict[str, dict[str, list[int]]] = {name: {} for name in TEXT_BASES}
        self._correlations: dict[int, list[int]] = {}

    def __del__(self) -> None:
        if self._fd is not None:
            self.files.close(self._fd)

    @property
    def next_sequence(self) -> int:
        """The sequence after the last event."""
        return self._next

    @property
    def chain_hash(self) -> bytes:
        """The chain hash after the last frame."""
        return self._chain

    @property
    def end_offset(self) -> int:
        """Where the last frame ends."""
        return self._end

    def directory(self) -> FrameDirectory:
        """Offsets, first sequences and time ranges of the frames so far."""
        return self._frames

    def restore(self, directory: FrameDirectory, end: int, following: int, chain: bytes) -> None:
        """Take over what an index checkpoint knew."""
        self._frames, self._end, self._next, self._chain = directory, end, following, chain

    def add(self, header: FrameHeader, chain: bytes) -> None:
        """A frame was published or read at the end."""
        with self._lock:
            self._frames.add(self._end, header)
            self._end += header.frame_bytes
            self._next = header.next_sequence
            self._chain = chain

    def frame(self, number: int, *, hash_body: bool = False) -> Frame:
        """Read and check one frame; consistent while the tail grows."""
        with self._lock:
            last = number + 1 == len(self._frames)
            offset, first = self._frames.offsets[number], self._frames.firsts[number]
            end = self._end if last else self._frames.offsets[number + 1]
        return self.frame_at(offset, end - offset, first, hash_body=hash_body)

    def _bytes(self, offset: int, length: int) -> memoryview:
        if self._fd is None:
            with self._lock:
                if self._fd is None:
                    self._fd = self.files.open_read(self.path)
        return memoryview(self.files.read_at(self._fd, self.path, offset, length))

    def add_ids(self, keys: Array, number: int, first: int) -> None:
        """Spare `find_ids` the reading of a frame whose ids are at hand."""
        with self._lock:
            if self._indexed_ids == number:
                self._ids.add(keys, first)
                self._indexed_ids += 1

    def find_ids(self, mixed: Array) -> tuple[Array, Array]:
        """Candidates for mixed id keys: (which key, sequence)."""
        while self._indexed_ids < len(self._frames):
            number = self._indexed_ids
            body = self.body(number)
            self.add_ids(body.keys(0), number, body.header.first_sequence)
        with self._lock:
            return self._ids.find(mixed)

    def _follow(self) -> None:
        with self._lock:
            behind: Iterable[int] = range(self._indexed_texts, len(self._frames))
        for number in behind:
            body = self.body(number)
            words = body.keys(1)
            mixed = np.unique(mix_keys(words[words.any(axis=1)])).tolist() if len(words) else []
            values = {
                name: set(body.text_values(base).to_pylist()) for name, base in TEXT_BASES.items()
            }
            with self._lock:
                if number != self._indexed_texts:
                    continue
                for name, texts in values.items():
                    for text in texts:
                        self._texts[name].setdefault(text, []).append(number)
                for key in mixed:
                    self._correlations.setdefault(key, []).append(number)
                self._indexed_texts += 1

    def frames_with(self, column: str, value: str) -> list[int]:
        """Numbers of the frames that hold an entity, scope or kind."""
        self._follow()
        with self._lock:
            return list(self._texts[column].get(value, ()))

    def frames_correlated(self, key: Array) -> list[int]:
        """Numbers of the frames that may hold a correlation id."""
        self._follow()
        with self._lock:
            return list(self._correlations.get(int(mix_keys(key)[0]), ()))
