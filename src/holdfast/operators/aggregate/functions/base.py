"""Folds: how each aggregate takes a batch in, for all touched groups at once.

A fold keeps its result column under the user's name and helpers under `_<name>_...`, so that the
stored trace is the materialised view. `inputs` are columns that the JVM has computed.

Invariants:
- Rows with negative weights undo exactly what rows with positive weights did. Integers and decimals
  are multiplied by weights and added without bound, and only what comes out must fit its type;
  doubles that can be retracted are in `holdfast.operators.aggregate.functions.exact_sums`.
- A group whose count of values is zero shows null.
- A sum that its type cannot hold is an error, as in Spark's ANSI mode, never a wrapped number.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidInputError
from holdfast.state.arrow.batches import Groups
from holdfast.state.arrow.numpy_views import numbers

SAFE = 2.0**62
HIGH, LOW = "_hi", "_lo"
"""Added to the name of an integer that the JVM has summed: its upper and its lower 32 bits."""
_WIDE_DIGITS = 70
_LONG = pa.decimal256(19, 0)
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Batch:
    """The rows of one partition of an epoch, grouped.

    weights: how many rows each row stands for. units: by how much values that were summed before
    are to be multiplied; None: by the weights.
    """

    rows: Any
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
        done = table.group_by("g", use_threads=False).aggregate([("x", how)])
        index = np.full(self.count, -1)
        index[done.column("g").to_numpy()] = np.arange(done.num_rows)
        picks = pa.array(index, mask=index < 0)
        return done.column(f"x_{how}").combine_chunks().take(picks)


@dataclass(frozen=True)
class Fold:
    """One aggregate of an operator."""

    name: str
    type: Any
    inputs: tuple[str, ...] = ()

    @property
    def helpers(self) -> list[Any]:
        """Arrow fields that it keeps beside its result."""
        return []

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Result and helpers after this batch, one value a group."""
        raise NotImplementedError

    def _old(self, old: dict[str, Any], name: str, found: np.ndarray) -> np.ndarray:
        """A number that was kept before; zero for new groups."""
        column = old[name]
        if column.null_count:
            column = pc.fill_null(column, pa.scalar(0, column.type))
        array: np.ndarray = column.to_numpy(zero_copy_only=False)
        return np.where(found, array, array.dtype.type(0))


@dataclass(frozen=True)
class CountFold(Fold):
    """count(*) and count(x): the input is 1 or 0 for each row, times its weight."""

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Old count and what came."""
        came = batch.weights if not self.inputs else batch.numpy(self.inputs[0])
        return {self.name: pa.array(batch.added(came, self._old(old, self.name, found), self.name))}


@dataclass(frozen=True)
class SumFold(Fold):
    """sum(x) and avg(x): inputs are x, and 1 or 0 times weight for values that are not null.

    weighted: x is to be multiplied by the weight of its row. Doubles come unweighted here, and are
    added as Spark adds them. kept: the type of the sum where it is a decimal and a mean shows.
    """

    weighted: bool = False
    mean: bool = False
    kept: Any = None

    @property
    def helpers(self) -> list[Any]:
        """Count of values; for a mean also the sum."""
        count = [pa.field(f"_{self.name}_n", pa.int64())]
        if not self.mean:
            return count
        return [*count, pa.field(f"_{self.name}_sum", self._sum_type)]

    @property
    def _sum_type(self) -> Any:
        return self.kept if self.kept is not None else self.type

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Old sum and what came."""
        count = f"_{self.name}_n"
        kept = f"_{self.name}_sum" if self.mean else self.name
        n = batch.added(batch.numpy(self.inputs[1]), self._old(old, count, found), self.name)
        after = {count: pa.array(n)}
        kind = self._sum_type
        if pa.types.is_decimal(kind):
            sums = self._decimals(batch, old[kept], found, n)
            after[kept] = sums
            if self.mean:
                shown = as_doubles(sums) / np.where(n == 0, 1, n)
                after[self.name] = pa.array(shown, mask=n == 0)
            return after
        before = self._old(old, kept, found)
        if pa.types.is_integer(kind):
            total = self._integers(batch, before)
        else:
            came = batch.sum_numbers(batch.numpy(self.inputs[0]))
            with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, as in SQL
                total = before + came
        total = np.where(n == 0, total.dtype.type(0), total)
        if not self.mean:
            return {**after, self.name: pa.array(total, mask=n == 0)}
        with np.errstate(divide="ignore", invalid="ignore"):
            shown = total / n
        return {**after, kept: pa.array(total), self.name: pa.array(shown, mask=n == 0)}

    def _units(self, batch: Batch) -> np.ndarray | None:
        """By what values are multiplied; None: by one."""
        if not self.weighted:
            return None
        units = batch.weights if batch.units is None else batch.units
        return None if len(units) and bool((units == 1).all()) else units

    def _integers(self, batch: Batch, before: np.ndarray) -> np.ndarray:
        """As 64-bit numbers where they surely fit, as decimals of 70 digits where they may not."""
        name, units = self.inputs[0], self._units(batch)
        halves = name not in batch.rows.schema.names
        high = batch.numpy(name + HIGH) if halves else batch.numpy(name)
        low = batch.numpy(name + LOW) if halves else None
        reach = largest_sum(high) * (2.0**32 if halves else 1.0)
        reach += largest_sum(low) if low is not None else 0.0
        reach *= 1.0 if units is None else largest_sum(units, 1)
        if reach + largest_sum(before, 1) < SAFE:
            values = high if low is None else (high << 32) + low
            plain: np.ndarray = before + batch.sum_numbers(
                values if units is None else values * units
            )
            return plain
        wide = pa.array(high).cast(_LONG)
        if low is not None:
            wide = pc.add(pc.multiply(wide, _decimal(2**32)), pa.array(low).cast(_LONG))
        total = self._wide(batch, wide, units, pa.array(before).cast(_LONG))
        outside = pc.or_(
            pc.less(total, _decimal(_LONG_MIN)), pc.greater(total, _decimal(_LONG_MAX))
        )
        if pc.any(outside).as_py():
            raise overflow(self.name, self.type, "64-bit integer")
        narrow: np.ndarray = total.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return narrow

    def _decimals(self, batch: Batch, old: Any, found: np.ndarray, n: np.ndarray) -> Any:
        kind = self._sum_type
        before = pc.if_else(pa.array(found), old, pa.scalar(None, kind))
        column = batch.rows.column(self.inputs[0])
        total = self._wide(batch, column, self._units(batch), before)
        try:
            total = total.cast(kind)
        except pa.ArrowInvalid as error:
            raise overflow(self.name, kind, str(error)) from error
        return pc.if_else(pa.array(n == 0), pa.scalar(None, kind), total)

    def _wide(self, batch: Batch, values: Any, units: np.ndarray | None, before: Any) -> Any:
        """The sum of whole numbers or decimals, with 70 digits: no sum of rows has more."""
        scale = values.type.scale
        wide = pa.decimal256(_WIDE_DIGITS, scale)
        values = values.cast(pa.decimal256(max(values.type.precision, scale), scale))
        if units is not None:
            values = pc.multiply(values, pa.array(units).cast(_LONG))
        zero = pa.scalar(Decimal(0), wide)
        came = pc.fill_null(batch.by_group(values, "sum").cast(wide), zero)
        total = pc.add(came, pc.fill_null(before.cast(wide), zero))
        return total.combine_chunks() if isinstance(total, pa.ChunkedArray) else total


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


def _decimal(number: int) -> Any:
    return pa.scalar(Decimal(number), pa.decimal256(20, 0))


def as_doubles(column: Any) -> np.ndarray:
    """Decimals of up to 38 digits as doubles, nulls as zero; off by two units in the last place."""
    filled = pc.fill_null(column, pa.scalar(Decimal(0), column.type))
    words = np.frombuffer(filled.buffers()[1], np.int64).reshape(-1, 2)
    words = words[filled.offset : filled.offset + len(filled)]
    low, high = words[:, 0].copy().view(np.uint64), words[:, 1].copy()
    negative = high < 0
    low = np.where(negative, ~low + np.uint64(1), low)
    high = np.where(negative, ~high + (low == 0), high)
    value = np.ldexp(high.astype(np.float64), 64) + low.astype(np.float64)
    plain: np.ndarray = np.where(negative, -value, value) / 10.0**column.type.scale
    return plain


@dataclass(frozen=True)
class ExtremeFold(Fold):
    """min(x) and max(x); `bag` names the trace of all values where rows can be taken back."""

    largest: bool = False
    bag: str | None = None

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """The better of old and new; values that were taken back are looked at by the operator."""
        column = batch.rows.column(self.inputs[0])
        keep = None
        if batch.changes:
            keep = pa.array(batch.weights > 0)
        came = best(batch, column, largest=self.largest, keep=keep)
        before = pc.if_else(pa.array(found), old[self.name], pa.scalar(None, self.type))
        return {self.name: better(before, came, largest=self.largest)}


def largest_sum(values: np.ndarray, count: int | None = None) -> float:
    """No sum of so many of these integers, all of them unless told, is further from zero."""
    if not len(values):
        return 0.0
    reach = max(abs(float(values.min())), abs(float(values.max())))
    return reach * (len(values) if count is None else count)


def best(batch: Batch, column: Any, *, largest: bool, keep: Any = None) -> Any:
    """Smallest or largest value of each group; NaN counts as the largest."""
    kind = column.type
    plain = kind == pa.int64() or pa.types.is_timestamp(kind)
    grouped = 0 < len(column) == len(batch.groups.order)
    if plain and grouped and keep is None and not column.null_count:
        ranked = numbers(column.view(pa.int64()))[batch.groups.order]
        if len(ranked) > batch.count:
            extreme = np.maximum if largest else np.minimum
            ranked = extreme.reduceat(ranked, batch.groups.starts)
        return pa.array(ranked).view(kind)
    if not pa.types.is_floating(column.type):
        return batch.by_group(column, "max" if largest else "min", keep)
    nan = pc.fill_null(pc.is_nan(column), False)  # noqa: FBT003
    plain = pc.if_else(nan, pa.scalar(None, column.type), column)
    found = batch.by_group(plain, "max" if largest else "min", keep)
    any_nan = pc.fill_null(batch.by_group(nan, "max", keep), False)  # noqa: FBT003
    wins = any_nan if largest else pc.and_(any_nan, pc.is_null(found))
    return pc.if_else(wins, pa.scalar(float("nan"), column.type), found)


def better(left: Any, right: Any, *, largest: bool) -> Any:
    """The smaller or larger of two columns, row by row; null loses, NaN is largest."""
    if pa.types.is_floating(left.type):
        nan_left, nan_right = (pc.fill_null(pc.is_nan(c), False) for c in (left, right))  # noqa: FBT003
        any_nan = pc.or_(nan_left, nan_right)
        bare = [
            pc.if_else(nan, pa.scalar(None, left.type), c)
            for nan, c in ((nan_left, left), (nan_right, right))
        ]
        plain = (pc.max_element_wise if largest else pc.min_element_wise)(*bare)
        wins = any_nan if largest else pc.and_(any_nan, pc.is_null(plain))
        return pc.if_else(wins, pa.scalar(float("nan"), left.type), plain)
    kind = left.type
    if pa.types.is_boolean(kind) or pa.types.is_timestamp(kind):  # Arrow compares these as numbers
        number = pa.uint8() if pa.types.is_boolean(kind) else pa.int64()
        left, right = left.cast(number), right.cast(number)
    return (pc.max_element_wise if largest else pc.min_element_wise)(left, right).cast(kind)


@dataclass(frozen=True)
class SpreadFold(Fold):
    """stddev(x) and variance(x) of rows that are never retracted, by merging central moments."""

    root: bool = True
    population: bool = False

    @property
    def helpers(self) -> list[Any]:
        """Count, mean, sum of squared distances from it, and values that are not finite."""
        kinds = {"n": pa.int64(), "mean": pa.float64(), "m2": pa.float64(), "odd": pa.int64()}
        return [pa.field(f"_{self.name}_{n}", kind) for n, kind in kinds.items()]

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Moments after adding what came."""
        values = batch.numpy(self.inputs[0], fill=np.nan).astype(np.float64)
        given = ~batch.rows.column(self.inputs[0]).is_null().to_numpy(zero_copy_only=False)
        finite = np.isfinite(values)
        strange = np.where(given & ~finite, batch.weights, 0)
        odd = self._old(old, f"_{self.name}_odd", found) + batch.sum_numbers(strange)
        before = tuple(self._old(old, f"_{self.name}_{n}", found) for n in ("n", "mean", "m2"))
        weights = np.where(finite, batch.weights, 0)
        n, mean, m2 = _merged(before, _moments(batch, np.where(finite, values, 0.0), weights))
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = m2 / (n if self.population else n - 1)
            shown = np.sqrt(spread) if self.root else spread
        shown = np.where(odd > 0, np.nan, shown)
        total = n + odd
        empty = (total < 1) if self.population else (total < 2)
        after = {"n": n, "mean": mean, "m2": m2, "odd": odd}
        named = {f"_{self.name}_{key}": pa.array(value) for key, value in after.items()}
        return {self.name: pa.array(shown, mask=empty), **named}


Moments = tuple[np.ndarray, ...]


def _moments(batch: Batch, values: np.ndarray, weights: np.ndarray) -> Moments:
    n = batch.sum_numbers(weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(n > 0, batch.sum_numbers(values * weights) / n, 0.0)
    distance = values - mean[batch.numbers]
    return n, mean, batch.sum_numbers(weights * distance * distance)


def _merged(state: Moments, other: Moments) -> Moments:
    """Moments of a group with another one added to it."""
    n1, mean1, m1 = state
    n2, mean2, m2 = other
    n = n1 + n2
    apart = mean2 - mean1
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(n > 0, (n1 * mean1 + n2 * mean2) / n, 0.0)
        spread = m1 + m2 + np.where(n > 0, apart * apart * n1 * n2 / n, 0.0)
    return n, mean, np.where(n > 1, np.maximum(spread, 0.0), 0.0)


@dataclass(frozen=True)
class DistinctFold(Fold):
    """count(distinct x): the operator counts how many values came and went in their own trace."""

    trace: str = ""

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Filled in by the operator, which has the trace."""
        raise NotImplementedError
