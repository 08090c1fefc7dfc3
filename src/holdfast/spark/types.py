"""Which of Spark's types an operator can keep, compare and give back: all others are refused.

Invariants:
- A type is listed here, or it is refused before anything runs, at any depth, with the column.
- A type that is listed comes back from state as it went in, and its values are equal exactly where
  Spark's are. What Spark compares otherwise than by value (collations), or what Arrow carries as
  something else (variants, narrow intervals, user-defined types), is not listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

from holdfast.errors import InvalidInputError
from holdfast.spark.arrow_types import TIME_TYPE, arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN = (
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)
_TIMES = (T.DayTimeIntervalType, *([TIME_TYPE] if TIME_TYPE is not None else []))
_WHOLE = tuple(time() for time in _TIMES)


def kept_type(kind: T.DataType, column: str) -> pa.DataType:
    """The Arrow type of a column that state keeps; a type that it cannot keep is refused."""
    for part in _leaves(kind):
        if not _is_kept(part):
            raise unsupported(kind, part, column)
    return cast("pa.DataType", arrow_type(kind))


def key_type(kind: T.DataType, column: str) -> pa.DataType:
    """The Arrow type of a column that rows are grouped, joined or compared by."""
    for part in _leaves(kind):
        if isinstance(part, T.MapType) or not _is_kept(part):
            raise InvalidInputError(
                "a column of this type cannot be a key",
                kind="unsupported_key",
                column=column,
                type=kind.simpleString(),
                part=_part(kind, part),
                remedy=_remedy(part),
            )
    return cast("pa.DataType", arrow_type(kind))


def check_carried(schema: T.StructType) -> None:
    """Every column of a sink can be written as Parquet, and read back by Spark as what it is."""
    for field in schema.fields:
        for part in _leaves(field.dataType):
            if isinstance(part, _TIMES) or arrow_type(part) is None:
                raise unsupported(field.dataType, part, field.name)


def unsupported(kind: T.DataType, part: T.DataType, column: str) -> InvalidInputError:
    """A column that cannot be kept."""
    return InvalidInputError(
        "a column of this type cannot be kept",
        kind="unsupported_type",
        column=column,
        type=kind.simpleString(),
        part=_part(kind, part),
        remedy=_remedy(part),
    )


def has_maps(kind: T.DataType) -> bool:
    """Whether there is a map at any depth: Spark neither hashes nor compares maps."""
    return any(isinstance(part, T.MapType | T.VariantType) for part in _leaves(kind))


def hashed(text: str, kind: T.DataType, depth: int = 0) -> str:
    """SQL: a hash that tells nulls inside a value apart, which xxhash64 passes over."""
    if isinstance(kind, T.ArrayType):
        name = f"hf_{depth}"
        inner = hashed(name, kind.elementType, depth + 1)
        body = f"xxhash64(size({text}), transform({text}, {name} -> {inner}))"
    elif isinstance(kind, T.StructType):
        fields = [
            hashed(f"({text}).`{f.name.replace('`', '``')}`", f.dataType, depth)
            for f in kind.fields
        ]
        body = f"xxhash64({', '.join(['1', *fields])})"
    else:
        body = f"xxhash64({text})"
    return f"CASE WHEN {text} IS NULL THEN 0L ELSE {body} END"


def _leaves(kind: T.DataType) -> Iterator[T.DataType]:
    """Every type inside a type; a map is named before its parts."""
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _leaves(field.dataType)
    elif isinstance(kind, T.ArrayType):
        yield from _leaves(kind.elementType)
    elif isinstance(kind, T.MapType):
        yield kind
        yield from _leaves(kind.keyType)
        yield from _leaves(kind.valueType)
    else:
        yield kind


def _is_kept(kind: T.DataType) -> bool:
    if type(kind) is T.StringType:
        return bool(kind.isUTF8BinaryCollation())
    return type(kind) in (*_PLAIN, T.MapType) or kind in _WHOLE


def _part(whole: T.DataType, part: T.DataType) -> str | None:
    return None if whole == part else part.simpleString()


def _remedy(part: T.DataType) -> str:
    if isinstance(part, T.MapType):
        return "use its parts: map_keys(m), map_values(m), m['key'], or to_json(m)"
    if isinstance(part, T.VariantType):
        return "use a part of it, v:path::type, or to_json(v)"
    if isinstance(part, T.StringType):
        return "cast(x AS string COLLATE UTF8_BINARY) compares bytes; lower(x) ignores case"
    if isinstance(part, _TIMES):
        return "cast it: operators keep interval day to second and time(6), sinks a string"
    return "cast it to a type with a value that can be compared, such as a number or a string"
