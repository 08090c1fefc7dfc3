"""Look-up index of one segment: ids to events; entity, scope, kind, correlation to frames.

It is derived: always rebuilt from the frames, never a source of truth. A sealed segment has it in
a file next to it, memory-mapped and read by binary search; the tail has it in memory.

Invariants:
- No false negatives: a value that occurs in a frame is found. A hit is a candidate, and the event
  itself is compared, so a collision of 64-bit keys costs time and never an answer.
- The file names the journal, the sequences and the chain hash it was built from, and a CRC32C
  covers all of it; one that does not match its segment is ignored and rebuilt.

Spec: spec/journal-v1.md, section 8.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.journal.format.frame import BadFrameError, crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.journal.format.columns import BodyReader

INDEX_MAGIC = b"HFJLOOK1"
INDEX_VERSION = 1
_HEADER = struct.Struct("<8sI16sQQ32s16QI")
INDEX_HEADER_BYTES = _HEADER.size
_DTYPES = ("<u8", "<u4", "<u8", "<u4") + ("<i4", "|u1", "<u4", "<u4") * 3
_M1, _M2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_S32 = np.uint64(32)
TEXT_BASES = {"entity": 5, "scope": 8, "kind": 11}
Array = np.ndarray[Any, Any]


def mix_keys(keys: Array) -> Array:
    """128-bit ids (rows of two words) to well-spread 64-bit keys."""
    with np.errstate(over="ignore"):
        words = keys.astype("<u8", copy=False)
        mixed = words[:, 0] * _M1
        mixed ^= mixed >> _S32
        mixed = (mixed ^ words[:, 1]) * _M2
        mixed ^= mixed >> _S32
        mixed *= _M1
        mixed ^= mixed >> _S32
    return np.asarray(mixed)


@dataclass(frozen=True, slots=True)
class TextPostings:
    """Sorted distinct texts, and for each the numbers of the frames that hold it."""

    offsets: Array
    data: Array
    starts: Array
    frames: Array

    def find(self, value: str) -> Array:
        """Frame numbers of a text, ascending; binary search over the sorted texts."""
        wanted = value.encode()
        low, high = 0, len(self.offsets) - 1
        while low < high:
            middle = (low + high) // 2
            if self.data[self.offsets[middle] : self.offsets[middle + 1]].tobytes() < wanted:
                low = middle + 1
            else:
                high = middle
        if low == len(self.offsets) - 1:
            return self.frames[:0]
        if self.data[self.offsets[low] : self.offsets[low + 1]].tobytes() != wanted:
            return self.frames[:0]
        return self.frames[self.starts[low] : self.starts[low + 1]]


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The look-up index of one segment."""

    first_sequence: int
    id_keys: Array
    id_rows: Array
    correlation_keys: Array
    correlation_frames: Array
    texts: dict[str, TextPostings]

    def find_ids(self, keys: Array) -> tuple[Array, Array]:
        """Candidates for mixed keys: (which key, sequence), every one to be compared."""
        return probe(self.id_keys, keys, self.id_rows, self.first_sequence)

    def find_correlation(self, key: Array) -> Array:
        """Numbers of the frames that may hold a correlation id."""
        low = np.searchsorted(self.correlation_keys, key[0], side="left")
        high = np.searchsorted(self.correlation_keys, key[0], side="right")
        return np.unique(self.correlation_frames[low:high])

    def buffers(self) -> list[Array]:
        """In stored order."""
        found = [self.id_keys, self.id_rows, self.correlation_keys, self.correlation_frames]
        for name in TEXT_BASES:
            text = self.texts[name]
            found += [text.offsets, text.data, text.starts, text.frames]
        return found


def probe(run: Array, keys: Array, rows: Array, first: int) -> tuple[Array, Array]:
    """Look keys up in a sorted run: (query number, sequence). Fastest when the keys are sorted."""
    if not len(run):
        return np.empty(0, "<i8"), np.empty(0, "<u8")
    low = run.searchsorted(keys)
    hits = np.flatnonzero(run[np.minimum(low, len(run) - 1)] == keys)
    if not len(hits):
        return hits, hits.astype("<u8")
    high = run.searchsorted(keys[hits], side="right")
    which, sequences = expand(low[hits], high, rows, first)
    return hits[which], sequences


def expand(low: Array, high: Array, rows: Array, first: int) -> tuple[Array, Array]:
    """Ranges [low, high) of a sorted run as (query number, sequence)."""
    sizes = high - low
    which = np.repeat(np.arange(len(low)), sizes)
    if len(which) == 0:
        return which, which.astype("<u8")
    inside = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return which, rows[low[which] + inside].astype("<u8") + np.uint64(first)


def build_index(first: int, bodies: Sequence[BodyReader]) -> SegmentIndex:
    """Build from the frames of a segment, in order. No loop over events."""
    keys = mix_keys(np.concatenate([body.keys(0) for body in bodies]))
    order = np.argsort(keys, kind="stable")
    correlation_keys, correlation_frames = _correlations(bodies)
    texts = {name: _postings(bodies, base) for name, base in TEXT_BASES.items()}
    return SegmentIndex(
        first, keys[order], order.astype("<u4"), correlation_keys, correlation_frames, texts
    )


def _correlations(bodies: Sequence[BodyReader]) -> tuple[Array, Array]:
    keys, frames = [np.empty(0, "<u8")], [np.empty(0, "<u4")]
    for number, body in enumerate(bodies):
        words = body.keys(1)
        if len(words):
            unique = np.unique(mix_keys(words[words.any(axis=1)]))
            keys.append(unique)
            frames.append(np.full(len(unique), number, "<u4"))
    flat = np.concatenate(keys)
    order = np.argsort(flat, kind="stable")
    return flat[order], np.concatenate(frames)[order]


def _postings(bodies: Sequence[BodyReader], base: int) -> TextPostings:
    values = [body.text_values(base) for body in bodies]
    numbers = np.repeat(np.arange(len(bodies), dtype="<u8"), [len(value) for value in values])
    encoded = pa.concat_arrays(values).cast(pa.binary()).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), dtype="<u8")
    rank[order] = np.arange(len(order), dtype="<u8")
    codes = rank[encoded.indices.to_numpy()]
    pairs = np.unique(codes * np.uint64(len(bodies)) + numbers)
    texts = encoded.dictionary.take(pa.array(order))
    starts = np.searchsorted(pairs // np.uint64(len(bodies)), np.arange(len(order) + 1))
    offsets = np.frombuffer(texts.buffers()[1], "<i4")[: len(order) + 1]
    data = texts.buffers()[2]
    packed = np.frombuffer(data, "|u1")[: offsets[-1]] if data else np.empty(0, "|u1")
    return TextPostings(
        offsets, packed, starts.astype("<u4"), (pairs % np.uint64(len(bodies))).astype("<u4")
    )


def pack_index(index: SegmentIndex, journal_id: bytes, following: int, chain: bytes) -> bytes:
    """The index as one file."""
    buffers = [buffer.tobytes() for buffer in index.buffers()]
    body = b"".join(part for data in buffers for part in (data, bytes(-len(data) % 8)))
    head = _HEADER.pack(
        INDEX_MAGIC,
        INDEX_VERSION,
        journal_id,
        index.first_sequence,
        following,
        chain,
        *(len(data) for data in buffers),
        0,
    )[:-4]
    crc = crc32c(body, crc32c(head))
    return head + struct.pack("<I", crc) + body


def unpack_index(
    data: memoryview, journal_id: bytes, first: int, following: int, chain: bytes
) -> SegmentIndex:
    """Views over a mapped index file, after a check of its CRC and of what it belongs to."""
    if len(data) < INDEX_HEADER_BYTES:
        raise BadFrameError("short", "less than an index header")
    head = bytes(data[: INDEX_HEADER_BYTES - 4])
    fields = _HEADER.unpack_from(data)
    if fields[0] != INDEX_MAGIC or fields[1] != INDEX_VERSION:
        raise BadFrameError("magic", "not an index of a known version")
    body = data[INDEX_HEADER_BYTES:]
    crc = crc32c(body, crc32c(head))
    if crc != fields[-1]:
        raise BadFrameError("crc", f"expected={fields[-1]:08x} actual={crc:08x}")
    if fields[2:6] != (journal_id, first, following, chain):
        raise BadFrameError("stale", "the index belongs to another state of the segment")
    arrays: list[Array] = []
    at = 0
    for length, dtype in zip(fields[6:-1], _DTYPES, strict=True):
        if at + length > len(body) or length % np.dtype(dtype).itemsize:
            raise BadFrameError("body", "an index buffer runs past the end")
        arrays.append(np.frombuffer(body[at : at + length], dtype=dtype))
        at += length + -length % 8
    texts = {
        name: TextPostings(*arrays[4 + 4 * number : 8 + 4 * number])
        for number, name in enumerate(TEXT_BASES)
    }
    return SegmentIndex(first, arrays[0], arrays[1], arrays[2], arrays[3], texts)


class IdRuns:
    """Ids of the unsealed tail: sorted runs that merge geometrically, eight at a time."""

    FAN_IN = 8

    def __init__(self) -> None:
        """Begin empty."""
        self._runs: list[list[tuple[Array, Array]]] = []

    def add(self, keys: Array, first: int) -> None:
        """Add the ids (rows of two words) of a frame that begins at sequence `first`."""
        mixed = mix_keys(keys)
        order = np.argsort(mixed, kind="stable")
        run = (mixed[order], order.astype("<u8") + np.uint64(first))
        level = 0
        while True:
            if level == len(self._runs):
                self._runs.append([])
            self._runs[level].append(run)
            if len(self._runs[level]) < self.FAN_IN:
                return
            flat = np.concatenate([part[0] for part in self._runs[level]])
            rows = np.concatenate([part[1] for part in self._runs[level]])
            order = np.argsort(flat, kind="stable")
            run = (flat[order], rows[order])
            self._runs[level] = []
            level += 1

    def find(self, mixed: Array) -> tuple[Array, Array]:
        """Candidates for mixed keys: (which key, sequence)."""
        parts = [probe(run, mixed, rows, 0) for level in self._runs for run, rows in level]
        if not parts:
            return np.empty(0, "<i8"), np.empty(0, "<u8")
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
