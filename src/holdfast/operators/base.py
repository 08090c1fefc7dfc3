"""What an operator does inside a task: rows of an epoch in, changes and updates of state out.

Invariants:
- Work is plain data and importable code: it crosses to executors and knows nothing of Spark.
- The same rows and the same state give the same changes; nothing is kept between epochs but traces.
- Cost follows the number of rows and touched keys, never the size of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.state import TraceSchema
from holdfast.state.arrow.batches import Groups, group_rows
from holdfast.state.arrow.row_equality import normalise

HASH = "__hf_hash"
SIDE = "__hf_side"
WEIGHT = "__hf_weight"
DELETED = "__hf_deleted"
TIMES = "__hf_times"
"""How many rows of one weight the JVM or a pane has made one row of."""


@dataclass(frozen=True)
class EpochContext:
    """What a task must know about its epoch.

    watermark_us: no row with an older event time is expected any more; None: nothing is known.
    previous_watermark_us: the watermark of the epoch before: what became due until then is done.
    Traces are opened with its bounds, so that what becomes due now is still there.
    wanted: whether anybody takes the changes; where nobody does, an operator may just count them.
    """

    epoch: int
    watermark_us: int | None = None
    previous_watermark_us: int | None = None
    wanted: bool = True


@dataclass(frozen=True)
class Result:
    """What one partition of an epoch came to; the counter `changes` is for changes left out."""

    changes: Any
    updates: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    late: Any = None


class Work(Protocol):
    """One operator, ready to run. `WorkBase` has the answers of operators without time."""

    @property
    def timed(self) -> bool:
        """Whether it has something to do in every partition, also without rows."""
        ...

    @property
    def wakes(self) -> bool:
        """Whether a watermark that moves without rows is worth an epoch."""
        ...

    @property
    def late(self) -> Any:
        """Arrow schema of rows that came too late, or None."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the first trace holds every row of the output as it is now."""
        ...

    def bounds_us(self, watermark_us: int) -> Mapping[str, int]:
        """By trace: rows with an event time before this are forgotten at this watermark."""
        ...

    @property
    def traces(self) -> Mapping[str, TraceSchema]:
        """What it keeps, by trace name; the first one is the view."""
        ...

    @property
    def output(self) -> Any:
        """Arrow schema of the changes, with the weight where rows can be taken back."""
        ...

    @property
    def shown(self) -> list[str]:
        """Columns of the view, as far as the first trace has them."""
        ...

    def process(self, rows: Any, traces: Mapping[str, Any], context: EpochContext) -> Result:
        """Fold the rows of one partition in."""
        ...


class WorkBase:
    """What most operators answer about time: nothing to do, nothing late, nothing forgotten."""

    @property
    def timed(self) -> bool:
        """Only rows make it work."""
        return False

    @property
    def wakes(self) -> bool:
        """What goes by time does not wait for rows."""
        return self.timed

    @property
    def late(self) -> Any:
        """No row is too late."""
        return None

    @property
    def complete(self) -> bool:
        """The output cannot be got back from the state."""
        return False

    @property
    def output(self) -> Any:
        """Every operator says what it gives."""
        raise NotImplementedError

    @property
    def shown(self) -> list[str]:
        """The columns of the output."""
        names: list[str] = self.output.names
        return names

    def bounds_us(self, watermark_us: int) -> Mapping[str, int]:
        """Everything is kept."""
        del watermark_us
        return {}


def retyped(rows: Any, types: Mapping[str, Any]) -> Any:
    """The rows with these types: Spark says differently, from plan to plan, what may be null."""
    wrong = [n for n, kind in types.items() if rows.schema.field(n).type != kind]
    for name in wrong:
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, name, rows.column(index).cast(types[name]))
    return rows


def group_by_key(rows: Any, keys: list[str]) -> tuple[Groups, list[Any]]:
    """Rows of one batch by key, and the normalised key columns."""
    hashes = rows.column(HASH).to_numpy(zero_copy_only=False).view(np.uint64)
    columns = [normalise(rows.column(name)) for name in keys]
    return group_rows(hashes, columns), columns


def group_numbers(groups: Groups, count: int) -> np.ndarray:
    """The number of the group of each row."""
    sizes = groups.ends - groups.starts
    numbers = np.empty(count, np.int64)
    numbers[groups.order] = np.repeat(np.arange(len(groups.starts)), sizes)
    return numbers


def weights_of(rows: Any) -> np.ndarray:
    """How many rows each row stands for; one where the stream only adds."""
    units = units_of(rows)
    index = rows.schema.get_field_index(TIMES)
    if index < 0:
        return units
    weights: np.ndarray = units * rows.column(index).to_numpy(zero_copy_only=False)
    return weights


def units_of(rows: Any) -> np.ndarray:
    """The weight of each row, and of every row that it was made of."""
    index = rows.schema.get_field_index(WEIGHT)
    if index < 0:
        return np.ones(rows.num_rows, np.int64)
    column = rows.column(index)
    if column.null_count:
        raise InvalidInputError(
            "a row has no weight",
            kind="null_weight",
            cause="null_weight",
            rows=column.null_count,
            remedy="give every row a whole number: 1 adds it, -1 retracts it",
        )
    weights: np.ndarray = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return weights


def changes_batch(
    schema: Any, old: list[Any] | None, gone: np.ndarray, new: list[Any], born: np.ndarray
) -> Any:
    """Rows taken back (weight -1) and rows given (weight +1), as one batch."""
    keep = pa.array(np.flatnonzero(born))
    added = [column.take(keep) for column in new]
    if old is None or WEIGHT not in schema.names:
        columns = added
    else:
        drop = pa.array(np.flatnonzero(gone))
        removed = [column.take(drop) for column in old]
        columns = [
            pa.concat_arrays([_whole(a), _whole(b)]) for a, b in zip(removed, added, strict=True)
        ]
        weights = np.concatenate([np.full(len(drop), -1), np.ones(len(keep))]).astype(np.int64)
        columns.append(pa.array(weights))
    columns = [
        c.cast(f.type) if c.type != f.type else c for c, f in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays([_whole(c) for c in columns], schema=schema)


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
