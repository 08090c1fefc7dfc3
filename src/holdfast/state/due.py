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

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.state.lookup import Probe, newest_rows
from holdfast.state.rows import (
    combine_bag,
    combine_latest,
    empty_batch,
    group_rows,
    join_batches,
    take,
)
from holdfast.state.schema import TraceKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.state.schema import TraceSchema
    from holdfast.state.view import RunView


def due_rows(
    views: Sequence[RunView], schema: TraceSchema, low_us: int | None, high_us: int
) -> Any:
    """Live stored rows with a time from `low_us` to before `high_us`, in hash order."""
    if low_us is not None and low_us >= high_us:
        return empty_batch(schema.stored)
    found = [rows for view in views for rows in _candidates(view, low_us, high_us)]
    if not found:
        return empty_batch(schema.stored)
    rows = join_batches([piece.replace_schema_metadata(None) for piece in found], schema.stored)
    hashes = rows.column(0).to_numpy()
    groups = group_rows(hashes, [rows.column(i) for i in schema.identity_indices])
    if schema.kind is TraceKind.BAG:
        # The time is a part of what makes a bag's row itself, so all its weights are here.
        return combine_bag(rows, groups)
    return _current(views, schema, combine_latest(rows, groups), low_us, high_us)


def _candidates(view: RunView, low_us: int | None, high_us: int) -> list[Any]:
    """Stored rows of one view with a time in the range, current or not, batch by batch."""
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
        take(run.batch(n), picked[cuts[n] : cuts[n + 1]] - run.batch_starts[n])
        for n in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist()
    ]


def _current(
    views: Sequence[RunView], schema: TraceSchema, rows: Any, low_us: int | None, high_us: int
) -> Any:
    """Of the keys of some rows, those whose newest version is alive and in the range."""
    hashes = rows.column(0).to_numpy()
    probe = Probe(hashes, [rows.column(i) for i in schema.key_indices])
    hits = newest_rows(views, probe, range(len(schema.stored)))
    order = np.argsort(hits.positions, kind="stable")
    newest = take(hits.rows, order)
    times = schema.times_us(newest)
    given = times.is_valid().to_numpy(zero_copy_only=False)
    micros = times.fill_null(0).to_numpy(zero_copy_only=False)
    live = given & (micros < high_us) & ~newest.column(1).to_numpy(zero_copy_only=False)
    if low_us is not None:
        live &= micros >= low_us
    return newest if live.all() else newest.filter(pa.array(live))
