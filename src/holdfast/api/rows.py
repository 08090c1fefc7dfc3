"""Steps that treat rows one by one: where, select, with_columns, drop, transform, static joins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self

from holdfast.api.columns import (
    Expression,
    expression_text,
    output_names,
    plain_names,
    spark_column,
)
from holdfast.arguments import several, text_of, value_map
from holdfast.display import html_table, listed, short, shown, shown_html
from holdfast.errors import InvalidInputError
from holdfast.operators.columns import WEIGHT
from holdfast.operators.declaration import (
    Node,
    StaticTable,
    StepNode,
    checked_names,
    checked_output,
)
from holdfast.runtime.graph import Graph

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATIC_HOWS = {
    "inner": "inner",
    "left": "left",
    "leftouter": "left",
    "left_outer": "left",
    "leftsemi": "leftsemi",
    "left_semi": "left_semi",
    "semi": "left_semi",
    "leftanti": "leftanti",
    "left_anti": "left_anti",
    "anti": "left_anti",
}
"""Kinds of a static join, with the text that the fingerprint has for each."""


class RowSteps:
    """What a stream can do without state."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph = graph
        self.node = node

    def __repr__(self) -> str:
        return shown(self, lambda: f"<Stream of {self._origin()}: {self._shown_columns()}>")

    def _repr_html_(self) -> str:
        return shown_html(self, self._html)

    def _html(self) -> str:
        rows = [("columns", self._shown_columns())]
        return html_table(f"Stream of {self._origin()}", rows)

    def _shown_columns(self) -> str:
        names = self.node.columns
        known = "columns that only Spark knows" if names is None else listed(names)
        return known + (" (changelog)" if self.node.retracts else "")

    def _origin(self) -> str:
        """The nearest named part before, and whether steps lie between."""
        node, steps = self.node, 0
        while not node.name and node.inputs:
            node, steps = node.inputs[0], steps + 1
        name = short(node.name, 60)
        return name if not steps else f"{name} and {steps} step{'s' if steps > 1 else ''}"

    @property
    def columns(self) -> list[str] | None:
        """Column names, as far as they are known without Spark; None where they are not."""
        return self.node.columns

    def where(self, condition: Expression) -> Self:
        """Rows for which a condition holds. `filter` is the same.

        Args:
            condition: SQL text or a PySpark Column.

        Returns:
            The stream of these rows.

        Raises:
            InvalidInputError: the condition is neither.

        Example:
            >>> from pyspark.sql import functions as F
            >>> large = orders.where("amount > 100").where(F.col("customer").isNotNull())
            >>> large.columns
            ['customer', 'amount', 'at']
        """
        text = expression_text(condition, "where")
        return self._step(lambda df: df.where(condition), f"where {text}", self.node.columns)

    filter = where

    def select(self, *columns: Expression) -> Self:
        """Some columns, or expressions of them. `selectExpr` is the same.

        Args:
            columns: names, SQL text such as `amount * 2 AS double`, or PySpark Columns.

        Returns:
            The stream with these columns.

        Raises:
            InvalidInputError: no column is given, one is unknown, or two have one name.

        Example:
            >>> from pyspark.sql import functions as F
            >>> orders.select("customer", (F.col("amount") * 2).alias("double")).columns
            ['customer', 'double']
        """
        if not columns:
            raise InvalidInputError("select needs a column", kind="no_columns", operator="select")
        texts = [expression_text(column, "select") for column in columns]
        names = output_names(columns, texts)
        checked_names(plain_names(columns), self.node, "select")
        if names is not None:
            checked_output(names, "select")
        keep = [WEIGHT] if self.node.retracts else []

        def apply(df: DataFrame) -> DataFrame:
            plain = [column for column in columns if isinstance(column, str)]
            if len(plain) == len(columns):
                return df.selectExpr(*plain, *keep)
            return df.select(*(spark_column(column) for column in columns), *keep)

        return self._step(apply, f"select {', '.join(texts)}", names)

    selectExpr = select  # noqa: N815 - PySpark's name

    def with_columns(
        self, columns: Mapping[str, Expression] | None = None, /, **expressions: Expression
    ) -> Self:
        """Add columns, or replace those of the same name. `withColumns` is the same.

        Args:
            columns: by name, SQL text or a PySpark Column.
            expressions: the same, as keywords.

        Returns:
            The stream with these columns; new ones come last.

        Raises:
            InvalidInputError: no column is given, or a name is reserved.

        Example:
            >>> orders.with_columns(day="date(at)", cents="bigint(amount * 100)").columns
            ['customer', 'amount', 'at', 'day', 'cents']
        """
        given: dict[str, Expression] = {**value_map(columns, "columns"), **expressions}
        if not given:
            raise InvalidInputError(
                "with_columns needs a column",
                kind="no_columns",
                operator="with_columns",
                remedy='write it like with_columns(day="date(at)")',
            )
        texts = {name: expression_text(value, "with_columns") for name, value in given.items()}
        names = None
        if self.node.columns is not None:
            by_lower = {name.lower(): name for name in (*self.node.columns, *given)}
            names = list(by_lower.values())
        checked_output(list(given), "with_columns")
        text = ", ".join(f"{name} = {text}" for name, text in texts.items())

        def apply(df: DataFrame) -> DataFrame:
            return df.withColumns({name: spark_column(value) for name, value in given.items()})

        return self._step(apply, f"with {text}", names)

    withColumns = with_columns  # noqa: N815 - PySpark's name

    def withColumn(self, colName: str, col: Expression) -> Self:  # noqa: N802, N803
        """Add one column, or replace the one of the same name, as PySpark does.

        Args:
            colName: its name.
            col: SQL text or a PySpark Column.

        Returns:
            The stream with this column.

        Raises:
            InvalidInputError: the expression is neither, or the name is reserved.

        Example:
            >>> orders.withColumn("day", "date(at)").columns
            ['customer', 'amount', 'at', 'day']
        """
        return self.with_columns({text_of(colName, "colName", "withColumn", "day"): col})

    def drop(self, *columns: str) -> Self:
        """All columns but these; names that are not there change nothing, as in PySpark.

        Args:
            columns: names.

        Returns:
            The stream without them.

        Raises:
            InvalidInputError: something else than names, or no column is left.

        Example:
            >>> orders.drop("at").columns
            ['customer', 'amount']
        """
        for column in columns:
            if not isinstance(column, str):
                raise InvalidInputError(
                    "drop takes names of columns",
                    kind="invalid_expression",
                    operator="drop",
                    value=repr(column)[:80],
                    remedy='write it like drop("amount", "at")',
                )
        checked_output(list(columns), "drop")
        gone = {column.lower() for column in columns}
        names = self.node.columns
        if names is not None:
            names = [name for name in names if name.lower() not in gone]
            if not names:
                raise InvalidInputError(
                    "no column is left",
                    kind="no_columns",
                    operator="drop",
                    remedy="keep at least one column",
                )
        return self._step(lambda df: df.drop(*columns), f"drop {', '.join(columns)}", names)

    def transform(
        self, function: Callable[[DataFrame], DataFrame], *, text: str | None = None
    ) -> Self:
        """Any row-wise DataFrame code, and joins with static DataFrames.

        The function must treat rows one by one: no aggregation, no window, no limit. Where the
        stream is a changelog, the column `__hf_weight` must come out as it went in.

        Args:
            function: from DataFrame to DataFrame.
            text: stands for the function in the pipeline's fingerprint; by default its qualified
                name. Give it another text when the function's meaning changes.

        Returns:
            The stream of its rows.

        Raises:
            InvalidInputError: the function is none; or, when the pipeline is analysed, it drops the
                weight, returns no DataFrame, or does not treat rows one by one.

        Example:
            >>> def cleaned(df):
            ...     return df.fillna({"amount": 0.0})
            >>> orders.transform(cleaned).where("amount >= 0").columns is None
            True
        """
        if not callable(function):
            raise InvalidInputError(
                "transform needs a function",
                kind="not_a_function",
                operator="transform",
                value=repr(function)[:80],
                remedy="give a function from DataFrame to DataFrame",
            )
        name = getattr(function, "__qualname__", type(function).__qualname__)
        label = text or f"{getattr(function, '__module__', '?')}.{name}"

        def apply(df: DataFrame) -> DataFrame:
            after = function(df)
            if WEIGHT in df.columns and WEIGHT not in getattr(after, "columns", [WEIGHT]):
                raise InvalidInputError(
                    "a transform dropped the weight of its rows",
                    kind="weight_dropped",
                    transform=label,
                    remedy=f"keep the column {WEIGHT} of a stream with updates and deletes",
                )
            return after

        return self._step(apply, f"transform {label}", None)

    def join_static(
        self,
        table: DataFrame | Callable[[SparkSession], DataFrame],
        on: str | list[str],
        how: str = "inner",
        *,
        check: bool = True,
        name: str,
    ) -> Self:
        """Join with a DataFrame that does not change while the pipeline runs.

        Args:
            table: a DataFrame, or a function from the session to one.
            on: the columns that must be equal.
            how: inner, left, left_semi or left_anti, as PySpark spells them.
            check: take a digest of the table when a run starts, by one aggregation over it, and
                refuse a table that is not the one of the checkpoint.
            name: of the table, for the fingerprint and for errors.

        Returns:
            The joined stream.

        Raises:
            InvalidInputError: the kind of join would not keep the stream on its left side, or a
                column is unknown.

        Example:
            >>> schema = "customer string, country string"
            >>> countries = spark.createDataFrame([("ann", "NZ")], schema)
            >>> known = orders.join_static(countries, "customer", "left", name="countries")
        """
        text = STATIC_HOWS.get(how) if isinstance(how, str) else None
        if text is None:
            raise InvalidInputError(
                "a static join must keep the stream on its left side",
                kind="unsupported_join",
                how=repr(how)[:60],
                remedy="use inner, left, left_semi or left_anti",
            )
        keys = [*several(on, "on", name)]
        checked_names(keys, self.node, name)

        def frame(spark: SparkSession) -> DataFrame:
            return table(spark) if callable(table) else table

        static = StaticTable(name, frame, check)
        step = f"join {name} on {', '.join(keys)} {text}"
        return self._step(
            lambda df: df.join(frame(df.sparkSession), keys, text), step, None, static
        )

    def _step(
        self,
        apply: Callable[[DataFrame], DataFrame],
        text: str,
        columns: list[str] | None,
        static: StaticTable | None = None,
    ) -> Self:
        node = StepNode(
            columns=columns,
            retracts=self.node.retracts,
            inputs=(self.node,),
            apply=apply,
            text=text,
            static=static,
        )
        return self._after(node)

    def _after(self, node: Node) -> Self:
        """The stream of a node's rows."""
        return type(self)(self._graph, node)

    def _added(self, node: Node) -> Self:
        """The stream of a node whose operators are named parts of the pipeline from now on."""
        self._graph.add_operators(node)
        return self._after(node)

    def _same_pipeline(self, other: object, owner: str) -> None:
        if not isinstance(other, RowSteps) or other._graph is not self._graph:  # noqa: SLF001
            raise InvalidInputError(
                "the other side must be a stream of the same pipeline",
                kind="foreign_stream",
                operator=owner,
                value=repr(other)[:80],
                remedy="declare both sides with sources of one pipeline; a DataFrame goes into "
                "join_static",
            )
