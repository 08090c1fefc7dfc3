"""Columns and types before Spark starts: enough to find a wrong name early.

Spark itself checks expressions when the pipeline is analysed, before the first epoch; this part
needs no JVM and finds what can be known from the declared schema alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_FIELD = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*)\s*:?\s+(.+)", re.DOTALL)
_QUOTED = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
RESERVED_PREFIX = "__hf_"
RESERVED = frozenset({"_weight", "hf_epoch"})
"""Columns that sinks add to what they publish."""


def quoted(name: str) -> str:
    """A column's name in SQL, whatever it contains."""
    return "`" + name.replace("`", "``") + "`"


def split_top(text: str, separator: str = ",") -> list[str]:
    """Split at separators that are not inside parentheses, angle brackets or a quoted name."""
    parts, depth, start, inside = [], 0, 0, False
    for index, char in enumerate(text):
        if char == "`":
            inside = not inside
        elif inside:
            continue
        elif char in "(<":
            depth += 1
        elif char in ")>":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return parts


def is_one(text: str) -> bool:
    """Whether SQL text is one expression: no comma stands outside of parentheses and quotes."""
    bare = _QUOTED.sub("", text)
    depth = 0
    for character in bare:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            return False
    return True


def schema_ddl(schema: str | StructType, owner: str) -> str:
    """A schema as SQL writes it: given so, or as a `StructType`. No Spark is started for it."""
    if isinstance(schema, str):
        return schema
    if not hasattr(schema, "fields") or not hasattr(schema, "simpleString"):
        raise InvalidInputError(
            "a schema is SQL text or a StructType",
            kind="invalid_schema",
            source=owner,
            value=repr(schema)[:80],
            remedy="write it like 'customer string, amount double, at timestamp'",
        )
    return ", ".join(f"{_quoted(f.name)} {_ddl(f.dataType)}" for f in schema.fields)


def _ddl(kind: Any) -> str:
    if hasattr(kind, "fields") and kind.typeName() == "struct":
        inner = ", ".join(f"{_quoted(f.name)}: {_ddl(f.dataType)}" for f in kind.fields)
        return f"struct<{inner}>"
    if kind.typeName() == "array":
        return f"array<{_ddl(kind.elementType)}>"
    if kind.typeName() == "map":
        return f"map<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    return str(kind.simpleString())


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else quoted(name)


_SIZED_TEXT = re.compile(r"(?:^|[\s:<,])((?:var)?char(?:acter)?)\s*\(", re.IGNORECASE)


def ddl_columns(schema: str, owner: str) -> list[str]:
    """Column names of a schema such as `customer string, amount double`."""
    names: list[str] = []
    for part in split_top(schema):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise InvalidInputError(
                "the schema cannot be read",
                kind="invalid_schema",
                source=owner,
                at=repr(part.strip())[:80],
                remedy="write it like 'customer string, amount double, at timestamp'",
            )
        sized = _SIZED_TEXT.search(match.group(2))
        if sized is not None:
            raise InvalidInputError(
                "Spark reads no char or varchar",
                kind="invalid_schema",
                source=owner,
                column=match.group(1),
                at=repr(part.strip())[:80],
                remedy="declare the column as string",
            )
        name = match.group(1)
        names.append(name[1:-1].replace("``", "`") if name[0] == "`" else name)
    _check_unique(names, owner)
    return names


def check_columns(names: list[str], owner: str) -> None:
    """Column names are unique, and are none that Holdfast uses itself; case makes no difference."""
    for name in names:
        if name.lower() in RESERVED:
            raise InvalidInputError(
                "a column has a name that sinks use for what they add",
                kind="reserved_column",
                owner=owner,
                column=name,
                remedy='rename it: select("... AS other_name"), or in the schema of the source',
            )
    _check_unique(names, owner)


def _check_unique(names: list[str], owner: str) -> None:
    lowered = [name.lower() for name in names]
    for name in names:
        if not name or name.lower().startswith(RESERVED_PREFIX):
            raise InvalidInputError(
                "a column name is empty or begins with Holdfast's own prefix",
                kind="reserved_column",
                owner=owner,
                column=repr(name),
                remedy=f"choose a name that does not begin with {RESERVED_PREFIX}",
            )
        if lowered.count(name.lower()) > 1:
            raise InvalidInputError(
                "two columns have one name",
                kind="duplicate_column",
                owner=owner,
                column=name,
                remedy="give each column a name of its own",
            )


def check_weight(weight: str | None, names: list[str]) -> None:
    """The weight of a source is one of its columns."""
    if weight is not None and weight not in names:
        raise InvalidInputError(
            "the weight is not one of the columns",
            kind="unknown_column",
            column=repr(weight)[:80],
            known=",".join(names),
            remedy="add the column to the schema of the source, or correct the name",
        )


def check_known(wanted: list[str], known: list[str] | None, owner: str) -> None:
    """Every wanted column exists, as far as that can be known now."""
    for name in wanted:
        if not isinstance(name, str):
            raise InvalidInputError(
                "not the name of a column",
                kind="invalid_key",
                operator=owner,
                value=repr(name)[:80],
                remedy='name an expression first: with_columns(day="date(at)"), then "day"',
            )
    if known is None:
        return
    lowered = {name.lower() for name in known}
    for name in wanted:
        if name.lower() not in lowered:
            raise InvalidInputError(
                "unknown column",
                kind="unknown_column",
                operator=owner,
                column=name,
                known=",".join(known),
                remedy="correct the name, or add the column before this step",
            )
