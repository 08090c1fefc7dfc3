"""Types and expressions of top_k and latest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

from holdfast.operators.analyze import (
    Projected,
    arrow_schema,
    check_ordered,
    hash_text,
    key_schema,
    projected,
)
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.sort_order import SortKey
from holdfast.operators.topk.declare import TopKDeclaration
from holdfast.operators.topk.execute import TopKTask
from holdfast.spark.ddl import check_columns, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EVERYTHING = "_all"


def analyze_top_k(node: TopKDeclaration, df: DataFrame) -> Projected:
    """The columns that rows are ordered by, plain ones and those that the JVM computes."""
    changes = WEIGHT in df.columns
    row = arrow_schema(df.schema)
    names = {name.lower(): name for name in row.names}
    rank = [node.rank] if node.rank else []
    check_columns([*row.names, *rank], node.name)
    texts = [quoted(name) for name in row.names]
    order: list[SortKey] = []
    extra: list[str] = []
    for index, key in enumerate(node.order):
        known = names.get(key.column.lower()) if key.plain else None
        if known is None:
            known = f"_order_{index}"
            extra.append(f"({key.column}) AS {quoted(known)}")
        if all(known != earlier.column for earlier in order):
            order.append(replace(key, column=known))
    computed = df.selectExpr(*extra).schema if extra else T.StructType([])
    for field in [*computed.fields, *(f for f in df.schema.fields if f.name != WEIGHT)]:
        check_ordered(node, field, required=any(key.column == field.name for key in order))
    keys = tuple(names.get(key.lower(), key) for key in node.keys)
    if keys:
        key_types = key_schema(node, df, keys)
        head = [f"{hash_text(keys)} AS {HASH}"]
    else:  # one list over everything: all rows share one constant key
        everything = _EVERYTHING
        while everything in names:
            everything = f"_{everything}"
        key_types = pa.schema([(everything, pa.bool_())])
        head = [f"xxhash64(true) AS {HASH}", f"true AS {everything}"]
    weight = [WEIGHT] if changes else []
    task = TopKTask(
        node.name,
        key_types,
        row,
        arrow_schema(computed),
        tuple(order),
        node.k,
        node.rank,
        changes,
    )
    _ = task.traces
    return projected(node, task, *head, *texts, *extra, *weight)
