"""From the declared graph to Spark: types, expressions for the JVM, and what runs in tasks.

Invariants:
- Everything is analysed on empty inputs before the store is opened; errors name the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.operators.analyze import arrow_schema, named
from holdfast.operators.base import Analyzed
from holdfast.operators.columns import FAILED, WEIGHT
from holdfast.operators.declaration import Declaration, Node, SinkNode, SourceNode
from holdfast.runtime.bad_rows import bad_schema, good_rows
from holdfast.runtime.graph import Graph
from holdfast.runtime.watermarks import time_kind
from holdfast.spark.arrow_types import spark_schema
from holdfast.spark.ddl import check_columns, quoted
from holdfast.spark.errors import user_code_failed
from holdfast.spark.row_wise import check_row_wise, marked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def source_frame(node: SourceNode, df: DataFrame) -> DataFrame:
    """A source's rows, its weight under Holdfast's own name; a row without one is an error."""
    df = good_rows(df)
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


def _check_weight(node: SourceNode, df: DataFrame) -> None:
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


def analyze(graph: Graph, spark: SparkSession) -> dict[str, Analyzed]:
    """Find types and expressions of every operator, on empty inputs."""
    frames: dict[int, DataFrame] = {id(node): _empty_source(node, spark) for node in graph.sources}
    found: dict[str, Analyzed] = {}
    operators = {id(node): node for node in graph.operators}
    sinks = {id(node): node for node in graph.sinks}
    late = {id(sink.input.staged_by()) for sink in graph.sinks if sink.input.late}
    for node in graph.nodes():
        inputs = [frames[id(n)] for n in node.inputs]
        operator = operators.get(id(node))
        if id(node) in frames:
            continue
        if node.bad_of is not None:
            frames[id(node)] = spark.createDataFrame([], bad_schema(spark, node, graph.sources))
            continue
        if operator is not None:
            analyzed = _analyzed(operator, inputs, late_rows=id(node) in late)
            found[node.name] = analyzed
            frames[id(node)] = spark.createDataFrame([], spark_schema(analyzed.task.output))
        elif node.late:
            owner = found[node.inputs[0].name]
            frames[id(node)] = spark.createDataFrame([], spark_schema(_late_schema(owner)))
        elif id(node) in sinks:
            frames[id(node)] = _checked(sinks[id(node)], inputs[0])
        else:
            frames[id(node)] = named(node.label, lambda n=node, i=inputs: _stateless(n, i))  # type: ignore[misc]
    return found


def _checked(node: SinkNode, frame: DataFrame) -> DataFrame:
    """What goes into a sink, after the sink has looked at the columns and their types."""
    named(node.name, lambda: node.connector.check(node.name, frame.schema))
    return frame


def _analyzed(node: Declaration, inputs: list[Any], *, late_rows: bool) -> Analyzed:
    """An operator with its types known; what Spark or a trace refuses is refused here."""

    def build() -> Analyzed:
        analyzed = node.analyze(inputs, late_rows=late_rows)
        _ = analyzed.task.traces
        rows = analyzed.project(inputs)
        arrow_schema(rows.schema)
        partial = analyzed.partial_aggregate(rows)
        if partial is not None:
            _ = partial.schema
        return analyzed

    try:
        found: Analyzed = named(node.name, build)
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


def _empty_source(node: SourceNode, spark: SparkSession) -> DataFrame:
    empty = named(node.name, lambda: node.connector.empty(spark))
    _check_weight(node, empty)
    if node.event_time is not None:
        time_kind(node, empty)
    return source_frame(node, empty)


def _late_schema(analyzed: Analyzed) -> Any:
    late = analyzed.task.late
    if late is None:
        raise InvalidInputError(
            "no row is ever too late for this operator",
            kind="no_late_rows",
            operator=analyzed.declaration.name,
            remedy="leave the sink of late rows out",
        )
    return late


def _stateless(node: Node, inputs: list[Any]) -> DataFrame:
    """The rows of a step that keeps nothing; what a user function returned is looked at."""
    try:
        after = node.frame([marked(frame) for frame in inputs])
    except (HoldfastError, PySparkException):
        raise
    except Exception as error:
        raise user_code_failed(error, node.label) from error
    if not hasattr(after, "columns") or not hasattr(after, "schema"):
        raise InvalidInputError(
            "a transform must return a DataFrame",
            kind="user_code_failed",
            operator=node.label,
            value=repr(after)[:80],
            remedy="return the DataFrame at the end of the function",
        )
    own = {WEIGHT} if node.expectation is None else {WEIGHT, FAILED}
    check_columns([name for name in after.columns if name not in own], node.label)
    _ = after.schema
    if not node.row_wise:
        judged = node.expectation is not None
        check_row_wise(after, node.label, retracts=node.retracts, judged=judged)
    return after
