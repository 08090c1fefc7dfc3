"""What every resolver needs: types, hashes, checks of columns, errors that name the operator.

Invariants:
- Hashes, conditions and conversions are computed in the JVM, never row by row in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException

from holdfast.errors import InvalidInputError
from holdfast.operators.base import Work
from holdfast.runtime.graph import WEIGHT, OperatorNode
from holdfast.spark.ddl import quoted
from holdfast.spark.types import kept_type, key_type


@dataclass(frozen=True)
class Resolved:
    """A stateful operator with its types known.

    `prepare` makes one DataFrame of its inputs: the hash first, then what `work.process` reads;
    two inputs become one union with a column that says which side a row is of. `condense` adds
    up the rows of one key in the JVM, where that is possible: it pays when keys are few. `texts`:
    what `prepare` does as SQL expressions, for an operator that builds on this one.
    """

    node: OperatorNode
    work: Work
    prepare: Callable[[Sequence[Any]], Any]
    condense: Callable[[Any], Any] | None = None
    texts: Sequence[str] = ()


def arrow_schema(struct: Any, *, without: str | None = WEIGHT) -> Any:
    """Spark's schema as Arrow's; timestamps in UTC."""
    return pa.schema(
        [
            pa.field(f.name, kept_type(f.dataType, f.name))
            for f in struct.fields
            if f.name != without
        ]
    )


def nullable_type(kind: Any) -> Any:
    """An Arrow type whose parts may all be null: one type, whatever a plan of Spark promises."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, nullable_type(f.type)) for f in kind])
    if pa.types.is_map(kind):
        item = pa.field(kind.item_field.name, nullable_type(kind.item_type))
        return pa.map_(nullable_type(kind.key_type), item)
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, nullable_type(kind.value_type)))
    return kind


def named(owner: str, build: Callable[[], Any]) -> Any:
    """Run code that Spark may refuse, and let the error name the operator."""
    try:
        return build()
    except PySparkException as error:
        text = str(error.getMessage() if hasattr(error, "getMessage") else error)
        raise InvalidInputError(
            "Spark cannot run this step",
            kind="analysis_failed",
            operator=owner,
            reason=(text or str(error)).splitlines()[0][:300],
            remedy="correct the expression or the column name",
        ) from error


def spark_schema(schema: Any) -> Any:
    """Arrow's schema as Spark's."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def key_schema(node: OperatorNode, df: Any, names: tuple[str, ...]) -> Any:
    """Arrow schema of some columns that are to be keys."""
    fields = {f.name.lower(): f for f in df.schema.fields}
    for name in names:
        kind = fields[name.lower()].dataType if name.lower() in fields else None
        if kind is None:
            raise InvalidInputError(
                "unknown column", kind="unknown_column", operator=node.name, column=name,
                known=",".join(n for n in df.columns if n != WEIGHT),
                remedy="correct the name, or add the column before this step",
            )  # fmt: skip
    found = [fields[name.lower()] for name in names]
    return pa.schema([pa.field(f.name, key_type(f.dataType, f.name)) for f in found])


def hash_text(names: Sequence[str]) -> str:
    """The hash of some columns, in SQL."""
    return "xxhash64(" + ", ".join(quoted(name) for name in names) + ")"
