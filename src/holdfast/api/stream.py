"""What a user writes code with: a stream of rows, and the steps that make another one of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.api.functions import Aggregate
from holdfast.api.windows import Window
from holdfast.durations import duration_us
from holdfast.errors import InvalidInputError
from holdfast.operators.apply.declare import apply_node
from holdfast.operators.join.declare import Interval, Join, On, add_join
from holdfast.operators.setops.declare import add_compared, union_of
from holdfast.operators.topk.declare import latest_node, top_k_node
from holdfast.operators.window.declare import late_node, refuse_window_options, window_node
from holdfast.runtime.graph import (
    WEIGHT,
    DedupeBound,
    Graph,
    Node,
    OperatorNode,
    StaticTable,
    StepNode,
    checked_names,
    checked_output,
    require_watermark,
)
from holdfast.spark.ddl import split_top

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ALIAS = re.compile(r".*\s(?:as\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*", re.IGNORECASE | re.DOTALL)


class Stream:
    """Rows that keep coming. Each method gives a new stream; nothing runs before `Pipeline.run`."""

    def __init__(self, graph: Graph, node: Node) -> None:
        """Use `Pipeline.source` and the methods of other streams."""
        self._graph = graph
        self.node = node

    @property
    def columns(self) -> list[str] | None:
        """Column names, as far as they are known without Spark."""
        return self.node.columns

    def where(self, condition: str) -> Stream:
        """Rows for which a SQL condition holds."""
        return self._step(lambda df: df.where(condition), f"where {condition}", self.node.columns)

    def select(self, *columns: str) -> Stream:
        """SQL expressions: names, or `expression AS name`."""
        if not columns:
            raise InvalidInputError("select needs a column", kind="no_columns", operator="select")
        names = _output_names(columns)
        plain = [text for text in columns if _PLAIN.fullmatch(text)]
        checked_names(plain, self.node, "select")
        if names is not None:
            checked_output(names, "select")
        keep = [WEIGHT] if self.node.changes else []
        return self._step(
            lambda df: df.selectExpr(*columns, *keep), f"select {', '.join(columns)}", names
        )

    def with_columns(self, **expressions: str) -> Stream:
        """Add or replace columns by SQL expressions."""
        names = None
        if self.node.columns is not None:
            new = [name for name in expressions if name not in self.node.columns]
            names = checked_output([*self.node.columns, *new], "with_columns")
        text = ", ".join(f"{name} = {text}" for name, text in expressions.items())

        def apply(df: Any) -> Any:
            from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

            return df.withColumns({n: F.expr(e) for n, e in expressions.items()})

        return self._step(apply, f"with {text}", names)

    def transform(self, function: Callable[[Any], Any], *, text: str | None = None) -> Stream:
        """Any row-wise DataFrame code, and joins with static DataFrames.

        The function must treat rows one by one: no aggregation, no window, no limit. Where the
        stream carries weights, the column `__hf_weight` must come out as it went in. `text` stands
        for the function in the pipeline's fingerprint; by default its qualified name.
        """
        label = text or f"{getattr(function, '__module__', '?')}.{function.__qualname__}"

        def apply(df: Any) -> Any:
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
        self, table: Any, on: str | list[str], how: str = "inner", *, name: str, check: bool = True
    ) -> Stream:
        """Join with a DataFrame that does not change while the pipeline runs.

        `table` is a DataFrame, or a function from the session to one. `how` is inner or left.
        check: take a digest of the table when a run starts, by one aggregation over it, and refuse
        a table that is not the one of the checkpoint.
        """
        if how not in ("inner", "left", "leftsemi", "left_semi", "leftanti", "left_anti"):
            raise InvalidInputError(
                "a static join must keep the stream on its left side",
                kind="unsupported_join",
                how=how,
                remedy="use inner, left, left_semi or left_anti",
            )
        keys = [on] if isinstance(on, str) else list(on)
        checked_names(keys, self.node, name)

        def frame(spark: Any) -> Any:
            return table(spark) if callable(table) else table

        static = StaticTable(name, frame, check)
        text = f"join {name} on {', '.join(keys)} {how}"
        return self._step(lambda df: df.join(frame(df.sparkSession), keys, how), text, None, static)

    def join(
        self, other: Stream, on: On, how: str = "inner", *, name: str,
        condition: str | None = None, within: Interval | None = None, suffix: str | None = None,
    ) -> Stream:  # fmt: skip
        """Join with another stream, kept up to date by the rows of both.

        on: a column, several, or {left column: right column}; nulls meet nothing, as in SQL.
        how: inner, left, right, full, semi or anti. condition: SQL over the columns of both sides,
        part of what makes a match. within: `hf.interval(...)`; rows that can no longer match are
        forgotten. suffix: appended to columns of the right side whose names are taken.
        """
        self._same_pipeline(other, name)
        join = Join(on, how, name, condition, within, suffix)
        return Stream(self._graph, add_join(self._graph, self.node, other.node, join))

    def union(self, *others: Stream) -> Stream:
        """All rows of these streams, duplicates included; columns go by name."""
        for other in others:
            self._same_pipeline(other, "union")
        return Stream(self._graph, union_of([self.node, *(other.node for other in others)]))

    def except_(self, other: Stream, *, name: str, all: bool = False) -> Stream:  # noqa: A002
        """Different rows that the other stream has not; `all`: as often as it has them fewer."""
        self._same_pipeline(other, name)
        rule = "except all" if all else "except"
        return Stream(self._graph, add_compared(self._graph, self.node, other.node, name, rule))

    def intersect(self, other: Stream, *, name: str, all: bool = False) -> Stream:  # noqa: A002
        """Different rows that both streams have; `all`: as often as both have them."""
        self._same_pipeline(other, name)
        rule = "intersect all" if all else "intersect"
        return Stream(self._graph, add_compared(self._graph, self.node, other.node, name, rule))

    @property
    def late(self) -> Stream:
        """Rows that came too late for this operator; they can only go into a sink."""
        return Stream(self._graph, late_node(self.node))

    def group_by(self, *keys: str | Window) -> Grouped:
        """Group by columns, and by a window of event time; follow with `.agg(...)`."""
        if not keys:
            raise InvalidInputError(
                "group_by needs a column", kind="no_keys", operator="group_by",
                remedy="for one total over everything, group by a constant column",
            )  # fmt: skip
        return Grouped(self._graph, self.node, keys)

    def distinct(self, *, name: str) -> Stream:
        """Every different row once."""
        node = OperatorNode(
            columns=self.node.columns, changes=self.node.changes, name=name, befores=(self.node,),
            what="distinct", keys=tuple(self.node.columns or ()),
        )  # fmt: skip
        self._graph.add(node)
        return Stream(self._graph, node)

    def dedupe(
        self, *keys: str, name: str, time: str | None = None, within: str | None = None
    ) -> Stream:
        """The first row of each key; with `time` and `within`, keys are forgotten after a while.

        Rows whose time lies more than `within` behind the watermark are late: whether they are
        duplicates can no longer be known, so they are dropped, counted, and given by `.late`.
        """
        if not keys:
            raise InvalidInputError("dedupe needs a key", kind="no_keys", operator=name)
        if (time is None) != (within is None):
            raise InvalidInputError(
                "time and within go together", kind="invalid_bound", operator=name,
                remedy="give both the column of event time and how long to remember a key",
            )  # fmt: skip
        if self.node.changes:
            raise InvalidInputError(
                "dedupe takes the first row for good, but these rows can be taken back",
                kind="dedupe_of_changes", operator=name, remedy="use distinct, or dedupe earlier",
            )  # fmt: skip
        checked_names([*keys, *([time] if time else [])], self.node, name)
        if time is not None:
            require_watermark(self.node, name)
        bound = {"time": time, "within_us": str(duration_us(within))} if time and within else {}
        node = OperatorNode(
            columns=self.node.columns, changes=False, name=name, befores=(self.node,),
            what="dedupe", keys=keys, params={k: str(v) for k, v in bound.items()},
            detail=DedupeBound(time, duration_us(within)) if time and within else None,
        )  # fmt: skip
        self._graph.add(node)
        return Stream(self._graph, node)

    def _same_pipeline(self, other: Stream, owner: str) -> None:
        if not isinstance(other, Stream) or other._graph is not self._graph:
            raise InvalidInputError(
                "the other side must be a stream of the same pipeline", kind="foreign_stream",
                operator=owner, value=repr(other)[:80],
            )  # fmt: skip

    def top_k(
        self, k: int, *, order_by: str | Sequence[str], name: str, per: str | Sequence[str] = (),
        rank: str | None = None,
    ) -> Stream:  # fmt: skip
        """The first `k` rows of each key by an ordering such as `["amount desc", "at"]`.

        Without `per`, of the whole stream. `rank` names a column for 1 to k. What the ordering
        leaves open is decided by all other columns, ascending: the same rows as `row_number()`
        over (the ordering, then all other columns) gives in Spark.
        """
        return self._with(
            top_k_node(self.node, k, per=per, order_by=order_by, name=name, rank=rank)
        )

    def latest(self, *keys: str, order_by: str | Sequence[str], name: str) -> Stream:
        """The last row of each key by an ordering; ties as in `top_k`."""
        return self._with(latest_node(self.node, keys, order_by=order_by, name=name))

    def apply(
        self, function: Callable[..., Any], *, key: str | Sequence[str], state_schema: str,
        output_schema: str, name: str, time: str | None = None, ttl: str | None = None,
        timers: str | None = None, changes: bool = False, text: str | None = None,
    ) -> Stream:  # fmt: skip
        """Your own operator: `function(changes, state, context)` gives `(output, new state)`.

        All are Arrow tables, over all touched keys of a partition at once. `changes` has the rows
        of this epoch by key, `time` and all columns, with `_weight` where rows can be taken back;
        `state` one row for each key that has some. The new state replaces that of every key in
        `context.keys`: a key that is missing from it is deleted. timers: a timestamp column of the
        state; a key is asked about, without rows, when the watermark reaches it. ttl: keys are
        forgotten that long after the newest `time` of their rows; older rows are late. changes:
        the output has a column `_weight` too. `text` stands for the function in the fingerprint.
        """
        node = apply_node(
            self.node, function, key=key, state_schema=state_schema, output_schema=output_schema,
            name=name, ttl=ttl, time=time, timers=timers, changes=changes, text=text,
        )  # fmt: skip
        return self._with(node)

    def _with(self, node: OperatorNode) -> Stream:
        self._graph.add(node)
        return Stream(self._graph, node)

    def _step(
        self,
        apply: Callable[[Any], Any],
        text: str,
        columns: list[str] | None,
        static: StaticTable | None = None,
    ) -> Stream:
        node = StepNode(
            columns, self.node.changes, before=self.node, apply=apply, text=text, static=static
        )
        return Stream(self._graph, node)


class Grouped:
    """A stream that waits for its aggregates."""

    def __init__(self, graph: Graph, before: Node, keys: tuple[str | Window, ...]) -> None:
        """Use `Stream.group_by`."""
        self._graph = graph
        self._before = before
        self._keys = keys

    def agg(
        self, *, name: str, emit: str | None = None, lateness: str | None = None,
        **aggregates: Aggregate,
    ) -> Stream:  # fmt: skip
        """One row for each group, kept up to date: `agg(total=hf.sum("amount"), name="totals")`.

        With a window among the keys: `emit="update"` (the default) gives changes at every epoch,
        `emit="close"` one row for each window, when the watermark has passed its end by `lateness`.
        """
        if not aggregates:
            raise InvalidInputError(
                "agg needs an aggregate", kind="no_aggregates", operator=name,
                remedy='for example total=hf.sum("amount")',
            )  # fmt: skip
        for column, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise InvalidInputError(
                    "not an aggregate", kind="not_an_aggregate", operator=name, column=column,
                    value=repr(aggregate)[:80], remedy='use hf.sum("amount"), hf.count() and so on',
                )  # fmt: skip
            plain = [text for text in aggregate.expressions if _PLAIN.fullmatch(text)]
            checked_names(plain, self._before, name)
        keys = tuple(key for key in self._keys if isinstance(key, str))
        if len(keys) < len(self._keys):
            node = window_node(
                self._before, self._keys, aggregates, name=name, emit=emit, lateness=lateness
            )
            self._graph.add(node)
            return Stream(self._graph, node)
        refuse_window_options(name, emit, lateness)
        checked_names(list(keys), self._before, name)
        columns = checked_output([*keys, *aggregates], name)
        node = OperatorNode(
            columns=columns, changes=True, name=name, befores=(self._before,), what="aggregate",
            keys=keys, params={k: str(v) for k, v in aggregates.items()},
            detail=dict(aggregates),
        )  # fmt: skip
        self._graph.add(node)
        return Stream(self._graph, node)


def _output_names(columns: tuple[str, ...]) -> list[str] | None:
    """Names that a select gives, or None where only Spark can tell."""
    names = []
    for text in columns:
        if len(split_top(text)) > 1 or text.strip() == "*":
            return None
        plain, alias = _PLAIN.fullmatch(text.strip()), _ALIAS.fullmatch(text)
        if plain is None and alias is None:
            return None
        names.append(text.strip() if plain else alias.group(1))  # type: ignore[union-attr]
    return names
