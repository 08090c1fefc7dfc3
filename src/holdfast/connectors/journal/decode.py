"""JSON payloads back to columns: the other half of `holdfast.connectors.journal.encode`.

Spark's `from_json` reads nearly all of it exactly. What it cannot read (maps with other keys than
strings, intervals of single units) it reads in another shape, which the JVM converts.

Invariants:
- What the journal sink has written comes back as the same values, for every type that it takes.
- A payload that does not fit the schema fails the epoch; nothing becomes null silently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Convert = Callable[[Any], Any]
OPTIONS = {"mode": "FAILFAST", "columnNameOfCorruptRecord": "__hf_corrupt"}


def parse_payload(column: Any, schema: str) -> Any:
    """A column of JSON texts as a struct of the schema, as SQL writes it."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
    from pyspark.sql import types as T  # noqa: N812

    shape, convert = wire(T.StructType.fromDDL(schema))
    parsed = F.from_json(column, shape, OPTIONS)
    return parsed if convert is None else convert(parsed)


def wire(kind: Any) -> tuple[Any, Convert | None]:
    """The type that `from_json` reads, and how to get the declared one from it; None: as it is."""
    from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

    if isinstance(kind, T.DayTimeIntervalType):
        whole = T.DayTimeIntervalType(T.DayTimeIntervalType.DAY, T.DayTimeIntervalType.SECOND)
        return whole, None if kind == whole else lambda column: column.cast(kind)
    if isinstance(kind, T.ArrayType):
        return _array(kind)
    if isinstance(kind, T.MapType):
        return _map(kind)
    if isinstance(kind, T.StructType):
        return _struct(kind)
    return kind, None


def _array(kind: Any) -> tuple[Any, Convert | None]:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    shape, convert = wire(kind.elementType)
    if convert is None:
        return kind, None
    return T.ArrayType(shape), lambda column: F.transform(column, convert)


def _map(kind: Any) -> tuple[Any, Convert | None]:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    keys, key_of = wire(kind.keyType)
    values, value_of = wire(kind.valueType)
    if isinstance(kind.keyType, T.StringType):
        if value_of is None:
            return kind, None
        return (
            T.MapType(kind.keyType, values),
            lambda column: F.transform_values(column, lambda _, value: value_of(value)),
        )
    entry = T.StructType([T.StructField("key", keys), T.StructField("value", values)])

    def convert(column: Any) -> Any:
        def pair(one: Any) -> Any:
            key, value = one["key"], one["value"]
            return F.struct(
                (key_of(key) if key_of else key).alias("key"),
                (value_of(value) if value_of else value).alias("value"),
            )

        return F.map_from_entries(F.transform(column, pair))

    return T.ArrayType(entry), convert


def _struct(kind: Any) -> tuple[Any, Convert | None]:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    found = [(field.name, *wire(field.dataType)) for field in kind.fields]
    if all(convert is None for _, _, convert in found):
        return kind, None
    shape = T.StructType([T.StructField(name, inner) for name, inner, _ in found])

    def convert(column: Any) -> Any:
        parts = [
            (change(column.getField(name)) if change else column.getField(name)).alias(name)
            for name, _, change in found
        ]
        return F.when(column.isNotNull(), F.struct(*parts))

    return shape, convert
