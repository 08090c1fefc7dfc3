"""Types and expressions of aggregates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type

from holdfast.errors import InvalidInputError
from holdfast.pipeline.aggregates import Aggregate
from holdfast.pipeline.columns import check_columns
from holdfast.pipeline.graph import WEIGHT, OperatorNode
from holdfast.pipeline.jvm import Selection
from holdfast.pipeline.operators.aggregate import AggregateWork
from holdfast.pipeline.operators.fold import (
    CountFold,
    DistinctFold,
    ExtremeFold,
    Fold,
    SpreadFold,
    SumFold,
)
from holdfast.pipeline.operators.work import HASH
from holdfast.pipeline.resolving.common import Resolved, hash_text, key_schema
from holdfast.pipeline.resolving.gather import GATHERED, Gatherer, sketch_fold

_TOP = "-72057594037927936L"
_LOW = "72057594037927935L"
_INTEGRAL = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_ORDERED = (
    T.NumericType, T.StringType, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType,
)  # fmt: skip


def resolve_aggregate(node: OperatorNode, frames: Sequence[Any]) -> Resolved:
    """Folds, and the columns that the JVM computes for them."""
    df = frames[0]
    changes = WEIGHT in df.columns
    keys = key_schema(node, df, node.keys)
    texts = [f"{hash_text(node.keys)} AS {HASH}", *(f"`{n}`" for n in node.keys)]
    folds: list[Fold] = []
    input_types: list[tuple[str, Any]] = []
    gatherer = Gatherer(node, df, changes=changes)
    for index, (name, aggregate) in enumerate(node.detail.items()):
        kind = _type_of(df, aggregate)
        if aggregate.kind in GATHERED:
            fold, inputs = gatherer.fold(name, index, aggregate)
        else:
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
    condense = _condense(node, folds, changes=changes)
    select = Selection(*texts)
    return Resolved(node, work, lambda inputs: select(inputs[0]), condense, tuple(texts))


def _condense(
    node: OperatorNode, folds: Sequence[Fold], *, changes: bool
) -> Callable[[Any], Any] | None:
    """Rows of one key as one row, in the JVM; None where a fold must see every row."""
    sums: list[str] = []
    for fold in folds:
        if isinstance(fold, CountFold | SumFold):
            sums += [f"sum(`{name}`) AS `{name}`" for name in fold.inputs]
        elif isinstance(fold, ExtremeFold) and not changes:
            how = "max" if fold.largest else "min"
            sums += [f"{how}(`{name}`) AS `{name}`" for name in fold.inputs]
        else:
            return None
    weight = f"sum({WEIGHT})" if changes else "count(1)"

    def condense(frame: Any) -> Any:
        grouped = frame.groupBy(HASH, *(f"`{name}`" for name in node.keys))
        return grouped.agg(*(F.expr(text) for text in [*sums, f"{weight} AS {WEIGHT}"]))

    return condense


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
    if aggregate.kind == "approx_count_distinct" and not changes:
        return sketch_fold(name, inputs[0], aggregate)
    if aggregate.kind in ("count_distinct", "approx_count_distinct"):
        names = ", ".join(f"`{n}`" for n in node.keys)
        mixed = f"(({hash_text(node.keys)} & {_TOP}) | (xxhash64({names}, {x}) & {_LOW}))"
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
