"""The graph of a pipeline: what the user declared, checked before Spark starts.

Invariants:
- Every source, stateful operator and sink has a name of its own; errors name it.
- The graph knows the contract of `holdfast.operators.declaration`, and no kind of operator.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import InvalidInputError
from holdfast.format.topology import Part, Topology, topology
from holdfast.ids import check_name
from holdfast.operators.declaration import Declaration, Node, SinkNode, SourceNode, upstream
from holdfast.spark.ddl import check_columns


class Graph:
    """All named parts of one pipeline."""

    def __init__(self, pipeline: str) -> None:
        """Begin empty."""
        self.pipeline = check_name(pipeline, "pipeline name")
        self.sources: list[SourceNode] = []
        self.operators: list[Declaration] = []
        self.sinks: list[SinkNode] = []
        self.expectations: list[str] = []

    @property
    def size(self) -> tuple[int, ...]:
        """How many parts there are; parts are only ever added."""
        return len(self.sources), len(self.operators), len(self.sinks)

    def add_source(self, node: SourceNode) -> None:
        """One more source."""
        self._check_new(node.name, "source")
        check_columns(list(node.columns or ()), node.name)
        self.sources.append(node)

    def add_operators(self, node: Node) -> None:
        """The operators that a step is made of and that are not yet in the graph, inputs first."""
        known = {id(operator) for operator in self.operators}
        for found in upstream(node):
            operator = found.staged_by()
            if operator is not None and operator is found and id(operator) not in known:
                self._check_new(operator.name, "operator")
                self.operators.append(operator)

    def add_sink(self, node: SinkNode) -> None:
        """One more sink."""
        self._check_new(node.name, "sink")
        self.sinks.append(node)

    def add_expectation(self, name: str) -> None:
        """One more expectation; its counts go by its name."""
        if name in self.expectations:
            raise InvalidInputError(
                "two expectations of the pipeline have one name",
                kind="duplicate_name",
                pipeline=self.pipeline,
                name=name,
                remedy="give every expectation a name of its own",
            )
        self.expectations.append(name)

    def _check_new(self, name: str, role: str) -> None:
        check_name(name, role + " name")
        parts = {"source": self.sources, "operator": self.operators, "sink": self.sinks}
        taken = {part.name: kind for kind, named in parts.items() for part in named}  # type: ignore[attr-defined]
        if name in taken:
            raise InvalidInputError(
                "two parts of the pipeline have one name",
                kind="duplicate_name",
                pipeline=self.pipeline,
                name=name,
                first=taken[name],
                second=role,
                remedy="give every source, operator and sink a name of its own",
            )

    def check(self) -> None:
        """What can only be seen when everything is declared."""
        if not self.sources:
            raise self._unfinished("no source", "declare one with pipe.source(...)")
        if not self.sinks and not self.operators:
            raise self._unfinished(
                "nothing to do", "add a sink, or a stateful operator to be read as a view"
            )
        used = {id(node) for node in self.nodes()}
        self._check_late()
        for source in self.sources:
            if id(source) not in used:
                raise self._unfinished(f"source {source.name} leads nowhere", "use it or remove it")

    def _check_late(self) -> None:
        sinks = {id(sink) for sink in self.sinks}
        for node in self.nodes():
            late = [found.staged_by() for found in node.inputs if found.late]
            if late and late[0] is not None and id(node) not in sinks:
                raise InvalidInputError(
                    "late rows can only go into a sink",
                    kind="late_not_into_sink",
                    operator=late[0].name,
                    remedy="use pipe.sink(name, stream.late, ...), and read them from there",
                )

    def nodes(self) -> list[Node]:
        """Every step that an operator or a sink stands on, and they themselves, inputs first."""
        targets: list[Node] = [*self.operators, *self.sinks]
        return list({id(n): n for target in targets for n in upstream(target)}.values())

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
        for operator in self.operators:
            columns = (traces or {}).get(operator.name, {operator.name: ""})
            steps = _steps(operator)
            own = operator.fingerprint().items()
            params = {f"column {key}" if key in steps else key: value for key, value in own}
            parts.append(
                Part(
                    name=operator.name,
                    kind="operator",
                    what=operator.kind,
                    stateful=operator.name in columns,
                    inputs=_origins(operator),
                    keys=list(operator.keys),
                    params={**params, **steps},
                    schema=columns.get(operator.name, ""),
                )
            )
            parts.extend(
                Part(
                    name=name,
                    kind="operator",
                    what=f"{operator.kind} part",
                    stateful=True,
                    inputs=[operator.name],
                    schema=text,
                )
                for name, text in columns.items()
                if name != operator.name
            )
        parts.extend(
            Part(
                name=sink.name,
                kind="sink",
                what=sink.connector.kind,
                inputs=_origins(sink),
                params={**sink.connector.params, **_steps(sink)},
            )
            for sink in self.sinks
        )
        return topology(*parts)


def _origins(node: Node) -> list[str]:
    """The named parts directly before a node, looking through stateless steps."""
    return [name for found in node.inputs for name in found.origins()]


def _steps(node: Node) -> dict[str, str]:
    """The stateless steps between a part and the named ones before it, as text by input."""
    texts = [found.path() for found in node.inputs]
    if len(texts) == 1:
        return {"steps": texts[0]} if texts[0] else {}
    return {f"steps.{number}": text for number, text in enumerate(texts) if text}


def _event_time(node: SourceNode) -> dict[str, str]:
    if node.event_time is None:
        return {}
    found = {"event_time": node.event_time, "delay_us": str(node.delay_us)}
    if node.idle_us is not None:
        found["idle_us"] = str(node.idle_us)
    return found
