"""Types and expressions of operators with state of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.operators.analyze import Projected, arrow_schema, hash_text, key_schema, projected
from holdfast.operators.apply.declare import ApplyDeclaration
from holdfast.operators.apply.execute import ApplyTask
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.declaration import Declaration
from holdfast.spark.ddl import check_columns, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def analyze_apply(node: ApplyDeclaration, df: DataFrame) -> Projected:
    """State and output have the types that the user declared, the input its own."""
    weighted = WEIGHT in df.columns
    row = arrow_schema(df.schema)
    names = {name.lower(): name for name in row.names}
    keys = tuple(names.get(key.lower(), key) for key in node.keys)
    key_types = key_schema(node, df, keys)
    state = _schema(df, node.state_schema, node)
    output = _schema(df, node.output_schema, node)
    check_columns([*key_types.names, *state.names], node.name)
    check_columns(row.names, node.name)
    check_columns(output.names, node.name)
    time = names.get(node.time.lower(), node.time) if node.time else None
    timers = {name.lower(): name for name in state.names}.get((node.timers or "").lower())
    for column, schema in ((time, row), (timers, state)):
        if column is not None and not pa.types.is_timestamp(schema.field(column).type):
            raise InvalidInputError(
                "the event time must be a timestamp",
                kind="invalid_time_column",
                operator=node.name,
                column=column,
                type=str(schema.field(column).type),
            )
    task = ApplyTask(
        node.name,
        key_types,
        row,
        state,
        output,
        node.function,
        weighted,
        node.retracts,
        time,
        node.ttl_us,
        timers,
    )
    _ = task.traces
    texts = [f"{hash_text(keys)} AS {HASH}", *(quoted(name) for name in row.names)]
    if weighted:
        texts.append(WEIGHT)
    elif task.timed:  # heartbeats of weight zero must be told from rows
        texts.append(f"1L AS {WEIGHT}")
    return projected(node, task, *texts)


def _schema(df: DataFrame, text: str, node: Declaration) -> Any:
    try:
        return arrow_schema(df.sparkSession.createDataFrame([], text).schema)
    except Exception as error:
        raise InvalidInputError(
            "the schema cannot be read",
            kind="invalid_schema",
            operator=node.name,
            at=text[:80],
            reason=(str(error).splitlines() or [""])[0][:200],
            remedy="write it like 'count long, seen timestamp'",
        ) from error
