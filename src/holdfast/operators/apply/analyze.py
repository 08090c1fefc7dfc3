"""Types and expressions of operators with state of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.operators.analysis import Resolved, arrow_schema, hash_text, key_schema
from holdfast.operators.apply.declare import ApplyDetail
from holdfast.operators.apply.execute import ApplyWork
from holdfast.operators.base import HASH
from holdfast.runtime.graph import WEIGHT, OperatorNode
from holdfast.spark.classic import Selection
from holdfast.spark.ddl import check_columns, quoted


def resolve_apply(node: OperatorNode, frames: Sequence[Any]) -> Resolved:
    """State and output have the types that the user declared, the input its own."""
    df = frames[0]
    detail: ApplyDetail = node.detail
    weighted = WEIGHT in df.columns
    row = arrow_schema(df.schema)
    names = {name.lower(): name for name in row.names}
    keys = tuple(names.get(key.lower(), key) for key in node.keys)
    key_types = key_schema(node, df, keys)
    state = _schema(df, detail.state_schema, node)
    output = _schema(df, detail.output_schema, node)
    check_columns([*key_types.names, *state.names], node.name)
    check_columns(row.names, node.name)
    check_columns(output.names, node.name)
    time = names.get(detail.time.lower(), detail.time) if detail.time else None
    timers = {name.lower(): name for name in state.names}.get((detail.timers or "").lower())
    for column, schema in ((time, row), (timers, state)):
        if column is not None and not pa.types.is_timestamp(schema.field(column).type):
            raise InvalidInputError(
                "the event time must be a timestamp", kind="invalid_time_column",
                operator=node.name, column=column, type=str(schema.field(column).type),
            )  # fmt: skip
    work = ApplyWork(
        node.name, key_types, row, state, output, detail.function, weighted, node.changes, time,
        detail.ttl_us, timers,
    )  # fmt: skip
    _ = work.traces
    texts = [f"{hash_text(keys)} AS {HASH}", *(quoted(name) for name in row.names)]
    if weighted:
        texts.append(WEIGHT)
    elif work.timed:  # heartbeats of weight zero must be told from rows
        texts.append(f"1L AS {WEIGHT}")
    select = Selection(*texts)
    return Resolved(node, work, lambda inputs: select(inputs[0]))


def _schema(df: Any, text: str, node: OperatorNode) -> Any:
    try:
        return arrow_schema(df.sparkSession.createDataFrame([], text).schema)
    except Exception as error:
        raise InvalidInputError(
            "the schema cannot be read", kind="invalid_schema", operator=node.name,
            at=text[:80], reason=(str(error).splitlines() or [""])[0][:200],
            remedy="write it like 'count long, seen timestamp'",
        ) from error  # fmt: skip
