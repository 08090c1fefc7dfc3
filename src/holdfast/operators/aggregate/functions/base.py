"""Folds: how each aggregate takes a batch in, for all touched groups at once.

A fold keeps its result column under the user's name and helpers under `_<name>_...`, so that the
stored trace is the materialised view. `inputs` are columns that the JVM has computed. A fold that
needs more than that keeps traces of its own; nobody else reads or writes them.

Invariants:
- Rows with negative weights undo exactly what rows with positive weights did.
- A group whose count of values is zero shows null.
- A sum that its type cannot hold is an error, as in Spark's ANSI mode, never a wrapped number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidInputError
from holdfast.state import TraceSchema
from holdfast.state.arrow.batches import Groups

SAFE = 2.0**62
Combination = Literal["sum", "min", "max"]


@dataclass(frozen=True)
class Batch:
    """The rows of one partition of an epoch, grouped.

    weights: how many rows each row stands for. units: by how much values that were summed before
    are to be multiplied; None: by the weights.
    """

    rows: pa.RecordBatch
    groups: Groups
    numbers: np.ndarray
    weights: np.ndarray
    changes: bool
    units: np.ndarray | None = None

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.groups.starts)

    def sum_numbers(self, values: np.ndarray) -> np.ndarray:
        """Sum by group."""
        ranked: np.ndarray = values[self.groups.order]
        if len(ranked) == self.count:  # no two rows of one group
            return ranked
        with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, as in SQL
            return np.add.reduceat(ranked, self.groups.starts)

    def numpy(self, name: str, fill: float = 0) -> np.ndarray:
        """A numeric input as numpy, nulls filled."""
        column = self.rows.column(name)
        if column.null_count:
            column = pc.fill_null(column, pa.scalar(fill, column.type))
        array: np.ndarray = column.to_numpy(zero_copy_only=False)
        return array

    def added(self, values: np.ndarray, before: np.ndarray, column: str) -> np.ndarray:
        """Old counts and those of this batch; more than 64 bits can hold is an error."""
        sums = self.sum_numbers(values)
        with np.errstate(over="ignore"):
            total: np.ndarray = before + sums
        if largest_sum(values) + largest_sum(before, 1) >= SAFE:
            # A wrapped sum is wrong by 2**64, far more than a sum of doubles can be.
            rough = before.astype(np.float64) + self.sum_numbers(values.astype(np.float64))
            if (np.abs(total.astype(np.float64) - rough) > SAFE).any():
                raise overflow(column, pa.int64(), "the weights of a group sum to more than a long")
        return total

    def by_group(self, column: Any, how: str, keep: Any = None) -> Any:
        """A pyarrow group aggregate, one value a group, null where a group has none."""
        table = pa.table({"g": self.numbers, "x": column})
        if keep is not None:
            table = table.filter(keep)
        done = table.group_by("g", use_threads=False).aggregate([("x", cast("Any", how))])
        index = np.full(self.count, -1)
        index[done.column("g").to_numpy()] = np.arange(done.num_rows)
        picks = pa.array(index, mask=index < 0)
        return done.column(f"x_{how}").combine_chunks().take(picks)


@dataclass(frozen=True)
class GroupState:
    """A batch, and what is known about its groups: what the folds of one operator work on.

    keys: names of the key columns. probe: hash and keys of each group. old: stored columns by name.
    found: which groups were there. updates: by trace, what the folds write; each trace once.
    shared: what folds have read together.
    """

    batch: Batch
    keys: list[str]
    probe: pa.RecordBatch
    old: dict[str, Any]
    found: np.ndarray
    traces: Mapping[str, Any]
    folds: tuple[Fold, ...]
    updates: dict[str, pa.RecordBatch] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fold(ABC):
    """One aggregate of an operator."""

    name: str
    type: pa.DataType
    inputs: tuple[str, ...] = ()

    @property
    def helpers(self) -> list[pa.Field[Any]]:
        """Arrow fields that it keeps next to its result."""
        return []

    def traces(self, keys: pa.Schema) -> Mapping[str, TraceSchema]:
        """Traces of its own, for groups with these keys."""
        del keys
        return {}

    @property
    def hashes(self) -> tuple[str, ...]:
        """Inputs that are hashes and place rows in one of its traces."""
        return ()

    @property
    def combination(self) -> Combination | None:
        """How inputs of several rows become one row that says the same; None: by no way."""
        return None

    def update(self, state: GroupState) -> dict[str, Any]:
        """Result and helpers after this batch; what its traces get goes into `state.updates`."""
        return self.fold(state.batch, state.old, state.found)

    @abstractmethod
    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Result and helpers after this batch, one value a group, without traces."""

    def _old(self, old: dict[str, Any], name: str, found: np.ndarray) -> np.ndarray:
        """A number that was kept before; zero for new groups."""
        column = old[name]
        if column.null_count:
            column = pc.fill_null(column, pa.scalar(0, column.type))
        array: np.ndarray = column.to_numpy(zero_copy_only=False)
        return np.where(found, array, array.dtype.type(0))


def overflow(column: str, kind: Any, reason: str) -> InvalidInputError:
    """A sum that its type cannot hold."""
    return InvalidInputError(
        "a sum is too large for its type",
        kind="sum_overflow",
        cause="sum_overflow",
        column=column,
        type=str(kind),
        reason=reason[:120],
        remedy="sum a wider type: cast to decimal(38, s); if later rows bring the sum back, let "
        "one epoch read them together",
    )


def largest_sum(values: np.ndarray, count: int | None = None) -> float:
    """No sum of so many of these integers, all of them unless told, is further from zero."""
    if not len(values):
        return 0.0
    reach = max(abs(float(values.min())), abs(float(values.max())))
    return reach * (len(values) if count is None else count)
