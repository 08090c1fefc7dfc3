"""Types and expressions of aggregates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from holdfast.api.functions import Aggregate
from holdfast.errors import InvalidInputError
from holdfast.operators.aggregate.analyze_holistic import GATHERED, Gatherer, sketch_fold
from holdfast.operators.aggregate.execute import AggregateWork
from holdfast.operators.aggregate.functions.base import (
    HIGH,
    LOW,
    CountFold,
    DistinctFold,
    ExtremeFold,
    Fold,
    SpreadFold,
    SumFold,
)
from holdfast.operators.aggregate.functions.exact_sums import ExactSpreadFold, ExactSumFold
from holdfast.operators.analysis import Resolved, hash_text, key_schema
from holdfast.operators.base import HASH, TIMES
from holdfast.runtime.graph import WEIGHT, OperatorNode
from holdfast.spark.classic import Selection
from holdfast.spark.ddl import check_columns, quoted
from holdfast.spark.types import kept_type, key_type

_TOP = "-72057594037927936L"
_LOW = "72057594037927935L"
_DECIMAL_ROOM = 28
"""Digits up to which Spark's sum has ten more: no epoch has so many rows that they do not do."""
_INTEGRAL = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_ORDERED = (
    T.NumericType, T.StringType, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType,
)  # fmt: skip


def resolve_aggregate(node: OperatorNode, frames: Sequence[Any]) -> Resolved:
    """Folds, and the columns that the JVM computes for them."""
    df = frames[0]
    changes = WEIGHT in df.columns
    keys = key_schema(node, df, node.keys)
    texts = [f"{hash_text(node.keys)} AS {HASH}", *(quoted(n) for n in node.keys)]
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
            input_types.append((fold.inputs[0], key_type(kind, name)))
    if changes:
        texts.append(WEIGHT)
    work = AggregateWork(node.name, keys, tuple(folds), changes, tuple(input_types))
    names = [
        n for schema in work.traces.values() for n in (*schema.keys.names, *schema.values.names)
    ]
    check_columns([n for n in names if not n.startswith("_")][: len(keys) + len(folds)], node.name)
    types = {f.name: f.dataType for f in df.selectExpr(*texts).schema.fields}
    condense = _condense(node, folds, types, changes=changes)
    select = Selection(*texts)
    return Resolved(node, work, lambda inputs: select(inputs[0]), condense, tuple(texts))


def _condense(
    node: OperatorNode, folds: Sequence[Fold], types: Mapping[str, Any], *, changes: bool
) -> Callable[[Any], Any] | None:
    """Rows of one key and weight as one row, in the JVM; None where a fold must see every row."""
    sums: list[str] = []
    for fold in folds:
        if isinstance(fold, CountFold):
            sums += [f"sum(`{name}`) AS `{name}`" for name in fold.inputs]
        elif isinstance(fold, SumFold):
            texts = _partial_sum(fold, types)
            if texts is None:
                return None
            sums += texts
        elif isinstance(fold, ExtremeFold) and not changes:
            how = "max" if fold.largest else "min"
            sums += [f"{how}(`{name}`) AS `{name}`" for name in fold.inputs]
        else:
            return None
    apart = [WEIGHT] if changes else []
    count = f"count(1) AS {TIMES if changes else WEIGHT}"

    def condense(frame: Any) -> Any:
        grouped = frame.groupBy(HASH, *(quoted(name) for name in node.keys), *apart)
        return grouped.agg(*(F.expr(text) for text in [*sums, count]))

    return condense


def _partial_sum(fold: SumFold, types: Mapping[str, Any]) -> list[str] | None:
    """Sums that the JVM cannot get wrong: integers in two halves, decimals with room to spare."""
    x, present = fold.inputs
    kind = types[x]
    count = f"sum(`{present}`) AS `{present}`"
    if isinstance(kind, T.DecimalType):
        return [f"sum(`{x}`) AS `{x}`", count] if kind.precision <= _DECIMAL_ROOM else None
    if isinstance(kind, T.LongType):
        low = f"sum(`{x}` & 4294967295L) AS `{x}{LOW}`"
        return [f"sum(shiftright(`{x}`, 32)) AS `{x}{HIGH}`", low, count]
    return [f"sum(`{x}`) AS `{x}`", count]


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
        arrow = kept_type(kind, name)
        bag = f"{node.name}.values-{index}" if changes else None
        fold = ExtremeFold(name, arrow, inputs[:1], largest=aggregate.kind == "max", bag=bag)
        return fold, {inputs[0]: x}
    if aggregate.kind == "approx_count_distinct" and not changes:
        key_type(kind, name)
        return sketch_fold(name, inputs[0], aggregate, kind)
    if aggregate.kind in ("count_distinct", "approx_count_distinct"):
        key_type(kind, name)
        names = ", ".join(quoted(n) for n in node.keys)
        mixed = f"(({hash_text(node.keys)} & {_TOP}) | (xxhash64({names}, {x}) & {_LOW}))"
        trace = f"{node.name}.distinct-{index}"
        distinct = DistinctFold(name, pa.int64(), inputs[:2], trace)
        return distinct, {inputs[0]: x, inputs[1]: mixed}
    _require(kind, (T.NumericType,), node, name, "a number")
    if aggregate.kind in ("stddev", "variance"):
        made = (ExactSpreadFold if changes else SpreadFold)(
            name, pa.float64(), inputs[:1], root=aggregate.kind == "stddev",
            population=aggregate.population,
        )  # fmt: skip
        return made, {inputs[0]: f"cast({x} AS double)"}
    return _sum(name, inputs[:2], aggregate, kind, x, present, changes=changes)


def _sum(
    name: str,
    inputs: tuple[str, ...],
    aggregate: Aggregate,
    kind: Any,
    x: str,
    present: str,
    *,
    changes: bool,
) -> tuple[Fold, dict[str, str]]:
    """Values as they are; tasks multiply them by their weights, where nothing overflows."""
    mean = aggregate.kind == "avg"
    if isinstance(kind, T.DecimalType):
        wide = pa.decimal128(min(38, kind.precision + 10), kind.scale)
        shown = pa.float64() if mean else wide
        fold: Fold = SumFold(name, shown, inputs, weighted=changes, mean=mean, kept=wide)
        return fold, {inputs[0]: x, inputs[1]: present}
    if isinstance(kind, _INTEGRAL) and not mean:
        fold = SumFold(name, pa.int64(), inputs, weighted=changes)
        return fold, {inputs[0]: f"cast({x} AS bigint)", inputs[1]: present}
    double = f"cast({x} AS double)"
    if changes:
        return ExactSumFold(name, pa.float64(), inputs[:1], mean=mean), {inputs[0]: double}
    fold = SumFold(name, pa.float64(), inputs, mean=mean)
    return fold, {inputs[0]: double, inputs[1]: present}


def _require(kind: Any, allowed: tuple[Any, ...], node: OperatorNode, name: str, what: str) -> None:
    if not isinstance(kind, allowed):
        raise InvalidInputError(
            f"the aggregate needs {what}", kind="unsupported_type", operator=node.name,
            column=name, type=kind.simpleString() if kind is not None else None,
            remedy="cast the column first",
        )  # fmt: skip
