"""Types and expressions of windows: an aggregate by keys and window, given its rows once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

from holdfast.api.windows import END, START
from holdfast.errors import InvalidInputError, invariant
from holdfast.operators.aggregate.analyze import resolve_aggregate
from holdfast.operators.aggregate.execute import AggregateWork
from holdfast.operators.analysis import Resolved, arrow_schema
from holdfast.operators.base import HASH, Work
from holdfast.operators.window.declare import WindowDetail
from holdfast.operators.window.execute import AT, ROW, WindowWork
from holdfast.operators.window.session import ALL, SessionWork
from holdfast.runtime.graph import WEIGHT, OperatorNode
from holdfast.spark.classic import Selection
from holdfast.spark.ddl import quoted
from holdfast.spark.time_zones import micros_sql

# Where tasks put the window: not under its own names, which an input may have too.
_PLACES = {"hf window start": START, "hf window end": END}


def resolve_window(node: OperatorNode, frames: Sequence[Any]) -> Resolved:
    """The aggregate by keys and window as it would be without time, and the work around it.

    The window columns are null here: xxhash64 passes over nulls, so that rows are placed by their
    keys alone, and tasks fill the windows in.
    """
    detail: WindowDetail = node.detail
    df = frames[0]
    changes, session = WEIGHT in df.columns, detail.window.kind == "session"
    names = [name for name in df.columns if name != WEIGHT]
    kind = _time_kind(node, df, detail)
    blank = [f"cast(NULL AS {kind}) AS `{name}`" for name in _PLACES]
    # Rows of a session are kept one by one and added up again, so they count once each here.
    shape = df.drop(WEIGHT) if session else df
    shape = shape.selectExpr("*", *blank)
    keyed = replace(node, keys=(*node.keys, *_PLACES), detail=detail.aggregates)
    found = resolve_aggregate(keyed, [shape])
    texts = found.texts
    inner = _renamed(found.work)
    row = arrow_schema(df.select(*names).schema) if detail.late_asked else None
    if row is not None and changes:
        row = row.append(pa.field(WEIGHT, pa.int64()))
    skipped = {WEIGHT, *(f"`{name}`" for name in _PLACES)}
    wanted = [text for text in texts if text not in skipped]
    micros = micros_sql(f"cast({detail.window.time} AS {kind})", kind)
    wanted += [f"{micros} AS {AT}", WEIGHT if changes else f"1L AS {WEIGHT}"]
    if detail.late_asked:
        wanted.append(f"struct({', '.join(quoted(name) for name in names)}) AS {ROW}")
    if session and not node.keys:
        wanted.append(f"cast(0 AS tinyint) AS {ALL}")

    with_places, select = Selection("*", *blank), Selection(*wanted)
    timed = f"({detail.window.time}) IS NOT NULL"

    def prepare(inputs: Sequence[Any]) -> Any:
        return select(with_places(inputs[0].where(timed)))

    return Resolved(node, _work(node, detail, inner, row, shape, texts), prepare)


def _work(
    node: OperatorNode, detail: WindowDetail, inner: AggregateWork, row: Any, shape: Any,
    texts: Sequence[str],
) -> Work:  # fmt: skip
    window, closing = detail.window, detail.emit == "close"
    shared = (node.name, inner, detail.lateness_us, closing, row)
    if window.kind != "session":
        return WindowWork(*shared, window.size_us, window.slide_us, window.offset_us)
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
    return SessionWork(*shared, window.size_us, keys, inputs)


def _renamed(work: Work) -> AggregateWork:
    """The aggregate with the columns of its window under their own names."""
    invariant(isinstance(work, AggregateWork), "a window needs an aggregate")
    inner = cast("AggregateWork", work)
    fields = [field.with_name(_PLACES.get(field.name, field.name)) for field in inner.keys]
    return replace(inner, keys=pa.schema(fields))


def _time_kind(node: OperatorNode, df: Any, detail: WindowDetail) -> str:
    """The type of the window's bounds: that of the time, dates as timestamps."""
    kind = df.selectExpr(f"({detail.window.time}) AS x").schema.fields[0].dataType
    if isinstance(kind, T.TimestampNTZType):
        return "timestamp_ntz"
    if isinstance(kind, T.TimestampType | T.DateType):
        return "timestamp"
    raise InvalidInputError(
        "the event time must be a timestamp", kind="invalid_time_column", operator=node.name,
        column=detail.window.time, type=kind.simpleString(), remedy="cast it to a timestamp first",
    )  # fmt: skip
