"""Types and expressions of upsert."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

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
from holdfast.operators.upsert.declare import UpsertDeclaration
from holdfast.operators.upsert.execute import ARRIVAL, DELETE, LEFT_OUT, SEQUENCE, UpsertTask
from holdfast.spark.ddl import check_columns, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def analyze_upsert(node: UpsertDeclaration, df: DataFrame) -> Projected:
    """The columns of the row, then what the JVM says of it: its place, a delete, what it left out.

    Where rows come in order, their place is numbered here, before they are shuffled.
    """
    changes = WEIGHT in df.columns
    row = arrow_schema(df.schema)
    check_columns(row.names, node.name)
    names = {name.lower(): name for name in row.names}
    keys = tuple(names.get(key.lower(), key) for key in node.keys)
    key_types = key_schema(node, df, keys)
    order = tuple(
        replace(key, column=f"{SEQUENCE}{index}") for index, key in enumerate(node.sequence)
    )
    extra = [
        f"({key.column}) AS {quoted(f'{SEQUENCE}{index}')}"
        for index, key in enumerate(node.sequence)
    ]
    places = df.selectExpr(*extra).schema if extra else T.StructType([])
    for field in places.fields:
        check_ordered(node, field, required=True)
    for field in df.schema.fields:
        if field.name != WEIGHT:
            check_ordered(node, field, required=False)
    if not order:
        extra.append(f"monotonically_increasing_id() AS {ARRIVAL}")
    if node.delete_when is not None:
        extra.append(f"coalesce(({node.delete_when}), false) AS {DELETE}")
    left_out = []
    for index, (column, text) in enumerate(node.left_out):
        extra.append(f"coalesce(({text}), false) AS {LEFT_OUT}{index}")
        left_out.append(names.get(column.lower(), column))
    task = UpsertTask(
        node.name,
        key_types,
        row,
        arrow_schema(places),
        order,
        node.delete_when is not None,
        node.keeps_nulls,
        tuple(left_out),
        changes,
    )
    _ = task.traces
    texts = [quoted(name) for name in row.names]
    weight = [WEIGHT] if changes else []
    head = f"{hash_text(keys)} AS {HASH}"
    return projected(node, task, head, *texts, *extra, *weight)
