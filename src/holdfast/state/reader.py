"""Reading a whole trace at a checkpoint, and the difference between two.

Invariants:
- A read sees exactly the runs of the list that it was given: it is a snapshot, however many
  epochs pass meanwhile.
- `batches` and `diff` work in bounded memory; `table` holds the result.
- A difference is a bag of changes: what is only in the older state has weight -1 (or its
  negative weight), what is only in the newer one +1. Adding it to the older state gives the newer.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.errors import IncompatibleError
from holdfast.state.arrow.row_equality import rows_equal
from holdfast.state.merge_iterator import WINDOW_BYTES, Combine, combined
from holdfast.state.partition import RunSlice, run_slices
from holdfast.state.run_info import ALL_VNODES, RunInfo, VnodeRange
from holdfast.state.scan import WINDOW_ROWS, TraceScan
from holdfast.state.schema import HASH, WEIGHT, TraceKind
from holdfast.state.trace import views_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.state.run_reader import RunSource
    from holdfast.state.schema import TraceSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReader:
    """A trace as a checkpoint lists it; rows before `time_bound_us` count as absent."""

    runs: tuple[RunInfo, ...]
    source: RunSource
    schema: TraceSchema
    time_bound_us: int | None = None
    window_bytes: int = WINDOW_BYTES

    def batches(
        self, vnodes: VnodeRange = ALL_VNODES, *, hashes: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Key and value columns (and the weights of a bag) as record batches, in hash order."""
        views = views_of(run_slices(self.runs, vnodes), self.source, self.schema, keep=False)
        how = Combine(bottom=True, time_bound_us=self.time_bound_us, window_bytes=self.window_bytes)
        names = self.columns(hashes=hashes)
        for rows in combined(views, self.schema, how):
            yield rows.select(names)

    def columns(self, *, hashes: bool = False) -> list[str]:
        """Names of the columns of `batches`."""
        stored = self.schema.stored
        head = [HASH] if hashes else []
        head += [WEIGHT] if self.schema.kind is TraceKind.BAG else []
        return [*head, *stored.names[2:]]

    def scan(self, vnodes: VnodeRange = ALL_VNODES, *, window_rows: int = WINDOW_ROWS) -> TraceScan:
        """The same rows in no order, read in several threads: for queries."""
        views = views_of(run_slices(self.runs, vnodes), self.source, self.schema, keep=False)
        bound = self.time_bound_us
        return TraceScan(views, self.schema, time_bound_us=bound, window_rows=window_rows)

    def table(self, vnodes: VnodeRange = ALL_VNODES, *, hashes: bool = False) -> pa.Table:
        """The same as one Arrow table."""
        stored = self.schema.stored
        schema = pa.schema([stored.field(name) for name in self.columns(hashes=hashes)])
        return pa.Table.from_batches(list(self.batches(vnodes, hashes=hashes)), schema=schema)


def diff(before: TraceReader, after: TraceReader) -> Iterator[pa.RecordBatch]:
    """What changed, as record batches of a weight, keys and values.

    Runs that both lists share are not read as a whole, so the cost follows the change.
    """
    if before.schema != after.schema:
        raise _schemas_differ(before.schema, after.schema)
    older, newer = _unshared(before, after)
    if before.schema.kind is TraceKind.BAG:
        return _diff_bags(before, after, older, newer)
    return _diff_latest(before, after, older, newer)


def _schemas_differ(before: TraceSchema, after: TraceSchema) -> IncompatibleError:
    return IncompatibleError(
        "the two checkpoints keep different schemas",
        kind="trace_schemas_differ",
        before=f"{before.kind}({', '.join(before.stored.names[2:])})",
        after=f"{after.kind}({', '.join(after.stored.names[2:])})",
    )


def _unshared(before: TraceReader, after: TraceReader) -> tuple[list[RunSlice], list[RunSlice]]:
    """The run slices that only one side reads."""
    left, right = run_slices(before.runs), run_slices(after.runs)
    if before.time_bound_us != after.time_bound_us:
        return left, right
    cuts = sorted({cut for s in [*left, *right] for cut in (s.vnodes.low, s.vnodes.high)})
    left, right = _cut(left, cuts), _cut(right, cuts)
    keys_left = {(s.run.path, s.vnodes) for s in left}
    keys_right = {(s.run.path, s.vnodes) for s in right}
    return (
        [s for s in left if (s.run.path, s.vnodes) not in keys_right],
        [s for s in right if (s.run.path, s.vnodes) not in keys_left],
    )


def _cut(slices: list[RunSlice], cuts: list[int]) -> list[RunSlice]:
    pieces = []
    for run_slice in slices:
        low, high = run_slice.vnodes.low, run_slice.vnodes.high
        inner = [low, *(cut for cut in cuts if low < cut < high), high]
        for a, b in itertools.pairwise(inner):
            pieces.append(RunSlice(run_slice.run, VnodeRange(a, b)))
    return pieces


def _diff_bags(
    before: TraceReader, after: TraceReader, older: list[RunSlice], newer: list[RunSlice]
) -> Iterator[pa.RecordBatch]:
    """Rows of the older side count negative, and what both sides have cancels."""
    schema = before.schema
    left = views_of(older, before.source, schema, keep=False)
    right = views_of(newer, after.source, schema, keep=False)
    how = Combine(
        bottom=True,
        signs=(-1,) * len(left) + (1,) * len(right),
        bounds=(before.time_bound_us,) * len(left) + (after.time_bound_us,) * len(right),
        window_bytes=before.window_bytes,
    )
    for rows in combined([*left, *right], schema, how):
        yield rows.select(list(range(1, rows.num_columns)))


def _diff_latest(
    before: TraceReader, after: TraceReader, older: list[RunSlice], newer: list[RunSlice]
) -> Iterator[pa.RecordBatch]:
    """Only keys in unshared runs can differ: look those up on both sides and compare."""
    from holdfast.state.latest import LatestPartition  # lookups are not needed to read

    schema = before.schema
    views = views_of(older, before.source, schema, keep=False)
    views += views_of(newer, after.source, schema, keep=False)
    how = Combine(bottom=False, window_bytes=before.window_bytes)
    sides = [
        LatestPartition.open(side.runs, side.source, schema, time_bound_us=side.time_bound_us)
        for side in (before, after)
    ]
    fields = [pa.field(WEIGHT, pa.int64(), nullable=False), *schema.keys, *schema.values]
    for rows in combined(views, schema, how):
        old, new = (side.lookup(rows) for side in sides)
        changed = old.found != new.found
        both = old.found & new.found
        if both.any():
            changed |= both & ~_same_values(old.values, new.values, rows.num_rows)
        for answer, weight in ((old, -1), (new, 1)):
            index = pa.array(np.flatnonzero(answer.found & changed))
            if not len(index):
                continue
            columns = [rows.column(i).take(index) for i in schema.key_indices]
            columns += [column.take(index) for column in answer.values.columns]
            weights = pa.array(np.full(len(index), weight, np.int64))
            yield pa.RecordBatch.from_arrays([weights, *columns], schema=pa.schema(fields))


def _same_values(left: Any, right: Any, count: int) -> np.ndarray:
    if not left.num_columns:
        return np.ones(count, np.bool_)
    return rows_equal(left.columns, right.columns)
