"""Many views as one: the rows of a trace, combined, in hash order and in bounded memory.

Used by merges, full reads and diffs alike, so that all three agree by construction.

Invariants:
- Memory follows the window, not the trace: a window is a hash range of bounded size. Only rows
  of one single hash can exceed it.
- `bottom` says that nothing older exists: only then tombstones and outdated latest rows go,
  since without them an older row would come back to life. Where the time is a part of the key, all
  versions of a key are outdated together, and may go at any depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.state.arrow.batches import (
    combine_bag,
    combine_latest,
    group_rows,
    join_batches,
    take,
    with_weights,
)
from holdfast.state.arrow.numpy_views import numbers
from holdfast.state.run_info import HASH_MAX
from holdfast.state.run_view import windows
from holdfast.state.schema import TraceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from holdfast.state.run_view import RunView
    from holdfast.state.schema import TraceSchema

WINDOW_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """How rows are combined.

    bottom: nothing older than these views exists. time_bound_us: rows before it are dropped
    where that is safe. For the difference of two bags, `signs` is a factor for the weights and
    `bounds` a time bound for each view.
    """

    bottom: bool
    time_bound_us: int | None = None
    signs: tuple[int, ...] | None = None
    bounds: tuple[int | None, ...] | None = None
    window_bytes: int = WINDOW_BYTES


def combined(
    views: Sequence[RunView],
    schema: TraceSchema,
    how: Combine,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[pa.RecordBatch]:
    """Stored rows, each key or row once, in hash order. Views are given oldest first."""
    if not views:
        return
    low, high = min(view.low for view in views), max(view.high for view in views)
    for first, last in windows(views, low, high, _window_rows(views, how.window_bytes)):
        if stopped():
            return
        pieces, single = _window(views, schema, how, first, last)
        if not single:
            pieces = [resolve(join_batches(pieces, schema.stored), schema)]
        for piece in pieces:  # of a single view: nothing to combine, so nothing is copied
            rows = _drop(piece, schema, how)
            if rows.num_rows:
                yield rows


def _window_rows(views: Sequence[RunView], window_bytes: int) -> int:
    size = sum(view.run.info.size for view in views)
    rows = sum(view.run.rows for view in views)
    return max(1, window_bytes * rows // max(1, size))


def _window(
    views: Sequence[RunView], schema: TraceSchema, how: Combine, first: int, last: int
) -> tuple[list[Any], bool]:
    """The rows of one hash range, oldest first, and whether all come from one view."""
    pieces: list[Any] = []
    sources = 0
    for number, view in enumerate(views):
        start, stop = view.row_range(first, min(last, HASH_MAX))
        if start >= stop:
            continue
        sources += 1
        pieces += [_as_side(piece, schema, how, number) for piece in view.batches(start, stop)]
    return [piece.replace_schema_metadata(None) for piece in pieces], sources <= 1


def _as_side(
    piece: pa.RecordBatch, schema: TraceSchema, how: Combine, number: int
) -> pa.RecordBatch:
    """Rows of one view of a difference: with its sign, without what is behind its bound."""
    if how.bounds is not None:
        behind = schema.behind(piece, how.bounds[number])
        if behind is not None and behind.any():
            piece = take(piece, np.flatnonzero(~behind))
    if how.signs is not None and how.signs[number] != 1:
        weights = piece.column(1).to_numpy() * np.int64(how.signs[number])
        piece = with_weights(piece, weights)
    return piece


def resolve(rows: pa.RecordBatch, schema: TraceSchema) -> pa.RecordBatch:
    """Stored rows, oldest first, as each key or row once, in hash order."""
    hashes = numbers(rows.column(0))
    groups = group_rows(hashes, [rows.column(i) for i in schema.identity_indices])
    if schema.kind is TraceKind.BAG:
        return combine_bag(rows, groups)
    return combine_latest(rows, groups)


def _drop(rows: pa.RecordBatch, schema: TraceSchema, how: Combine) -> pa.RecordBatch:
    """Leave out what nobody needs any more."""
    dropped: np.ndarray | None = None
    if schema.kind is TraceKind.LATEST:
        if how.bottom:
            dropped = rows.column(1).to_numpy(zero_copy_only=False)
        elif not schema.time_is_key:
            return rows
    behind = schema.behind(rows, how.time_bound_us)
    if behind is not None:
        dropped = behind if dropped is None else dropped | behind
    if dropped is None or not dropped.any():
        return rows
    return take(rows, np.flatnonzero(~dropped))
