"""Columns and types before Spark starts: enough to find a wrong name early.

Spark itself checks expressions when the pipeline is analysed, before the first epoch; this part
needs no JVM and finds what can be known from the declared schema alone.
"""

from __future__ import annotations

import re

from holdfast.errors import InvalidInputError

_FIELD = re.compile(r"\s*(`[^`]+`|[A-Za-z_][A-Za-z0-9_]*)\s*:?\s+(.+)", re.DOTALL)
RESERVED_PREFIX = "__hf_"


def split_top(text: str, separator: str = ",") -> list[str]:
    """Split at separators that are not inside parentheses or angle brackets."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        if char in "(<":
            depth += 1
        elif char in ")>":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return parts


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
        names.append(match.group(1).strip("`"))
    check_columns(names, owner)
    return names


def check_columns(names: list[str], owner: str) -> None:
    """Column names are unique and do not use Holdfast's own prefix."""
    lowered = [name.lower() for name in names]
    for name in names:
        if name.startswith(RESERVED_PREFIX):
            raise InvalidInputError(
                "a column name begins with Holdfast's own prefix",
                kind="reserved_column",
                owner=owner,
                column=name,
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


def check_known(wanted: list[str], known: list[str] | None, owner: str) -> None:
    """Every wanted column exists, as far as that can be known now."""
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
