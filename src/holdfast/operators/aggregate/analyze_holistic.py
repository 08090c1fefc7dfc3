"""Types and expressions of aggregates that must see the values of a group, and of sketches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

from holdfast.api.functions import Aggregate
from holdfast.errors import InvalidInputError
from holdfast.operators.aggregate.functions.base import Fold
from holdfast.operators.aggregate.functions.holistic import (
    CollectFold,
    FirstFold,
    PercentileFold,
    UserFold,
)
from holdfast.operators.aggregate.functions.sketch import SketchFold, lg_k_of, library
from holdfast.operators.topk.analyze import check_ordered
from holdfast.runtime.graph import OperatorNode
from holdfast.spark.types import hashed, kept_type

GATHERED = frozenset({"percentile", "collect_list", "collect_set", "first", "udaf"})


def sketch_fold(
    name: str, column: str, aggregate: Aggregate, kind: Any
) -> tuple[Fold, dict[str, str]]:
    """The JVM hashes the values; the sketch never sees them."""
    library()
    x = f"({aggregate.expression})"
    fold = SketchFold(name, pa.int64(), (column,), lg_k=lg_k_of(aggregate.detail.rsd))
    return fold, {column: f"CASE WHEN {x} IS NOT NULL THEN {hashed(x, kind)} END"}


class Gatherer:
    """Folds of one operator; those with the same inputs share a bag of values."""

    def __init__(self, node: OperatorNode, df: Any, *, changes: bool) -> None:
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
            return [x, *(f"({term.column})" for term in detail.terms)]
        return [x]

    def _check(self, name: str, aggregate: Aggregate, kinds: list[Any]) -> None:
        if aggregate.kind == "percentile":
            kind = self._df.selectExpr(f"({aggregate.expression})").schema.fields[0].dataType
            if not isinstance(kind, T.NumericType):
                raise InvalidInputError(
                    "the aggregate needs a number", kind="unsupported_type",
                    operator=self._node.name, column=name, type=kind.simpleString(),
                    remedy="cast the column first",
                )  # fmt: skip
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
            return FirstFold(name, arrow[0], terms=detail.terms)
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
                "not a SQL type", kind="invalid_schema", operator=self._node.name, column=name,
                type=text, remedy='for example returns="double" or "array<long>"',
            ) from error  # fmt: skip
