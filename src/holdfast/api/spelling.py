"""Spellings: what an old one, or one of PySpark's that means something else, is answered.

Invariants:
- A spelling that is gone is an error that says the new one; it never means something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

from holdfast.errors import InvalidInputError

P = ParamSpec("P")
R = TypeVar("R")


def keywords(
    example: str, *, positional: int, renamed: Mapping[str, str] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function say how it is called, where it is called as it once was.

    Args:
        example: the call as it is written now.
        positional: how many arguments have no name.
        renamed: by old keyword, the new one.
    """
    gone = dict(renamed or {})

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if len(args) > positional:
                raise old_spelling(
                    f"{function.__name__} takes its arguments by name", f"write {example}"
                )
            for old in gone.keys() & kwargs.keys():
                raise old_spelling(
                    f"{function.__name__} has no argument of this name",
                    f"use {gone[old]}=, as in {example}",
                    argument=old,
                )
            return function(*args, **kwargs)

        return checked

    return decorate


def old_spelling(what: str, remedy: str, **facts: object) -> InvalidInputError:
    """The error for a spelling that is gone."""
    return InvalidInputError(what, kind="old_spelling", remedy=remedy, **facts)


class UnknownNameError(InvalidInputError, AttributeError):
    """A method that is not there: the error says what does the same."""


def unknown_name(owner: object, name: str, uses: Mapping[str, str]) -> AttributeError:
    """The error for an attribute that is not there; `uses`: what to use instead, by name."""
    kind = type(owner).__name__
    remedy = uses.get(name)
    if remedy is None:
        return AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=owner)
    return UnknownNameError(
        f"a {kind} has no {name}", kind="unknown_method", method=name, remedy=f"use {remedy}"
    )


def _each(use: str, names: str) -> dict[str, str]:
    """One answer for several names."""
    return {name: use.replace("{name}", name) for name in names.split()}


_OWN_STATE = "apply(function, key=..., name=...), which keeps state of your own"
_VIEW = "pipe.view(name).to_spark() after a run: a stream has no rows before it"
_SINK = "pipe.sink(name, stream, connector)"
_ROW_WISE = "transform(lambda df: df.{name}(...))"
_ON_VIEW = "pipe.view(operator).to_spark().{name}(...) after a run"
_NOTHING = "nothing: it has no meaning for a stream"
_PARTITIONS = "Pipeline(partitions=...)"
STREAM_USES = {
    **_each(_ROW_WISE, "hint mapInArrow mapInPandas melt to toJSON unpivot withMetadata"),
    **_each(_ON_VIEW, "corr cov crosstab freqItems isEmpty pandas_api plot stat transpose"),
    **_each(_NOTHING, "executionInfo isLocal isStreaming localCheckpoint metadataColumn"),
    **_each(_NOTHING, "sameSemantics semanticHash storageLevel unpersist"),
    **_each(_PARTITIONS, "coalesce repartition repartitionById repartitionByRange"),
    **_each(_PARTITIONS, "sortWithinPartitions"),
    **_each(_VIEW, "asTable collect createGlobalTempView createOrReplaceGlobalTempView"),
    **_each(_VIEW, "createOrReplaceTempView createTempView registerTempTable show"),
    **_each(_VIEW, "toLocalIterator"),
    **_each(_SINK, "mergeInto write writeStream writeTo"),
    "colRegex": "select with the names",
    "exists": 'join(other, on, "semi", name=...)',
    "inputFiles": "pipe.reader(): a checkpoint lists the files that were read",
    "lateralJoin": "join(other, on, condition=..., name=...)",
    "nearestByJoin": "join(other, on, within=hf.interval(...), name=...)",
    "sampleBy": 'where("xxhash64(key) % 100 < 10"), which takes the same rows every time',
    "scalar": "join(other, on, name=...)",
    "sparkSession": "pipe.session()",
    "zip": "join(other, on, name=...)",
    "zipWithIndex": "top_k(k, order_by=..., rank=..., name=...): a stream has no order of its own",
    "agg": "group_by(key).agg(...); for one total, group by a constant column",
    "alias": "suffix= or condition= in join",
    "approxQuantile": "group_by(key).agg(p=hf.percentile(column, 0.5), name=...)",
    "cache": "nothing: an operator's state is kept",
    "checkpoint": "nothing: every epoch ends in a checkpoint",
    "count": 'group_by(key).agg(n=hf.count(), name="counts")',
    "crossJoin": "join on a constant column, or join_static with a DataFrame",
    "cube": "one group_by for each set of keys, and union",
    "describe": "group_by(key).agg(...)",
    "dropDuplicatesWithinWatermark": "dedupe(key, time=..., within=..., name=...)",
    "drop_duplicates": "dropDuplicates(subset, name=...)",
    "dropna": 'where("column IS NOT NULL")',
    "dtypes": "columns",
    "explain": "pipe.explain()",
    "fillna": 'with_columns(column="coalesce(column, 0)")',
    "first": "top_k(1, order_by=..., name=...)",
    "foreach": "pipe.sink(name, stream, hf.sinks.Function(...))",
    "foreachPartition": "pipe.sink(name, stream, hf.sinks.Function(...))",
    "groupby": "group_by or groupBy",
    "groupingSets": "one group_by for each set of keys, and union",
    "head": "top_k(k, order_by=..., name=...)",
    "limit": "top_k(k, order_by=..., name=...)",
    "na": 'with_columns(column="coalesce(column, 0)"), or where("column IS NOT NULL")',
    "observe": "run(on_epoch=...)",
    "offset": "top_k(k, order_by=..., rank=..., name=...), then where on the rank",
    "orderBy": "top_k(k, order_by=..., name=...): a stream has no order of its own",
    "persist": "nothing: an operator's state is kept",
    "pivot": _OWN_STATE,
    "printSchema": "columns, or pipe.explain()",
    "randomSplit": "where on a hash of the key, once for each part",
    "rdd": "transform(function)",
    "replace": 'with_columns(column="CASE WHEN ... END")',
    "rollup": "one group_by for each set of keys, and union",
    "sample": 'where("xxhash64(key) % 100 < 10"), which takes the same rows every time',
    "schema": "columns",
    "sort": "top_k(k, order_by=..., name=...): a stream has no order of its own",
    "summary": "group_by(key).agg(...)",
    "tail": "top_k(k, order_by=..., name=...)",
    "take": "top_k(k, order_by=..., name=...)",
    "toArrow": "pipe.view(name).to_arrow() after a run",
    "toDF": 'select("a AS b", ...)',
    "toPandas": "pipe.view(name).to_pandas() after a run",
    "unionAll": "union",
    "withColumnRenamed": 'select("a AS b", ...)',
    "withColumnsRenamed": 'select("a AS b", ...)',
    "withWatermark": 'pipe.source(..., event_time="at", delay="10 minutes")',
}
"""Names of PySpark's DataFrame that a stream has not, with what to use instead."""

GROUPED_USES = {
    **{name: f'agg({name}=hf.{name}("column"), name=...)' for name in ("sum", "avg", "min", "max")},
    "apply": _OWN_STATE,
    "applyInArrow": _OWN_STATE,
    "applyInPandas": _OWN_STATE,
    "applyInPandasWithState": _OWN_STATE,
    "cogroup": "join",
    "count": "agg(n=hf.count(), name=...)",
    "mean": 'agg(mean=hf.avg("column"), name=...)',
    "pivot": _OWN_STATE,
    "transformWithState": _OWN_STATE,
    "transformWithStateInPandas": _OWN_STATE,
}
"""Names of PySpark's GroupedData that a grouped stream has not, with what to use instead."""

VIEW_USES = {
    "arrow": "to_arrow()",
    "collect": "to_arrow().to_pylist(), or to_spark().collect()",
    "dataframe": "to_spark()",
    "df": "to_spark()",
    "pandas": "to_pandas()",
    "show": "to_spark().show()",
    "sql": 'to_duckdb().query("rows", "SELECT ...")',
    "toArrow": "to_arrow()",
    "toPandas": "to_pandas()",
}
"""Old names of a view's methods, and PySpark's, with what to use instead."""
