"""Expectations: what is said of every row, and what becomes of rows that fail. No Spark.

An expectation is two steps: one that says of each row whether it fails, in a column of its own and
watched by the job, and one that takes the rows that stay. The rows set aside are taken from the
first step, too.

Invariants:
- Whether a row fails depends on its values alone, so that a row and its later retraction share one
  fate. What gives another answer another time is refused when the pipeline is analysed.
- A condition that is null fails: what cannot be told is not what was expected.
- "warn" and "fail" change no row, so they are no part of the fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from holdfast.errors import InvalidInputError
from holdfast.ids import check_name
from holdfast.operators.columns import FAILED
from holdfast.operators.declaration import Expectation, Node, StepNode

if TYPE_CHECKING:
    from holdfast.spark.annotations import DataFrame

OnFail = Literal["warn", "drop", "fail", "quarantine"]


@dataclass(frozen=True, eq=False, kw_only=True)
class JudgeNode(StepNode):
    """Says of each row whether it fails an expectation."""

    judged: Expectation

    @property
    def row_wise(self) -> bool:
        """Spark is always asked about the condition."""
        return False

    @property
    def label(self) -> str:
        """Which expectation."""
        return f"expectation {self.judged.name}"

    @property
    def expectation(self) -> Expectation | None:
        """What is expected."""
        return self.judged


@dataclass(frozen=True, eq=False, kw_only=True)
class KeptNode(StepNode):
    """The rows that stay in the stream after an expectation."""

    judge: JudgeNode

    def quarantined_rows(self) -> Node:
        """The rows that failed."""
        if self.judge.judged.on_fail != "quarantine":
            return super().quarantined_rows()
        return StepNode(
            columns=self.columns,
            retracts=self.retracts,
            inputs=(self.judge,),
            apply=_taken(f"{FAILED}"),
            text=f"quarantined {self.judge.judged.condition}",
        )


def expect(
    before: Node,
    judge: Callable[[DataFrame], DataFrame],
    condition: str,
    *,
    name: str,
    on_fail: OnFail,
) -> KeptNode:
    """The rows of a stream that stay in it. judge: adds the column `FAILED`."""
    check_name(name, "name of an expectation")
    if on_fail not in get_args(OnFail):
        raise InvalidInputError(
            "unknown way to treat rows that fail an expectation",
            kind="invalid_option",
            expectation=name,
            on_fail=str(on_fail)[:60],
            remedy="use warn, drop, fail or quarantine",
        )
    judged = JudgeNode(
        columns=before.columns,
        retracts=before.retracts,
        inputs=(before,),
        apply=judge,
        text="",
        judged=Expectation(name, condition, on_fail),
    )
    parts = on_fail in ("drop", "quarantine")
    return KeptNode(
        columns=before.columns,
        retracts=before.retracts,
        inputs=(judged,),
        apply=_taken(f"NOT {FAILED}") if parts else _taken(None),
        text=f"expect {condition}" if parts else "",
        judge=judged,
    )


def _taken(condition: str | None) -> Callable[[DataFrame], DataFrame]:
    """Rows by their verdict, without it."""

    def apply(frame: DataFrame) -> DataFrame:
        chosen = frame if condition is None else frame.where(condition)
        return chosen.drop(FAILED)

    return apply
