"""Aggregate functions as a user writes them: `hf.sum("amount")`. No Spark in here.

Each function says what it keeps for a group and what it needs from every row; how whole batches
are folded in is in `holdfast.operators.aggregate.functions.base`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from holdfast.errors import InvalidInputError
from holdfast.operators.sort_order import Term, parse_terms

AggregateKind = Literal[
    "count", "sum", "avg", "min", "max", "stddev", "variance", "count_distinct",
    "approx_count_distinct", "percentile", "collect_list", "collect_set", "first", "udaf",
]  # fmt: skip
LIMIT_MAX = 1_000_000
_ALIAS = re.compile(
    r"(?P<what>.+)\s+as\s+(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Which points, and whether one value or a list was asked for."""

    points: tuple[float, ...]
    several: bool

    def __str__(self) -> str:
        """As in SQL."""
        text = ", ".join(str(point) for point in self.points)
        return f"array({text})" if self.several else text


@dataclass(frozen=True, slots=True)
class Limit:
    """How many values a collection holds."""

    limit: int

    def __str__(self) -> str:
        """For the fingerprint."""
        return f"limit {self.limit}"


@dataclass(frozen=True, slots=True)
class Ordering:
    """Which row's value is taken."""

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        """As in SQL."""
        return "order by " + ", ".join(str(term) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Deviation:
    """The relative standard deviation of an estimate."""

    rsd: float

    def __str__(self) -> str:
        """As in SQL."""
        return str(self.rsd)


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function of the user, the columns that it gets, and what it gives."""

    function: Callable[..., Any]
    inputs: tuple[tuple[str, str], ...]
    returns: str
    text: str

    def __str__(self) -> str:
        """For the fingerprint."""
        columns = ", ".join(f"{text} AS {name}" for name, text in self.inputs)
        return f"{self.text}, [{columns}], {self.returns}"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate: its kind, and the SQL expression that it is taken over (None: whole rows)."""

    kind: AggregateKind
    expression: str | None = None
    population: bool = False
    detail: Any = None
    column: str | None = None

    def alias(self, column: str) -> Aggregate:
        """The same aggregate with the name of its column: `hf.sum("amount").alias("total")`.

        Args:
            column: the column's name; any name that a column can have.

        Returns:
            The aggregate, for `Grouped.agg`.

        Raises:
            InvalidInputError: the name is not text.

        Example:
            >>> hf.count().alias("name").column
            'name'
        """
        if not isinstance(column, str):
            raise InvalidInputError(
                "the name of a column is text",
                kind="invalid_alias",
                aggregate=str(self),
                value=repr(column)[:60],
                remedy='write it like hf.sum("amount").alias("total")',
            )
        return replace(self, column=column)

    def __str__(self) -> str:
        """As in SQL."""
        suffix = "_pop" if self.population else ""
        detail = f", {self.detail}" if self.detail is not None else ""
        return f"{self.kind}{suffix}({self.expression or '*'}{detail})"

    @property
    def expressions(self) -> list[str]:
        """Every SQL expression in it."""
        found = [self.expression] if self.expression is not None else []
        if isinstance(self.detail, Ordering):
            found += [term.column for term in self.detail.terms]
        if isinstance(self.detail, UserFunction):
            found += [text for _, text in self.detail.inputs]
        return found


def count(expression: str | None = None) -> Aggregate:
    """Rows, or those where the expression is not null."""
    return Aggregate("count", expression)


def sum(expression: str) -> Aggregate:  # noqa: A001 - reads as in SQL: hf.sum("amount")
    """The sum; null for a group without values. More than the type can hold is an error.

    Where rows can be retracted, a sum of doubles is the double nearest to the exact sum of those
    that are there.
    """
    return Aggregate("sum", expression)


def avg(expression: str) -> Aggregate:
    """The mean as a double; of decimals, taken of their exact sum."""
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


def approx_count_distinct(expression: str, rsd: float = 0.05) -> Aggregate:
    """How many different values, estimated; `rsd` is the relative standard deviation.

    A HyperLogLog sketch a group, from Apache DataSketches (extra `sketch`). A sketch cannot forget,
    so where rows can be taken back the count is exact, at the cost of `count_distinct`.
    """
    if isinstance(rsd, bool) or not isinstance(rsd, (int, float)) or not 0.001 <= rsd < 1:
        raise InvalidInputError(
            "the relative standard deviation is out of range", kind="invalid_rsd",
            rsd=repr(rsd)[:40], remedy="give a number from 0.001 to below 1",
        )  # fmt: skip
    return Aggregate("approx_count_distinct", expression, detail=Deviation(float(rsd)))


def percentile(expression: str, percentage: float | Sequence[float]) -> Aggregate:
    """The exact percentile as a double, or a list of them: `hf.percentile("x", [0.5, 0.99])`.

    As Spark's `percentile`: between two values, the point on the line between them.
    """
    several = not isinstance(percentage, (int, float))
    points = (percentage,) if isinstance(percentage, (int, float)) else tuple(percentage)
    for point in points:
        if isinstance(point, bool) or not isinstance(point, (int, float)) or not 0 <= point <= 1:
            raise _not_percentage(point)
    if not points:
        raise _not_percentage(percentage)
    detail = Percentiles(tuple(float(point) for point in points), several)
    return Aggregate("percentile", expression, detail=detail)


def _not_percentage(value: object) -> InvalidInputError:
    return InvalidInputError(
        "a percentage is a number from 0 to 1", kind="invalid_percentage", value=repr(value)[:40]
    )


def median(expression: str) -> Aggregate:
    """The exact median as a double."""
    return percentile(expression, 0.5)


def collect_list(expression: str, *, limit: int) -> Aggregate:
    """The values as a sorted list, without nulls; of more than `limit`, the smallest.

    As `slice(array_sort(collect_list(x)), 1, limit)` in Spark: streams have no order of their own.
    """
    return Aggregate("collect_list", expression, detail=Limit(_limit(limit)))


def collect_set(expression: str, *, limit: int) -> Aggregate:
    """The different values as a sorted list, without nulls; of more than `limit`, the smallest."""
    return Aggregate("collect_set", expression, detail=Limit(_limit(limit)))


def _limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIMIT_MAX:
        raise InvalidInputError(
            "a collection needs a bound", kind="invalid_collect_limit", limit=repr(limit)[:40],
            remedy=f"say how many values it may hold, at most {LIMIT_MAX}",
        )  # fmt: skip
    return limit


def first(expression: str, *, order_by: str | Sequence[str]) -> Aggregate:
    """The value of the first row by an ordering, null or not; ties: the smallest value."""
    return Aggregate("first", expression, detail=Ordering(parse_terms(order_by, "first")))


def last(expression: str, *, order_by: str | Sequence[str]) -> Aggregate:
    """The value of the last row by an ordering, null or not; ties: the smallest value."""
    terms = tuple(term.reversed() for term in parse_terms(order_by, "last"))
    return Aggregate("first", expression, detail=Ordering(terms))


def udaf(
    function: Callable[..., Any], inputs: Sequence[str], returns: str, *, text: str | None = None
) -> Aggregate:
    """An aggregate of your own: `function(rows, count)` gives one value for each of `count` groups.

    `rows` is an Arrow table of the groups that changed, all of their rows: `group` (0 to count - 1,
    ascending), `weight` (how often the row is there, more than zero), then the inputs: SQL
    expressions, named by themselves or by `AS name`. Within a group rows are sorted by their
    values. `returns` is a SQL type. `text` stands for the function in the fingerprint; by default
    its qualified name.
    """
    if not callable(function) or isinstance(inputs, str) or not inputs:
        raise InvalidInputError(
            "an aggregate of your own needs a function and inputs", kind="invalid_udaf",
            function=repr(function)[:80], inputs=repr(inputs)[:80],
            remedy='write it like hf.udaf(function, inputs=["x"], returns="double")',
        )  # fmt: skip
    named = []
    for index, expression in enumerate(inputs):
        alias = _ALIAS.fullmatch(expression)
        plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", expression.strip())
        what = alias["what"] if alias else expression.strip()
        named.append((alias["name"] if alias else what if plain else f"input_{index}", what))
    names = [name for name, _ in named]
    if len({"group", "weight", *names}) != len(names) + 2:
        raise InvalidInputError(
            "two columns of an aggregate have one name", kind="duplicate_column",
            columns=",".join(["group", "weight", *names]), remedy="name them apart by AS",
        )  # fmt: skip
    label = text or f"{function.__module__}.{getattr(function, '__qualname__', '?')}"
    detail = UserFunction(function, tuple(named), returns, label)
    return Aggregate("udaf", None, detail=detail)
