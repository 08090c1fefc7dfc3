"""Aggregate functions as a user writes them: `hf.sum("amount")`. No Spark in here.

Each function says what it keeps for a group and what it needs from every row; how whole batches
are folded in is in `holdfast.pipeline.operators.fold`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AggregateKind = Literal["count", "sum", "avg", "min", "max", "stddev", "variance", "count_distinct"]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate: its kind, and the SQL expression that it is taken over (None: whole rows)."""

    kind: AggregateKind
    expression: str | None = None
    population: bool = False

    def __str__(self) -> str:
        """As in SQL."""
        suffix = "_pop" if self.population else ""
        return f"{self.kind}{suffix}({self.expression or '*'})"


def count(expression: str | None = None) -> Aggregate:
    """Rows, or those where the expression is not null."""
    return Aggregate("count", expression)


def sum(expression: str) -> Aggregate:  # noqa: A001 - reads as in SQL: hf.sum("amount")
    """The sum; null for a group without values. Integers that overflow are an error."""
    return Aggregate("sum", expression)


def avg(expression: str) -> Aggregate:
    """The mean as a double."""
    return Aggregate("avg", expression)


def min(expression: str) -> Aggregate:  # noqa: A001
    """The smallest value."""
    return Aggregate("min", expression)


def max(expression: str) -> Aggregate:  # noqa: A001
    """The largest value; NaN is larger than every number."""
    return Aggregate("max", expression)


def stddev(expression: str, *, population: bool = False) -> Aggregate:
    """Standard deviation of the sample, or of the population."""
    return Aggregate("stddev", expression, population)


def variance(expression: str, *, population: bool = False) -> Aggregate:
    """Variance of the sample, or of the population."""
    return Aggregate("variance", expression, population)


def count_distinct(expression: str) -> Aggregate:
    """How many different values, exactly; nulls do not count."""
    return Aggregate("count_distinct", expression)
