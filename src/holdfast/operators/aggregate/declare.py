"""group_by().agg() as it is declared: aggregates as values, and the operator that holds them.

How whole batches are folded in is in `holdfast.operators.aggregate.functions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from holdfast.errors import InvalidInputError
from holdfast.operators.declaration import Declaration, Node, checked_names, checked_output
from holdfast.operators.sort_order import SortKey

if TYPE_CHECKING:
    from holdfast.operators.base import Analyzed
    from holdfast.spark.annotations import DataFrame

AggregateKind = Literal[
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "stddev",
    "variance",
    "count_distinct",
    "approx_count_distinct",
    "percentile",
    "collect_list",
    "collect_set",
    "first",
    "udaf",
]


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

    keys: tuple[SortKey, ...]

    def __str__(self) -> str:
        """As in SQL."""
        return "order by " + ", ".join(str(key) for key in self.keys)


@dataclass(frozen=True, slots=True)
class Deviation:
    """The relative standard deviation of an estimate."""

    rsd: float

    def __str__(self) -> str:
        """As in SQL."""
        return str(self.rsd)


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A user function, the columns that it gets, and what it gives."""

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
            found += [key.column for key in self.detail.keys]
        if isinstance(self.detail, UserFunction):
            found += [text for _, text in self.detail.inputs]
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class AggregateDeclaration(Declaration):
    """One row for each group, kept up to date."""

    kind: ClassVar[str] = "aggregate"
    aggregates: Mapping[str, Aggregate]

    def fingerprint(self) -> Mapping[str, str]:
        """The aggregates, as in SQL."""
        return {column: str(aggregate) for column, aggregate in self.aggregates.items()}

    def analyze(self, frames: Sequence[DataFrame], *, late_rows: bool) -> Analyzed:
        """Folds, and the columns that the JVM computes for them."""
        from holdfast.operators.aggregate.analyze import analyze_aggregate

        del late_rows
        return analyze_aggregate(self, frames[0])


def aggregate_by_key(
    before: Node, keys: tuple[str, ...], aggregates: Mapping[str, Aggregate], *, name: str
) -> AggregateDeclaration:
    """Group by columns."""
    checked_names(list(keys), before, name)
    columns = checked_output([*keys, *aggregates], name)
    return AggregateDeclaration(
        columns=columns,
        retracts=True,
        name=name,
        inputs=(before,),
        keys=keys,
        aggregates=dict(aggregates),
    )
