"""Types and their values for random pipelines, and how two results are compared.

Invariants:
- A row is a tuple of places in the pools of its columns, so that it can be counted, whatever its
  values are. Pools are lists of Python values; Arrow writes them.
- Numbers that are added up are not negative and have few binary digits: every order of adding gives
  the same sum, so that a difference is a defect and not rounding. Outliers are apart.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass

import pyarrow as pa

D = decimal.Decimal
LONG_MIN = -(2**63)
NUMBERS = ("int", "long", "decimal", "double")
STAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Column:
    """A column of a stream.

    soft: `float` for results that rounding may touch, `approx` for sketches. folded: compared
    without case, since a collation leaves open which spelling stands for a group.
    """

    name: str
    family: str
    soft: str = ""
    folded: bool = False

    @property
    def sql(self) -> str:
        return self.name if self.name.isidentifier() and self.name.isascii() else f"`{self.name}`"

    @property
    def orderable(self) -> bool:
        return self.family not in ("map", "variant")


@dataclass(frozen=True)
class Field:
    """A column of a source, with the values that it takes."""

    name: str
    family: str
    ddl: str
    arrow: pa.DataType
    pool: tuple
    outliers: tuple = ()

    @property
    def column(self) -> Column:
        return Column(self.name, self.family, folded="collate" in self.ddl)


def _utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


STAMPS = (
    _utc("2024-03-31T01:30:00.000001"),
    _utc("2024-03-31T00:30:00"),
    _utc("1969-12-31T23:59:59.5"),
    _utc("2038-01-19T03:14:08"),
    _utc("2024-11-03T05:59:59.999999"),
)
TEXTS = ("", "a", "A", "ä", "a\u0308", "日本", "a b", " a", "null", '"', "\\", "\u2028", "é'")


def _some(rng: random.Random, values, least: int = 2) -> list:
    return rng.sample(list(values), rng.randint(min(least, len(values)), len(values)))


def decimal_type(rng: random.Random) -> tuple[int, int]:
    precision = rng.choice([5, 9, 18, 19, 20, 28, 38])
    return precision, rng.randint(0, min(precision, 20))


def field_of(rng: random.Random, name: str, kind: str, *, outliers: bool = False) -> Field:
    """A field of some kind with a random pool."""
    extreme: tuple = ()
    if kind == "decimal":
        precision, scale = decimal_type(rng)
        # The mean of a decimal(38, s) has s + 4 places: four digits less for whole numbers. Spark's
        # own answer is an error beyond. Products would be rounded to 28 digits, texts are exact.
        small = max(10 ** (max(precision - 4, 1)) - 1, 1)
        pool = [D(f"{n}E-{scale}") for n in (0, 1, 3, small, rng.randint(1, small))]
        family, ddl, arrow = (
            "decimal",
            f"decimal({precision},{scale})",
            pa.decimal128(precision, scale),
        )
        extreme = (D(f"-{10**precision - 1}E-{scale}"),)
    else:
        family, ddl, arrow, values, extreme = _KINDS[kind]
        pool = _some(rng, values)
    if rng.random() < 0.5:
        pool.append(None)
    return Field(name, family, ddl, arrow, tuple(pool), extreme if outliers else ())


ARRAYS = ([], [None], [1], [1, None], [None, 1], [2], [2, None], [None, 2], [1, 2], [3], [None, 3])
_STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])
_STRUCTS = [{"a": 1, "b": "x"}, {"a": None, "b": "x"}, {"a": 1, "b": None}, {"a": 2, "b": ""}]
_MAPPED = pa.struct([("m", pa.map_(pa.string(), pa.int64()))])
_KINDS: dict[str, tuple] = {
    "byte": ("int", "tinyint", pa.int8(), (0, 1, 5, 127), ()),
    "int": ("int", "int", pa.int32(), (0, 1, 2, 7, 2**31 - 1), ()),
    "long": ("long", "bigint", pa.int64(), (0, 1, 2, 5, 2**40, 2**53 + 1), (LONG_MIN,)),
    "float": ("double", "float", pa.float32(), (0.0, 0.5, 1.25, 8.0), ()),
    "double": (
        "double",
        "double",
        pa.float64(),
        (0.0, 0.5, 1.25, 8.0, 3.0, 1024.125),
        (1e17, 1.7e308, 1.6e308, -1e15, math.inf, math.nan),
    ),
    "odd double": (
        "other",
        "double",
        pa.float64(),
        (0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 0.1),
        (),
    ),
    "bool": ("other", "boolean", pa.bool_(), (True, False), ()),
    "string": ("text", "string", pa.string(), TEXTS, ()),
    "date": (
        "date",
        "date",
        pa.date32(),
        (dt.date(2024, 2, 29), dt.date(1970, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)),
        (),
    ),
    "timestamp": ("timestamp", "timestamp", STAMP, STAMPS, ()),
    "ntz": (
        "other",
        "timestamp_ntz",
        pa.timestamp("us"),
        tuple(s.replace(tzinfo=None) for s in STAMPS),
        (),
    ),
    "binary": ("other", "binary", pa.binary(), (b"", b"\x00", b"\xff\xfe\x00", b"a"), ()),
    "struct": ("other", "struct<a:int,b:string>", _STRUCT, _STRUCTS, ()),
    "array": ("array", "array<int>", pa.list_(pa.int32()), ARRAYS, ()),
    "collated": ("text", "string collate UTF8_LCASE", pa.string(), ("A", "a", "b", "B", "ab"), ()),
    "mapped": (
        "map",
        "struct<m:map<string,bigint>>",
        _MAPPED,
        ({"m": [("x", 1)]}, {"m": [("x", 2)]}, {"m": None}),
        (),
    ),
    "char": ("other", "char(5)", pa.string(), ("a    ", "b    "), ()),
    "varchar": ("other", "varchar(5)", pa.string(), ("a", "b", "abc"), ()),
}
PLAIN_KEYS = (
    "byte",
    "int",
    "long",
    "decimal",
    "odd double",
    "bool",
    "string",
    "date",
    "timestamp",
    "ntz",
    "binary",
    "struct",
    "array",
)
PLAIN_VALUES = ("int", "long", "float", "double", "decimal", "string", "timestamp", "array")


def canon(value, *, folded: bool = False):
    """A value that equals another one exactly if Spark says that they are the same."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, str):
        return value.lower() if folded else value
    if isinstance(value, (bytes, bytearray)):
        return "b:" + bytes(value).hex()
    if isinstance(value, dict):
        return tuple((name, canon(inner)) for name, inner in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(canon(inner) for inner in value)
    if isinstance(value, decimal.Decimal):
        return f"d:{value}"
    if isinstance(value, dt.datetime):
        return f"t:{value.astimezone(dt.UTC) if value.tzinfo else value}"
    return value


Rows = Counter[tuple]


def rows_of(table: pa.Table, columns: list[Column], weight: str | None = None) -> Rows:
    """The rows of a table by their columns, added up."""
    lists = [table.column(column.name).to_pylist() for column in columns]
    weights = table.column(weight).to_pylist() if weight else [1] * table.num_rows
    found: Rows = Counter()
    for values, count in zip(zip(*lists, strict=True), weights, strict=True):
        row = tuple(canon(v, folded=c.folded) for v, c in zip(values, columns, strict=True))
        found[row] += count
    return Counter({row: count for row, count in found.items() if count})


def difference(got: Rows, want: Rows, columns: list[Column]) -> str:
    """Empty if both hold the same rows, soft columns within their bounds; otherwise what differs."""
    negative = [(row, count) for row, count in got.items() if count < 0]
    if negative:
        return f"rows that are there less than never: {negative[:3]}"
    if not any(column.soft for column in columns):
        if got == want:
            return ""
        return f"only got: {_first(got - want)} | only wanted: {_first(want - got)}"
    sides = [_by_exact(rows, columns) for rows in (got, want)]
    for key in {*sides[0], *sides[1]}:
        mine, theirs = sides[0].get(key, []), sides[1].get(key, [])
        if len(mine) != len(theirs) or not all(
            _near(a, b, columns) for a, b in zip(mine, theirs, strict=True)
        ):
            return f"for {key}: got {mine[:3]}, wanted {theirs[:3]}"
    return ""


def _first(rows: Rows) -> str:
    return f"{sum(rows.values())} {list(rows.items())[:3]}"


def _by_exact(rows: Rows, columns: list[Column]) -> dict:
    found = defaultdict(list)
    for row, count in rows.items():
        key = tuple(v for v, c in zip(row, columns, strict=True) if not c.soft)
        soft = tuple(v for v, c in zip(row, columns, strict=True) if c.soft)
        found[key] += [soft] * count
    return {key: sorted(softs, key=_order) for key, softs in found.items()}


def _order(values: tuple) -> list:
    return [(v is None, isinstance(v, str), 0 if isinstance(v, str) else (v or 0)) for v in values]


def _near(mine: tuple, theirs: tuple, columns: list[Column]) -> bool:
    softs = [column.soft for column in columns if column.soft]
    for a, b, soft in zip(mine, theirs, softs, strict=True):
        if a == b:
            continue
        if a is None or b is None or isinstance(a, str) or isinstance(b, str):
            return False
        bound = max(1, 0.25 * b) if soft == "approx" else 1e-9 * max(abs(a), abs(b), 1e-3)
        if not abs(a - b) <= bound:
            return False
    return True
