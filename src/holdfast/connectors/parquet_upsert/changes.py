"""What an epoch changes: staged rows and their weights, by slot.

Invariants:
- Who asks for a range of slots gets every staged row of it exactly once.
- Memory is bounded by the cache, one batch and the few files that are open. Row groups that are
  too large for the cache are read again for each range that asks for them.
- Rows that an older version has staged have no slots: they are computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.parquet_files import open_parquet, row_batches, unpacked_bytes
from holdfast.connectors.parquet_upsert.slots import BITS, slots_of
from holdfast.connectors.staging import SLOT, STAGED_WEIGHT
from holdfast.state.arrow.batches import ascends, number_order
from holdfast.state.arrow.numpy_views import bits, indices
from holdfast.storage.base import StorageReader

CACHE_BYTES = 48 << 20
CACHED_MAX = 16 << 20
_OPEN_MAX = 16


class Piece(NamedTuple):
    """Some rows with weight and slot of each."""

    rows: pa.Table
    weights: np.ndarray
    slots: np.ndarray

    def part(self, first: int, end: int) -> Piece:
        """Those from a slot up to another one."""
        chosen = (self.slots >= first) & (self.slots < end)
        if chosen.all():
            return self
        return Piece(self.rows.filter(bits(chosen)), self.weights[chosen], self.slots[chosen])


@dataclass(frozen=True)
class _Group:
    """A row group, and the slots of its first and last row."""

    file: int
    number: int
    first: int
    last: int
    rows: int


class StagedRows:
    """The rows that an epoch has staged for an output."""

    def __init__(
        self,
        storage: StorageReader,
        paths: Sequence[str],
        *,
        cache_bytes: int = CACHE_BYTES,
        cached_max: int = CACHED_MAX,
    ) -> None:
        """Read what the files say about themselves. cached_max: no larger row group is kept."""
        self._storage, self._paths = storage, paths
        self._open: dict[int, pq.ParquetFile] = {}
        self._groups: list[_Group] = []
        rows = size = unpacked = 0
        for number in range(len(paths)):
            file = self._file(number)
            self._groups.extend(_groups(number, file))
            rows, size = rows + file.metadata.num_rows, size + _stored_bytes(file)
            unpacked += unpacked_bytes(file)
        self._row_bytes, self._unpacked_bytes = size / max(1, rows), unpacked / max(1, rows)
        names = self._file(0).schema_arrow.names
        self._by_slot, self._weighted = SLOT in names, STAGED_WEIGHT in names
        fields = [f for f in self._file(0).schema_arrow if f.name not in (SLOT, STAGED_WEIGHT)]
        self.schema = pa.schema(fields)
        self._cached: dict[tuple[int, int], Piece | None] = {}
        self._cached_bytes, self._cache_bytes, self._cached_max = 0, cache_bytes, cached_max

    def close(self) -> None:
        """Close the files."""
        while self._open:
            self._open.popitem()[1].close()

    def _file(self, number: int) -> pq.ParquetFile:
        """A staged file; few are open at a time, however many partitions there are."""
        file = self._open.pop(number, None)
        if file is None:
            if len(self._open) >= _OPEN_MAX:
                self._open.pop(next(iter(self._open))).close()
            file = open_parquet(self._storage, self._paths[number])
        self._open[number] = file
        return file

    def bytes_of(self, rows: int) -> int:
        """About how many bytes so many rows take in a file."""
        return int(max(0, rows) * self._row_bytes)

    def unpacked_of(self, rows: int) -> int:
        """About how many bytes so many rows take without compression."""
        return int(rows * self._unpacked_bytes)

    def ranges(self) -> list[tuple[int, int]]:
        """From which slot to which one rows lie, by row group."""
        return [(group.first, group.last) for group in self._groups]

    def pieces(self, first: int, end: int) -> Iterator[Piece]:
        """The rows from a slot up to another one."""
        for group in self._overlapping(first, end):
            cached = self._load(group)
            if cached is not None:
                low, high = np.searchsorted(cached.slots, [first, end])
                if high > low:
                    rows = cached.rows.slice(low, high - low)
                    yield Piece(rows, cached.weights[low:high], cached.slots[low:high])
                continue
            for piece in self._read(group):
                part = piece.part(first, end)
                if part.rows.num_rows:
                    yield part

    def size(self, first: int, end: int) -> tuple[int, int]:
        """How many rows change from a slot up to another one, and by how many they become more."""
        count = more = 0
        for group in self._overlapping(first, end):
            cached = self._load(group)
            if cached is not None:
                low, high = np.searchsorted(cached.slots, [first, end])
                count += int(high - low)
                more += int(cached.weights[low:high].sum())
                continue
            for piece in self._read(group, marks_only=True):
                inside = (piece.slots >= first) & (piece.slots < end)
                count += int(inside.sum())
                more += int(piece.weights[inside].sum())
        return count, more

    def _overlapping(self, first: int, end: int) -> list[_Group]:
        return [group for group in self._groups if group.first < end and group.last >= first]

    def _load(self, group: _Group) -> Piece | None:
        """A row group in the order of slots, from the cache; None if it is too large for it."""
        key = (group.file, group.number)
        if key in self._cached:
            return self._cached[key]
        pieces, size = [], 0
        for piece in self._read(group):
            pieces.append(piece)
            size += piece.rows.nbytes
            if size > self._cached_max:
                self._cached[key] = None
                return None
        whole = _sorted(pieces)
        while self._cached_bytes + size > self._cache_bytes and self._evict():
            pass
        self._cached[key] = whole
        self._cached_bytes += size
        return whole

    def _evict(self) -> bool:
        """Forget the row group that was read first: buckets are asked for in order."""
        for key, piece in self._cached.items():
            if piece is not None:
                self._cached_bytes -= piece.rows.nbytes
                del self._cached[key]
                return True
        return False

    def _read(self, group: _Group, *, marks_only: bool = False) -> Iterator[Piece]:
        columns = None
        if marks_only and self._by_slot:
            columns = [SLOT, STAGED_WEIGHT] if self._weighted else [SLOT]
        for batch in row_batches(self._file(group.file), [group.number], columns):
            table = pa.Table.from_batches([batch]).replace_schema_metadata(None)
            slots = table.column(SLOT).to_numpy() if self._by_slot else slots_of(table)
            weights = np.ones(batch.num_rows, np.int64)
            if self._weighted:
                weights = table.column(STAGED_WEIGHT).to_numpy()
            yield Piece(
                table.select([n for n in self.schema.names if n in table.schema.names]),
                weights,
                slots,
            )


def _groups(number: int, file: pq.ParquetFile) -> Iterator[_Group]:
    leaves = [file.schema.column(n).path for n in range(len(file.schema))]
    leaf = leaves.index(SLOT) if SLOT in leaves else None
    for place in range(file.num_row_groups):
        group = file.metadata.row_group(place)
        if not group.num_rows:
            continue
        marks = group.column(leaf).statistics if leaf is not None else None
        first, last = 0, (1 << BITS) - 1
        if marks is not None and marks.has_min_max:
            first, last = (int(cast("int", mark)) for mark in (marks.min, marks.max))
        yield _Group(number, place, first, last, group.num_rows)


def _stored_bytes(file: pq.ParquetFile) -> int:
    groups = [file.metadata.row_group(n) for n in range(file.num_row_groups)]
    return sum(g.column(n).total_compressed_size for g in groups for n in range(g.num_columns))


def _sorted(pieces: Sequence[Piece]) -> Piece:
    rows = pa.concat_tables([piece.rows for piece in pieces]).combine_chunks()
    weights = np.concatenate([piece.weights for piece in pieces])
    slots = np.concatenate([piece.slots for piece in pieces])
    if ascends(slots):
        return Piece(rows, weights, slots)
    order = number_order(slots)
    return Piece(rows.take(indices(order)), weights[order], slots[order])
