"""Types and expressions of operations on whole rows of two streams."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.operators.analyze import (
    Projected,
    hash_text,
    key_schema,
    nullable_type,
)
from holdfast.operators.columns import HASH, SIDE, WEIGHT
from holdfast.operators.declaration import check_same_names
from holdfast.operators.setops.declare import SetDeclaration
from holdfast.operators.setops.execute import SetTask
from holdfast.spark.classic import Selection
from holdfast.spark.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def analyze_rows(node: SetDeclaration, frames: Sequence[DataFrame]) -> Projected:
    """Both sides as one union, by name; the hash is taken of the types that both share."""
    names = [name for name in frames[0].columns if name != WEIGHT]
    others = [name for name in frames[1].columns if name != WEIGHT]
    check_same_names(names, others, node.name)
    weighted = any(WEIGHT in df.columns for df in frames)

    parts = []
    for number, df in enumerate(frames):
        more = [f"{number} AS {SIDE}"]
        if weighted:
            more.append(WEIGHT if WEIGHT in df.columns else f"1L AS {WEIGHT}")
        parts.append(Selection(*(quoted(name) for name in names), *more))

    def sides(inputs: Sequence[DataFrame]) -> DataFrame:
        made = [select(df) for select, df in zip(parts, inputs, strict=True)]
        return functools.reduce(lambda union, part: union.unionByName(part), made)

    keys = key_schema(node, sides(frames), tuple(names))
    row = pa.schema([pa.field(f.name, nullable_type(f.type)) for f in keys])
    more = [SIDE, *([WEIGHT] if weighted else [])]

    select = Selection(f"{hash_text(names)} AS {HASH}", *(quoted(name) for name in names), *more)
    task = SetTask(node.name, row, node.rule, node.retracts)
    return Projected(node, task, lambda inputs: select(sides(inputs)))
