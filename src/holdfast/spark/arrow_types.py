"""Spark's types as Arrow's, and back: the same table for every Spark.

PySpark has such a table in a module that it does not document. Its arguments differ from version to
version, and so do the types that it knows. What state and outputs hold must not.

Invariants:
- A type that is listed comes back as it went in: `spark_type(arrow_type(kind)) == kind`.
- Instants are in UTC, whatever the session's time zone is.
- A type that is not listed is refused, never guessed.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

TIME_TYPE: Any = getattr(T, "TimeType", None)
"""Spark's time of day; None before Spark 4.1."""

_METADATA = b"SPARK::metadata::json"
_PLAIN: dict[Any, pa.DataType] = {
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.StringType: pa.string(),
    T.BinaryType: pa.binary(),
    T.DateType: pa.date32(),
    T.TimestampType: pa.timestamp("us", tz="UTC"),
    T.TimestampNTZType: pa.timestamp("us"),
    T.DayTimeIntervalType: pa.duration("us"),
    T.NullType: pa.null(),
}
if TIME_TYPE is not None:
    _PLAIN[TIME_TYPE] = pa.time64("ns")
_BACK = {arrow: spark for spark, arrow in _PLAIN.items()}


def arrow_type(kind: T.DataType) -> pa.DataType | None:
    """The Arrow type of a Spark type; None where there is none at some depth."""
    if isinstance(kind, T.UserDefinedType):
        return arrow_type(kind.sqlType())
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, T.ArrayType):
        element = arrow_type(kind.elementType)
        if element is None:
            return None
        return pa.list_(pa.field("element", element, nullable=kind.containsNull))
    if isinstance(kind, T.MapType):
        key, value = arrow_type(kind.keyType), arrow_type(kind.valueType)
        if key is None or value is None:
            return None
        build: Any = pa.map_  # the stubs know no fields as its parts
        mapped: pa.DataType = build(
            pa.field("key", key, nullable=False),
            pa.field("value", value, nullable=kind.valueContainsNull),
        )
        return mapped
    if isinstance(kind, T.StructType):
        parts = [(field, arrow_type(field.dataType)) for field in kind.fields]
        fields = [_arrow_field(field, found) for field, found in parts if found is not None]
        return pa.struct(fields) if len(fields) == len(parts) else None
    return next((arrow for spark, arrow in _PLAIN.items() if isinstance(kind, spark)), None)


def _arrow_field(field: T.StructField, kind: pa.DataType) -> pa.Field[Any]:
    given = {_METADATA: json.dumps(field.metadata).encode()} if field.metadata else None
    return pa.field(field.name, kind, nullable=field.nullable, metadata=given)


def spark_schema(schema: pa.Schema) -> T.StructType:
    """The Spark schema of an Arrow schema."""
    return T.StructType([_spark_field(field) for field in schema])


def spark_type(arrow: pa.DataType) -> T.DataType:
    """The Spark type of an Arrow type; types that Spark has not are refused."""
    if pa.types.is_decimal(arrow):
        return T.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_map(arrow):
        key, value = spark_type(arrow.key_type), spark_type(arrow.item_type)
        return T.MapType(key, value, arrow.item_field.nullable)
    if pa.types.is_list(arrow):
        return T.ArrayType(spark_type(arrow.value_type), arrow.value_field.nullable)
    if pa.types.is_struct(arrow):
        return T.StructType([_spark_field(field) for field in arrow])
    if pa.types.is_large_string(arrow):
        return T.StringType()
    if arrow not in _BACK:
        raise TypeError(f"Spark has no type for {arrow}")
    made: T.DataType = _BACK[arrow]()
    return made


def _spark_field(field: pa.Field[Any]) -> T.StructField:
    given = (field.metadata or {}).get(_METADATA)
    metadata = json.loads(given) if given else None
    return T.StructField(field.name, spark_type(field.type), field.nullable, metadata)
