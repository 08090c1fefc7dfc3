"""Types and expressions of windows: an aggregate by keys and window, given its rows once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

from holdfast.errors import InvalidInputError
from holdfast.operators.aggregate.analyze import aggregate_by
from holdfast.operators.aggregate.execute import AggregateTask
from holdfast.operators.analyze import arrow_schema
from holdfast.operators.base import Analyzed, OperatorTask
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.operators.window.declare import END, START, WindowDeclaration
from holdfast.operators.window.execute import AT, ROW, WindowTask
from holdfast.operators.window.session import ALL, SessionTask
from holdfast.spark.classic import Selection
from holdfast.spark.ddl import quoted
from holdfast.spark.time_zones import micros_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Where tasks put the window: not under its own names, which an input may have too.
_PLACES = {"hf window start": START, "hf window end": END}


@dataclass(frozen=True)
class AnalyzedWindow(Analyzed):
    """Rows that have a time, with the inputs of the aggregates."""

    timed: str
    with_places: Selection
    select: Selection

    def project(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Every row once, with its event time."""
        return self.select(self.with_places(frames[0].where(self.timed)))


def analyze_window(node: WindowDeclaration, df: DataFrame, *, late_rows: bool) -> AnalyzedWindow:
    """The aggregate by keys and window as it would be without time, and the task around it.

    The window columns are null here: xxhash64 passes over nulls, so that rows are placed by their
    keys alone, and tasks fill the windows in.
    """
    window = node.window
    changes, session = WEIGHT in df.columns, window.kind == "session"
    names = [name for name in df.columns if name != WEIGHT]
    kind = _time_kind(node, df)
    blank = [f"cast(NULL AS {kind}) AS `{name}`" for name in _PLACES]
    # Rows of a session are kept one by one and added up again, so they count once each here.
    shape = df.drop(WEIGHT) if session else df
    shape = shape.selectExpr("*", *blank)
    inner = aggregate_by(node, (*node.keys, *_PLACES), node.aggregates, shape)
    row = arrow_schema(df.select(*names).schema) if late_rows else None
    if row is not None and changes:
        row = row.append(pa.field(WEIGHT, pa.int64()))
    skipped = {WEIGHT, *(f"`{name}`" for name in _PLACES)}
    wanted = [text for text in inner.texts if text not in skipped]
    micros = micros_sql(f"cast({window.time} AS {kind})", kind)
    wanted += [f"{micros} AS {AT}", WEIGHT if changes else f"1L AS {WEIGHT}"]
    if late_rows:
        wanted.append(f"struct({', '.join(quoted(name) for name in names)}) AS {ROW}")
    if session and not node.keys:
        wanted.append(f"cast(0 AS tinyint) AS {ALL}")
    return AnalyzedWindow(
        node,
        _task(node, _renamed(inner.task), row, shape, inner.texts),
        f"({window.time}) IS NOT NULL",
        Selection("*", *blank),
        Selection(*wanted),
    )


def _task(
    node: WindowDeclaration, inner: AggregateTask, row: Any, shape: Any, texts: Sequence[str]
) -> OperatorTask:
    window, closing = node.window, node.window.emit == "close"
    shared = (node.name, inner, node.lateness_us, closing, row)
    if window.kind != "session":
        return WindowTask(*shared, window.size_us, window.slide_us, window.offset_us)
    user = [field for field in inner.keys if field.name not in (START, END)]
    keys = pa.schema(user or [pa.field(ALL, pa.int8())])
    given = arrow_schema(shape.selectExpr(*texts).schema)
    inputs = pa.schema(
        [
            pa.field(field.name.removeprefix("__hf"), field.type)
            for field in given
            if field.name not in {HASH, *_PLACES, *inner.keys.names}
        ]
    )
    return SessionTask(*shared, window.size_us, keys, inputs)


def _renamed(inner: AggregateTask) -> AggregateTask:
    """The aggregate with the columns of its window under their own names."""
    fields = [field.with_name(_PLACES.get(field.name, field.name)) for field in inner.keys]
    return replace(inner, keys=pa.schema(fields))


def _time_kind(node: WindowDeclaration, df: DataFrame) -> str:
    """The type of the window's bounds: that of the time, dates as timestamps."""
    kind = df.selectExpr(f"({node.window.time}) AS x").schema.fields[0].dataType
    if isinstance(kind, T.TimestampNTZType):
        return "timestamp_ntz"
    if isinstance(kind, T.TimestampType | T.DateType):
        return "timestamp"
    raise InvalidInputError(
        "the event time must be a timestamp",
        kind="invalid_time_column",
        operator=node.name,
        column=node.window.time,
        type=kind.simpleString(),
        remedy="cast it to a timestamp first",
    )
