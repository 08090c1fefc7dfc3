"""The steps of a pipeline as a user declares them, before Spark starts. No Spark, no Arrow.

A stateful operator is a `Declaration`: one subclass in the `declare` module of its folder. What the
rest of Holdfast asks of a step is a method of `Node`, never its class.

Invariants:
- A node refers only to nodes that existed before it, so that there is no cycle.
- A stream either only adds rows, or carries a weight for each row (`retracts`). Which one is known
  from the graph alone: streams that only add rows never pay for a weight column.
- `Declaration.kind` and `fingerprint()` are stored with every checkpoint: they never change for
  what means the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.display import listed
from holdfast.errors import InvalidInputError
from holdfast.operators.columns import WEIGHT
from holdfast.spark.ddl import check_columns, check_known, ddl_columns

if TYPE_CHECKING:
    from holdfast.operators.base import Analyzed
    from holdfast.spark.annotations import DataFrame, SparkSession


STEPS_MAX = 200
"""How many steps may stand on one another: twice as many are more than Spark's own stack holds."""


@dataclass(frozen=True)
class StaticTable:
    """The table of a static join. check: whether another content is noticed at the next start."""

    name: str
    frame: Callable[[SparkSession], DataFrame]
    check: bool = True


@dataclass(frozen=True)
class Expectation:
    """What is said about every row. on_fail: warn, drop, fail or quarantine."""

    name: str
    condition: str
    on_fail: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """One step. `name` is empty where a step has none of its own.

    columns: None where only Spark knows them. retracts: rows carry weights.
    """

    columns: list[str] | None
    retracts: bool
    name: str = ""
    inputs: tuple[Node, ...] = ()
    depth: int = field(init=False, repr=False, default=0)
    """How many steps stand below it."""

    def __post_init__(self) -> None:
        """Refuse a chain that nobody could follow down."""
        depth = 1 + max((node.depth for node in self.inputs), default=-1)
        if depth > STEPS_MAX:
            raise InvalidInputError(
                "too many steps stand on one another",
                kind="too_many_steps",
                step=self.label[:80],
                limit=STEPS_MAX,
                remedy="join steps into one: with_columns and select take many expressions, where "
                "takes AND",
            )
        object.__setattr__(self, "depth", depth)

    late: ClassVar[bool] = False
    """Whether these are rows that came too late; they can only go into a sink."""

    @property
    def row_wise(self) -> bool:
        """Whether it is known, without Spark, to treat rows one by one."""
        return True

    @property
    def label(self) -> str:
        """How errors name it."""
        return self.name

    def frame(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """The rows of a stateless step, from those of its inputs."""
        raise NotImplementedError

    def staged_by(self) -> Declaration | None:
        """The operator whose tasks can hand these rows to a sink; None: only Spark has them."""
        return None

    def lag_us(self, owner: str) -> int:
        """How far behind the watermark the rows of this step alone may lie, for `owner` after it.

        Raises:
            InvalidInputError: nothing that goes by event time can follow this step.
        """
        del owner
        return 0

    def has_watermark(self) -> bool:
        """Whether this step itself tells how far event time has come."""
        return False

    def late_rows(self) -> LateNode:
        """The rows that came too late for this step.

        Raises:
            InvalidInputError: no row is ever too late for it.
        """
        raise InvalidInputError(
            "only windows, interval joins, dedupe within a time and apply with a TTL have late "
            "rows",
            kind="no_late_rows",
            operator=self.label,
            remedy="ask the stream that an operator with event time returned",
        )

    def bad_rows(self) -> BadNode:
        """What the source before could not read.

        Raises:
            InvalidInputError: something else than a source that has bad rows stands before.
        """
        raise InvalidInputError(
            "only sources that can give rows which they could not read have bad rows",
            kind="no_bad_rows",
            operator=self.label,
            remedy="ask the stream that pipe.source returned; CSV, JSON and Kafka have them, unless"
            ' on_bad="fail"',
        )

    @property
    def bad_of(self) -> str | None:
        """The source whose bad rows these are, by name."""
        return None

    @property
    def expectation(self) -> Expectation | None:
        """What this step says about every row, in the column `FAILED`."""
        return None

    def quarantined_rows(self) -> Node:
        """The rows that an expectation set aside.

        Raises:
            InvalidInputError: no expectation before this step does.
        """
        raise InvalidInputError(
            "no expectation before this step sets rows aside",
            kind="no_quarantine",
            operator=self.label,
            remedy='ask the stream that expect(..., on_fail="quarantine") returned',
        )

    @property
    def in_order(self) -> bool:
        """Whether rows of an epoch stand in Spark in the order in which they happened."""
        return False

    def tables(self) -> Sequence[StaticTable]:
        """The static tables that this step joins with."""
        return ()

    def path(self) -> str:
        """The stateless steps down to the named ones before, as the fingerprint has them."""
        return ""

    def head(self) -> str:
        """The name of the part that a chain of stateless steps begins with, if there is one."""
        return self.name

    def origins(self) -> list[str]:
        """The named parts that this step is, or stands on."""
        if self.name:
            return [self.name]
        return [name for node in self.inputs for name in node.origins()]


@dataclass(frozen=True, eq=False, kw_only=True)
class SourceNode(Node):
    """Where rows come from."""

    connector: Any
    event_time: str | None = None
    delay_us: int = 0
    future_us: int | None = None
    idle_us: int | None = None

    def has_watermark(self) -> bool:
        """Where a column tells the event time."""
        return self.event_time is not None

    def bad_rows(self) -> BadNode:
        """What it could not read."""
        if self.connector.bad is None:
            return super().bad_rows()
        columns = ddl_columns(self.connector.bad, f"bad rows of {self.name}")
        return BadNode(columns=columns, retracts=False, inputs=(self,))

    @property
    def in_order(self) -> bool:
        """As the connector promises."""
        return bool(self.connector.in_order)


@dataclass(frozen=True, eq=False, kw_only=True)
class StepNode(Node):
    """Stateless DataFrame code; `text` describes it in the fingerprint."""

    apply: Callable[[DataFrame], DataFrame]
    text: str
    static: StaticTable | None = None

    @property
    def row_wise(self) -> bool:
        """A static join, or expressions without a call."""
        text = self.text.lower()
        calls = "(" in text or "current_" in text or "localtimestamp" in text
        return self.static is not None or not (calls or text.startswith("transform "))

    @property
    def label(self) -> str:
        """Its text."""
        return self.text

    def frame(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """The user's code over the rows before."""
        return self.apply(inputs[0])

    def late_rows(self) -> LateNode:
        """Those of the operator before."""
        return self.inputs[0].late_rows()

    def bad_rows(self) -> BadNode:
        """Those of the source before."""
        return self.inputs[0].bad_rows()

    def quarantined_rows(self) -> Node:
        """Those of the nearest expectation before."""
        return self.inputs[0].quarantined_rows()

    @property
    def in_order(self) -> bool:
        """A join, or any code, may move rows."""
        moves = self.static is not None or self.text.startswith("transform ")
        return not moves and self.inputs[0].in_order

    def tables(self) -> Sequence[StaticTable]:
        """The table of a static join."""
        return () if self.static is None else (self.static,)

    def path(self) -> str:
        """Its text after those before."""
        return " | ".join(filter(None, [self.inputs[0].path(), self.text]))

    def head(self) -> str:
        """What the chain begins with."""
        return self.inputs[0].head()


@dataclass(frozen=True, eq=False, kw_only=True)
class UnionNode(Node):
    """All rows of several streams with the same columns."""

    @property
    def label(self) -> str:
        """What it is."""
        return "union"

    def frame(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """All rows by name; those that only add get a weight where others have one."""
        names = [[name for name in frame.columns if name != WEIGHT] for frame in inputs]
        for more in names[1:]:
            check_same_names(names[0], more, "union")
        parts = [
            frame.selectExpr("*", f"1L AS {WEIGHT}")
            if self.retracts and WEIGHT not in frame.columns
            else frame
            for frame in inputs
        ]
        union = parts[0]
        for frame in parts[1:]:
            union = union.unionByName(frame)
        return union

    def path(self) -> str:
        """Its branches, each with what it begins with."""
        branches = [" | ".join(filter(None, [n.head(), n.path()])) for n in self.inputs]
        return f"union({', '.join(branches)})"


@dataclass(frozen=True, eq=False, kw_only=True)
class Declaration(Node, ABC):
    """A stateful operator with a name: the first of the three contracts of an operator."""

    kind: ClassVar[str]
    """What it is in the fingerprint. Stored: never changes."""
    keys: tuple[str, ...] = ()

    @abstractmethod
    def fingerprint(self) -> Mapping[str, str]:
        """What it means, beyond kind, keys and inputs. Stored: another text is another operator."""

    @abstractmethod
    def analyze(self, frames: Sequence[DataFrame], *, late_rows: bool) -> Analyzed:
        """Types and expressions over the (empty) DataFrames of its inputs.

        Imports its `analyze` module inside, so that declaring a pipeline loads no Spark.

        Args:
            frames: one DataFrame for each of `inputs`.
            late_rows: whether a sink wants the rows that come too late.
        """

    def title(self) -> str:
        """What it is, in a few words, for people."""
        return f"{self.kind} by {listed(self.keys, 4)}" if self.keys else self.kind

    def staged_by(self) -> Declaration | None:
        """Its own tasks."""
        return self


@dataclass(frozen=True, eq=False, kw_only=True)
class LateNode(Node):
    """Rows that came too late for an operator; they can only go into a sink."""

    operator: Declaration

    late: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """Whose late rows they are."""
        return f"late rows of {self.operator.name}"

    def staged_by(self) -> Declaration | None:
        """The tasks of the operator that refused them."""
        return self.operator

    def path(self) -> str:
        """As the fingerprint has it."""
        return "late rows"

    def head(self) -> str:
        """A union cannot hold late rows."""
        return ""


@dataclass(frozen=True, eq=False, kw_only=True)
class BadNode(Node):
    """What a source could not read: raw values, where they came from, and why."""

    @property
    def label(self) -> str:
        """Whose bad rows they are."""
        return f"bad rows of {self.bad_of}"

    @property
    def bad_of(self) -> str | None:
        """The source."""
        return self.inputs[0].name

    def path(self) -> str:
        """As the fingerprint has it."""
        return "bad rows"

    def head(self) -> str:
        """The source."""
        return self.inputs[0].name


@dataclass(frozen=True, eq=False, kw_only=True)
class SinkNode(Node):
    """Where rows go."""

    connector: Any

    @property
    def input(self) -> Node:
        """The step whose rows it gets."""
        return self.inputs[0]


def late_of(operator: Declaration, columns: list[str] | None, *, retracts: bool) -> LateNode:
    """The late rows of an operator."""
    return LateNode(columns=columns, retracts=retracts, inputs=(operator,), operator=operator)


def upstream(node: Node) -> list[Node]:
    """A node and everything before it, each once, inputs first."""
    found: dict[int, Node] = {}

    def walk(current: Node) -> None:
        if id(current) in found:
            return
        for before in current.inputs:
            walk(before)
        found[id(current)] = current

    walk(node)
    return [*found.values()]


def require_watermark(node: Node, owner: str) -> None:
    """An operator that goes by event time needs a source that tells it."""
    sources = [found for found in upstream(node) if not found.inputs]
    if not any(source.has_watermark() for source in sources):
        raise InvalidInputError(
            "the operator goes by event time, but no source before it has a watermark",
            kind="no_watermark",
            operator=owner,
            sources=",".join(source.name for source in sources),
            remedy='say pipe.source(..., event_time="column", delay="10 seconds")',
        )
    delay_before(node, owner)


def delay_before(node: Node, owner: str) -> int:
    """How far rows that reach a node may lie behind the watermark by the work of steps before it.

    Raises:
        InvalidInputError: nothing that goes by event time can follow one of them.
    """
    return sum(found.lag_us(owner) for found in upstream(node))


def checked_names(wanted: Sequence[str], before: Node, owner: str) -> list[str]:
    """Columns that a step wants of the one before."""
    names = list(wanted)
    check_known(names, before.columns, owner)
    return names


def checked_output(names: list[str], owner: str) -> list[str]:
    """Columns that a step gives."""
    check_columns(names, owner)
    return names


def check_same_names(left: Sequence[str], right: Sequence[str], owner: str) -> None:
    """Both have the same names, in any order."""
    mine, yours = ({name.lower(): name for name in names} for names in (left, right))
    if mine.keys() == yours.keys():
        return
    raise InvalidInputError(
        "the streams have different columns",
        kind="columns_differ",
        operator=owner,
        only_left=",".join(mine[n] for n in mine if n not in yours) or None,
        only_right=",".join(yours[n] for n in yours if n not in mine) or None,
        remedy="bring them to the same names with select(...)",
    )
