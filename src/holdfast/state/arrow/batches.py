"""Batches of rows: put together, ordered by hash, grouped by identity.

Invariants:
- `group_rows` is stable: rows of one group keep the order in which they came, so that the last
  one is the newest.
- Rows with equal hashes and different identities end in different groups: hashes only order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.state.arrow.numpy_views import indices, numbers
from holdfast.state.arrow.row_equality import row_codes, rows_equal

if TYPE_CHECKING:
    from collections.abc import Sequence


def one_batch(rows: pa.Table | pa.RecordBatch) -> pa.RecordBatch:
    """A record batch from a batch or a table, joining chunks."""
    if isinstance(rows, pa.RecordBatch):
        return rows
    if not isinstance(rows, pa.Table):
        raise InvalidInputError(
            "rows must be an Arrow table or record batch",
            kind="not_arrow",
            type=type(rows).__name__,
        )
    batches = rows.combine_chunks().to_batches()
    if not batches:
        return empty_batch(rows.schema)
    if len(batches) > 1:
        raise InvalidInputError(
            "one batch of rows cannot hold more than 2 GiB in a column",
            kind="batch_too_large",
            rows=rows.num_rows,
            bytes=rows.nbytes,
            remedy="use large_string and large_binary columns, or smaller epochs",
        )
    return batches[0]


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def join_batches(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Batches one after the other as one."""
    if len(batches) == 1:
        return batches[0]
    return one_batch(pa.Table.from_batches(batches, schema=schema))


def take(batch: pa.RecordBatch, index: np.ndarray) -> pa.RecordBatch:
    """Rows by position."""
    return batch.take(indices(index))


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in groups: `order` are row numbers, group i is order[starts[i] : ends[i]]."""

    order: np.ndarray
    starts: np.ndarray

    @property
    def ends(self) -> np.ndarray:
        """Where each group ends."""
        return np.append(self.starts[1:], len(self.order))[: len(self.starts)]

    def first(self) -> np.ndarray:
        """The oldest row of each group."""
        rows: np.ndarray = self.order[self.starts]
        return rows

    def last(self) -> np.ndarray:
        """The newest row of each group."""
        rows: np.ndarray = self.order[self.ends - 1]
        return rows

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """Sum of the weights of each group."""
        if not len(self.order):
            return np.zeros(0, np.int64)
        return np.add.reduceat(weights[self.order], self.starts)


def ascends(hashes: np.ndarray, *, strictly: bool = False) -> bool:
    """Whether hashes are in order already, and with `strictly` also without repeats."""
    later, earlier = hashes[1:], hashes[:-1]
    return bool((later > earlier).all() if strictly else (later >= earlier).all())


def hash_order(hashes: np.ndarray) -> np.ndarray:
    """The stable order by hash.

    Row numbers take the place of the lowest bits, and one plain sort (which is vectorised, unlike
    argsort) does the work. Only if hashes differ in nothing but those bits can that be wrong,
    which one pass finds out.
    """
    bits = np.uint64(max(1, len(hashes)).bit_length())
    mask = (np.uint64(1) << bits) - np.uint64(1)
    packed = (hashes & ~mask) | np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    order = (packed & mask).astype(np.int64)
    ranked = hashes[order]
    if (ranked[1:] < ranked[:-1]).any():
        return np.argsort(hashes, kind="stable")
    return order


def number_order(numbers: np.ndarray) -> np.ndarray:
    """The stable order of numbers that are not negative, by the same packing where it fits."""
    bits = max(1, len(numbers)).bit_length()
    if not len(numbers) or int(numbers.max()) >> (64 - bits):
        return np.argsort(numbers, kind="stable")
    shift = np.uint64(bits)
    packed = (numbers.astype(np.uint64) << shift) | np.arange(len(numbers), dtype=np.uint64)
    packed.sort()
    return (packed & ((np.uint64(1) << shift) - np.uint64(1))).astype(np.int64)


def group_rows(hashes: np.ndarray, columns: Sequence[Any]) -> Groups:
    """Rows ordered by hash and grouped by equal hash and equal columns."""
    order = hash_order(hashes) if hashes.dtype == np.uint64 else number_order(hashes)
    ranked = hashes[order]
    tied = ranked[1:] == ranked[:-1]
    if not tied.any():
        return Groups(order, np.arange(len(order)))
    later = np.flatnonzero(tied) + 1
    same = np.zeros(len(order), np.bool_)
    same[later] = _pairs_equal(columns, order[later - 1], order[later])
    mixed = np.zeros(len(order), np.bool_)
    mixed[later] = ~same[later]
    if mixed.any():
        _split_mixed(order, ranked, same, mixed, columns)
    return Groups(order, np.flatnonzero(~same))


def _pairs_equal(columns: Sequence[Any], left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if not columns:
        return np.ones(len(left), np.bool_)
    a, b = indices(left), indices(right)
    return rows_equal([c.take(a) for c in columns], [c.take(b) for c in columns])


def _split_mixed(
    order: np.ndarray,
    ranked: np.ndarray,
    same: np.ndarray,
    mixed: np.ndarray,
    columns: Sequence[Any],
) -> None:
    """Reorder, in place, the hash groups that hold more than one identity."""
    head = np.ones(len(order), np.bool_)
    head[1:] = ranked[1:] != ranked[:-1]
    group = np.cumsum(head) - 1
    hit = np.zeros(int(group[-1]) + 1, np.bool_)
    hit[group[mixed]] = True
    places = np.flatnonzero(hit[group])
    rows = order[places]
    index = indices(rows)
    codes = row_codes([c.take(index) for c in columns])
    local = _pair_order(group[places], codes)
    order[places] = rows[local]
    codes = codes[local]
    equal = np.zeros(len(places), np.bool_)
    equal[1:] = (codes[1:] == codes[:-1]) & (group[places][1:] == group[places][:-1])
    same[places] = equal


def _pair_order(major: np.ndarray, minor: np.ndarray) -> np.ndarray:
    """The stable order by two numbers, neither negative."""
    count = int(minor.max()) + 1
    if (int(major.max()) + 1) * count >> 63:
        return np.lexsort((minor, major))
    return number_order(major * count + minor)


def combine_latest(rows: pa.RecordBatch, groups: Groups) -> pa.RecordBatch:
    """The newest row of each key, in hash order."""
    return take(rows, groups.last())


def combine_bag(rows: pa.RecordBatch, groups: Groups) -> pa.RecordBatch:
    """Each row once with the sum of its weights, in hash order, without zeros."""
    sums = groups.sums(numbers(rows.column(1)))
    nonzero = np.flatnonzero(sums)
    combined = take(rows, groups.first()[nonzero])
    return with_weights(combined, sums[nonzero])


def with_weights(rows: pa.RecordBatch, weights: np.ndarray) -> pa.RecordBatch:
    """The same stored rows with other weights."""
    columns = rows.columns
    columns[1] = indices(weights)
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
