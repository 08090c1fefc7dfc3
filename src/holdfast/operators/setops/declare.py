"""union, except and intersect as they are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.runtime.graph import WEIGHT, Graph, Node, OperatorNode, StepNode, UnionNode
from holdfast.spark.ddl import quoted


def union_of(nodes: Sequence[Node]) -> UnionNode:
    """All rows of several streams with the same columns."""
    for node in nodes[1:]:
        check_same_columns(nodes[0], node, "union")
    columns = next((node.columns for node in nodes if node.columns is not None), None)
    return UnionNode(
        columns=columns, changes=any(node.changes for node in nodes), befores=tuple(nodes)
    )


def add_compared(graph: Graph, left: Node, right: Node, name: str, rule: str) -> OperatorNode:
    """Rows of the left side by how often both sides have them."""
    check_same_columns(left, right, name)
    grows = rule in ("intersect", "intersect all", "matched")
    node = OperatorNode(
        columns=left.columns, changes=not grows or left.changes or right.changes, name=name,
        befores=(left, right), what="rows", keys=tuple(left.columns or ()), params={"rule": rule},
        detail=rule,
    )  # fmt: skip
    graph.add(node)
    return node


def check_same_columns(left: Node, right: Node, owner: str) -> None:
    """Both have the same names, in any order, as far as that is known now."""
    if left.columns is None or right.columns is None:
        return
    check_same_names(left.columns, right.columns, owner)


def check_same_names(left: Sequence[str], right: Sequence[str], owner: str) -> None:
    """Both have the same names, in any order."""
    mine, yours = ({name.lower(): name for name in names} for names in (left, right))
    if mine.keys() == yours.keys():
        return
    raise InvalidInputError(
        "the streams have different columns", kind="columns_differ", operator=owner,
        only_left=",".join(mine[n] for n in mine if n not in yours) or None,
        only_right=",".join(yours[n] for n in yours if n not in mine) or None,
        remedy="bring them to the same names with select(...)",
    )  # fmt: skip


def select_step(before: Node, columns: Mapping[str, str], *, expressions: bool = False) -> StepNode:
    """Columns under new names: {new name: column}, or {new name: expression}."""
    texts = [
        f"{source if expressions else quoted(source)} AS {quoted(name)}"
        for name, source in columns.items()
    ]

    def apply(df: Any) -> Any:
        return df.selectExpr(*texts, *([WEIGHT] if WEIGHT in df.columns else []))

    return StepNode(
        columns=list(columns), changes=before.changes, before=before, apply=apply,
        text=f"select {', '.join(texts)}",
    )  # fmt: skip
