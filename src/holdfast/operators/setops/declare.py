"""union, except and intersect as they are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from holdfast.operators.columns import WEIGHT
from holdfast.operators.declaration import (
    Declaration,
    Node,
    StepNode,
    UnionNode,
    check_same_names,
)
from holdfast.spark.ddl import quoted

if TYPE_CHECKING:
    from holdfast.operators.base import Analyzed
    from holdfast.spark.annotations import DataFrame


@dataclass(frozen=True, eq=False, kw_only=True)
class SetDeclaration(Declaration):
    """Rows of the left side by how often both sides have them; `rule` says how."""

    kind: ClassVar[str] = "rows"
    rule: str

    def fingerprint(self) -> Mapping[str, str]:
        """The rule."""
        return {"rule": self.rule}

    def title(self) -> str:
        """The rule; the keys are all columns."""
        return self.rule

    def analyze(self, frames: Sequence[DataFrame], *, late_rows: bool) -> Analyzed:
        """Both sides as one union."""
        from holdfast.operators.setops.analyze import analyze_rows

        del late_rows
        return analyze_rows(self, frames)


def union(nodes: Sequence[Node]) -> UnionNode:
    """All rows of several streams with the same columns."""
    for node in nodes[1:]:
        check_same_columns(nodes[0], node, "union")
    columns = next((node.columns for node in nodes if node.columns is not None), None)
    return UnionNode(
        columns=columns, retracts=any(node.retracts for node in nodes), inputs=tuple(nodes)
    )


def compared(left: Node, right: Node, name: str, rule: str) -> SetDeclaration:
    """Rows of the left side by how often both sides have them."""
    check_same_columns(left, right, name)
    grows = rule in ("intersect", "intersect all", "matched")
    return SetDeclaration(
        columns=left.columns,
        retracts=not grows or left.retracts or right.retracts,
        name=name,
        inputs=(left, right),
        keys=tuple(left.columns or ()),
        rule=rule,
    )


def check_same_columns(left: Node, right: Node, owner: str) -> None:
    """Both have the same names, in any order, as far as that is known now."""
    if left.columns is None or right.columns is None:
        return
    check_same_names(left.columns, right.columns, owner)


def select_step(before: Node, columns: Mapping[str, str], *, expressions: bool = False) -> StepNode:
    """Columns under new names: {new name: column}, or {new name: expression}."""
    texts = [
        f"{source if expressions else quoted(source)} AS {quoted(name)}"
        for name, source in columns.items()
    ]

    def apply(df: DataFrame) -> DataFrame:
        return df.selectExpr(*texts, *([WEIGHT] if WEIGHT in df.columns else []))

    return StepNode(
        columns=list(columns),
        retracts=before.retracts,
        inputs=(before,),
        apply=apply,
        text=f"select {', '.join(texts)}",
    )
