"""What every `analyze` module needs: types, hashes, checks of columns, errors with a name.

Invariants:
- Hashes, conditions and conversions are computed in the JVM, never row by row in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException

from holdfast.errors import InvalidInputError
from holdfast.operators.base import Analyzed, OperatorTask
from holdfast.operators.columns import WEIGHT
from holdfast.operators.declaration import Declaration
from holdfast.spark.classic import Selection
from holdfast.spark.ddl import quoted
from holdfast.spark.types import has_maps, kept_type, key_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Projected(Analyzed):
    """An operator whose rows become one DataFrame by expressions alone."""

    select: Callable[[Sequence[DataFrame]], DataFrame]

    def project(self, frames: Sequence[DataFrame]) -> DataFrame:
        """The expressions over the inputs."""
        return self.select(frames)


def projected(declaration: Declaration, task: OperatorTask, *texts: str) -> Projected:
    """An operator over one input, and the SQL expressions that its tasks read."""
    selection = Selection(*texts)
    return Projected(declaration, task, lambda frames: selection(frames[0]))


def arrow_schema(struct: StructType, *, without: str | None = WEIGHT) -> pa.Schema:
    """Spark's schema as Arrow's; timestamps in UTC."""
    return pa.schema(
        [
            pa.field(f.name, kept_type(f.dataType, f.name))
            for f in struct.fields
            if f.name != without
        ]
    )


def nullable_type(kind: pa.DataType) -> pa.DataType:
    """An Arrow type whose parts may all be null: one type, whatever a plan of Spark promises."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, nullable_type(f.type)) for f in kind])
    if pa.types.is_map(kind):
        item = pa.field(kind.item_field.name, nullable_type(kind.item_type))
        build: Any = pa.map_  # the stubs know no field as an item
        mapped: pa.DataType = build(nullable_type(kind.key_type), item)
        return mapped
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


def key_schema(node: Declaration, df: DataFrame, names: tuple[str, ...]) -> Any:
    """Arrow schema of some columns that are to be keys."""
    fields = {f.name.lower(): f for f in df.schema.fields}
    for name in names:
        kind = fields[name.lower()].dataType if name.lower() in fields else None
        if kind is None:
            raise InvalidInputError(
                "unknown column",
                kind="unknown_column",
                operator=node.name,
                column=name,
                known=",".join(n for n in df.columns if n != WEIGHT),
                remedy="correct the name, or add the column before this step",
            )
    found = [fields[name.lower()] for name in names]
    return pa.schema([pa.field(f.name, key_type(f.dataType, f.name)) for f in found])


def hash_text(names: Sequence[str]) -> str:
    """The hash of some columns, in SQL."""
    return "xxhash64(" + ", ".join(quoted(name) for name in names) + ")"


def check_ordered(node: Declaration, field: Any, *, required: bool) -> None:
    """Spark sorts the same way as Holdfast, or the column is refused."""
    kind = field.dataType
    kept_type(kind, field.name)
    if required and has_maps(kind):
        raise InvalidInputError(
            "rows cannot be ordered by a column of this type",
            kind="unsupported_type",
            operator=node.name,
            column=field.name,
            type=kind.simpleString(),
            remedy="cast the column first, or leave it out before this step",
        )
