"""Aggregate functions as a user writes them: `hf.sum("amount")`. No Spark in here.

Each function says what it keeps for a group and what it needs from every row; how whole batches
are folded in is in `holdfast.operators.aggregate.functions`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidInputError
from holdfast.operators.aggregate.declare import (
    Aggregate,
    Deviation,
    Limit,
    Ordering,
    Percentiles,
    UserFunction,
)
from holdfast.operators.sort_order import parse_order

if TYPE_CHECKING:
    import pyarrow as pa

LIMIT_MAX = 1_000_000
_ALIAS = re.compile(
    r"(?P<what>.+)\s+as\s+(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*", re.IGNORECASE | re.DOTALL
)


def count(expression: str | None = None) -> Aggregate:
    """How many rows, or how many where the expression is not null.

    Args:
        expression: a column or a SQL expression; None or `"*"` counts rows.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: in `agg`, when a column is unknown.

    Example:
        >>> orders.group_by("customer").agg(n=hf.count(), name="counts").columns
        ['customer', 'n']
    """
    return Aggregate("count", None if expression == "*" else expression)


def sum(expression: str) -> Aggregate:  # noqa: A001 - reads as in SQL: hf.sum("amount")
    """The sum; null for a group without values.

    More than the type can hold is an error. Where rows can be retracted, a sum of doubles is the
    double nearest to the exact sum of those that are there.

    Args:
        expression: a column or a SQL expression.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: in `agg`, when a column is unknown.

    Example:
        >>> orders.group_by("customer").agg(total=hf.sum("amount"), name="sums").columns
        ['customer', 'total']
    """
    return Aggregate("sum", expression)


def avg(expression: str) -> Aggregate:
    """The mean as a double; of decimals, taken of their exact sum.

    Args:
        expression: a column or a SQL expression.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: in `agg`, when a column is unknown.

    Example:
        >>> orders.group_by("customer").agg(mean=hf.avg("amount"), name="means").columns
        ['customer', 'mean']
    """
    return Aggregate("avg", expression)


def min(expression: str) -> Aggregate:  # noqa: A001
    """The smallest value.

    Args:
        expression: a column or a SQL expression.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: in `agg`, when a column is unknown.

    Example:
        >>> orders.group_by("customer").agg(low=hf.min("amount"), name="least").columns
        ['customer', 'low']
    """
    return Aggregate("min", expression)


def max(expression: str) -> Aggregate:  # noqa: A001
    """The largest value; NaN is larger than every number.

    Args:
        expression: a column or a SQL expression.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: in `agg`, when a column is unknown.

    Example:
        >>> orders.group_by("customer").agg(high=hf.max("amount"), name="most").columns
        ['customer', 'high']
    """
    return Aggregate("max", expression)


def stddev(expression: str, *, population: bool = False) -> Aggregate:
    """The standard deviation as a double.

    Args:
        expression: a column or a SQL expression.
        population: of the whole population, instead of a sample.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: in `agg`, when a column is unknown.

    Example:
        >>> orders.group_by("customer").agg(sd=hf.stddev("amount"), name="spread").columns
        ['customer', 'sd']
    """
    return Aggregate("stddev", expression, population)


def variance(expression: str, *, population: bool = False) -> Aggregate:
    """The variance as a double.

    Args:
        expression: a column or a SQL expression.
        population: of the whole population, instead of a sample.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: in `agg`, when a column is unknown.

    Example:
        >>> orders.group_by("customer").agg(var=hf.variance("amount"), name="spread").columns
        ['customer', 'var']
    """
    return Aggregate("variance", expression, population)


def count_distinct(expression: str) -> Aggregate:
    """How many distinct values, exactly; nulls do not count.

    Args:
        expression: a column or a SQL expression.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: in `agg`, when a column is unknown.

    Example:
        >>> orders.group_by("customer").agg(n=hf.count_distinct("amount"), name="kinds").columns
        ['customer', 'n']
    """
    return Aggregate("count_distinct", expression)


def approx_count_distinct(expression: str, rsd: float = 0.05) -> Aggregate:
    """How many distinct values, estimated.

    A HyperLogLog sketch for each group. A sketch cannot forget, so where rows can be retracted the
    count is exact, at the cost of `count_distinct`.

    Args:
        expression: a column or a SQL expression.
        rsd: the relative standard deviation of the estimate.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: `rsd` is out of range.

    Example:
        >>> kinds = hf.approx_count_distinct("amount")
        >>> orders.group_by("customer").agg(n=kinds, name="kinds").columns
        ['customer', 'n']
    """
    if isinstance(rsd, bool) or not isinstance(rsd, (int, float)) or not 0.001 <= rsd < 1:
        raise InvalidInputError(
            "the relative standard deviation is out of range",
            kind="invalid_rsd",
            rsd=repr(rsd)[:40],
            remedy="give a number from 0.001 to below 1",
        )
    return Aggregate("approx_count_distinct", expression, detail=Deviation(float(rsd)))


def percentile(expression: str, percentage: float | Sequence[float]) -> Aggregate:
    """The exact percentile as a double, or a list of them.

    As Spark's `percentile`: between two values, the point on the line between them.

    Args:
        expression: a column or a SQL expression.
        percentage: a number from 0 to 1, or several.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: a percentage is out of range.

    Example:
        >>> half = hf.percentile("amount", [0.5, 0.99])
        >>> orders.group_by("customer").agg(points=half, name="points").columns
        ['customer', 'points']
    """
    several = not isinstance(percentage, (int, float))
    if several and not isinstance(percentage, (list, tuple)):
        raise _not_percentage(percentage)
    points = tuple(percentage) if isinstance(percentage, (list, tuple)) else (percentage,)
    for point in points:
        if isinstance(point, bool) or not isinstance(point, (int, float)) or not 0 <= point <= 1:
            raise _not_percentage(point)
    if not points:
        raise _not_percentage(percentage)
    detail = Percentiles(tuple(float(point) for point in points), several)
    return Aggregate("percentile", expression, detail=detail)


def _not_percentage(value: object) -> InvalidInputError:
    return InvalidInputError(
        "a percentage is a number from 0 to 1",
        kind="invalid_percentage",
        value=repr(value)[:40],
        remedy="give a number such as 0.5, or a list of them",
    )


def median(expression: str) -> Aggregate:
    """The exact median as a double.

    Args:
        expression: a column or a SQL expression.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: in `agg`, when a column is unknown.

    Example:
        >>> orders.group_by("customer").agg(middle=hf.median("amount"), name="middle").columns
        ['customer', 'middle']
    """
    return percentile(expression, 0.5)


def collect_list(expression: str, *, limit: int) -> Aggregate:
    """The values as a sorted list, without nulls.

    As `slice(array_sort(collect_list(x)), 1, limit)` in Spark: streams have no order of their own.

    Args:
        expression: a column or a SQL expression.
        limit: how many values are kept for a group; of more, the smallest.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: the limit is out of range.

    Example:
        >>> lists = hf.collect_list("amount", limit=9)
        >>> orders.group_by("customer").agg(all=lists, name="lists").columns
        ['customer', 'all']
    """
    return Aggregate("collect_list", expression, detail=Limit(_limit(limit)))


def collect_set(expression: str, *, limit: int) -> Aggregate:
    """The distinct values as a sorted list, without nulls.

    Args:
        expression: a column or a SQL expression.
        limit: how many values are kept for a group; of more, the smallest.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: the limit is out of range.

    Example:
        >>> sets = hf.collect_set("amount", limit=9)
        >>> orders.group_by("customer").agg(all=sets, name="sets").columns
        ['customer', 'all']
    """
    return Aggregate("collect_set", expression, detail=Limit(_limit(limit)))


def _limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIMIT_MAX:
        raise InvalidInputError(
            "a collection needs a bound",
            kind="invalid_collect_limit",
            limit=repr(limit)[:40],
            remedy=f"say how many values it may hold, at most {LIMIT_MAX}",
        )
    return limit


def first(expression: str, *, order_by: str | Sequence[str]) -> Aggregate:
    """The value of the first row by an ordering, null or not.

    Args:
        expression: a column or a SQL expression.
        order_by: SQL terms such as `["at desc", "amount"]`; ties: the smallest value.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: the ordering cannot be read.

    Example:
        >>> firsts = hf.first("amount", order_by="at")
        >>> orders.group_by("customer").agg(first=firsts, name="firsts").columns
        ['customer', 'first']
    """
    return Aggregate("first", expression, detail=Ordering(parse_order(order_by, "first")))


def last(expression: str, *, order_by: str | Sequence[str]) -> Aggregate:
    """The value of the last row by an ordering, null or not.

    Args:
        expression: a column or a SQL expression.
        order_by: SQL terms such as `["at desc", "amount"]`; ties: the smallest value.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: the ordering cannot be read.

    Example:
        >>> lasts = hf.last("amount", order_by="at")
        >>> orders.group_by("customer").agg(last=lasts, name="lasts").columns
        ['customer', 'last']
    """
    keys = tuple(key.reversed() for key in parse_order(order_by, "last"))
    return Aggregate("first", expression, detail=Ordering(keys))


def udaf(
    function: Callable[[pa.Table, int], Any],
    inputs: Sequence[str],
    returns: str,
    *,
    text: str | None = None,
) -> Aggregate:
    """An aggregate of your own: `function(rows, count)` gives one value for each of `count` groups.

    `rows` is an Arrow table of the groups that changed, all of their rows: `group` (0 to count - 1,
    ascending), `weight` (how often the row is there, more than zero), then the inputs. Within a
    group rows are sorted by their values.

    Args:
        function: the user function.
        inputs: SQL expressions, named by themselves or by `AS name`.
        returns: a SQL type.
        text: stands for the function in the fingerprint; by default its qualified name.

    Returns:
        The aggregate, for `Grouped.agg`.

    Raises:
        InvalidInputError: the function, its inputs or their names cannot be used.

    Example:
        >>> def span(rows, count):
        ...     groups = rows.group_by("group").aggregate([("amount", "min_max")])
        ...     return [v["max"] - v["min"] for v in groups["amount_min_max"].to_pylist()]
        >>> widest = hf.udaf(span, inputs=["amount"], returns="double")
        >>> orders.group_by("customer").agg(span=widest, name="spans").columns
        ['customer', 'span']
    """
    texts = isinstance(inputs, Sequence) and all(isinstance(text, str) for text in inputs)
    if not callable(function) or isinstance(inputs, str) or not inputs or not texts:
        raise InvalidInputError(
            "an aggregate of your own needs a function and inputs",
            kind="invalid_udaf",
            function=repr(function)[:80],
            inputs=repr(inputs)[:80],
            remedy='write it like hf.udaf(function, inputs=["x"], returns="double")',
        )
    named = []
    for index, expression in enumerate(inputs):
        alias = _ALIAS.fullmatch(expression)
        plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", expression.strip())
        what = alias["what"] if alias else expression.strip()
        named.append((alias["name"] if alias else what if plain else f"input_{index}", what))
    names = [name for name, _ in named]
    if len({"group", "weight", *names}) != len(names) + 2:
        raise InvalidInputError(
            "two columns of an aggregate have one name",
            kind="duplicate_column",
            columns=",".join(["group", "weight", *names]),
            remedy="name them apart by AS",
        )
    label = text or f"{function.__module__}.{getattr(function, '__qualname__', '?')}"
    detail = UserFunction(function, tuple(named), returns, label)
    return Aggregate("udaf", None, detail=detail)
