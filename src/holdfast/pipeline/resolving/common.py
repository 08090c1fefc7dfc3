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
from pyspark.sql import types as T  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import to_arrow_type

from holdfast.errors import InvalidInputError
from holdfast.pipeline.graph import WEIGHT, OperatorNode
from holdfast.pipeline.operators.work import Work


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
            pa.field(f.name, to_arrow_type(f.dataType, timezone="UTC"))
            for f in struct.fields
            if f.name != without
        ]
    )


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
        if isinstance(kind, (T.MapType, T.VariantType)):
            raise InvalidInputError(
                "a column of this type cannot be a key", kind="unsupported_key",
                operator=node.name, column=name, type=kind.simpleString(),
                remedy="use its parts as keys",
            )  # fmt: skip
    picked = T.StructType([fields[name.lower()] for name in names])
    return arrow_schema(picked)


def hash_text(names: Sequence[str]) -> str:
    """The hash of some columns, in SQL."""
    return "xxhash64(" + ", ".join(f"`{name}`" for name in names) + ")"
