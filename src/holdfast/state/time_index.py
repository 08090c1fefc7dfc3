"""What has become due: live rows by event time, without looking at the rest of the state.

Every open run has an index by time (`RunFile.time_index`), made once in a worker process when it
is first asked for. Runs whose times lie outside of the question are not touched at all.

Invariants:
- The cost follows the rows that are due, and the runs that were not asked before.
- Of a latest trace only the newest version of a key counts: a newer one with another time, or a
  tombstone, hides it. Of a bag the weights are summed over all runs, and zero is not there.
- A row without a time is never due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.state.arrow.batches import (
    combine_bag,
    combine_latest,
    empty_batch,
    group_rows,
    join_batches,
    take,
)
from holdfast.state.arrow.numpy_views import numbers
from holdfast.state.lookup import Probe, newest_rows
from holdfast.state.schema import TraceKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.state.run_view import RunView
    from holdfast.state.schema import TraceSchema


def due_rows(
    views: Sequence[RunView],
    schema: TraceSchema,
    low_us: int | None,
    high_us: int,
    names: Sequence[str],
) -> pa.RecordBatch:
    """These stored columns of live rows with a time from `low_us` to before `high_us`.

    In hash order. Of a latest trace only the keys of candidates are read, and of the rows that
    are due only the columns that are asked for.
    """
    bag = schema.kind is TraceKind.BAG
    read = schema.stored
    if not bag:
        read = pa.schema([read.field(i) for i in (0, *schema.key_indices)])
    batches: list[pa.RecordBatch] = []
    if low_us is None or low_us < high_us:
        batches = [
            rows for view in views for rows in _candidates(view, low_us, high_us, read.names)
        ]
    if not batches:
        return empty_batch(schema.stored).select(list(names))
    rows = join_batches([piece.replace_schema_metadata(None) for piece in batches], read)
    hashes = numbers(rows.column(0))
    columns = [rows.column(schema.stored.field(i).name) for i in schema.identity_indices]
    groups = group_rows(hashes, columns)
    if bag:
        # The time is a part of what makes a bag's row itself, so all its weights are here.
        return combine_bag(rows, groups).select(list(names))
    return _current(views, schema, combine_latest(rows, groups), low_us, high_us, names)


def _candidates(
    view: RunView, low_us: int | None, high_us: int, names: Sequence[str]
) -> list[pa.RecordBatch]:
    """Stored columns of rows of one view with a time in the range, current or not, by batch."""
    run, info = view.run, view.run.info
    if info.time_min_us is not None and info.time_min_us >= high_us:
        return []
    if low_us is not None and info.time_max_us is not None and info.time_max_us < low_us:
        return []
    times, rows = run.time_index()
    first = 0 if low_us is None else int(np.searchsorted(times, low_us, side="left"))
    picked = rows[first : int(np.searchsorted(times, high_us, side="left"))]
    start, stop = view.row_range(view.low, view.high)
    picked = np.sort(picked[(picked >= start) & (picked < stop)])
    cuts = np.searchsorted(picked, run.batch_starts)
    return [
        take(run.batch(n).select(names), picked[cuts[n] : cuts[n + 1]] - run.batch_starts[n])
        for n in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist()
    ]


def _current(
    views: Sequence[RunView],
    schema: TraceSchema,
    keys: pa.RecordBatch,
    low_us: int | None,
    high_us: int,
    names: Sequence[str],
) -> pa.RecordBatch:
    """Of some keys, given with their hashes, those whose newest version is alive and in range."""
    probe = Probe(numbers(keys.column(0)), keys.columns[1:])
    needed = {schema.marker, schema.time_column, *names}
    columns = [i for i, name in enumerate(schema.stored.names) if name in needed]
    hits = newest_rows(views, probe, columns)
    newest = take(hits.rows, np.argsort(hits.positions, kind="stable"))
    times = schema.times_us(newest)
    valid_rows = times.is_valid().to_numpy(zero_copy_only=False)
    micros = numbers(times.fill_null(0))
    live = valid_rows & (micros < high_us) & ~numbers(newest.column(schema.marker))
    if low_us is not None:
        live &= micros >= low_us
    newest = newest.select(list(names))
    return newest if live.all() else newest.filter(pa.array(live))
