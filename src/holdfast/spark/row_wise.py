"""Whether a step treats rows one by one, told from the plan that Spark makes of it.

A step without state sees the rows of one epoch. An aggregate, a window function or a limit in it
would be taken over each epoch by itself: another result than over all rows, without any error. So
Spark is asked for the plan of a step, on an empty stream, and what stands above the stream in it is
looked at.

Invariants:
- No job runs, and a classic session does not optimise what it analyses.
- What is done to static tables before they meet the stream is the user's affair.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.errors import InvalidInputError
from holdfast.spark.classic import analyzed_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STREAM = "__hf_stream"
_VIEW = "__hf_plan"
_FIELDS_SHOWN = "spark.sql.debug.maxToStringFields"
_LINE = re.compile(r"(?P<indent>(?:[: ]  )*)(?P<branch>[:+]- )?(?P<text>\S.*)")
_WHOLE = {
    "Aggregate": "an aggregate",
    "AggregateInPandas": "an aggregate",
    "Deduplicate": "distinct rows",
    "Distinct": "distinct rows",
    "Except": "a comparison of whole streams",
    "FlatMapCoGroupsInArrow": "a function of groups",
    "FlatMapCoGroupsInPandas": "a function of groups",
    "FlatMapGroupsInArrow": "a function of groups",
    "FlatMapGroupsInPandas": "a function of groups",
    "GlobalLimit": "a limit",
    "Intersect": "a comparison of whole streams",
    "LocalLimit": "a limit",
    "Offset": "a limit",
    "Tail": "a limit",
    "Window": "a window function",
    "WindowInPandas": "a window function",
}
_KEEPS_LEFT = ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti", "ExistenceJoin", "LeftSingle")
_KEEPS_RIGHT = ("Inner", "Cross", "RightOuter")
_UNSTABLE = re.compile(
    r"\b(rand|randn|randstr|uuid|uniform|random|input_file_name|shuffle|current_timestamp|current_date|current_time|now|"
    r"localtimestamp|monotonically_increasing_id|spark_partition_id)\("
)


@dataclass
class _PlanNode:
    """One line of a plan, with what stands below it. of_stream: the stream is below."""

    text: str
    depth: int
    of_stream: bool = False
    children: list[_PlanNode] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.text.split(maxsplit=1)[0]

    def walk(self) -> Iterator[_PlanNode]:
        """It and all below."""
        yield self
        for child in self.children:
            yield from child.walk()


def marked(frame: DataFrame) -> DataFrame:
    """The stream as a plan shows it."""
    return frame.alias(STREAM)


def check_row_wise(frame: DataFrame, step: str, *, retracts: bool, judged: bool = False) -> None:
    """Refuse a step that needs more than one row at a time, or changes what is retracted.

    Args:
        frame: what the step makes of a `marked` frame.
        step: how errors name it.
        retracts: the stream is a changelog.
        judged: the step is an expectation, whose answer decides what becomes of a row.
    """
    for node in _plan(frame).walk():
        if not node.of_stream:
            continue
        what = _WHOLE.get(node.name) or _crossing(node)
        if what is not None:
            raise InvalidInputError(
                "a step without state sees the rows of one epoch, and this one needs all",
                kind="not_row_wise",
                step=step,
                has=what,
                plan=node.text[:120],
                remedy="use group_by(...).agg(...), distinct, top_k, latest or join, which keep "
                "what they need from epoch to epoch",
            )
        unstable = _UNSTABLE.search(node.text) if retracts or judged else None
        if unstable is not None and judged:
            raise InvalidInputError(
                "an expectation must give one answer for one row, whenever it is asked",
                kind="unstable_expectation",
                step=step,
                function=unstable.group(1),
                remedy="use the row's own columns; compare times with a column of event time",
            )
        if unstable is not None:
            raise InvalidInputError(
                "a row of a changelog is retracted by its values, and this step gives others then",
                kind="unstable_step",
                step=step,
                function=unstable.group(1),
                remedy="take the value before the first operator that gives a changelog",
            )


def _crossing(node: _PlanNode) -> str | None:
    """Why a node with several inputs does not treat the rows of the stream one by one."""
    sides = [child.of_stream for child in node.children]
    if node.name == "Union" and not all(sides):
        return "a union with a table, whose rows every epoch would add again"
    if node.name != "Join" or len(sides) < 2:
        return None
    left, right = sides[-2:]  # subqueries of the condition come first
    how = node.text.removeprefix("Join").strip().split(",")[0].split("(")[0].strip()
    if left and right:
        return "a join of the stream with itself"
    if how not in (_KEEPS_LEFT if left else _KEEPS_RIGHT):
        return "an outer join that keeps rows of a table"
    return None


def _plan(frame: DataFrame) -> _PlanNode:
    """The analysed plan of a frame."""
    return _tree(analyzed_lines(frame, f"SubqueryAlias {STREAM}", lambda: _explained(frame)))


def _explained(frame: DataFrame) -> list[str]:
    """The same by public calls: a view for a moment, since `explain` prints."""
    spark = frame.sparkSession
    frame.createOrReplaceTempView(_VIEW)
    fields = spark.conf.get(_FIELDS_SHOWN, None)
    spark.conf.set(_FIELDS_SHOWN, 1_000_000)  # a text cut short hides what it should show
    try:
        text = spark.sql(f"EXPLAIN EXTENDED TABLE {_VIEW}").collect()[0][0]
    finally:
        if fields is None:
            spark.conf.unset(_FIELDS_SHOWN)
        else:
            spark.conf.set(_FIELDS_SHOWN, fields)
        spark.catalog.dropTempView(_VIEW)
    _, _, rest = text.partition("== Analyzed Logical Plan ==\n")
    _types, _, plan = rest.partition("\n")
    return str(plan.partition("\n== Optimized Logical Plan ==")[0]).splitlines()


def _tree(lines: list[str]) -> _PlanNode:
    """The plan as a tree. A line without a branch belongs to the text of the one before."""
    root = _PlanNode("Plan", -1)
    path = [root]
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None or (match["branch"] is None and len(path) > 1):
            continue
        depth = len(match["indent"]) // 3 + (match["branch"] is not None)
        while path[-1].depth >= depth:
            path.pop()
        node = _PlanNode(match["text"], depth)
        path[-1].children.append(node)
        path.append(node)
        if node.text == f"SubqueryAlias {STREAM}":
            for above in path:
                above.of_stream = True
    return root
