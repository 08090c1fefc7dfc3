"""Types and expressions of distinct and dedupe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.operators.analyze import Projected, arrow_schema, hash_text, key_schema, projected
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.dedupe.declare import DedupeDeclaration, DistinctDeclaration
from holdfast.operators.dedupe.execute import DedupeTask, DistinctTask
from holdfast.spark.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def analyze_distinct(node: DistinctDeclaration, df: DataFrame) -> Projected:
    """Every distinct row once."""
    names = tuple(name for name in df.columns if name != WEIGHT)
    task = DistinctTask(node.name, key_schema(node, df, names), node.retracts)
    weight = [WEIGHT] if node.retracts else []
    texts = [f"{hash_text(names)} AS {HASH}", *(quoted(n) for n in names), *weight]
    return projected(node, task, *texts)


def analyze_dedupe(node: DedupeDeclaration, df: DataFrame) -> Projected:
    """The first row of each key."""
    keys = key_schema(node, df, node.keys)
    row = arrow_schema(df.schema)
    time = node.bound.time if node.bound else None
    if time is not None and not pa.types.is_timestamp(row.field(time).type):
        raise InvalidInputError(
            "the event time must be a timestamp",
            kind="invalid_time_column",
            operator=node.name,
            column=time,
            type=str(row.field(time).type),
        )
    task = DedupeTask(node.name, keys, row, time, node.bound.within_us if node.bound else 0)
    return projected(
        node, task, f"{hash_text(node.keys)} AS {HASH}", *(quoted(n) for n in df.columns)
    )
