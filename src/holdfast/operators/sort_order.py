"""Orderings as a user writes them: `["amount desc", "at"]`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.spark.ddl import is_one

PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(
    r"\s*(?P<what>.+?)(?:\s+(?P<way>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?\s*",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class SortKey:
    """One column or SQL expression of an ordering. Nulls first when ascending, as in Spark."""

    column: str
    descending: bool = False
    nulls_first: bool = True

    def reversed(self) -> SortKey:
        """The same column the other way round."""
        return SortKey(self.column, not self.descending, not self.nulls_first)

    @property
    def plain(self) -> bool:
        """Whether it is the name of a column."""
        return PLAIN.fullmatch(self.column) is not None

    def __str__(self) -> str:
        """As in SQL."""
        way = "DESC" if self.descending else "ASC"
        return f"{self.column} {way} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


def parse_order(order_by: str | Sequence[str], owner: str) -> tuple[SortKey, ...]:
    """The keys of an ordering: `column [asc|desc] [nulls first|last]`."""
    one = isinstance(order_by, str) or not isinstance(order_by, Sequence)
    texts: list[Any] = [order_by] if one else list(order_by)
    if not texts:
        raise InvalidInputError(
            "an ordering needs a column",
            kind="no_order",
            operator=owner,
            remedy='for example order_by=["amount desc", "at"]',
        )
    return tuple(_sort_key(text, owner) for text in texts)


def _sort_key(text: str, owner: str) -> SortKey:
    match = _KEY.fullmatch(text) if isinstance(text, str) and is_one(text) else None
    if match is None:
        raise InvalidInputError(
            "not a term of an ordering",
            kind="invalid_order",
            operator=owner,
            value=repr(text)[:80],
            remedy='write it like "amount desc" or "at asc nulls last", several as a list: '
            'order_by=["amount desc", "at"]',
        )
    descending = (match["way"] or "").lower() == "desc"
    nulls = (match["nulls"] or "").lower()
    return SortKey(match["what"], descending, nulls == "first" if nulls else not descending)
