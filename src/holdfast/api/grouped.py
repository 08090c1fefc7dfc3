"""A grouped stream, and its aggregates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.api.columns import plain_names
from holdfast.api.spelling import GROUPED_USES, old_spelling, unknown_name
from holdfast.errors import InvalidInputError
from holdfast.operators.aggregate.declare import Aggregate, aggregate_by_key
from holdfast.operators.declaration import Declaration, Node, checked_names, checked_output
from holdfast.operators.window.declare import Window, windowed
from holdfast.spark.ddl import is_one

if TYPE_CHECKING:
    from holdfast.api.stream import Stream

_MOVED = {"emit": "emit", "lateness": "allowed_lateness", "allowed_lateness": "allowed_lateness"}


class Grouped:
    """A stream that waits for its aggregates; made by `Stream.group_by`."""

    def __init__(
        self,
        before: Node,
        keys: tuple[str | Window, ...],
        add: Callable[[Declaration], Stream],
    ) -> None:
        self._before = before
        self._keys = keys
        self._add = add

    def __repr__(self) -> str:
        return f"<Grouped by {', '.join(str(key) for key in self._keys)}>"

    if not TYPE_CHECKING:  # a type checker refuses what is not there

        def __getattr__(self, name: str) -> Any:
            raise unknown_name(self, name, GROUPED_USES)

    def agg(self, /, *columns: Aggregate, name: str, **aggregates: Aggregate) -> Stream:
        """One row for each group, kept up to date.

        Args:
            columns: aggregates with the names of their columns: `hf.sum("amount").alias("total")`.
                No name is impossible here.
            name: of the operator, for its state, its view and errors.
            aggregates: the same, as keywords: `total=hf.sum("amount")`.

        Returns:
            A stream with the keys (`window_start` and `window_end` for a window), then the
            aggregates. It is a changelog, unless its window has `emit="close"`.

        Raises:
            InvalidInputError: no aggregate is given, one has no name, or a column is unknown.

        Example:
            >>> totals = orders.group_by("customer").agg(
            ...     hf.sum("amount").alias("name"), n=hf.count(), name="totals"
            ... )
            >>> totals.columns
            ['customer', 'name', 'n']
        """
        if isinstance(name, Aggregate):
            raise InvalidInputError(
                "the operator needs a name, and got an aggregate",
                kind="not_a_name",
                value=str(name),
                remedy='give a column this name by alias: agg(hf.count().alias("name"), name="op")',
            )
        given = self._named(columns, aggregates, name)
        for aggregate in given.values():
            checked_names(plain_names(aggregate.expressions), self._before, name)
        keys = tuple(key for key in self._keys if isinstance(key, str))
        if len(keys) < len(self._keys):
            return self._add(windowed(self._before, self._keys, given, name=name))
        return self._add(aggregate_by_key(self._before, keys, given, name=name))

    def _named(
        self, columns: Sequence[Aggregate], aggregates: Mapping[str, Aggregate], name: str
    ) -> dict[str, Aggregate]:
        """Every aggregate by the name of its column, in order."""
        for old, new in _MOVED.items():
            if old in aggregates and not isinstance(aggregates[old], Aggregate):
                raise self._belongs_to_window(old, new, name)
        given: list[tuple[str, Aggregate]] = []
        for aggregate in columns:
            _check(aggregate, None, name)
            if aggregate.column is None:
                raise InvalidInputError(
                    "an aggregate has no name for its column",
                    kind="no_alias",
                    operator=name,
                    aggregate=str(aggregate),
                    remedy='write it like hf.sum("amount").alias("total"), or '
                    'total=hf.sum("amount")',
                )
            given.append((aggregate.column, aggregate))
        for column, aggregate in aggregates.items():
            _check(aggregate, column, name)
            given.append((column, aggregate))
        if not given:
            raise InvalidInputError(
                "agg needs an aggregate",
                kind="no_aggregates",
                operator=name,
                remedy='for example total=hf.sum("amount")',
            )
        checked_output([column for column, _ in given], name)
        return dict(given)

    def _belongs_to_window(self, old: str, new: str, name: str) -> InvalidInputError:
        window = f'hf.tumbling("at", size="1 hour", {new}=...)'
        if any(isinstance(key, Window) for key in self._keys):
            return old_spelling(
                f"{old} belongs to the window", f"write it like {window}", operator=name
            )
        return InvalidInputError(
            f"{old} is for windows",
            kind="no_window",
            operator=name,
            remedy=f"group by a window too: group_by({window})",
        )


def _check(aggregate: object, column: str | None, name: str) -> None:
    if not isinstance(aggregate, Aggregate):
        raise InvalidInputError(
            "not an aggregate",
            kind="not_an_aggregate",
            operator=name,
            column=column,
            value=repr(aggregate)[:80],
            remedy='use hf.sum("amount"), hf.count() and so on',
        )
    for text in aggregate.expressions:
        if not isinstance(text, str) or not is_one(text):
            raise InvalidInputError(
                "an aggregate is taken over one column or SQL expression",
                kind="invalid_expression",
                operator=name,
                column=column or aggregate.column,
                value=repr(text)[:80],
                remedy='name the expression first: with_columns(net="amount - tax"), then '
                'hf.sum("net"); for pairs of values, "struct(a, b)"',
            )
