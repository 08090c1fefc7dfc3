"""Spark's types as Arrow's: the table is PySpark's own, and every type comes back."""

from __future__ import annotations

import inspect

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from holdfast.spark.arrow_types import TIME_TYPE, arrow_type, spark_schema, spark_type

KINDS = [
    T.BooleanType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(),
    T.DoubleType(), T.StringType(), T.BinaryType(), T.DateType(), T.TimestampType(), T.NullType(),
    T.TimestampNTZType(), T.DayTimeIntervalType(), T.DecimalType(38, 18), T.DecimalType(5, 0),
    *([TIME_TYPE()] if TIME_TYPE is not None else []),
]  # fmt: skip
NESTED = [
    T.StructType([]),
    T.ArrayType(T.StructType([])),
    T.ArrayType(T.TimestampType()),
    T.ArrayType(T.ArrayType(T.LongType(), containsNull=False)),
    T.MapType(T.StringType(), T.DecimalType(9, 2), valueContainsNull=False),
    T.StructType([
        T.StructField("a b", T.LongType(), nullable=False),
        T.StructField("m", T.MapType(T.LongType(), T.ArrayType(T.StringType()))),
        T.StructField("noted", T.StringType(), metadata={"comment": "ü"}),
    ]),
]  # fmt: skip
UTC = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}


@pytest.mark.parametrize("kind", [*KINDS, *NESTED], ids=lambda kind: kind.simpleString()[:30])
def test_the_table_is_that_of_pyspark_and_types_come_back(kind):
    """Equal to what PySpark makes of it in UTC, names and nullability of parts included."""
    arrow = arrow_type(kind)
    theirs = to_arrow_type(kind, **UTC)
    assert arrow == theirs
    assert pa.schema([("c", arrow)]).equals(pa.schema([("c", theirs)]), check_metadata=bool(UTC))
    assert spark_type(arrow) == kind
    if UTC:
        assert from_arrow_type(arrow) == kind


@pytest.mark.parametrize(
    "kind", [T.VariantType(), T.YearMonthIntervalType(), T.CalendarIntervalType()]
)
def test_a_type_that_is_not_listed_has_none_at_any_depth(kind):
    """Also inside arrays, maps and structs."""
    assert arrow_type(kind) is None
    assert arrow_type(T.ArrayType(kind)) is None
    assert arrow_type(T.MapType(T.LongType(), kind)) is None
    assert arrow_type(T.StructType([T.StructField("x", kind)])) is None


def test_what_spark_has_no_type_for_is_refused():
    """A wrong type in state is a mistake of ours, not a guess."""
    with pytest.raises(TypeError):
        spark_type(pa.uint8())


def test_a_schema_keeps_names_and_nullability():
    """Columns as they are in Arrow."""
    schema = spark_schema(
        pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
    )
    assert [(f.name, f.dataType, f.nullable) for f in schema.fields] == [
        ("a", T.LongType(), False),
        ("b", T.StringType(), True),
    ]
