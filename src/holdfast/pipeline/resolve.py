"""From the declared graph to Spark: types, expressions for the JVM, and work for the tasks.

Invariants:
- Everything is analysed on empty inputs before the store is opened; errors name the operator.
- Hashes, conditions and conversions are computed in the JVM, never row by row in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type

from holdfast.errors import InvalidInputError
from holdfast.pipeline.aggregates import Aggregate
from holdfast.pipeline.columns import check_columns
from holdfast.pipeline.graph import (
    WEIGHT,
    Graph,
    Node,
    OperatorNode,
    SinkNode,
    SourceNode,
    StepNode,
    upstream,
)
from holdfast.pipeline.operators.aggregate import AggregateWork
from holdfast.pipeline.operators.fold import (
    CountFold,
    DistinctFold,
    ExtremeFold,
    Fold,
    SpreadFold,
    SumFold,
)
from holdfast.pipeline.operators.unique import DedupeWork, DistinctWork
from holdfast.pipeline.operators.work import HASH, Work

_TOP = "-72057594037927936L"
_LOW = "72057594037927935L"
_INTEGRAL = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_ORDERED = (
    T.NumericType, T.StringType, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType,
)  # fmt: skip


@dataclass(frozen=True)
class Resolved:
    """A stateful operator with its types known."""

    node: OperatorNode
    work: Work
    prepare: Callable[[Any], Any]


def arrow_schema(struct: Any, *, without: str | None = WEIGHT) -> Any:
    """Spark's schema as Arrow's; timestamps in UTC."""
    return pa.schema(
        [
            pa.field(f.name, to_arrow_type(f.dataType, timezone="UTC"))
            for f in struct.fields
            if f.name != without
        ]
    )


def source_frame(node: SourceNode, df: Any) -> Any:
    """A source's rows, its weight under Holdfast's own name."""
    weight = node.connector.weight
    if weight is None:
        return df
    return df.withColumn(weight, F.col(weight).cast("long")).withColumnRenamed(weight, WEIGHT)


def named(owner: str, build: Callable[[], Any]) -> Any:
    """Run code that Spark may refuse, and let the error name the operator."""
    try:
        return build()
    except PySparkException as error:
        text = str(error.getMessage() if hasattr(error, "getMessage") else error)
        raise InvalidInputError(
            "Spark cannot run this step",
            kind="analysis_failed",
            operator=owner,
            reason=(text or str(error)).splitlines()[0][:300],
            remedy="correct the expression or the column name",
        ) from error


def resolve(graph: Graph, spark: Any) -> dict[str, Resolved]:
    """Find types and expressions of every operator, on empty inputs."""
    frames: dict[int, Any] = {}
    found: dict[str, Resolved] = {}
    targets: list[Node] = [*graph.operators, *graph.sinks]
    for target in targets:
        for node in upstream(target):
            if id(node) in frames:
                continue
            if isinstance(node, SourceNode):
                empty = named(node.name, lambda n=node: n.connector.empty(spark))  # type: ignore[misc]
                frames[id(node)] = source_frame(node, empty)
            elif isinstance(node, StepNode):
                before = frames[id(node.before)]
                frames[id(node)] = named(node.text, lambda n=node, b=before: _applied(n, b))  # type: ignore[misc]
            elif isinstance(node, OperatorNode):
                before = frames[id(node.before)]
                done = named(node.name, lambda n=node, b=before: _operator(n, b))  # type: ignore[misc]
                found[node.name] = done
                frames[id(node)] = spark.createDataFrame([], spark_schema(done.work.output))
            elif isinstance(node, SinkNode):
                frames[id(node)] = frames[id(node.before)]
    return found


def spark_schema(schema: Any) -> Any:
    """Arrow's schema as Spark's."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def _applied(node: StepNode, before: Any) -> Any:
    after = node.apply(before)
    check_columns([name for name in after.columns if name != WEIGHT], node.text)
    _ = after.schema
    return after


def _operator(node: OperatorNode, df: Any) -> Resolved:
    if node.what == "aggregate":
        return _aggregate(node, df)
    if node.what == "distinct":
        return _distinct(node, df)
    return _dedupe(node, df)


def _keys(node: OperatorNode, df: Any, names: tuple[str, ...]) -> Any:
    fields = {f.name.lower(): f for f in df.schema.fields}
    for name in names:
        kind = fields[name.lower()].dataType if name.lower() in fields else None
        if kind is None:
            raise InvalidInputError(
                "unknown column", kind="unknown_column", operator=node.name, column=name,
                known=",".join(n for n in df.columns if n != WEIGHT),
                remedy="correct the name, or add the column before this step",
            )  # fmt: skip
        if isinstance(kind, (T.MapType, T.VariantType)):
            raise InvalidInputError(
                "a column of this type cannot be a key", kind="unsupported_key",
                operator=node.name, column=name, type=kind.simpleString(),
                remedy="use its parts as keys",
            )  # fmt: skip
    picked = T.StructType([fields[name.lower()] for name in names])
    return arrow_schema(picked)


def _hash(names: tuple[str, ...]) -> str:
    return "xxhash64(" + ", ".join(f"`{name}`" for name in names) + ")"


def _distinct(node: OperatorNode, df: Any) -> Resolved:
    names = tuple(name for name in df.columns if name != WEIGHT)
    row = _keys(node, df, names)
    weight = [WEIGHT] if node.changes else []

    def prepare(frame: Any) -> Any:
        return frame.selectExpr(f"{_hash(names)} AS {HASH}", *(f"`{n}`" for n in names), *weight)

    return Resolved(node, DistinctWork(node.name, row, node.changes), prepare)


def _dedupe(node: OperatorNode, df: Any) -> Resolved:
    keys = _keys(node, df, node.keys)
    row = arrow_schema(df.schema)
    if node.time is not None and not pa.types.is_timestamp(row.field(node.time).type):
        raise InvalidInputError(
            "the event time must be a timestamp", kind="invalid_time_column",
            operator=node.name, column=node.time, type=str(row.field(node.time).type),
        )  # fmt: skip
    names = tuple(df.columns)

    def prepare(frame: Any) -> Any:
        return frame.selectExpr(f"{_hash(node.keys)} AS {HASH}", *(f"`{n}`" for n in names))

    return Resolved(node, DedupeWork(node.name, keys, row, node.time), prepare)


def _aggregate(node: OperatorNode, df: Any) -> Resolved:
    changes = WEIGHT in df.columns
    keys = _keys(node, df, node.keys)
    texts = [f"{_hash(node.keys)} AS {HASH}", *(f"`{n}`" for n in node.keys)]
    folds: list[Fold] = []
    input_types: list[tuple[str, Any]] = []
    for index, (name, aggregate) in enumerate(node.aggregates.items()):
        kind = _type_of(df, aggregate)
        fold, inputs = _fold(node, name, index, aggregate, kind, changes=changes)
        folds.append(fold)
        texts.extend(f"{text} AS `{column}`" for column, text in inputs.items())
        if isinstance(fold, DistinctFold):
            input_types.append((fold.inputs[0], to_arrow_type(kind, timezone="UTC")))
    if changes:
        texts.append(WEIGHT)
    work = AggregateWork(node.name, keys, tuple(folds), changes, tuple(input_types))
    names = [
        n for schema in work.traces.values() for n in (*schema.keys.names, *schema.values.names)
    ]
    check_columns([n for n in names if not n.startswith("_")][: len(keys) + len(folds)], node.name)
    return Resolved(node, work, lambda frame: frame.selectExpr(*texts))


def _type_of(df: Any, aggregate: Aggregate) -> Any:
    if aggregate.expression is None:
        return None
    return df.selectExpr(f"({aggregate.expression}) AS x").schema.fields[0].dataType


def _fold(
    node: OperatorNode, name: str, index: int, aggregate: Aggregate, kind: Any, *, changes: bool
) -> tuple[Fold, dict[str, str]]:
    """The fold of one aggregate, and the columns that the JVM computes for it."""
    x = f"({aggregate.expression})"
    weight = WEIGHT if changes else "1L"
    inputs = tuple(f"__hf_i{index}_{n}" for n in range(5))
    present = f"CASE WHEN {x} IS NULL THEN 0L ELSE {weight} END"
    if aggregate.kind == "count":
        if aggregate.expression is None:
            return CountFold(name, pa.int64()), {}
        return CountFold(name, pa.int64(), inputs[:1]), {inputs[0]: present}
    if aggregate.kind in ("min", "max"):
        _require(kind, _ORDERED, node, name, "a number, text, date or time")
        arrow = to_arrow_type(kind, timezone="UTC")
        bag = f"{node.name}.values-{index}" if changes else None
        fold = ExtremeFold(name, arrow, inputs[:1], largest=aggregate.kind == "max", bag=bag)
        return fold, {inputs[0]: x}
    if aggregate.kind == "count_distinct":
        names = ", ".join(f"`{n}`" for n in node.keys)
        mixed = f"(({_hash(node.keys)} & {_TOP}) | (xxhash64({names}, {x}) & {_LOW}))"
        trace = f"{node.name}.distinct-{index}"
        distinct = DistinctFold(name, pa.int64(), inputs[:2], trace)
        return distinct, {inputs[0]: x, inputs[1]: mixed}
    _require(kind, (T.NumericType,), node, name, "a number")
    if aggregate.kind in ("stddev", "variance"):
        spread = SpreadFold(
            name, pa.float64(), inputs[:1], root=aggregate.kind == "stddev",
            population=aggregate.population,
        )  # fmt: skip
        return spread, {inputs[0]: f"cast({x} AS double)"}
    return _sum(name, inputs, aggregate, kind, x, weight, present, changes=changes)


def _sum(
    name: str, inputs: tuple[str, ...], aggregate: Aggregate, kind: Any, x: str, weight: str,
    present: str, *, changes: bool,
) -> tuple[Fold, dict[str, str]]:  # fmt: skip
    mean = aggregate.kind == "avg"
    if isinstance(kind, T.DecimalType) and not mean:
        wide = f"decimal({min(38, kind.precision + 10)},{kind.scale})"
        arrow = pa.decimal128(min(38, kind.precision + 10), kind.scale)
        value = f"cast({x} AS {wide})"
        if changes:
            value = (
                f"cast(CASE WHEN {weight} = 1 THEN {x} WHEN {weight} = -1 THEN -{x} "
                f"ELSE {x} * {weight} END AS {wide})"
            )
        return SumFold(name, arrow, inputs[:2]), {inputs[0]: value, inputs[1]: present}
    if isinstance(kind, _INTEGRAL) and not mean:
        value = f"cast({x} AS bigint)" + (f" * {weight}" if changes else "")
        return SumFold(name, pa.int64(), inputs[:2]), {inputs[0]: value, inputs[1]: present}
    double = f"cast({x} AS double)"
    if not changes:
        fold = SumFold(name, pa.float64(), inputs[:2], mean=mean)
        return fold, {inputs[0]: double, inputs[1]: present}
    infinite = "double('infinity')"
    special = f"isnan({double}) OR abs({double}) = {infinite}"
    finite = f"CASE WHEN {special} THEN 0D ELSE {double} * {weight} END"
    fold = SumFold(name, pa.float64(), inputs, special=True, mean=mean)
    return fold, {
        inputs[0]: finite,
        inputs[1]: present,
        inputs[2]: f"CASE WHEN isnan({double}) THEN {weight} ELSE 0L END",
        inputs[3]: f"CASE WHEN {double} = {infinite} THEN {weight} ELSE 0L END",
        inputs[4]: f"CASE WHEN {double} = -{infinite} THEN {weight} ELSE 0L END",
    }


def _require(kind: Any, allowed: tuple[Any, ...], node: OperatorNode, name: str, what: str) -> None:
    if not isinstance(kind, allowed):
        raise InvalidInputError(
            f"the aggregate needs {what}", kind="unsupported_type", operator=node.name,
            column=name, type=kind.simpleString() if kind is not None else None,
            remedy="cast the column first",
        )  # fmt: skip
