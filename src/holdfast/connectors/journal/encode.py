"""Rows as JSON texts, whole columns at a time, without losing anything.

| Arrow (Spark) | JSON |
|---|---|
| boolean, null | `true`, `false`, `null` |
| integers, decimal | a number with all its digits |
| float, double | the shortest number that reads back the same; `"NaN"`, `"Infinity"` as strings |
| string | a string; bytes that are no UTF-8 become U+FFFD, as in Spark's own `to_json` |
| binary | a string in base64 |
| date | `"2024-02-29"`; years above 9999 with a sign: `"+10000-01-01"` |
| timestamp | `"2024-02-29T23:59:59.123456Z"`, in UTC |
| timestamp_ntz | the same without `Z` |
| interval day to second | `"INTERVAL '-1 02:03:04.000005' DAY TO SECOND"` |
| array | `[...]` |
| map with string keys | `{"key":value}` |
| map with other keys | `[{"key":...,"value":...}]` |
| struct | `{"name":value}`, every field named, nulls too |

Invariants:
- `hf.sources.Journal` reads all of it back to the same values; no loop over rows here.
- A type that is not in the table is refused by `refuse_types`, before the first epoch.
"""

from __future__ import annotations

import binascii
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidInputError

TEXT = pa.large_string()
_CONTROL = {
    chr(code): {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}.get(code, f"\\u{code:04x}")
    for code in range(32)
}
_MINUS, _PLUS = (pa.scalar(f"INTERVAL '{sign}", TEXT) for sign in ("-", ""))
_DAY_US = 86_400_000_000
_YEAR_1, _YEAR_10000 = -719_162, 2_932_897  # days since 1970
_SCALARS = (
    "string",
    "binary",
    "boolean",
    "byte",
    "short",
    "integer",
    "long",
    "float",
    "double",
    "decimal",
    "date",
    "timestamp",
    "timestamp_ntz",
    "daytimeinterval",
    "void",
    "char",
    "varchar",
)


def json_texts(rows: pa.RecordBatch) -> Any:
    """Every row of a record batch as a JSON object."""
    fields = [(name, json_array(rows.column(i))) for i, name in enumerate(rows.schema.names)]
    return _objects(fields, rows.num_rows)


def json_array(column: Any) -> Any:
    """Every value of an Arrow array as JSON; nulls are `null`."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.repeat(pa.scalar("null", TEXT), len(column))
    texts = _nested(column) if pa.types.is_nested(kind) else _scalar(column)
    return texts.fill_null("null")


def plain_texts(column: Any) -> Any:
    """Every value of a scalar array as text, as in JSON but without quotes; nulls are empty."""
    if _is_text(column.type):
        return valid_text(column).fill_null("")
    if pa.types.is_null(column.type):
        return pa.repeat(pa.scalar("", TEXT), len(column))
    return pc.utf8_trim(_scalar(column), characters='"').fill_null("")


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _scalar(column: Any) -> Any:
    kind = column.type
    if _is_text(kind):
        return _quoted(_escaped(valid_text(column)))
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _quoted(_base64(column))
    if pa.types.is_date(kind):
        return _quoted(_moments(column.cast(pa.date32()).cast(pa.int32()), pa.date32(), "D", 1))
    if pa.types.is_timestamp(kind):
        suffix = "Z" if kind.tz else ""
        micros = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        texts = _moments(micros, pa.timestamp("us"), "us", _DAY_US)
        return _quoted(_joined(pc.replace_substring(texts, " ", "T"), suffix))
    if pa.types.is_duration(kind):
        return _quoted(_durations(column))
    return column.cast(TEXT)


def _quoted(texts: Any) -> Any:
    return _joined('"', texts.cast(TEXT), '"')


def valid_text(column: Any) -> Any:
    """The column as valid UTF-8; a row with other bytes, which Spark allows, is mended."""
    column = column.cast(TEXT) if column.type != TEXT else column
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        values = column.view(pa.large_binary()).to_pylist()
        return pa.array([v if v is None else v.decode(errors="replace") for v in values], TEXT)
    return column


def _escaped(texts: Any) -> Any:
    if not pc.any(pc.match_substring_regex(texts, '[\\x00-\\x1f"\\\\]')).as_py():
        return texts
    texts = pc.replace_substring(texts, "\\", "\\\\")
    texts = pc.replace_substring(texts, '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, "[\\x00-\\x1f]")).as_py():
        for char, escape in _CONTROL.items():
            texts = pc.replace_substring(texts, char, escape)
    return texts


def _floats(column: Any) -> Any:
    texts = column.cast(TEXT)
    # A whole number without a point would come back as an integer, and an integer has no -0.
    texts = pc.if_else(pc.equal(texts, "-0"), "-0.0", texts)
    if not pc.all(pc.is_finite(column)).as_py():
        endless = pc.if_else(pc.greater(column, 0), '"Infinity"', '"-Infinity"')
        odd = pc.if_else(pc.is_nan(column), '"NaN"', endless)
        texts = pc.if_else(pc.is_finite(column), texts, odd)
    return texts


def _base64(column: Any) -> Any:
    """Base64 of every row in one call: each is padded to whole groups of three bytes first."""
    column = column.cast(pa.large_binary())
    filled = column.fill_null(b"")
    count = len(column)
    _, places, content = filled.buffers()
    offsets = np.frombuffer(places, "<i8")[filled.offset : filled.offset + count + 1]
    sizes = offsets[1:] - offsets[:-1]
    data = np.frombuffer(content or b"", "|u1")[offsets[0] : offsets[-1]]
    groups = -(-sizes // 3)
    ends = np.cumsum(groups)
    starts = np.concatenate(([0], ends[:-1])) if count else ends
    flat = np.zeros(int(ends[-1]) * 3 if count else 0, "|u1")
    before = np.cumsum(sizes) - sizes
    flat[np.arange(len(data)) + np.repeat(starts * 3 - before, sizes)] = data
    coded = np.frombuffer(binascii.b2a_base64(flat.tobytes(), newline=False), "|u1").copy()
    rest = sizes % 3
    coded[ends[rest > 0] * 4 - 1] = ord("=")
    coded[ends[rest == 1] * 4 - 2] = ord("=")
    marks = np.concatenate(([0], ends * 4)).astype("<i8")
    texts = pa.LargeStringArray.from_buffers(
        count, pa.py_buffer(marks.tobytes()), pa.py_buffer(coded.tobytes())
    )
    return pc.if_else(pc.is_valid(column), texts, pa.scalar(None, TEXT))


def _moments(numbers: Any, kind: Any, unit: str, scale: int) -> Any:
    """Dates or times as text; beyond the years 1 to 9999 by numpy, which has more of them."""
    low, high = pc.min_max(numbers).as_py().values()
    if low is None or (low >= _YEAR_1 * scale and high < _YEAR_10000 * scale):
        return numbers.cast(kind).cast(TEXT)
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False).astype("<i8")
    texts = pa.array(np.datetime_as_string(values.view(f"<M8[{unit}]")), TEXT)
    late = pc.greater_equal(numbers, _YEAR_10000 * scale)
    texts = pc.if_else(late, _joined("+", texts), texts)
    return pc.if_else(pc.is_valid(numbers), texts, pa.scalar(None, TEXT))


def _joined(*parts: Any) -> Any:
    texts = [pa.scalar(part, TEXT) if isinstance(part, str) else part for part in (*parts, "")]
    return pc.binary_join_element_wise(*texts)


def _durations(column: Any) -> Any:
    """As Spark writes an interval of days, hours, minutes, seconds and microseconds."""
    micros = column.cast(pa.duration("us")).cast(pa.int64())
    values = micros.fill_null(0).to_numpy(zero_copy_only=False)
    sizes = np.where(values < 0, (~values).astype("<u8") + np.uint64(1), values.astype("<u8"))
    seconds, micro = np.divmod(sizes, np.uint64(1_000_000))
    minutes, second = np.divmod(seconds, np.uint64(60))
    hours, minute = np.divmod(minutes, np.uint64(60))
    day, hour = np.divmod(hours, np.uint64(24))

    def digits(numbers: Any, width: int = 0) -> Any:
        texts = pa.array(numbers).cast(TEXT)
        return pc.utf8_lpad(texts, width, padding="0") if width else texts

    return _joined(
        pc.if_else(pc.less(micros, 0), _MINUS, _PLUS),
        digits(day),
        " ",
        digits(hour, 2),
        ":",
        digits(minute, 2),
        ":",
        digits(second, 2),
        ".",
        digits(micro, 6),
        "' DAY TO SECOND",
    )


def _nested(column: Any) -> Any:
    kind = column.type
    valid = pc.is_valid(column)
    if pa.types.is_struct(kind):
        parts = column.flatten()
        fields = [(kind.field(i).name, json_array(part)) for i, part in enumerate(parts)]
        texts = _objects(fields, len(column))
        return pc.if_else(valid, texts, pa.scalar(None, TEXT))
    if pa.types.is_map(kind):
        return _maps(column, kind)
    return _joined("[", _spliced(column, json_array(column.flatten())), "]")


def _maps(column: Any, kind: Any) -> Any:
    # Seen as lists of entries, so that null rows and slices are looked after in one place.
    entries = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    keys, values = entries.flatten().flatten()
    if _is_text(kind.key_type):
        pairs = _joined(_scalar(keys), ":", json_array(values))
        return _joined("{", _spliced(entries, pairs), "}")
    pairs = _objects([("key", json_array(keys)), ("value", json_array(values))], len(keys))
    return _joined("[", _spliced(entries, pairs), "]")


def _spliced(lists: Any, texts: Any) -> Any:
    """The texts of each list's values with commas between them; null lists stay null."""
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype("<i8")
    joined = pc.binary_join(
        pa.LargeListArray.from_arrays(pa.array(offsets), texts), pa.scalar(",", TEXT)
    )
    return pc.if_else(pc.is_valid(lists), joined, pa.scalar(None, TEXT))


def _objects(fields: Any, count: int) -> Any:
    if not fields:
        return pa.repeat(pa.scalar("{}", TEXT), count)
    parts: list[Any] = []
    for number, (name, texts) in enumerate(fields):
        quoted = _quoted(_escaped(pa.array([name], TEXT)))[0].as_py()
        parts += [("," if number else "{") + quoted + ":", texts]
    return _joined(*parts, "}")


def refuse_types(schema: Any, owner: str, *, path: str = "") -> None:
    """Refuse what has no place in the table above: Spark's type, by the name of the column."""
    from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

    def look(kind: Any, at: str) -> None:
        if isinstance(kind, T.ArrayType):
            look(kind.elementType, f"{at}.element")
        elif isinstance(kind, T.MapType):
            look(kind.keyType, f"{at}.key")
            look(kind.valueType, f"{at}.value")
        elif isinstance(kind, T.StructType) and kind.fields:
            names = [field.name for field in kind.fields]
            for field in kind.fields:
                if names.count(field.name) > 1:
                    raise _refused(owner, f"{at}.{field.name}", "two fields of one name")
                look(field.dataType, f"{at}.{field.name}")
        elif not is_scalar(kind):
            raise _refused(owner, at, kind.simpleString())

    for field in schema.fields:
        look(field.dataType, f"{path}{field.name}")


def is_scalar(kind: Any) -> bool:
    """Whether a type of Spark is one value that JSON can hold."""
    name = str(kind.typeName()).lower()
    return name.split("(")[0].removesuffix(" ") in _SCALARS or name.startswith("interval day")


def _refused(owner: str, at: str, kind: str) -> InvalidInputError:
    return InvalidInputError(
        "a journal cannot hold values of this type",
        kind="unsupported_type",
        sink=owner,
        column=at,
        type=kind,
        remedy="cast the column before the sink, for example to a string or to a long",
    )
