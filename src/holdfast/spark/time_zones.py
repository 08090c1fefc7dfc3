"""Time zones: the session's belongs to the user, everything that Holdfast keeps is in UTC.

Invariants:
- Spark reads, casts and prints in the session's time zone, as it does without Holdfast.
- Inside tasks every timestamp is labelled UTC, whatever the session is: what is stored, compared
  and handed to user functions does not depend on it. Only the label changes, never a value.
- A `timestamp_ntz` is its own wall clock: its microseconds are counted as if it were in UTC.
"""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose timestamps with a zone are labelled UTC; nothing is copied."""
    schema = _utc_schema(batch.schema)
    if schema is None:
        return batch
    columns = [
        column if column.type == field.type else column.view(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@functools.lru_cache(maxsize=256)
def _utc_schema(schema: pa.Schema) -> pa.Schema | None:
    """The schema in UTC; None when it is that already."""
    fields = [field.with_type(utc_type(field.type)) for field in schema]
    metadata: Any = schema.metadata
    made = pa.schema(fields, metadata=metadata)
    return None if made.equals(schema) else made


def utc_type(kind: pa.DataType) -> pa.DataType:
    """A type with UTC in place of every other zone."""
    if pa.types.is_timestamp(kind) and kind.tz is not None and kind.tz != "UTC":
        return pa.timestamp(kind.unit, tz="UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(utc_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        build: Any = pa.map_  # the stubs know no fields as its parts
        mapped: pa.DataType = build(
            kind.key_field.with_type(utc_type(kind.key_type)),
            kind.item_field.with_type(utc_type(kind.item_type)),
        )
        return mapped
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(utc_type(kind.value_type)))
    return kind


def micros_sql(expression: str, kind: str) -> str:
    """Microseconds of an event time as Spark computes them.

    kind: `timestamp`, `timestamp_ntz` or `date`. A date is midnight in the session's zone where
    Spark casts it and midnight in UTC in tasks: the earlier of both, so that no row is late by it.
    """
    if kind == "timestamp":
        return f"unix_micros(cast({expression} AS timestamp))"
    if kind == "date":
        midnight = f"unix_micros(cast({expression} AS timestamp))"
        return f"least({midnight}, unix_date({expression}) * 86400000000L)"
    since = f"(({expression}) - TIMESTAMP_NTZ'1970-01-01 00:00:00')"
    return (
        f"(extract(DAY FROM {since}) * 86400000000L + extract(HOUR FROM {since}) * 3600000000L"
        f" + extract(MINUTE FROM {since}) * 60000000L"
        f" + cast(extract(SECOND FROM {since}) * 1000000 AS long))"
    )
