"""Types and expressions of operations on whole rows of two streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.pipeline.declare.sets import check_same_names
from holdfast.pipeline.graph import WEIGHT, OperatorNode
from holdfast.pipeline.operators.sets import SetWork
from holdfast.pipeline.operators.work import HASH, SIDE
from holdfast.pipeline.resolving.common import Resolved, hash_text, key_schema


def resolve_rows(node: OperatorNode, frames: Sequence[Any]) -> Resolved:
    """Both sides as one union, by name; the hash is taken of the types that both share."""
    names = [name for name in frames[0].columns if name != WEIGHT]
    others = [name for name in frames[1].columns if name != WEIGHT]
    check_same_names(names, others, node.name)
    weighted = any(WEIGHT in df.columns for df in frames)

    def sides(inputs: Sequence[Any]) -> Any:
        done = None
        for number, df in enumerate(inputs):
            more = [f"{number} AS {SIDE}"]
            if weighted:
                more.append(WEIGHT if WEIGHT in df.columns else f"1L AS {WEIGHT}")
            part = df.selectExpr(*(f"`{name}`" for name in names), *more)
            done = part if done is None else done.unionByName(part)
        return done

    row = key_schema(node, sides(frames), tuple(names))
    more = [SIDE, *([WEIGHT] if weighted else [])]

    def prepare(inputs: Sequence[Any]) -> Any:
        return sides(inputs).selectExpr(
            f"{hash_text(names)} AS {HASH}", *(f"`{name}`" for name in names), *more
        )

    return Resolved(node, SetWork(node.name, row, node.detail, node.changes), prepare)
