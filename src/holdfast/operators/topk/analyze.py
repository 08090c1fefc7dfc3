"""Types and expressions of top_k and latest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

from holdfast.errors import InvalidInputError
from holdfast.operators.analysis import Resolved, arrow_schema, hash_text, key_schema
from holdfast.operators.base import HASH
from holdfast.operators.sort_order import Term
from holdfast.operators.topk.declare import TopDetail
from holdfast.operators.topk.execute import TopWork
from holdfast.runtime.graph import WEIGHT, OperatorNode
from holdfast.spark.classic import Selection
from holdfast.spark.ddl import check_columns, quoted
from holdfast.spark.types import has_maps, kept_type

_EVERYTHING = "_all"


def resolve_top(node: OperatorNode, frames: Sequence[Any]) -> Resolved:
    """The columns that rows are ordered by, plain ones and those that the JVM computes."""
    df = frames[0]
    detail: TopDetail = node.detail
    changes = WEIGHT in df.columns
    row = arrow_schema(df.schema)
    names = {name.lower(): name for name in row.names}
    rank = [detail.rank] if detail.rank else []
    check_columns([*row.names, *rank], node.name)
    texts = [quoted(name) for name in row.names]
    terms: list[Term] = []
    extra: list[str] = []
    for index, term in enumerate(detail.terms):
        known = names.get(term.column.lower()) if term.plain else None
        if known is None:
            known = f"_order_{index}"
            extra.append(f"({term.column}) AS {quoted(known)}")
        if all(known != earlier.column for earlier in terms):
            terms.append(replace(term, column=known))
    computed = df.selectExpr(*extra).schema if extra else T.StructType([])
    for field in [*computed.fields, *(f for f in df.schema.fields if f.name != WEIGHT)]:
        check_ordered(node, field, required=any(t.column == field.name for t in terms))
    keys = tuple(names.get(key.lower(), key) for key in node.keys)
    if keys:
        key_types = key_schema(node, df, keys)
        head = [f"{hash_text(keys)} AS {HASH}"]
    else:  # one list over everything: all rows share one constant key
        everything = _EVERYTHING
        while everything in names:
            everything = f"_{everything}"
        key_types = pa.schema([(everything, pa.bool_())])
        head = [f"xxhash64(true) AS {HASH}", f"true AS {everything}"]
    weight = [WEIGHT] if changes else []
    work = TopWork(
        node.name, key_types, row, arrow_schema(computed), tuple(terms), detail.k, detail.rank,
        changes,
    )  # fmt: skip
    _ = work.traces
    select = Selection(*head, *texts, *extra, *weight)
    return Resolved(node, work, lambda inputs: select(inputs[0]))


def check_ordered(node: OperatorNode, field: Any, *, required: bool) -> None:
    """Spark sorts the same way as Holdfast, or the column is refused."""
    kind = field.dataType
    kept_type(kind, field.name)
    if required and has_maps(kind):
        raise InvalidInputError(
            "rows cannot be ordered by a column of this type", kind="unsupported_type",
            operator=node.name, column=field.name, type=kind.simpleString(),
            remedy="cast the column first, or leave it out before this step",
        )  # fmt: skip
