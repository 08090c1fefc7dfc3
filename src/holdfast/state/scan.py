"""All rows of a trace in no order, in several threads: for queries, where order is worth nothing.

Rows are handed on as they lie in the runs, without a copy. Only their marker is replaced where a
newer run has a say: so a row counts exactly when its marker says so (`__hf_deleted` is false, or
`__hf_weight` is not zero), and the reader of the stream filters by it.

Invariants:
- The rows that count are those of `TraceReader.batches`, each once; only the order differs.
- Every record batch is checked against its checksum before anybody sees a row of it.
- A window is a range of hashes: all rows of one hash meet in one window, whatever run has them.
- Planning touches no rows; memory follows a few windows, not the trace.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.state.arrow.batches import join_batches, take
from holdfast.state.arrow.interpolation_search import lower_bound
from holdfast.state.arrow.numpy_views import bits, indices, numbers
from holdfast.state.arrow.prefetch import Prefetch
from holdfast.state.arrow.row_equality import rows_equal
from holdfast.state.merge_iterator import resolve
from holdfast.state.schema import TraceKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.state.run_view import RunView
    from holdfast.state.schema import TraceSchema

WINDOW_ROWS = 1 << 18
AHEAD_IN_PLACE = 64
THREADS_MAX = 8
_WIDTHS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


class TraceScan:
    """The rows of some views, oldest view first. Made by `TraceReader.scan`.

    It is an Arrow stream (`__arrow_c_stream__`) of marker, keys and values that can be read
    several times, and `batches` for who wants only the rows that count.
    """

    def __init__(
        self,
        views: Sequence[RunView],
        schema: TraceSchema,
        *,
        time_bound_us: int | None = None,
        window_rows: int = WINDOW_ROWS,
        threads: int | None = None,
    ) -> None:
        """Plan; nothing is read before `start` or the first stream."""
        self._views, self._trace = views, schema
        self._bound = time_bound_us
        self._latest = schema.kind is TraceKind.LATEST
        self._threads = threads or max(1, min(THREADS_MAX, os.cpu_count() or 1))
        self._windows = plan_windows(views, window_rows)
        self._begun: Prefetch[tuple[int, int], list[pa.RecordBatch]] | None = None
        self._all: list[Prefetch[tuple[int, int], list[pa.RecordBatch]]] = []
        self.schema = pa.schema([schema.stored.field(i) for i in range(1, len(schema.stored))])

    def start(self) -> None:
        """Begin to read, so that the work is under way while the reader gets ready."""
        if self._begun is None:
            self._begun = self._begin()

    def _begin(self) -> Prefetch[tuple[int, int], list[pa.RecordBatch]]:
        free = all(view.run.in_place for view in self._views) and not self._gathers(self._views)
        ahead = AHEAD_IN_PLACE if free else 2 * self._threads
        prefetch = Prefetch(self._window, self._windows, threads=self._threads, ahead=ahead)
        self._all.append(prefetch)
        return prefetch

    def close(self) -> None:
        """Stop every reading that is under way."""
        for prefetch in self._all:
            prefetch.close()

    def __arrow_c_schema__(self) -> object:
        """The columns, without reading."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Marker, keys and values of all rows, those that do not count included."""
        reader: Any = pa.RecordBatchReader.from_batches(self.schema, self.marked())
        stream: object = reader.__arrow_c_stream__(requested_schema)
        return stream

    def marked(self) -> Iterator[pa.RecordBatch]:
        """Marker, keys and values of all rows as record batches."""
        prefetch, self._begun = self._begun or self._begin(), None
        for pieces in prefetch:
            for piece in pieces:
                yield pa.RecordBatch.from_arrays(piece.columns[1:], schema=self.schema)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of the rows that count."""
        for rows in self.marked():
            marker = numbers(rows.column(0))
            live = ~marker if self._latest else marker != 0
            some = rows.select(list(columns))
            if not live.all():
                some = take(some, np.flatnonzero(live))
            if some.num_rows:
                yield some

    # One window

    def _window(self, window: tuple[int, int]) -> list[pa.RecordBatch]:
        """Stored rows of one hash range, marked."""
        found: list[list[pa.RecordBatch]] = []
        views = []
        for view in self._views:
            start, stop = view.row_range(*window)
            if start < stop:
                views.append(view)
                found.append(list(view.batches(start, stop)))
        if len(found) > 1:
            found = self._gathered(found) if self._gathers(views) else self._newest(found)
        return [self._without_late(piece) for pieces in found for piece in pieces]

    def _gathers(self, views: Sequence[RunView]) -> bool:
        """Whether rows of one hash have to be brought together, instead of struck out in place."""
        if len(views) <= 1:
            return False
        return not (self._latest and all(view.run.hashes_distinct for view in views))

    def _newest(self, found: list[list[pa.RecordBatch]]) -> list[list[pa.RecordBatch]]:
        """Strike out each row whose key a newer run has; no run has a hash twice."""
        result = []
        for age, pieces in enumerate(found):
            newer = [other for later in found[age + 1 :] for other in later]
            result.append([self._outdated(piece, newer) for piece in pieces])
        return result

    def _outdated(self, piece: pa.RecordBatch, newer: list[pa.RecordBatch]) -> pa.RecordBatch:
        outdated = np.zeros(piece.num_rows, np.bool_)
        hashes = numbers(piece.column(0))
        for other in newer:
            left_rows, right_rows = meet(hashes, numbers(other.column(0)))
            if len(left_rows):
                same = self._same_keys(piece, left_rows, other, right_rows)
                outdated[left_rows[same]] = True
        return self._strike(piece, outdated)

    def _same_keys(
        self,
        left: pa.RecordBatch,
        left_rows: np.ndarray,
        right: pa.RecordBatch,
        right_rows: np.ndarray,
    ) -> np.ndarray:
        same = np.ones(len(left_rows), np.bool_)
        for i in self._trace.key_indices:
            a, b = left.column(i), right.column(i)
            raw_a, raw_b = _raw(a), _raw(b)
            if raw_a is None or raw_b is None:
                same &= rows_equal([a.take(indices(left_rows))], [b.take(indices(right_rows))])
            else:
                same &= raw_a[left_rows] == raw_b[right_rows]
        return same

    def _gathered(self, found: list[list[pa.RecordBatch]]) -> list[list[pa.RecordBatch]]:
        """Rows of hashes that several runs have are combined as a compaction would; others stay."""
        shared = _shared([[numbers(piece.column(0)) for piece in pieces] for pieces in found])
        if not len(shared):
            return found
        gathered, result = [], []
        for piece in (piece for pieces in found for piece in pieces):
            mask = _members(numbers(piece.column(0)), shared)
            if mask.any():
                gathered.append(take(piece, np.flatnonzero(mask)).replace_schema_metadata(None))
            result.append(self._strike(piece, mask))
        return [result, [resolve(join_batches(gathered, self._trace.stored), self._trace)]]

    def _without_late(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        behind = self._trace.behind(piece, self._bound)
        return piece if behind is None else self._strike(piece, behind)

    def _strike(self, piece: pa.RecordBatch, struck: np.ndarray) -> pa.RecordBatch:
        """The same rows, of which these do not count."""
        if not struck.any():
            return piece
        columns = piece.columns
        marker = numbers(columns[1])
        columns[1] = bits(marker | struck) if self._latest else indices(np.where(struck, 0, marker))
        return pa.RecordBatch.from_arrays(columns, schema=self._trace.stored)


def plan_windows(views: Sequence[RunView], rows_min: int) -> list[tuple[int, int]]:
    """Hash ranges (inclusive) that cover all views, each of about so many rows or a batch more.

    They end where batches end, as the summaries of the runs say: no row is touched.
    """
    if not views:
        return []
    ends, rows = [], []
    for view in views:
        run = view.run
        inside = (run.hash_maxs >= np.uint64(view.low)) & (run.hash_mins <= np.uint64(view.high))
        ends.append(np.minimum(run.hash_maxs[inside], np.uint64(view.high)))
        rows.append(np.diff(run.batch_starts)[inside])
    flat = np.concatenate(ends)
    order = np.argsort(flat, kind="stable")
    flat = flat[order]
    bucket = (np.cumsum(np.concatenate(rows)[order]) - 1) // max(1, rows_min)
    cuts = np.unique(flat[:-1][bucket[1:] != bucket[:-1]]).tolist()
    low, high = min(view.low for view in views), max(view.high for view in views)
    bounds = []
    for cut in cuts:
        if low <= cut < high:
            bounds.append((low, int(cut)))
            low = int(cut) + 1
    return [*bounds, (low, high)]


def meet(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where two ascending columns, each without repeats, have the same hash: rows of both."""
    if len(left) < len(right):
        right_rows, left_rows = meet(right, left)
        return left_rows, right_rows
    first = int(np.searchsorted(right, left[0], side="left"))
    last = int(np.searchsorted(right, left[-1], side="right"))
    if first >= last:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    place = lower_bound(left, right[first:last])
    hit = np.flatnonzero(left[place] == right[first:last])
    return place[hit], hit + first


def _shared(columns: list[list[np.ndarray]]) -> np.ndarray:
    """Hashes that more than one view has, ascending."""
    each = [_distinct(np.concatenate(pieces)) for pieces in columns]
    together = np.sort(np.concatenate(each))
    return _distinct(together[1:][together[1:] == together[:-1]])


def _distinct(ascending: np.ndarray) -> np.ndarray:
    first = np.ones(len(ascending), np.bool_)
    first[1:] = ascending[1:] != ascending[:-1]
    return ascending[first]


def _members(hashes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Which of the hashes are wanted; both ascend."""
    place = np.minimum(np.searchsorted(wanted, hashes, side="left"), len(wanted) - 1)
    mask: np.ndarray = wanted[place] == hashes
    return mask


def _raw(column: Any) -> np.ndarray | None:
    """The bits of a column of plain fixed-width values without nulls, in place; else None.

    Keys are normalised when they are written, so equal bits are equal keys, floats included.
    """
    kind = column.type
    plain = pa.types.is_primitive(kind) and kind.bit_width in _WIDTHS
    if not plain or column.null_count:
        return None
    data = np.frombuffer(column.buffers()[1], dtype=_WIDTHS[kind.bit_width])
    return data[column.offset : column.offset + len(column)]
