"""Rows added up before they go into windows: a sliding window takes each row once, not ten times.

A pane is the time between two neighbouring bounds of windows. All rows of a pane are in the same
windows, so the rows of one key and pane can become one row before it is copied into each of them.

Rows with other weights stay apart, so that values are summed as they are.

Invariants:
- A fold sees the same sums, counts and extremes as from the single rows; where it must see single
  values (distinct counts, extremes under retraction, spreads) nothing is added up.
- A sum of integers that leaves 64 bits is never added up here: the fold itself must see and refuse
  it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.operators.aggregate.functions.base import SAFE, Batch, Fold, largest_sum
from holdfast.operators.aggregate.functions.min_max import best
from holdfast.operators.base import group_numbers, units_of, weights_of
from holdfast.operators.columns import HASH, TIMES, WEIGHT
from holdfast.state.arrow.batches import group_rows
from holdfast.state.arrow.row_equality import normalise


def can_add_up(folds: Sequence[Fold]) -> bool:
    """Whether all of these folds go by sums and extremes of inputs that nobody reads otherwise."""
    ways = [fold.combination for fold in folds]
    sums = {n for fold, way in zip(folds, ways, strict=True) if way == "sum" for n in fold.inputs}
    extremes = [
        n for fold, way in zip(folds, ways, strict=True) if way != "sum" for n in fold.inputs
    ]
    alone = len({*extremes}) == len(extremes) and not sums & {*extremes}
    return alone and None not in ways


def added_up(
    rows: pa.RecordBatch, pane_us: np.ndarray, at: str, keys: list[str], folds: Sequence[Fold]
) -> Any:
    """One row for each key and pane, with the beginning of the pane as its time in column `at`.

    The rows as they are, where a sum would not fit.
    """
    if not rows.num_rows:
        return rows
    hashes = rows.column(HASH).to_numpy(zero_copy_only=False).view(np.uint64)
    columns = [normalise(rows.column(name)) for name in keys]
    units = pa.array(units_of(rows))
    groups = group_rows(hashes, [pa.array(pane_us), units, *columns])
    numbers = group_numbers(groups, rows.num_rows)
    batch = Batch(rows, groups, numbers, weights_of(rows), changes=False)
    first = groups.first()
    picks = pa.array(first)
    done: dict[str, Any] = {HASH: rows.column(HASH).take(picks), at: pa.array(pane_us[first])}
    done |= {name: column.take(picks) for name, column in zip(keys, columns, strict=True)}
    done[WEIGHT] = units.take(picks)
    done[TIMES] = pa.array(groups.ends - groups.starts)
    for fold in folds:
        for name in fold.inputs:
            if fold.combination != "sum":
                largest = fold.combination == "max"
                done[name] = best(batch, rows.column(name), largest=largest)
                continue
            values = batch.numpy(name)
            if values.dtype.kind == "i" and _too_large(batch, values):
                return rows
            done[name] = pa.array(batch.sum_numbers(values)).cast(rows.column(name).type)
    return pa.RecordBatch.from_arrays([_flat(c) for c in done.values()], names=list(done))


def _too_large(batch: Batch, values: np.ndarray) -> bool:
    if largest_sum(values) < SAFE:
        return False
    rough = batch.sum_numbers(np.abs(values.astype(np.float64)))
    return bool((rough > SAFE).any())


def _flat(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
