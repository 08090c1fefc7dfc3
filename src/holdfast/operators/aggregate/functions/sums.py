"""count, sum and avg.

Invariants:
- Integers and decimals are multiplied by weights and added without bound, and only what comes out
  must fit its type.
- A mean of decimals has Spark's type, and is the exact mean rounded half up to it.
- Doubles that can be retracted are summed exactly. What shows depends on the rows that are there
  alone, not on those that came and went: a sum is the double nearest to the exact sum, a mean is
  off by one unit in the last place at most.
- NaN and infinities are counted, so that they too can be retracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.aggregate.functions.base import (
    SAFE,
    Batch,
    Combination,
    Fold,
    largest_sum,
    overflow,
)
from holdfast.operators.aggregate.functions.exact import (
    STORED,
    GivenValues,
    Limbs,
    batch_sums,
    blocks_of,
    rounded,
    stored_form,
    unchanged,
)

HIGH, LOW = "_hi", "_lo"
"""Added to the name of an integer that the JVM has summed: its upper and its lower 32 bits."""
_WIDE_DIGITS = 70
_LONG = pa.decimal256(19, 0)
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class CountFold(Fold):
    """count(*) and count(x): the input is 1 or 0 for each row, times its weight."""

    @property
    def combination(self) -> Combination | None:
        """Counts add up."""
        return "sum"

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
    def helpers(self) -> list[pa.Field[Any]]:
        """Count of values; for a mean also the sum."""
        count = [pa.field(f"_{self.name}_n", pa.int64())]
        if not self.mean:
            return count
        return [*count, pa.field(f"_{self.name}_sum", self._sum_type)]

    @property
    def combination(self) -> Combination | None:
        """Integers and doubles add up; decimals are left to the task."""
        return "sum" if self.kept is None and not pa.types.is_decimal(self.type) else None

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
                after[self.name] = self._means(sums, n)
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

    def _means(self, sums: Any, n: np.ndarray) -> Any:
        """Sums by counts with the digits of Spark's type, the last one rounded half up."""
        kind: Any = self.type
        units = _rescaled(sums, pa.decimal128(38, 0)).cast(pa.decimal256(38, 0))
        shift = _decimal(2 * 10 ** (kind.scale - sums.type.scale))
        count = pa.array(np.where(n == 0, 1, np.abs(n))).cast(_LONG)
        halves = pc.add(pc.multiply(pc.abs(units), shift), count).cast(pa.decimal256(45, 0))
        whole = pc.trunc(pc.divide(halves, pc.add(count, count)))
        flipped = pc.xor(pc.less(units, _decimal(0)), pa.array(n < 0))
        try:
            signed = pc.if_else(flipped, pc.negate(whole), whole).cast(pa.decimal256(76, 0))
            means = signed.cast(pa.decimal128(kind.precision, 0))
        except pa.ArrowInvalid as error:
            raise overflow(self.name, kind, str(error)) from error
        return _rescaled(means, kind)

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


@dataclass(frozen=True)
class ExactSumFold(Fold):
    """sum(x) and avg(x): the input is x."""

    mean: bool = False

    @property
    def helpers(self) -> list[pa.Field[Any]]:
        """Count of values, the exact sum of the finite ones, and how many are not finite."""
        counts = [pa.field(f"_{self.name}_{n}", pa.int64()) for n in ("n", "nan", "inf", "ninf")]
        return [*counts, pa.field(f"_{self.name}_exact", STORED)]

    def fold(self, batch: Batch, old: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
        """Old sum and what came."""
        given = GivenValues.of(batch, self.inputs[0])
        infinite = given.given & np.isinf(given.values)
        marks = {
            "n": given.given,
            "nan": given.given & np.isnan(given.values),
            "inf": infinite & (given.values > 0),
            "ninf": infinite & (given.values < 0),
        }
        counts = {
            name: batch.added(
                given.counted(mark), self._old(old, f"_{self.name}_{name}", found), self.name
            )
            for name, mark in marks.items()
        }
        kept, shown = [], []
        for block in blocks_of(batch, given):
            sums = batch_sums(batch, given, block, old[f"_{self.name}_exact"], found, unchanged)
            kept.append(stored_form(sums))
            shown.append(self._shown(sums, counts["n"][block[0]]))
        n, nan, inf, ninf = counts.values()
        value = np.concatenate(shown)
        value = np.where(inf > 0, np.inf, np.where(ninf > 0, -np.inf, value))
        value = np.where((nan > 0) | ((inf > 0) & (ninf > 0)), np.nan, value)
        after = {f"_{self.name}_{name}": pa.array(count) for name, count in counts.items()}
        after[f"_{self.name}_exact"] = pa.concat_arrays(kept)
        return {**after, self.name: pa.array(value, mask=n == 0)}

    def _shown(self, sums: Limbs, n: np.ndarray) -> np.ndarray:
        total = rounded(sums)
        if not self.mean:
            return total.doubles()
        return total.over(np.where(n == 0, 1, n))


def _decimal(number: int) -> Any:
    return pa.scalar(Decimal(number), pa.decimal256(20, 0))


def _rescaled(column: Any, kind: Any) -> Any:
    """The same digits with the point elsewhere."""
    return pa.Array.from_buffers(kind, len(column), column.buffers(), offset=column.offset)
