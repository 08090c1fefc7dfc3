"""Shortcuts into Spark's JVM, for what is built anew in every epoch.

PySpark's own calls look classes up by name and pickle functions each time they are made: half of
what planning an epoch costs. These keep the JVM's objects from epoch to epoch.

Invariants:
- Nothing here changes what a plan computes: each shortcut makes the plan of the public call that
  its text names, and makes that call where there is no JVM at hand (Spark Connect).
- Only a stage that needs no state may begin before its epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

_STATEFUL = ("MapInArrow", "InMemoryTableScan")  # stages of operators, and rows kept from them


def is_classic(spark: Any) -> bool:
    """Whether the JVM of a session can be reached; with Spark Connect it cannot."""
    return hasattr(spark, "_jsparkSession")


class Selection:
    """`selectExpr` with always the same expressions."""

    def __init__(self, *texts: str) -> None:
        """Keep the expressions; the JVM's objects are made with the first frame."""
        self.texts = texts
        self._columns: Any = None

    def __call__(self, frame: Any) -> Any:
        """The frame with these columns."""
        if not is_classic(frame.sparkSession):
            return frame.selectExpr(*self.texts)
        from pyspark.sql.classic.column import _to_seq

        if self._columns is None:
            columns = [F.expr(text)._jc for text in self.texts]  # noqa: SLF001 - see the header
            self._columns = _to_seq(frame.sparkSession.sparkContext, columns)
        return _wrapped(frame, frame._jdf.select(self._columns))  # noqa: SLF001


class ArrowMap:
    """`mapInArrow` with always the same function, over frames of always the same columns."""

    def __init__(self, function: Callable[[Any], Any], schema: Any) -> None:
        """Keep the function; it is pickled with the first frame."""
        self._function, self._schema = function, schema
        self._call: Any = None

    def __call__(self, frame: Any) -> Any:
        """What the function makes of the frame."""
        if not is_classic(frame.sparkSession):
            return frame.mapInArrow(self._function, self._schema)
        if self._call is None:
            self._call = self._made(frame)
        return _wrapped(frame, frame._jdf.mapInArrow(self._call, False, None))  # noqa: SLF001, FBT003

    def _made(self, frame: Any) -> Any:
        from pyspark.sql.pandas.functions import pandas_udf
        from pyspark.util import PythonEvalType

        kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        udf = pandas_udf(self._function, returnType=self._schema, functionType=kind)
        names = [name.replace("`", "``") for name in frame.columns]
        return udf(*(F.col(f"`{name}`") for name in names))._jc  # noqa: SLF001


def plan_now(action: Any) -> None:
    """Let Spark plan an action that runs later."""
    action._jdf.queryExecution().executedPlan()  # noqa: SLF001


def begin_shuffles(action: Any) -> int:
    """Begin the stages of a planned action that only read sources; returns how many.

    They run where cores are free, and the action finds their output. A stage that fails here is
    tried again by the action, whose error counts.
    """
    begun = 0
    waiting = [action._jdf.queryExecution().executedPlan()]  # noqa: SLF001
    while waiting:
        node = waiting.pop()
        if node.nodeName() == "Exchange":
            if not any(name in _STATEFUL for name in _names(node)):
                node.submitShuffleJob()
                begun += 1
            continue
        waiting.extend(_children(node))
    return begun


@dataclass(frozen=True)
class Scan:
    """One reading of files by an action that has run. pushed: a filter may have skipped rows."""

    url: str
    files: int
    rows: int
    pushed: bool


def scans_of(action: Any) -> list[Scan]:
    """What an action has read from files, as Spark has counted it."""
    found: list[Scan] = []
    waiting = [action._jdf.queryExecution().executedPlan()]  # noqa: SLF001
    while waiting:
        leaves = waiting.pop().collectLeaves()
        for number in range(leaves.size()):
            leaf = leaves.apply(number)
            name = str(leaf.nodeName())
            if name.startswith("InMemoryTableScan"):
                waiting.append(leaf.relation().cachedPlan())
            elif name.startswith("Scan ") and leaf.metrics().contains("numFiles"):
                paths = leaf.relation().location().rootPaths()
                pushed = leaf.metadata().get("PushedFilters")
                found.append(
                    Scan(
                        str(paths.head().toString()),
                        paths.size(),
                        int(leaf.metrics().get("numOutputRows").get().value()),
                        pushed.isDefined() and str(pushed.get()) != "[]",
                    )
                )
    return found


def _names(node: Any) -> list[str]:
    found = [str(node.nodeName())]
    for child in _children(node):
        found.extend(_names(child))
    return found


def _children(node: Any) -> list[Any]:
    children = node.children()
    return [children.apply(i) for i in range(children.size())]


def _wrapped(frame: Any, made: Any) -> Any:
    from pyspark.sql.classic.dataframe import DataFrame

    return DataFrame(made, frame.sparkSession)
