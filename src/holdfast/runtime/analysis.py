"""From the declared graph to Spark: types, expressions for the JVM, and work for the tasks.

Invariants:
- Everything is analysed on empty inputs before the store is opened; errors name the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.operators.aggregate.analyze import resolve_aggregate
from holdfast.operators.analysis import Resolved, arrow_schema, named, spark_schema
from holdfast.operators.apply.analyze import resolve_apply
from holdfast.operators.dedupe.analyze import resolve_dedupe, resolve_distinct
from holdfast.operators.join.analyze import resolve_join
from holdfast.operators.setops.analyze import resolve_rows
from holdfast.operators.setops.declare import check_same_names
from holdfast.operators.topk.analyze import resolve_top
from holdfast.operators.window.analyze import resolve_window
from holdfast.runtime.graph import (
    WEIGHT,
    Graph,
    LateNode,
    Node,
    OperatorNode,
    SinkNode,
    SourceNode,
    StepNode,
    UnionNode,
    upstream,
)
from holdfast.runtime.watermarks import time_kind
from holdfast.spark.ddl import check_columns, quoted
from holdfast.spark.errors import user_code_failed

RESOLVERS: dict[str, Callable[[OperatorNode, Sequence[Any]], Resolved]] = {
    "aggregate": resolve_aggregate,
    "apply": resolve_apply,
    "dedupe": resolve_dedupe,
    "distinct": resolve_distinct,
    "join": resolve_join,
    "rows": resolve_rows,
    "window": resolve_window,
    "top": resolve_top,
}
"""By `OperatorNode.what`."""


def source_frame(node: SourceNode, df: Any) -> Any:
    """A source's rows, its weight under Holdfast's own name; a row without one is an error."""
    weight = node.connector.weight
    if weight is None:
        return df
    text = (
        "holdfast.errors.InvalidInputError: a row has no weight. cause=null_weight "
        f"source={node.name} column={weight}. "
        "give every row a whole number: 1 adds it, -1 retracts it"
    )
    text = text.replace("\\", "\\\\").replace("'", "\\'")
    name = quoted(weight)
    given = F.expr(f"CASE WHEN {name} IS NULL THEN raise_error('{text}') ELSE {name} END")
    return df.withColumn(weight, given.cast("long")).withColumnRenamed(weight, WEIGHT)


def _check_weight(node: SourceNode, df: Any) -> None:
    weight = node.connector.weight
    if weight is None:
        return
    kind = next(f.dataType for f in df.schema.fields if f.name.lower() == weight.lower())
    if not isinstance(kind, T.IntegralType):
        raise InvalidInputError(
            "a weight is a whole number",
            kind="unsupported_type",
            source=node.name,
            column=weight,
            type=kind.simpleString(),
            remedy="cast the column to a long where it is written",
        )


def resolve(graph: Graph, spark: Any) -> dict[str, Resolved]:
    """Find types and expressions of every operator, on empty inputs."""
    frames: dict[int, Any] = {}
    found: dict[str, Resolved] = {}
    targets: list[Node] = [*graph.operators, *graph.sinks]
    for target in targets:
        for node in upstream(target):
            if id(node) in frames:
                continue
            before = [frames[id(n)] for n in node.inputs]
            if isinstance(node, SourceNode):
                frames[id(node)] = _empty_source(node, spark)
            elif isinstance(node, StepNode):
                frames[id(node)] = named(node.text, lambda n=node, b=before: _applied(n, b[0]))  # type: ignore[misc]
            elif isinstance(node, UnionNode):
                frames[id(node)] = named("union", lambda n=node, b=before: union_frame(n, b))  # type: ignore[misc]
            elif isinstance(node, OperatorNode):
                done = _resolved(node, before)
                found[node.name] = done
                frames[id(node)] = spark.createDataFrame([], spark_schema(done.work.output))
            elif isinstance(node, LateNode):
                late = _late_schema(found[node.operator.name])
                frames[id(node)] = spark.createDataFrame([], spark_schema(late))
            elif isinstance(node, SinkNode):
                frames[id(node)] = _checked(node, before[0])
    return found


def _checked(node: SinkNode, frame: Any) -> Any:
    """What goes into a sink, after the sink has looked at the columns and their types."""
    named(node.name, lambda: node.connector.check(node.name, frame.schema))
    return frame


def _resolved(node: OperatorNode, before: list[Any]) -> Resolved:
    """An operator with its types known; what Spark or a trace refuses is refused here."""

    def build() -> Resolved:
        done = RESOLVERS[node.what](node, before)
        _ = done.work.traces
        made = done.prepare(before)
        arrow_schema(made.schema)
        if done.condense is not None:
            _ = done.condense(made).schema
        return done

    try:
        found: Resolved = named(node.name, build)
    except InvalidInputError as error:
        if error.kind == "invalid_columns":  # of the user's columns alone, none is there twice
            raise InvalidInputError(
                "a column has a name that the operator uses for what it keeps",
                kind="reserved_column",
                operator=node.name,
                column=error.facts.get("twice"),
                remedy='rename it before this step: select("... AS other_name")',
            ) from error
        error.facts.setdefault("operator", node.name)
        raise
    return found


def _empty_source(node: SourceNode, spark: Any) -> Any:
    empty = named(node.name, lambda: node.connector.empty(spark))
    _check_weight(node, empty)
    if node.event_time is not None:
        time_kind(node, empty)
    return source_frame(node, empty)


def _late_schema(resolved: Resolved) -> Any:
    late = resolved.work.late
    if late is None:
        raise InvalidInputError(
            "no row is ever too late for this operator",
            kind="no_late_rows",
            operator=resolved.node.name,
            remedy="leave the sink of late rows out",
        )
    return late


def union_frame(node: UnionNode, frames: Sequence[Any]) -> Any:
    """All rows of several streams; those that only add get a weight where others have one."""
    names = [[name for name in frame.columns if name != WEIGHT] for frame in frames]
    for more in names[1:]:
        check_same_names(names[0], more, "union")
    whole = [
        frame.withColumn(WEIGHT, F.lit(1).cast("long"))
        if node.changes and WEIGHT not in frame.columns
        else frame
        for frame in frames
    ]
    done = whole[0]
    for frame in whole[1:]:
        done = done.unionByName(frame)
    return done


def _applied(node: StepNode, before: Any) -> Any:
    try:
        after = node.apply(before)
    except (HoldfastError, PySparkException):
        raise
    except Exception as error:
        raise user_code_failed(error, node.text) from error
    if not hasattr(after, "columns") or not hasattr(after, "schema"):
        raise InvalidInputError(
            "a transform must return a DataFrame",
            kind="user_code_failed",
            operator=node.text,
            value=repr(after)[:80],
            remedy="return the DataFrame at the end of the function",
        )
    check_columns([name for name in after.columns if name != WEIGHT], node.text)
    _ = after.schema
    return after
