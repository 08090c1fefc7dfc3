"""Rows that a source could not read: how it hands them over.

The DataFrame of a split may have one more column, `BAD`: a struct that is null in rows that were
read, and in others says what could not be read. The runtime parts the two, counts them, and gives
the bad ones to `stream.bad`. All other columns of a bad row are ignored.

Invariants:
- Whether a row is bad depends on the row alone: not on the columns that somebody asks for.
- `raw` is what came, whole; `origin` says where from (a file, a topic with partition and offset);
  `reason` is a sentence for people.
"""

from __future__ import annotations

from holdfast.errors import InvalidInputError
from holdfast.operators.columns import BAD
from holdfast.spark.ddl import quoted

__all__ = ["BAD", "BAD_COLUMNS", "BAD_SCHEMA", "bad_row"]

BAD_COLUMNS = ("raw", "origin", "reason")
BAD_SCHEMA = "raw string, origin string, reason string"
"""What every source tells; `raw` may also be binary, and more columns may follow."""


def bad_row(when: str, *, raw: str, origin: str, reason: str, **more: str) -> str:
    """The SQL expression of the column `BAD`.

    Args:
        when: the condition under which a row is bad.
        raw: what came, text or bytes.
        origin: where it came from, text.
        reason: why it could not be read, text.
        more: further columns by name.

    Returns:
        An expression with the name `BAD`, for `selectExpr`.

    Raises:
        InvalidInputError: a further column has the name of one of the three.

    Example:
        >>> bad_row("n IS NULL", raw="value", origin="'here'", reason="'no number'")
        "CASE WHEN n IS NULL THEN named_struct('raw', value, 'origin', 'here', 'reason', \
'no number') END AS `__hf_bad`"
    """
    twice = sorted(set(more) & set(BAD_COLUMNS))
    if twice:
        raise InvalidInputError(
            "a bad row has this column already",
            kind="invalid_columns",
            twice=twice[0],
            remedy="choose another name",
        )
    parts = {"raw": raw, "origin": origin, "reason": reason, **more}
    text = ", ".join(f"'{name}', {value}" for name, value in parts.items())
    return f"CASE WHEN {when} THEN named_struct({text}) END AS {quoted(BAD)}"
