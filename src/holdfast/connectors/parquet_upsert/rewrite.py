"""Rewriting a bucket: the old rows and the changes in, the new rows out, a part at a time.

Invariants:
- Memory is bounded by `PART_BYTES` and one batch, however large the bucket or the epoch is: a part
  that becomes too large is halved by one more bit of the slot, and its upper half read again later.
  Equal rows count as one, so a row that is there a million times is no exception.
- Rows lie in the file in the order of their parts, and the file says which row group has which
  slots. So a part reads only its own row groups.
- A row that is retracted must be there: otherwise somebody else changed the output, which is an
  error, never a guess.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.parquet_files import row_batches, unpacked_bytes
from holdfast.connectors.parquet_upsert.changes import StagedRows
from holdfast.connectors.parquet_upsert.slots import BITS, Bucket, one_chunk, slots_of
from holdfast.errors import CorruptionError
from holdfast.state.arrow.batches import group_rows
from holdfast.state.arrow.numpy_views import bits, indices
from holdfast.state.arrow.row_equality import normalise, row_codes

PART_BYTES = 32 << 20
BUCKET_BYTES = 64 << 20
SLOTS, EPOCH = b"holdfast.slots", b"holdfast.epoch"
"""What a file says of itself: slots of each row group, and the epoch that wrote it."""
_GROUP_ROWS, _GROUP_BYTES = 1 << 17, 16 << 20


class NewFile(msgspec.Struct, frozen=True):
    """A file that holds a bucket from now on. name: below the directory that it was written to."""

    depth: int
    index: int
    name: str
    rows: int
    size: int

    @property
    def bucket(self) -> Bucket:
        """Which bucket it is."""
        return Bucket(self.depth, self.index)


@dataclass(frozen=True)
class Rewriter:
    """How buckets are rewritten.

    create: begins a new file for a bucket: its name, and a context that gives the file. epoch: is
    written into the file, where readers of the output need it. keep_empty: whether a bucket without
    rows has a file.
    """

    sink: str
    changes: StagedRows
    create: Callable[[Bucket], tuple[str, AbstractContextManager[Any]]]
    epoch: int | None = None
    keep_empty: bool = False
    bucket_bytes: int = BUCKET_BYTES
    part_bytes: int = PART_BYTES

    def rewrite(
        self, bucket: Bucket, open_old: Callable[[], pq.ParquetFile | None], old_bytes: int
    ) -> list[NewFile] | None:
        """Apply the changes to one bucket; it is split where it has become too large.

        Returns:
            What takes its place; None if nothing changes.
        """
        count, more = self.changes.size(bucket.first, bucket.end)
        if not count:
            return None
        file = open_old()
        if file is None:
            return self._write(bucket, None, self.changes.bytes_of(more), count)
        with file:
            if self.epoch is not None and epoch_of(file) >= self.epoch:
                return None  # an earlier try has published it
            rows = file.metadata.num_rows
            grown = old_bytes * (rows + more) // rows if rows else self.changes.bytes_of(more)
            return self._write(bucket, file, grown, count)

    def _write(
        self, bucket: Bucket, old: pq.ParquetFile | None, grown: int, changed: int
    ) -> list[NewFile]:
        rows = _OldRows(old)
        halves = bucket.split(min(_bits_for(grown, self.bucket_bytes), BITS - bucket.depth))
        unpacked = (rows.unpacked_bytes + self.changes.unpacked_of(changed)) // len(halves)
        # To begin with many parts costs less than to give up what does not fit and read it again.
        bits = _bits_for(unpacked, self.part_bytes // 2)
        files = [self._write_one(half, rows, bits) for half in halves]
        return [file for file in files if file is not None]

    def _write_one(self, bucket: Bucket, old: _OldRows, bits: int) -> NewFile | None:
        ranges = [(b.first, b.end) for b in bucket.split(min(bits, BITS - bucket.depth))]
        produced = _parts(ranges, old, self.changes, self.part_bytes, self.sink)
        part = next(produced, None)
        if part is None and not self.keep_empty and bucket.first:
            return None  # the first bucket of all always has a file: it tells the schema
        name, opened = self.create(bucket)
        with opened as target:
            writer = _BucketFile(target, self.changes.schema, self.epoch)
            while part is not None:
                writer.write(part)
                part = next(produced, None)
            writer.close()
        return NewFile(bucket.depth, bucket.index, name, writer.rows, target.size)


def _bits_for(size: int, limit: int) -> int:
    """How often something is halved until it is within a limit."""
    return (max(0, -(-size // max(1, limit)) - 1)).bit_length()


def epoch_of(file: pq.ParquetFile) -> int:
    """The epoch that a file says it is from; -1 if it says none."""
    return int((file.metadata.metadata or {}).get(EPOCH, b"-1"))


class _OldRows:
    """The rows of a bucket as they were."""

    def __init__(self, file: pq.ParquetFile | None) -> None:
        """Nothing is read yet."""
        self._file = file
        count = file.num_row_groups if file is not None else 0
        text = (file.metadata.metadata or {}).get(SLOTS) if file is not None else None
        known = json.loads(text) if text else []
        # An older version did not say which slots a row group has.
        self._ranges = known if len(known) == count else [(0, 1 << BITS)] * count
        self.unpacked_bytes = unpacked_bytes(file) if file is not None else 0

    def pieces(self, part: _Part) -> Iterator[tuple[pa.Table, bool]]:
        """Rows that may be of a part, and whether all of them are; it may shrink meanwhile."""
        for number, (first, end) in enumerate(self._ranges):
            if self._file is None or end <= part.first or first >= part.end:
                continue
            for batch in row_batches(self._file, [number]):
                rows = pa.Table.from_batches([batch]).replace_schema_metadata(None)
                yield rows, part.first <= first and end <= part.end


class _Part:
    """The rows of a range of slots, gathered: each distinct row once, with a count."""

    def __init__(self, first: int, end: int, bytes_max: int) -> None:
        """Begin without rows."""
        self.first, self.end = first, end
        self.later: list[tuple[int, int]] = []
        """Ranges that were given up, because this one became too large."""
        self._bytes_max, self._bytes = bytes_max, 0
        self._rows: list[pa.Table] = []
        self._weights: list[np.ndarray] = []

    def add(self, rows: pa.Table, weights: np.ndarray, slots: np.ndarray) -> None:
        """Take rows that may be of this part."""
        inside = (slots >= self.first) & (slots < self.end)
        if not inside.all():
            rows, weights = rows.filter(bits(inside)), weights[inside]
        self.add_all(rows, weights)

    def add_all(self, rows: pa.Table, weights: np.ndarray) -> None:
        """Take rows that are all of this part."""
        if rows.num_rows:
            self._rows.append(rows)
            self._weights.append(weights)
            self._bytes += rows.nbytes
            if self._bytes > self._bytes_max:
                self._shrink()

    def _shrink(self) -> None:
        rows, counts = self._consolidate()
        limit = self._bytes_max // 2  # not the whole: the next row would bring it here again
        slots = slots_of(rows) if rows.nbytes > limit else None
        while slots is not None and rows.nbytes > limit and self.end - self.first > 1:
            middle = (self.first + self.end) // 2
            self.later.append((middle, self.end))
            self.end = middle
            kept = slots < middle
            rows, counts, slots = rows.filter(bits(kept)), counts[kept], slots[kept]
        self._rows, self._weights, self._bytes = [rows], [counts], rows.nbytes

    def _consolidate(self) -> tuple[pa.Table, np.ndarray]:
        rows = pa.concat_tables(self._rows).combine_chunks()
        weights = np.concatenate(self._weights)
        columns = [normalise(one_chunk(column)) for column in rows.columns]
        groups = group_rows(row_codes(columns), [])
        counts, oldest = groups.sums(weights), groups.first()
        there = counts != 0
        return rows.take(indices(oldest[there])), counts[there]

    def finish(self, sink: str) -> BucketPart | None:
        """The rows and how often each is there; None without any."""
        if not self._rows:
            return None
        rows, counts = self._consolidate()
        if (counts < 0).any():
            row = rows.slice(int(np.flatnonzero(counts < 0)[0]), 1)
            raise differs(sink, str(row.to_pylist()[0])[:200])
        return BucketPart(self.first, self.end, rows, counts) if rows.num_rows else None


class BucketPart(NamedTuple):
    """Distinct rows of a range of slots, and how often each is there."""

    first: int
    end: int
    rows: pa.Table
    counts: np.ndarray

    def tables(self) -> Iterator[pa.Table]:
        """Every row as often as it is there, in tables of a bounded size."""
        total, ends = int(self.counts.sum()), np.cumsum(self.counts)
        wide = max(1, self.rows.nbytes // max(1, self.rows.num_rows))
        step = max(1, min(_GROUP_ROWS, _GROUP_BYTES // wide))
        if total == self.rows.num_rows <= step:
            yield self.rows
            return
        for first in range(0, total, step):
            wanted = np.arange(first, min(total, first + step))
            yield self.rows.take(indices(np.searchsorted(ends, wanted, side="right")))


def _parts(
    ranges: Sequence[tuple[int, int]], old: _OldRows, changes: StagedRows, bytes_max: int, sink: str
) -> Iterator[BucketPart]:
    """The rows of some ranges of slots after the changes, in the order of their slots."""
    waiting = [*reversed(ranges)]
    while waiting:
        part = _Part(*waiting.pop(), bytes_max)
        for rows, inside in old.pieces(part):
            weights = np.ones(rows.num_rows, np.int64)
            if inside:
                part.add_all(rows, weights)
            else:
                part.add(rows, weights, slots_of(rows))
        for piece in changes.pieces(part.first, part.end):
            part.add(*piece)
        waiting.extend(part.later)  # the lowest was given up last, and comes next
        finished = part.finish(sink)
        if finished is not None:
            yield finished


class _BucketFile:
    """A bucket as a Parquet file."""

    def __init__(self, target: Any, schema: pa.Schema, epoch: int | None) -> None:
        """Begin it. epoch: is noted in the file, if there is one."""
        self._schema = schema.with_metadata({} if epoch is None else {EPOCH: str(epoch)})
        self._writer = pq.ParquetWriter(target, self._schema, compression="zstd")
        self._ranges: list[tuple[int, int]] = []
        self.rows = 0

    def write(self, part: BucketPart) -> None:
        """Add the rows of one more part."""
        for table in part.tables():
            self._writer.write_table(table.cast(self._schema), table.num_rows)
            self._ranges.append((part.first, part.end))
            self.rows += table.num_rows

    def close(self) -> None:
        """Write what the file says about itself."""
        self._writer.add_key_value_metadata({SLOTS.decode(): json.dumps(self._ranges)})
        self._writer.close()


def differs(sink: str, row: str) -> CorruptionError:
    """A row that is retracted is not there."""
    return CorruptionError(
        "a row that is retracted is not in the output",
        kind="output_differs",
        sink=sink,
        row=row,
        remedy="nobody else may write there; let the sink start from scratch in an empty place",
    )
