"""Streams as sets of rows: union, except, intersect, under SQL's names and PySpark's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast.api.rows import RowSteps
from holdfast.errors import InvalidInputError
from holdfast.operators.setops.declare import compared, union

if TYPE_CHECKING:
    from holdfast.api.stream import Stream


class SetSteps(RowSteps):
    """What streams with the same columns can do with each other."""

    def union(self, *others: Stream) -> Self:
        """All rows of these streams, duplicates included; columns go by name.

        Args:
            others: streams of the same pipeline with the same columns, in any order.

        Returns:
            The stream of all rows.

        Raises:
            InvalidInputError: the columns differ, or a stream belongs to another pipeline.

        Example:
            >>> orders.where("amount > 9").union(orders.where("amount < 1")).columns
            ['customer', 'amount', 'at']
        """
        for other in others:
            self._same_pipeline(other, "union")
        return self._after(union([self.node, *(other.node for other in others)]))

    def unionByName(  # noqa: N802 - PySpark's name
        self,
        other: Stream,
        allowMissingColumns: bool = False,  # noqa: FBT001, FBT002, N803
    ) -> Self:
        """All rows of two streams, columns by name, as in PySpark.

        Args:
            other: a stream of the same pipeline with the same columns, in any order.
            allowMissingColumns: must stay False; bring both to the same columns with `select`.

        Returns:
            The stream of all rows.

        Raises:
            InvalidInputError: the columns differ, or missing ones are allowed.

        Example:
            >>> orders.unionByName(orders.select("at", "amount", "customer")).columns
            ['customer', 'amount', 'at']
        """
        if allowMissingColumns:
            raise InvalidInputError(
                "a union of streams has no missing columns",
                kind="unsupported_option",
                option="allowMissingColumns",
                remedy='add them first: with_columns(column="CAST(NULL AS double)")',
            )
        return self.union(other)

    def except_(self, other: Stream, *, all: bool = False, name: str) -> Self:  # noqa: A002
        """Distinct rows that the other stream has not. `subtract` and `exceptAll` are PySpark's.

        Args:
            other: a stream of the same pipeline with the same columns.
            all: keep every row as often as it is more often here than there.
            name: of the operator.

        Returns:
            The stream of these rows, a changelog.

        Raises:
            InvalidInputError: the columns differ, or the stream belongs to another pipeline.

        Example:
            >>> small = orders.where("amount < 10").select("customer")
            >>> orders.select("customer").except_(small, name="never_small").columns
            ['customer']
        """
        self._same_pipeline(other, name)
        rule = "except all" if all else "except"
        return self._added(compared(self.node, other.node, name, rule))

    def subtract(self, other: Stream, *, name: str) -> Self:
        """Distinct rows that the other stream has not, as in PySpark.

        Args:
            other: a stream of the same pipeline with the same columns.
            name: of the operator.

        Returns:
            The stream of these rows, a changelog.

        Raises:
            InvalidInputError: as in `except_`.

        Example:
            >>> orders.subtract(orders.where("amount < 10"), name="large").columns
            ['customer', 'amount', 'at']
        """
        return self.except_(other, name=name)

    def exceptAll(self, other: Stream, *, name: str) -> Self:  # noqa: N802 - PySpark's name
        """Rows as often as they are more often here than in the other stream, as in PySpark.

        Args:
            other: a stream of the same pipeline with the same columns.
            name: of the operator.

        Returns:
            The stream of these rows, a changelog.

        Raises:
            InvalidInputError: as in `except_`.

        Example:
            >>> orders.exceptAll(orders.where("amount < 10"), name="large").columns
            ['customer', 'amount', 'at']
        """
        return self.except_(other, all=True, name=name)

    def intersect(self, other: Stream, *, all: bool = False, name: str) -> Self:  # noqa: A002
        """Distinct rows that both streams have.

        Args:
            other: a stream of the same pipeline with the same columns.
            all: keep every row as often as both have it; PySpark's `intersectAll`.
            name: of the operator.

        Returns:
            The stream of these rows.

        Raises:
            InvalidInputError: the columns differ, or the stream belongs to another pipeline.

        Example:
            >>> orders.intersect(orders.where("amount < 10"), name="both").columns
            ['customer', 'amount', 'at']
        """
        self._same_pipeline(other, name)
        rule = "intersect all" if all else "intersect"
        return self._added(compared(self.node, other.node, name, rule))

    def intersectAll(self, other: Stream, *, name: str) -> Self:  # noqa: N802 - PySpark's name
        """Rows as often as both streams have them, as in PySpark.

        Args:
            other: a stream of the same pipeline with the same columns.
            name: of the operator.

        Returns:
            The stream of these rows.

        Raises:
            InvalidInputError: as in `intersect`.

        Example:
            >>> orders.intersectAll(orders.where("amount < 10"), name="both").columns
            ['customer', 'amount', 'at']
        """
        return self.intersect(other, all=True, name=name)
