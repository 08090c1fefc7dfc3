"""From the declared graph to Spark: types, expressions for the JVM, and work for the tasks.

Invariants:
- Everything is analysed on empty inputs before the store is opened; errors name the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.errors import InvalidInputError
from holdfast.pipeline.columns import check_columns
from holdfast.pipeline.declare.sets import check_same_names
from holdfast.pipeline.graph import (
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
from holdfast.pipeline.resolving.aggregate import resolve_aggregate
from holdfast.pipeline.resolving.apply import resolve_apply
from holdfast.pipeline.resolving.common import Resolved, named, spark_schema
from holdfast.pipeline.resolving.join import resolve_join
from holdfast.pipeline.resolving.sets import resolve_rows
from holdfast.pipeline.resolving.top import resolve_top
from holdfast.pipeline.resolving.unique import resolve_dedupe, resolve_distinct
from holdfast.pipeline.resolving.window import resolve_window

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
    """A source's rows, its weight under Holdfast's own name."""
    weight = node.connector.weight
    if weight is None:
        return df
    return df.withColumn(weight, F.col(weight).cast("long")).withColumnRenamed(weight, WEIGHT)


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
                empty = named(node.name, lambda n=node: n.connector.empty(spark))  # type: ignore[misc]
                frames[id(node)] = source_frame(node, empty)
            elif isinstance(node, StepNode):
                frames[id(node)] = named(node.text, lambda n=node, b=before: _applied(n, b[0]))  # type: ignore[misc]
            elif isinstance(node, UnionNode):
                frames[id(node)] = named("union", lambda n=node, b=before: union_frame(n, b))  # type: ignore[misc]
            elif isinstance(node, OperatorNode):
                done = named(node.name, lambda n=node, b=before: RESOLVERS[n.what](n, b))  # type: ignore[misc]
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
    check = getattr(node.connector, "check", None)
    if check is not None:
        named(node.name, lambda: check(node.name, frame.schema))
    return frame


def _late_schema(resolved: Resolved) -> Any:
    late = resolved.work.late
    if late is None:
        raise InvalidInputError(
            "no row is ever too late for this operator", kind="no_late_rows",
            operator=resolved.node.name, remedy="leave the sink of late rows out",
        )  # fmt: skip
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
    after = node.apply(before)
    check_columns([name for name in after.columns if name != WEIGHT], node.text)
    _ = after.schema
    return after
