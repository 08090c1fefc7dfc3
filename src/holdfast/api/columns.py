"""SQL text and PySpark Columns: both are kept as they are until Spark analyses the pipeline.

A Column can only be made where a session is active, so it carries its expression with it. The
pipeline's fingerprint needs a text that is the same at every start: Spark's own text of the
expression, without what Spark numbers afresh in every process.

Invariants:
- pyspark is not imported here: a value is a Column only where its user has imported it.
- A text that cannot be the same at the next start is refused where the step is declared.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from holdfast.errors import InvalidInputError
from holdfast.spark.ddl import split_top

if TYPE_CHECKING:
    from pyspark.sql import Column

Expression: TypeAlias = "str | Column"
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ALIAS = re.compile(r".*\sas\s+([A-Za-z_][A-Za-z0-9_]*)\s*", re.IGNORECASE | re.DOTALL)
_SHORT_ALIAS = re.compile(r".*[\w)`'\"]\s+([A-Za-z_][A-Za-z0-9_]*)\s*", re.DOTALL)
_OPERATOR = re.compile(
    r".*\b(?:and|or|not|in|is|like|ilike|rlike|regexp|between|div|from|then|else|when|case|distinct)"
    r"\s+\S+\s*",
    re.IGNORECASE | re.DOTALL,
)
_INNER = re.compile(r"\sas\s", re.IGNORECASE)
_ENDS = frozenset({"end", "null", "true", "false", "unknown"})
_VARIABLE = re.compile(
    r"\b([A-Za-z_]\w*_\d+)(?=(?:, \w+)*\)? -> )|UnresolvedNamedLambdaVariable\((\w+_\d+)\)"
)
_ADDRESS = re.compile(r"@[0-9a-f]{4,}\b")


def is_column(value: object) -> bool:
    """Whether a value is a PySpark Column, of a classic session or of Spark Connect."""
    module = sys.modules.get("pyspark.sql")
    return module is not None and isinstance(value, module.Column)


def expression_text(value: Expression, owner: str) -> str:
    """An expression as the fingerprint has it; refuses what is no expression."""
    if isinstance(value, str):
        return value
    if not is_column(value):
        raise InvalidInputError(
            "an expression is SQL text or a PySpark Column",
            kind="invalid_expression",
            operator=owner,
            value=repr(value)[:80],
            remedy="write it like \"amount > 0\" or F.col('amount') > 0",
        )
    return _column_text(value, owner)


def _column_text(column: Column, owner: str) -> str:
    try:
        text = repr(column).removeprefix("Column<'").removesuffix("'>")
    except Exception as error:
        raise InvalidInputError(
            "the session in which the Column was made is gone",
            kind="column_without_session",
            operator=owner,
            reason=f"{type(error).__name__}: {error}"[:200],
            remedy="make the Column and run the pipeline in one session, or write SQL text",
        ) from error
    text = _numbered_afresh(_without_origins(text))
    if _ADDRESS.search(text):
        raise InvalidInputError(
            "Spark gives this Column another text in every process",
            kind="column_without_text",
            operator=owner,
            column=text[:120],
            remedy='write the expression as SQL text, or use transform(function, text="...")',
        )
    return text


def _without_origins(text: str) -> str:
    """The arguments of a user function without the stack traces that Spark shows with them."""
    if "columnnodeexpression(" not in text:
        return text
    parts = text.split("Origin(")
    kept = [parts[0].removesuffix(",")]
    for part in parts[1:]:
        depth, end = 1, 0
        while depth and end < len(part):
            depth += {"(": 1, ")": -1}.get(part[end], 0)
            end += 1
        kept.append(part[end:].removesuffix(","))
    return "".join(kept)


def _numbered_afresh(text: str) -> str:
    """Variables of lambda functions by their place: Spark counts them through a whole process."""
    names = dict.fromkeys(a or b for a, b in _VARIABLE.findall(text))
    for number, name in enumerate(names):
        text = re.sub(rf"\b{name}\b", f"{name.rpartition('_')[0]}_{number}", text)
    return text


def spark_column(value: Expression) -> Column:
    """An expression as a Column; asked for while Spark analyses or runs the pipeline."""
    if not isinstance(value, str):
        return value
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    return F.expr(value)


def plain_names(values: Sequence[Expression]) -> list[str]:
    """Those of some expressions that are names of columns."""
    return [value for value in values if isinstance(value, str) and PLAIN.fullmatch(value)]


def output_names(values: Sequence[Expression], texts: Sequence[str]) -> list[str] | None:
    """Names that a select gives, or None where only Spark can tell."""
    names = []
    for value, text in zip(values, texts, strict=True):
        name = _output_name(text.strip(), implicit=isinstance(value, str))
        if name is None:
            return None
        names.append(name)
    return names


def _output_name(text: str, *, implicit: bool) -> str | None:
    """The name of one expression. implicit: `amount * 2 double`, without AS, as SQL allows it."""
    if text == "*" or len(split_top(text)) > 1 or "--" in text or "/*" in text:
        return None
    if PLAIN.fullmatch(text):
        return text
    alias = _ALIAS.fullmatch(text)
    if alias is None and implicit and not _OPERATOR.fullmatch(text):
        alias = _SHORT_ALIAS.fullmatch(text)
    if alias is None or alias.group(1).lower() in _ENDS:
        return None
    if not implicit and _INNER.search(text[: alias.start(1)].rstrip()[:-2]):
        return None  # Spark quotes no names: `k AS a as b` may be one alias with spaces
    return alias.group(1)
