"""The contracts of an operator after its declaration, and what all of them need in tasks.

`Analyzed` stands between Spark and the task; `OperatorTask` is what runs: rows of an epoch in,
changes and updates of state out. The declaration is in `holdfast.operators.declaration`.

Invariants:
- A task is plain data and importable code: it crosses to executors and knows nothing of Spark.
- The same rows and the same state give the same changes; nothing is kept between epochs but traces.
- Cost follows the number of rows and touched keys, never the size of the state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidInputError
from holdfast.operators.columns import HASH, TIMES, WEIGHT
from holdfast.operators.declaration import Declaration
from holdfast.state import TraceSchema
from holdfast.state.arrow.batches import Groups, group_rows
from holdfast.state.arrow.row_equality import normalise

if TYPE_CHECKING:
    from holdfast.spark.annotations import DataFrame

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
"""Rows of either kind: what comes back is of the kind that went in."""


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
class TaskResult:
    """What one partition of an epoch came to; the counter `changes` is for changes left out.

    more: changes beyond `changes`, where there are too many for one batch; made when asked for.
    """

    changes: pa.RecordBatch | None
    updates: Mapping[str, pa.RecordBatch | pa.Table] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    late: pa.RecordBatch | None = None
    more: Iterator[pa.RecordBatch] = field(default_factory=lambda: iter(()))


class OperatorTask(ABC):
    """One operator, ready to run in tasks: the third of the three contracts of an operator.

    What most operators answer about time stands here: nothing to do without rows, nothing is late,
    nothing is forgotten.
    """

    @property
    @abstractmethod
    def traces(self) -> Mapping[str, TraceSchema]:
        """What it keeps, by trace name; the one of the operator's own name is the view."""

    @property
    @abstractmethod
    def output(self) -> pa.Schema:
        """Arrow schema of the changes, with the weight where rows can be retracted."""

    @abstractmethod
    def process(
        self, rows: pa.RecordBatch, traces: Mapping[str, Any], context: EpochContext
    ) -> TaskResult:
        """Fold the rows of one partition in.

        Args:
            rows: one Arrow batch of what `Analyzed.project` gives.
            traces: the opened traces of the partition, by name.
            context: what is known about the epoch.
        """

    def visible(self, rows: Rows) -> Rows:
        """Of stored rows of the view, those that show, each as often as it is there.

        A bag holds how often in its weight. One row for each key shows as it is.
        """
        return repeated(rows, WEIGHT) if WEIGHT in rows.schema.names else rows

    @property
    def shown(self) -> list[str]:
        """Columns of the view, as far as its trace has them: those of the output."""
        names: list[str] = self.output.names
        return names

    @property
    def complete(self) -> bool:
        """Whether the view holds every row of the output as it is now."""
        return False

    @property
    def replayable(self) -> bool:
        """Whether it gives the same rows again when its past comes again, however it is cut.

        Not what goes by event time (which rows were late depends on when they came), and not a
        user function.
        """
        return False

    @property
    def timed(self) -> bool:
        """Whether it has something to do in every partition, also without rows."""
        return False

    @property
    def wakes(self) -> bool:
        """Whether a watermark that moves without rows is worth an epoch."""
        return self.timed

    @property
    def late(self) -> pa.Schema | None:
        """Arrow schema of rows that came too late, or None."""
        return None

    @property
    def whole_keys(self) -> bool:
        """Whether all rows that a key has in an epoch must come in one call of `process`.

        Otherwise a key with very many rows comes in parts, as if they were several epochs of one
        watermark, rows that add before rows that retract.
        """
        return False

    @property
    def growth(self) -> int:
        """How many times the bytes of its rows `process` makes of them at once."""
        return 1

    def bounds_us(self, watermark_us: int) -> Mapping[str, int]:
        """By trace: rows with an event time before this are forgotten at this watermark."""
        del watermark_us
        return {}


@dataclass(frozen=True)
class Analyzed(ABC):
    """An operator with its types known: the second of the three contracts of an operator."""

    declaration: Declaration
    task: OperatorTask

    @abstractmethod
    def project(self, frames: Sequence[DataFrame]) -> DataFrame:
        """One DataFrame of the inputs: the hash first, then what `OperatorTask.process` reads.

        Two inputs become one union with a column that says which side a row is of.
        """

    def partial_aggregate(self, frame: DataFrame) -> DataFrame | None:
        """The projected rows of one key added up in the JVM, or None where that is not possible.

        It pays when keys are few.
        """
        del frame
        return None


def repeated(rows: Rows, counts: str) -> Rows:
    """Every row as often as a column says; those with less than one do not show."""
    column = rows.column(rows.schema.get_field_index(counts))
    times = np.maximum(column.to_numpy(zero_copy_only=False), 0)
    return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), times)))


def positive(rows: Rows, counts: str) -> Rows:
    """The rows for which a column is more than zero."""
    return rows.filter(pc.greater(rows.column(counts), 0))


def retyped(rows: pa.RecordBatch, types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """The rows with these types: Spark says differently, from plan to plan, what may be null."""
    wrong = [n for n, kind in types.items() if rows.schema.field(n).type != kind]
    for name in wrong:
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, name, rows.column(index).cast(types[name]))
    return rows


def group_by_key(rows: pa.RecordBatch, keys: list[str]) -> tuple[Groups, list[Any]]:
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


def weights_of(rows: pa.RecordBatch) -> np.ndarray:
    """How many rows each row stands for; one where the stream only adds."""
    units = units_of(rows)
    index = rows.schema.get_field_index(TIMES)
    if index < 0:
        return units
    weights: np.ndarray = units * rows.column(index).to_numpy(zero_copy_only=False)
    return weights


def units_of(rows: pa.RecordBatch) -> np.ndarray:
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
    schema: pa.Schema, old: list[Any] | None, gone: np.ndarray, new: list[Any], born: np.ndarray
) -> pa.RecordBatch:
    """Rows retracted (weight -1) and rows given (weight +1), as one batch."""
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
