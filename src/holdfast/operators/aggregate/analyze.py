"""Types and expressions of aggregates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from holdfast.errors import InvalidInputError
from holdfast.operators.aggregate.declare import Aggregate, AggregateDeclaration
from holdfast.operators.aggregate.execute import AggregateTask
from holdfast.operators.aggregate.functions.base import Fold
from holdfast.operators.aggregate.functions.distinct import DistinctFold
from holdfast.operators.aggregate.functions.holistic import (
    CollectFold,
    FirstFold,
    PercentileFold,
    UserFold,
)
from holdfast.operators.aggregate.functions.min_max import MinMaxFold
from holdfast.operators.aggregate.functions.sketch import SketchFold, lg_k_of
from holdfast.operators.aggregate.functions.sums import (
    HIGH,
    LOW,
    CountFold,
    ExactSumFold,
    SumFold,
)
from holdfast.operators.aggregate.functions.variance import ExactVarianceFold, VarianceFold
from holdfast.operators.analyze import check_ordered, hash_text, key_schema
from holdfast.operators.base import Analyzed
from holdfast.operators.columns import HASH, TIMES, WEIGHT
from holdfast.operators.declaration import Declaration
from holdfast.spark.classic import Selection
from holdfast.spark.ddl import check_columns, quoted
from holdfast.spark.types import hashed, kept_type, key_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOLISTIC = frozenset({"percentile", "collect_list", "collect_set", "first", "udaf"})
_TOP = "-72057594037927936L"
_LOW = "72057594037927935L"
_DECIMAL_ROOM = 28
"""Digits up to which Spark's sum has ten more: no epoch has so many rows that they do not do."""
_INTEGRAL = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_ORDERED = (
    T.NumericType,
    T.StringType,
    T.BooleanType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)


@dataclass(frozen=True)
class AnalyzedAggregate(Analyzed):
    """Folds, and the expressions that the JVM computes for them."""

    task: AggregateTask
    texts: tuple[str, ...]
    select: Selection
    sums: Sequence[str] | None
    """SQL of partial aggregation; None where a fold must see every row."""

    def project(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Hash, keys and inputs of the folds."""
        return self.select(frames[0])

    def partial_aggregate(self, frame: DataFrame) -> DataFrame | None:
        """Rows of one key and weight as one row, in the JVM."""
        if self.sums is None:
            return None
        apart = [WEIGHT] if self.task.changes else []
        count = f"count(1) AS {TIMES if self.task.changes else WEIGHT}"
        keys = (quoted(name) for name in self.task.keys.names)
        grouped = frame.groupBy(HASH, *keys, *apart)
        return grouped.agg(*(F.expr(text) for text in [*self.sums, count]))


def analyze_aggregate(node: AggregateDeclaration, df: DataFrame) -> AnalyzedAggregate:
    """Folds, and the columns that the JVM computes for them."""
    return aggregate_by(node, node.keys, node.aggregates, df)


def aggregate_by(
    node: Declaration, keys: tuple[str, ...], aggregates: Mapping[str, Aggregate], df: DataFrame
) -> AnalyzedAggregate:
    """Aggregates by some keys, for an operator that aggregates or one that builds on that."""
    changes = WEIGHT in df.columns
    found = key_schema(node, df, keys)
    named = zip(keys, found, strict=True)  # spelled as here: the projection below gives these names
    key_types = pa.schema([field.with_name(name) for name, field in named])
    texts = [f"{hash_text(keys)} AS {HASH}", *(quoted(n) for n in keys)]
    folds: list[Fold] = []
    holistic = HolisticAnalyzer(node, df, changes=changes)
    for index, (name, aggregate) in enumerate(aggregates.items()):
        kind = _type_of(df, aggregate)
        if aggregate.kind in HOLISTIC:
            fold, inputs = holistic.fold(name, index, aggregate)
        else:
            fold, inputs = _fold(node, keys, name, index, aggregate, kind, changes=changes)
        folds.append(fold)
        texts.extend(f"{text} AS `{column}`" for column, text in inputs.items())
    if changes:
        texts.append(WEIGHT)
    task = AggregateTask(node.name, key_types, tuple(folds), changes)
    names = [
        n for schema in task.traces.values() for n in (*schema.keys.names, *schema.values.names)
    ]
    check_columns([n for n in names if not n.startswith("_")][: len(keys) + len(folds)], node.name)
    types = {f.name: f.dataType for f in df.selectExpr(*texts).schema.fields}
    sums = _partial_sums(folds, types, changes=changes)
    return AnalyzedAggregate(node, task, tuple(texts), Selection(*texts), sums)


def _partial_sums(
    folds: Sequence[Fold], types: Mapping[str, Any], *, changes: bool
) -> list[str] | None:
    """What the JVM adds up for each input; None where a fold must see every row."""
    sums: list[str] = []
    for fold in folds:
        if isinstance(fold, CountFold):
            sums += [f"sum(`{name}`) AS `{name}`" for name in fold.inputs]
        elif isinstance(fold, SumFold):
            texts = _partial_sum(fold, types)
            if texts is None:
                return None
            sums += texts
        elif isinstance(fold, MinMaxFold) and not changes:
            how = "max" if fold.largest else "min"
            sums += [f"{how}(`{name}`) AS `{name}`" for name in fold.inputs]
        else:
            return None
    return sums


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


def _type_of(df: DataFrame, aggregate: Aggregate) -> Any:
    if aggregate.expression is None:
        return None
    return df.selectExpr(f"({aggregate.expression}) AS x").schema.fields[0].dataType


def _fold(
    node: Declaration,
    keys: tuple[str, ...],
    name: str,
    index: int,
    aggregate: Aggregate,
    kind: Any,
    *,
    changes: bool,
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
        fold = MinMaxFold(name, arrow, inputs[:1], largest=aggregate.kind == "max", bag=bag)
        return fold, {inputs[0]: x}
    if aggregate.kind == "approx_count_distinct" and not changes:
        key_type(kind, name)
        return _sketch(name, inputs[0], aggregate, kind)
    if aggregate.kind in ("count_distinct", "approx_count_distinct"):
        value = key_type(kind, name)
        names = ", ".join(quoted(n) for n in keys)
        mixed = f"(({hash_text(keys)} & {_TOP}) | (xxhash64({names}, {x}) & {_LOW}))"
        trace = f"{node.name}.distinct-{index}"
        distinct = DistinctFold(name, pa.int64(), inputs[:2], trace, value)
        return distinct, {inputs[0]: x, inputs[1]: mixed}
    _require(kind, (T.NumericType,), node, name, "a number")
    if aggregate.kind in ("stddev", "variance"):
        made = (ExactVarianceFold if changes else VarianceFold)(
            name,
            pa.float64(),
            inputs[:1],
            root=aggregate.kind == "stddev",
            population=aggregate.population,
        )
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
        means = pa.decimal128(min(38, kind.precision + 4), min(38, kind.scale + 4))
        shown = means if mean else wide
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


def _require(kind: Any, allowed: tuple[Any, ...], node: Declaration, name: str, what: str) -> None:
    if not isinstance(kind, allowed):
        raise InvalidInputError(
            f"the aggregate needs {what}",
            kind="unsupported_type",
            operator=node.name,
            column=name,
            type=kind.simpleString() if kind is not None else None,
            remedy="cast the column first",
        )


def _sketch(name: str, column: str, aggregate: Aggregate, kind: Any) -> tuple[Fold, dict[str, str]]:
    """The JVM hashes the values; the sketch never sees them."""
    x = f"({aggregate.expression})"
    fold = SketchFold(name, pa.int64(), (column,), lg_k=lg_k_of(aggregate.detail.rsd))
    return fold, {column: f"CASE WHEN {x} IS NOT NULL THEN {hashed(x, kind)} END"}


class HolisticAnalyzer:
    """Folds of one operator; those with the same inputs share a bag of values."""

    def __init__(self, node: Declaration, df: DataFrame, *, changes: bool) -> None:
        """For one operator over one input."""
        self._node, self._df, self._changes = node, df, changes
        self._shared: dict[tuple[tuple[str, ...], bool], tuple[tuple[str, ...], str]] = {}

    def fold(self, name: str, index: int, aggregate: Aggregate) -> tuple[Fold, dict[str, str]]:
        """The fold of one aggregate, and the columns that the JVM computes for it."""
        texts = self._texts(aggregate)
        kinds = [f.dataType for f in self._df.selectExpr(*texts).schema.fields]
        self._check(name, aggregate, kinds)
        arrow = [kept_type(kind, name) for kind in kinds]
        fields = pa.schema([(f"_v{n}", kind) for n, kind in enumerate(arrow)])
        skips = aggregate.kind not in ("first", "udaf")
        always = aggregate.kind in ("percentile", "udaf")
        known = self._shared.get((tuple(texts), skips))
        inputs: dict[str, str] = {}
        if known is None:
            columns = tuple(f"__hf_i{index}_{n}" for n in range(len(texts)))
            known = columns, f"{self._node.name}.group-{index}"
            inputs = dict(zip(columns, texts, strict=True))
            if self._changes or always:  # one without a bag has nothing to share
                self._shared[tuple(texts), skips] = known
        bag = known[1] if self._changes or always else None
        made = self._make(name, aggregate, kinds, arrow)
        return replace(made, inputs=known[0], fields=fields, bag=bag), inputs

    def _texts(self, aggregate: Aggregate) -> list[str]:
        x, detail = f"({aggregate.expression})", aggregate.detail
        if aggregate.kind == "udaf":
            return [f"({text})" for _, text in detail.inputs]
        if aggregate.kind == "percentile":
            return [f"cast({x} AS double)"]
        if aggregate.kind == "first":
            return [x, *(f"({key.column})" for key in detail.keys)]
        return [x]

    def _check(self, name: str, aggregate: Aggregate, kinds: list[Any]) -> None:
        if aggregate.kind == "percentile":
            kind = self._df.selectExpr(f"({aggregate.expression})").schema.fields[0].dataType
            if not isinstance(kind, T.NumericType):
                raise InvalidInputError(
                    "the aggregate needs a number",
                    kind="unsupported_type",
                    operator=self._node.name,
                    column=name,
                    type=kind.simpleString(),
                    remedy="cast the column first",
                )
        for kind in kinds:
            required = aggregate.kind != "udaf"
            check_ordered(self._node, T.StructField(name, kind), required=required)

    def _make(self, name: str, aggregate: Aggregate, kinds: list[Any], arrow: list[Any]) -> Any:
        detail = aggregate.detail
        if aggregate.kind == "percentile":
            kind: Any = T.ArrayType(T.DoubleType()) if detail.several else T.DoubleType()
            result = kept_type(kind, name)
            return PercentileFold(name, result, points=detail.points, several=detail.several)
        if aggregate.kind == "first":
            return FirstFold(name, arrow[0], order=detail.keys)
        if aggregate.kind == "udaf":
            result = kept_type(self._type(name, detail.returns), name)
            columns = tuple(column for column, _ in detail.inputs)
            return UserFold(name, result, function=detail.function, columns=columns)
        listed = kept_type(T.ArrayType(kinds[0]), name)
        unique = aggregate.kind == "collect_set"
        return CollectFold(name, listed, limit=detail.limit, unique=unique)

    def _type(self, name: str, text: str) -> Any:
        try:
            return self._df.sparkSession.sql(f"SELECT CAST(NULL AS {text}) AS x").schema[0].dataType
        except Exception as error:
            raise InvalidInputError(
                "not a SQL type",
                kind="invalid_schema",
                operator=self._node.name,
                column=name,
                type=text,
                remedy='for example returns="double" or "array<long>"',
            ) from error
