"""Types and expressions of distinct and dedupe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.operators.analysis import Resolved, arrow_schema, hash_text, key_schema
from holdfast.operators.base import HASH
from holdfast.operators.dedupe.execute import DedupeWork, DistinctWork
from holdfast.runtime.graph import WEIGHT, DedupeBound, OperatorNode
from holdfast.spark.classic import Selection
from holdfast.spark.ddl import quoted


def resolve_distinct(node: OperatorNode, frames: Sequence[Any]) -> Resolved:
    """Every different row once."""
    df = frames[0]
    names = tuple(name for name in df.columns if name != WEIGHT)
    row = key_schema(node, df, names)
    weight = [WEIGHT] if node.changes else []

    select = Selection(f"{hash_text(names)} AS {HASH}", *(quoted(n) for n in names), *weight)
    work = DistinctWork(node.name, row, node.changes)
    return Resolved(node, work, lambda inputs: select(inputs[0]))


def resolve_dedupe(node: OperatorNode, frames: Sequence[Any]) -> Resolved:
    """The first row of each key."""
    df = frames[0]
    keys = key_schema(node, df, node.keys)
    row = arrow_schema(df.schema)
    bound: DedupeBound | None = node.detail
    time = bound.time if bound else None
    if time is not None and not pa.types.is_timestamp(row.field(time).type):
        raise InvalidInputError(
            "the event time must be a timestamp", kind="invalid_time_column",
            operator=node.name, column=time, type=str(row.field(time).type),
        )  # fmt: skip
    select = Selection(f"{hash_text(node.keys)} AS {HASH}", *(quoted(n) for n in df.columns))
    work = DedupeWork(node.name, keys, row, time, bound.within_us if bound else 0)
    return Resolved(node, work, lambda inputs: select(inputs[0]))
