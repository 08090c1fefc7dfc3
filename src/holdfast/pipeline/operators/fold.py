"""Folds: how each aggregate takes a batch in, for all touched groups at once.

A fold keeps its result column under the user's name and helpers under `_<name>_...`, so that the
stored trace is the materialised view. `inputs` are columns that the JVM has computed.

Invariants:
- Rows with negative weights undo exactly what rows with positive weights did.
- A group whose count of values is zero shows null, whatever rounding has left in its sum.
- A sum of integers that leaves 64 bits is an error, as in Spark's ANSI mode, never a wrapped
  number.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidInputError
from holdfast.state.columns import numbers
from holdfast.state.rows import Groups

SAFE = 2.0**62


@dataclass(frozen=True)
class Batch:
    """The rows of one partition of an epoch, grouped."""

    rows: Any
    groups: Groups
    numbers: np.ndarray
    weights: np.ndarray
    changes: bool

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
        return {self.name: pa.array(self._old(old, self.name, found) + batch.sum_numbers(came))}


@dataclass(frozen=True)
class SumFold(Fold):
    """sum(x): inputs are x times weight, and 1 or 0 times weight for values that are not null.

    With `special`, three more inputs count NaN, infinity and minus infinity, which a sum could
    not forget again when they are taken back.
    """

    special: bool = False
    mean: bool = False

    @property
    def _apart(self) -> bool:
        """Whether the sum is kept beside what shows, which may be a mean, NaN or infinite."""
        return self.mean or self.special

    @property
    def helpers(self) -> list[Any]:
        """Count of values; for a mean also the sum; counts of special values."""
        names = ["n", *(["sum"] if self._apart else [])]
        names += ["nan", "inf", "ninf"] if self.special else []
        return [
            pa.field(f"_{self.name}_{n}", pa.float64() if n == "sum" else pa.int64()) for n in names
        ]

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Old sum and what came."""
        kept = f"_{self.name}_sum" if self._apart else self.name
        n = self._old(old, f"_{self.name}_n", found) + batch.sum_numbers(
            batch.numpy(self.inputs[1])
        )
        after = {f"_{self.name}_n": pa.array(n)}
        if pa.types.is_decimal(self.type):
            total = self._decimal(batch, old[kept], found, n)
            return {**after, self.name: total}
        came = batch.sum_numbers(batch.numpy(self.inputs[0]))
        before = self._old(old, kept, found)
        sums = np.where(n == 0, came.dtype.type(0), before + came)
        if pa.types.is_integer(self.type):
            self._check_overflow(batch, before, came)
        shown = sums
        if self.special:
            shown, extra = self._specials(batch, old, found, sums)
            after.update(extra)
        if self._apart:
            after[kept] = pa.array(sums)
        if self.mean:
            with np.errstate(divide="ignore", invalid="ignore"):
                shown = shown / n
        return {**after, self.name: pa.array(shown, mask=n == 0)}

    def _decimal(self, batch: Batch, old: Any, found: np.ndarray, n: np.ndarray) -> Any:
        # Wider than any sum of two: the cast back notices what does not fit.
        wide = pa.decimal256(60, self.type.scale)
        zero = pa.scalar(Decimal(0), wide)
        came = pc.fill_null(
            batch.by_group(batch.rows.column(self.inputs[0]), "sum").cast(wide), zero
        )
        before = pc.if_else(pa.array(found), pc.fill_null(old.cast(wide), zero), zero)
        try:
            total = pc.add(before, came).cast(self.type)
        except pa.ArrowInvalid as error:
            raise self._overflow(str(error)) from error
        return pc.if_else(pa.array(n == 0), pa.scalar(None, self.type), total)

    def _specials(
        self, batch: Batch, old: dict[str, Any], found: np.ndarray, sums: np.ndarray
    ) -> tuple[np.ndarray, dict[str, Any]]:
        counts = {}
        for index, kind in enumerate(("nan", "inf", "ninf"), start=2):
            name = f"_{self.name}_{kind}"
            came = batch.sum_numbers(batch.numpy(self.inputs[index]))
            counts[name] = self._old(old, name, found) + came
        nan, inf, ninf = counts.values()
        shown = np.where(inf > 0, np.inf, np.where(ninf > 0, -np.inf, sums))
        shown = np.where((nan > 0) | ((inf > 0) & (ninf > 0)), np.nan, shown)
        return shown, {name: pa.array(count) for name, count in counts.items()}

    def _check_overflow(self, batch: Batch, before: np.ndarray, came: np.ndarray) -> None:
        """A wrapped sum is wrong by 2**64, far more than a sum of doubles can be."""
        values = batch.numpy(self.inputs[0])
        if largest_sum(values) + largest_sum(before, 1) < SAFE:
            return
        rough = batch.sum_numbers(values.astype(np.float64))
        total = before.astype(np.float64) + rough
        with np.errstate(over="ignore"):
            sums = (before + came).astype(np.float64)
        if (np.abs(sums - total) > 2.0**62).any():
            raise self._overflow("64-bit integer")

    def _overflow(self, reason: str) -> InvalidInputError:
        return InvalidInputError(
            "a sum is too large for its type", kind="sum_overflow", column=self.name,
            type=str(self.type), reason=reason[:120],
            remedy="sum a wider type: cast to decimal(38, s)",
        )  # fmt: skip


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
    """stddev(x) and variance(x) by merging and taking apart central moments."""

    root: bool = True
    population: bool = False

    @property
    def helpers(self) -> list[Any]:
        """Count, mean, sum of squared distances from it, and values that are not finite."""
        kinds = {"n": pa.int64(), "mean": pa.float64(), "m2": pa.float64(), "odd": pa.int64()}
        return [pa.field(f"_{self.name}_{n}", kind) for n, kind in kinds.items()]

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Moments after adding what came and taking back what went."""
        values = batch.numpy(self.inputs[0], fill=np.nan).astype(np.float64)
        given = ~batch.rows.column(self.inputs[0]).is_null().to_numpy(zero_copy_only=False)
        finite = np.isfinite(values)
        strange = np.where(given & ~finite, batch.weights, 0)
        odd = self._old(old, f"_{self.name}_odd", found) + batch.sum_numbers(strange)
        state = tuple(self._old(old, f"_{self.name}_{n}", found) for n in ("n", "mean", "m2"))
        values = np.where(finite, values, 0.0)
        for sign in (1, -1):
            weights = np.where(finite & (batch.weights * sign > 0), np.abs(batch.weights), 0)
            if weights.any():
                state = _moved(state, _moments(batch, values, weights), sign)
        n, mean, m2 = state
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


def _moved(state: Moments, other: Moments, sign: int) -> Moments:
    """Moments of a group with another one added to it, or taken out of it."""
    n1, mean1, m1 = state
    n2, mean2, m2 = other
    n = n1 + sign * n2
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(n > 0, (n1 * mean1 + sign * n2 * mean2) / n, 0.0)
        if sign > 0:
            apart = mean2 - mean1
            spread = m1 + m2 + np.where(n > 0, apart * apart * n1 * n2 / n, 0.0)
        else:
            apart = mean2 - mean
            spread = m1 - m2 - np.where(n1 > 0, apart * apart * n * n2 / n1, 0.0)
    spread = np.where(n > 1, np.maximum(spread, 0.0), 0.0)
    return n, mean, spread


@dataclass(frozen=True)
class DistinctFold(Fold):
    """count(distinct x): the operator counts how many values came and went in their own trace."""

    trace: str = ""

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Filled in by the operator, which has the trace."""
        raise NotImplementedError
