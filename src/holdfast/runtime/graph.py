"""The graph of a pipeline: what the user declared, checked before Spark starts.

Invariants:
- A node refers only to nodes that existed before it, so that there is no cycle.
- Every source, stateful operator and sink has a name of its own; errors name it.
- A stream either only adds rows, or carries a weight for each row (`changes`). Which one is known
  from the graph alone: streams that only add rows never pay for a weight column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.format.topology import Part, Topology, topology
from holdfast.ids import check_name
from holdfast.spark.ddl import check_columns, check_known

WEIGHT = "__hf_weight"


@dataclass(frozen=True, eq=False)
class Node:
    """One step. `columns` is None where only Spark knows them; `changes`: rows carry weights."""

    columns: list[str] | None
    changes: bool

    @property
    def inputs(self) -> Sequence[Node]:
        """The steps before this one."""
        return ()


@dataclass(frozen=True, eq=False)
class SourceNode(Node):
    """Where rows come from."""

    name: str
    connector: Any
    event_time: str | None = None
    delay_us: int = 0
    future_us: int | None = None
    idle_us: int | None = None


@dataclass(frozen=True)
class StaticTable:
    """The table of a static join. check: whether another content is noticed at the next start."""

    name: str
    frame: Callable[[Any], Any]
    check: bool = True


@dataclass(frozen=True, eq=False)
class StepNode(Node):
    """Stateless DataFrame code; `text` describes it in the fingerprint."""

    before: Node
    apply: Callable[[Any], Any]
    text: str
    static: StaticTable | None = None

    @property
    def inputs(self) -> Sequence[Node]:
        """The step before."""
        return (self.before,)


@dataclass(frozen=True, eq=False)
class UnionNode(Node):
    """All rows of several streams with the same columns."""

    befores: tuple[Node, ...]

    @property
    def inputs(self) -> Sequence[Node]:
        """The streams."""
        return self.befores


@dataclass(frozen=True, eq=False)
class OperatorNode(Node):
    """A stateful operator with a name. `detail` is what its own resolver needs to know."""

    name: str
    befores: tuple[Node, ...]
    what: str
    keys: tuple[str, ...]
    params: Mapping[str, str] = field(default_factory=dict)
    detail: Any = None

    @property
    def inputs(self) -> Sequence[Node]:
        """The steps before."""
        return self.befores


@dataclass(frozen=True)
class DedupeBound:
    """How long a dedupe remembers a key."""

    time: str
    within_us: int


@dataclass(frozen=True, eq=False)
class LateNode(Node):
    """Rows that came too late for an operator; they can only go into a sink."""

    operator: OperatorNode

    @property
    def inputs(self) -> Sequence[Node]:
        """The operator that refused them."""
        return (self.operator,)


@dataclass(frozen=True, eq=False)
class SinkNode(Node):
    """Where rows go."""

    name: str
    before: Node
    connector: Any

    @property
    def inputs(self) -> Sequence[Node]:
        """The step before."""
        return (self.before,)


Part_ = SourceNode | OperatorNode | SinkNode


class Graph:
    """All named parts of one pipeline."""

    def __init__(self, pipeline: str) -> None:
        """Begin empty."""
        self.pipeline = check_name(pipeline, "pipeline name")
        self.sources: list[SourceNode] = []
        self.operators: list[OperatorNode] = []
        self.sinks: list[SinkNode] = []

    @property
    def size(self) -> tuple[int, ...]:
        """How many parts there are; parts are only ever added."""
        return len(self.sources), len(self.operators), len(self.sinks)

    def add(self, node: Part_) -> None:
        """One more named part."""
        check_name(node.name, _kind(node) + " name")
        named: list[Part_] = [*self.sources, *self.operators, *self.sinks]
        taken = {part.name: _kind(part) for part in named}
        if node.name in taken:
            raise InvalidInputError(
                "two parts of the pipeline have one name",
                kind="duplicate_name",
                pipeline=self.pipeline,
                name=node.name,
                first=taken[node.name],
                second=_kind(node),
                remedy="give every source, operator and sink a name of its own",
            )
        if isinstance(node, SourceNode):
            check_columns(list(node.columns or ()), node.name)
            self.sources.append(node)
        elif isinstance(node, OperatorNode):
            self.operators.append(node)
        else:
            self.sinks.append(node)

    def check(self) -> None:
        """What can only be seen when everything is declared."""
        if not self.sources:
            raise self._unfinished("no source", "declare one with pipe.source(...)")
        if not self.sinks and not self.operators:
            raise self._unfinished(
                "nothing to do", "add a sink, or a stateful operator to be read as a view"
            )
        used = {id(node) for sink in self.sinks for node in upstream(sink)}
        used |= {id(node) for operator in self.operators for node in upstream(operator)}
        self._check_late()
        for source in self.sources:
            if id(source) not in used:
                raise self._unfinished(f"source {source.name} leads nowhere", "use it or remove it")

    def _check_late(self) -> None:
        targets: list[Node] = [*self.operators, *self.sinks]
        for node in (node for target in targets for node in upstream(target)):
            late = [before for before in node.inputs if isinstance(before, LateNode)]
            if late and not isinstance(node, SinkNode):
                raise InvalidInputError(
                    "late rows can only go into a sink",
                    kind="late_not_into_sink",
                    operator=late[0].operator.name,
                    remedy="use pipe.sink(name, stream.late, ...), and read them from there",
                )

    def _unfinished(self, what: str, remedy: str) -> InvalidInputError:
        return InvalidInputError(
            f"the pipeline is not complete: {what}",
            kind="incomplete_pipeline",
            pipeline=self.pipeline,
            remedy=remedy,
        )

    def topology(self, traces: Mapping[str, Mapping[str, str]] | None = None) -> Topology:
        """What the fingerprint is taken from. traces: by operator and trace, the stored columns.

        An operator that keeps nothing under its own name (a join: its result is not its state) is
        not stateful itself; its parts are.
        """
        parts = [
            Part(
                name=node.name,
                kind="source",
                what=node.connector.kind,
                schema=node.connector.schema_text,
                params=_event_time(node),
            )
            for node in self.sources
        ]
        for node in self.operators:
            steps = _steps(node)
            own = {f"column {k}" if k in steps else k: v for k, v in node.params.items()}
            params = {**own, **steps}
            columns = (traces or {}).get(node.name, {node.name: ""})
            parts.append(
                Part(
                    name=node.name,
                    kind="operator",
                    what=node.what,
                    stateful=node.name in columns,
                    inputs=_named_inputs(node),
                    keys=list(node.keys),
                    params=params,
                    schema=columns.get(node.name, ""),
                )
            )
            parts.extend(
                Part(
                    name=name,
                    kind="operator",
                    what=f"{node.what} part",
                    stateful=True,
                    inputs=[node.name],
                    schema=text,
                )
                for name, text in columns.items()
                if name != node.name
            )
        parts.extend(
            Part(
                name=node.name,
                kind="sink",
                what=node.connector.kind,
                inputs=_named_inputs(node),
                params={**node.connector.params, **_steps(node)},
            )
            for node in self.sinks
        )
        return topology(*parts)


def upstream(node: Node) -> list[Node]:
    """A node and everything before it, each once, inputs first."""
    found: dict[int, Node] = {}

    def walk(current: Node) -> None:
        for before in current.inputs:
            walk(before)
        found.setdefault(id(current), current)

    walk(node)
    return [*found.values()]


def sources_of(node: Node) -> list[SourceNode]:
    """The sources that feed a node."""
    return [found for found in upstream(node) if isinstance(found, SourceNode)]


def require_watermark(node: Node, owner: str) -> None:
    """An operator that goes by event time needs a source that tells it."""
    if not any(source.event_time is not None for source in sources_of(node)):
        raise InvalidInputError(
            "the operator goes by event time, but no source before it has a watermark",
            kind="no_watermark",
            operator=owner,
            sources=",".join(source.name for source in sources_of(node)),
            remedy='say pipe.source(..., event_time="column", delay="10 seconds")',
        )
    delay_before(node, owner)


def delay_before(node: Node, owner: str) -> int:
    """How far rows that reach a node may lie behind the watermark by the work of windows before it.

    A window that gives updates speaks of times down to its own size and lateness behind the
    watermark. One that speaks only when it closes is always behind, by as much as the watermark
    moved, and a session may have begun at any time: what goes by time cannot follow those.
    """
    total = 0
    for found in upstream(node):
        if not isinstance(found, OperatorNode) or found.what != "window":
            continue
        window = found.detail.window
        if found.detail.emit == "close" or window.kind == "session":
            raise InvalidInputError(
                "an operator that goes by event time cannot follow a session or closed windows",
                kind="time_behind_window",
                operator=owner,
                window=found.name,
                remedy='use emit="update" in the window before, or group by window_start and '
                "window_end as plain columns",
            )
        total += window.size_us + found.detail.lateness_us
    return total


def _kind(node: Node) -> str:
    return {SourceNode: "source", OperatorNode: "operator", SinkNode: "sink"}[type(node)]


def _named_inputs(node: Node) -> list[str]:
    """The named parts directly before a node, looking through stateless steps."""
    names: list[str] = []
    for before in node.inputs:
        if isinstance(before, (SourceNode, OperatorNode)):
            names.append(before.name)
        else:
            names.extend(_named_inputs(before))
    return names


def _steps(node: Node) -> dict[str, str]:
    """The stateless steps between a part and the named ones before it, as text by input."""
    texts = [_path(before) for before in node.inputs]
    if len(texts) == 1:
        return {"steps": texts[0]} if texts[0] else {}
    return {f"steps.{number}": text for number, text in enumerate(texts) if text}


def _path(node: Node) -> str:
    texts = []
    while isinstance(node, StepNode):
        texts.append(node.text)
        node = node.before
    if isinstance(node, UnionNode):
        branches = [" | ".join(filter(None, [*_named_path(b), _path(b)])) for b in node.befores]
        texts.append(f"union({', '.join(branches)})")
    if isinstance(node, LateNode):
        texts.append("late rows")
    return " | ".join(reversed(texts))


def _named_path(node: Node) -> list[str]:
    while isinstance(node, StepNode):
        node = node.before
    return [node.name] if isinstance(node, (SourceNode, OperatorNode)) else []


def _event_time(node: SourceNode) -> dict[str, str]:
    if node.event_time is None:
        return {}
    found = {"event_time": node.event_time, "delay_us": str(node.delay_us)}
    if node.idle_us is not None:
        found["idle_us"] = str(node.idle_us)
    return found


def checked_names(wanted: Sequence[str], before: Node, owner: str) -> list[str]:
    """Columns that a step wants of the one before."""
    names = list(wanted)
    check_known(names, before.columns, owner)
    return names


def checked_output(names: list[str], owner: str) -> list[str]:
    """Columns that a step gives."""
    check_columns(names, owner)
    return names
