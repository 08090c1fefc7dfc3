"""What an epoch adds to the live rows and keys of a trace, without a pass over the state.

Invariants:
- Only keys that the epoch writes, or that are forgotten now, are looked at.
- Live after the epoch means: alive, and not before the time bound that holds after it. What lay
  between the old bound and the new one is subtracted once.
- A row of a bag counts by its weight; a key counts while its weights sum to anything but zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.state.arrow.batches import ascends, group_rows, join_batches
from holdfast.state.arrow.numpy_views import numbers
from holdfast.state.arrow.row_equality import rows_equal
from holdfast.state.lookup import Probe, all_rows, newest_rows
from holdfast.state.schema import TraceKind
from holdfast.state.time_index import due_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.state.run_view import RunView
    from holdfast.state.schema import TraceSchema


class Change(NamedTuple):
    """How many live rows and keys came, or went where negative."""

    rows: int
    keys: int


class Asked(NamedTuple):
    """Keys that were looked up in this epoch, in ascending order of hash, and which were there."""

    hashes: np.ndarray
    columns: Sequence[Any]
    found: np.ndarray


def change_of(
    schema: TraceSchema,
    views: Sequence[RunView],
    written: Any,
    bounds_us: tuple[int | None, int | None],
    asked: Asked | None = None,
) -> Change:
    """What writing these combined rows means for a state of these runs.

    bounds_us: before which time rows are forgotten, before and after the epoch. asked: a lookup of
    the same epoch, which spares another one where it covers the written keys.
    """
    gone = _forgotten(schema, views, *bounds_us)
    if schema.kind is TraceKind.BAG:
        return _bag(schema, views, written, gone, bounds_us)
    before = _live_before(schema, views, written, bounds_us[1], asked)
    after = 0
    if written is not None:
        after = int((~numbers(written.column(1)) & _ahead(schema, written, bounds_us[1])).sum())
    change = after - before - (gone.num_rows if gone is not None else 0)
    return Change(change, change)


def _forgotten(
    schema: TraceSchema, views: Sequence[RunView], old_us: int | None, new_us: int | None
) -> Any:
    """Live rows between the bounds; None when there cannot be any."""
    if schema.time_column is None or new_us is None or not views:
        return None
    if old_us is not None and old_us >= new_us:
        return None
    keys = [schema.stored.field(i).name for i in (0, 1, *schema.key_indices)]
    names = keys if schema.kind is TraceKind.BAG else keys[:1]
    return due_rows(views, schema, old_us, new_us, names)


def _ahead(schema: TraceSchema, rows: pa.RecordBatch, bound_us: int | None) -> np.ndarray:
    behind = schema.behind(rows, bound_us)
    return np.ones(rows.num_rows, np.bool_) if behind is None else ~behind


def _live_before(
    schema: TraceSchema,
    views: Sequence[RunView],
    written: Any,
    bound_us: int | None,
    asked: Asked | None,
) -> int:
    """How many of the written keys were alive, as seen with the new bound."""
    if written is None or not views:
        return 0
    hashes = numbers(written.column(0))
    columns = [written.column(i) for i in schema.key_indices]
    if asked is not None and schema.time_column is None:
        known = _known(asked, hashes, columns)
        if known is not None:
            return known
    probe = Probe(hashes, columns)
    wanted = [1]
    if schema.time_column is not None:
        wanted.append(schema.stored.get_field_index(schema.time_column))
    hits = newest_rows(views, probe, wanted)
    return int((~numbers(hits.rows.column(0)) & _ahead(schema, hits.rows, bound_us)).sum())


def _known(asked: Asked, hashes: np.ndarray, columns: Sequence[Any]) -> int | None:
    """The same from what the operator has looked up anyway; None if that does not cover it."""
    if not len(asked.hashes) or not ascends(asked.hashes, strictly=True):
        return None
    if hashes is asked.hashes or np.array_equal(hashes, asked.hashes):
        places = np.arange(len(hashes))
        mine = list(asked.columns)
    else:
        places = np.searchsorted(asked.hashes, hashes)
        places[places == len(asked.hashes)] = 0
        if not np.array_equal(asked.hashes[places], hashes):
            return None
        picks = pa.array(places)
        mine = [column.take(picks) for column in asked.columns]
    if not rows_equal(mine, list(columns)).all():
        return None
    return int(asked.found[places].sum())


def _bag(
    schema: TraceSchema,
    views: Sequence[RunView],
    written: Any,
    gone: Any,
    bounds_us: tuple[int | None, int | None],
) -> Change:
    """By key, the sum of weights before and after."""
    names = [schema.stored.field(i).name for i in (0, *schema.key_indices)]
    touched = [rows.select(names) for rows in (written, gone) if rows is not None and rows.num_rows]
    if not touched:
        return Change(0, 0)
    keys = join_batches(
        [piece.replace_schema_metadata(None) for piece in touched], touched[0].schema
    )
    groups = group_rows(numbers(keys.column(0)), keys.columns[1:])
    first = pa.array(groups.first())
    probe = Probe(numbers(keys.column(0).take(first)), [c.take(first) for c in keys.columns[1:]])
    count = len(probe)
    before, after = np.zeros(count, np.int64), np.zeros(count, np.int64)
    if views:
        wanted = [1]
        if schema.time_column is not None:
            wanted.append(schema.stored.get_field_index(schema.time_column))
        hits = all_rows(views, probe, wanted)
        weights = numbers(hits.rows.column(0))
        for sums, bound in ((before, bounds_us[0]), (after, bounds_us[1])):
            np.add.at(sums, hits.positions, weights * _ahead(schema, hits.rows, bound))
    if written is not None and written.num_rows:
        weights = numbers(written.column(1)) * _ahead(schema, written, bounds_us[1])
        # The written rows come first in `keys`: their groups are numbered like all others.
        place = np.empty(len(keys), np.int64)
        place[groups.order] = np.repeat(np.arange(count), np.diff([*groups.starts, len(keys)]))
        np.add.at(after, np.argsort(probe.order)[place[: written.num_rows]], weights)
    return Change(int(after.sum() - before.sum()), int((after != 0).sum() - (before != 0).sum()))
