"""Slots and buckets: where a row of an upsert output lies.

The slot of a row is the first `BITS` bits of its hash, lowest bit first. A bucket of depth d holds
the rows whose slots begin with d given bits. So a bucket is a range of slots, and its two halves
are buckets of the next depth. Files are named by the lowest d bits of the hash: at depth 4, the
depth of a new output, `part-07`; below it `part-23d5`.

Invariants:
- Equal rows have one slot, today and in every later version: it is stored in names of files.
- Sixteen buckets of depth 4 are those of outputs that were written before buckets were split.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.connectors.staging import SLOT, STAGED_WEIGHT
from holdfast.state.arrow.batches import number_order
from holdfast.state.arrow.numpy_views import indices
from holdfast.state.arrow.row_equality import encode, normalise

BITS = 24
DEPTH = 4
"""The depth of the buckets that a new output begins with."""
_SLICE_BYTES = 1 << 20  # hashing takes some thirty times the bytes that it hashes
_REVERSED = np.array([int(f"{number:08b}"[::-1], 2) for number in range(256)], np.int32)
_NAME = re.compile(r"part-(\d+)(?:d(\d+))?(?:-(\d+))?(?:-[0-9a-z]+)?\.parquet")


@dataclass(frozen=True, order=True)
class Bucket:
    """The rows whose hashes end in `depth` bits that are `index`."""

    depth: int
    index: int

    @property
    def first(self) -> int:
        """Its first slot."""
        return int(f"{self.index:0{self.depth}b}"[::-1], 2) << (BITS - self.depth)

    @property
    def end(self) -> int:
        """The slot after its last one."""
        return self.first + (1 << (BITS - self.depth))

    def split(self, bits: int) -> list[Bucket]:
        """The buckets that it consists of, so many bits deeper, in order of their slots."""
        depth = self.depth + bits
        halves = [Bucket(depth, self.index + (n << self.depth)) for n in range(1 << bits)]
        return sorted(halves, key=lambda half: half.first)

    def holds(self, other: Bucket) -> bool:
        """Whether another bucket is it, or a part of it."""
        return self.first <= other.first and other.end <= self.end

    @property
    def label(self) -> str:
        """How names of files call it."""
        return f"{self.index:02d}" if self.depth == DEPTH else f"{self.index:02d}d{self.depth}"


def parse_name(name: str) -> tuple[Bucket, int | None] | None:
    """The bucket of a file, and its epoch where the name says it; None for other names."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    index, depth, epoch = match.groups()
    bucket = Bucket(int(depth or DEPTH), int(index))
    if not DEPTH <= bucket.depth <= BITS or bucket.index >> bucket.depth:
        return None
    return bucket, None if epoch is None else int(epoch)


def all_buckets(present: Collection[Bucket]) -> Iterator[Bucket]:
    """Buckets that cover every slot once, in order: those that are there, and gaps between them.

    Where a bucket and parts of it are there, the bucket counts: it was being split.
    """
    known = set(present)
    above = {Bucket(depth, b.index % (1 << depth)) for b in known for depth in range(b.depth)}
    waiting = [Bucket(DEPTH, index) for index in range(1 << DEPTH)]
    waiting.sort(key=lambda bucket: -bucket.first)
    while waiting:
        bucket = waiting.pop()
        if bucket in known or bucket not in above:
            yield bucket
        else:
            waiting.extend(reversed(bucket.split(1)))


def slots_of(rows: pa.Table) -> np.ndarray:
    """The slot of each row, from its columns but the weight."""
    rows = rows.drop_columns([n for n in (SLOT, STAGED_WEIGHT) if n in rows.schema.names])
    if not rows.num_rows:
        return np.zeros(0, np.int32)
    step = max(1, _SLICE_BYTES * rows.num_rows // max(1, rows.nbytes))
    parts = [_slots(rows.slice(first, step)) for first in range(0, rows.num_rows, step)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _slots(rows: pa.Table) -> np.ndarray:
    columns = [normalise(one_chunk(column)) for column in rows.columns]
    names = [f"c{number}" for number in range(len(columns))]
    coded = encode(pa.StructArray.from_arrays(columns, names=names))
    _, offset_buffer, data_buffer = coded.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[coded.offset : coded.offset + len(coded) + 1]
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    starts = offsets[:-1] - offsets[0]
    lengths = np.diff(offsets)
    powers = np.full(int(lengths.max()), 0x9E3779B97F4A7C15, np.uint64)
    powers[0] = 1
    powers = np.cumprod(powers, dtype=np.uint64)
    places = np.arange(len(data)) - np.repeat(starts, lengths)
    mixed = np.add.reduceat((data.astype(np.uint64) + np.uint64(1)) * powers[places], starts)
    mixed ^= mixed >> np.uint64(33)
    low, middle, high = ((mixed >> np.uint64(shift)) & np.uint64(255) for shift in (0, 8, 16))
    slots: np.ndarray = (_REVERSED[low] << 16) | (_REVERSED[middle] << 8) | _REVERSED[high]
    return slots


def one_chunk(column: Any) -> Any:
    """A column of a table as one array."""
    combined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def by_slot(rows: pa.Table) -> pa.Table:
    """Rows in the order of their slots, with the slot in a column of its own."""
    slots = slots_of(rows)
    order = number_order(slots)
    column = pa.array(slots[order], pa.int32())
    return rows.take(indices(order)).append_column(
        pa.field(SLOT, pa.int32(), nullable=False), column
    )
