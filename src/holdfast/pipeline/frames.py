"""One epoch as one Spark job: DataFrames from slices, stages for operators and sinks.

Invariants:
- One action an epoch. What tasks have to say comes back in control rows of that action.
- An operator whose sources have nothing new does not run.
- An operator's rows are kept (persisted) only when something after it in Spark needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from holdfast.pipeline.graph import (
    Graph,
    Node,
    OperatorNode,
    SinkNode,
    SourceNode,
    StepNode,
    sources_of,
)
from holdfast.pipeline.operators.work import HASH
from holdfast.pipeline.resolve import Resolved, source_frame, spark_schema
from holdfast.pipeline.sources.api import Slice, SourceReader
from holdfast.pipeline.stage import CONTROL, Control, Place, StageSpec, Staging, run_stage
from holdfast.state import RunInfo

_CONTROL_ONLY = T.StructType([T.StructField(CONTROL, T.BinaryType())])


@dataclass(frozen=True)
class Epoch:
    """What the stages of one epoch share."""

    pipeline: str
    place: Place
    checkpoint: str
    parent: str | None
    number: int
    partitions: int
    runs: Mapping[str, Sequence[RunInfo]]
    bounds_us: Mapping[str, int | None]
    staging: Mapping[str, Staging]
    durable: bool


@dataclass
class Built:
    """The one action of an epoch, and what to let go of afterwards."""

    action: Any
    kept: list[Any] = field(default_factory=list)

    def run(self) -> list[Control]:
        """Run the job and read the control rows."""
        try:
            rows = self.action.collect()
        finally:
            for frame in self.kept:
                frame.unpersist()
        return [msgspec.json.decode(bytes(row[0]), type=Control) for row in rows]


class FrameBuilder:
    """Builds the action of an epoch."""

    def __init__(
        self, spark: Any, graph: Graph, resolved: Mapping[str, Resolved],
        readers: Mapping[str, SourceReader],
    ) -> None:  # fmt: skip
        """Remember what stays the same between epochs."""
        self._spark = spark
        self._graph = graph
        self._resolved = resolved
        self._readers = readers
        self._direct = _direct_sinks(graph)
        self._feeding = _feeding(graph, self._direct)

    def build(self, epoch: Epoch, slices: Mapping[str, Slice]) -> Built | None:
        """The action, or None when nothing would run."""
        frames: dict[int, Any] = {}
        controls: list[Any] = []
        built = Built(None)
        for operator in self._graph.operators:
            if self._runs(operator, slices):
                self._operator(operator, epoch, slices, frames, controls, built)
        for sink in self._graph.sinks:
            direct = isinstance(sink.before, OperatorNode) and sink.name in self._direct
            if direct or not self._runs(sink, slices):
                continue
            frame = self._frame(sink.before, slices, frames)
            spec = self._spec(sink.name, epoch, None, (epoch.staging[sink.name],), emit=False)
            controls.append(_staged(frame, spec, _CONTROL_ONLY))
        if not controls:
            return None
        action = controls[0]
        for control in controls[1:]:
            action = action.union(control)
        built.action = action
        return built

    def _runs(self, node: Node, slices: Mapping[str, Slice]) -> bool:
        return any(source.name in slices for source in sources_of(node))

    def _operator(
        self, node: OperatorNode, epoch: Epoch, slices: Mapping[str, Slice],
        frames: dict[int, Any], controls: list[Any], built: Built,
    ) -> None:  # fmt: skip
        resolved = self._resolved[node.name]
        frame = resolved.prepare(self._frame(node.before, slices, frames))
        n = epoch.partitions
        place = F.expr(f"cast(((shiftrightunsigned({HASH}, 56) + 1) * {n} - 1) div 256 AS int)")
        shuffled = frame.repartitionById(n, place)
        emit = node.name in self._feeding
        staging = tuple(epoch.staging[s.name] for s in self._graph.sinks
                        if s.before is node and s.name in self._direct)  # fmt: skip
        spec = self._spec(node.name, epoch, resolved, staging, emit=emit)
        if not emit:
            controls.append(_staged(shuffled, spec, _CONTROL_ONLY))
            return
        schema = spark_schema(resolved.work.output).add(CONTROL, T.BinaryType())
        kept = _staged(shuffled, spec, schema).persist()
        built.kept.append(kept)
        frames[id(node)] = kept.where(F.col(CONTROL).isNull()).drop(CONTROL)
        controls.append(kept.where(F.col(CONTROL).isNotNull()).select(CONTROL))

    def _spec(
        self, name: str, epoch: Epoch, resolved: Resolved | None, staging: tuple[Staging, ...],
        *, emit: bool,
    ) -> StageSpec:  # fmt: skip
        traces = resolved.work.traces if resolved else {}
        return StageSpec(
            name=name,
            pipeline=epoch.pipeline,
            place=epoch.place,
            checkpoint=epoch.checkpoint,
            parent=epoch.parent,
            epoch=epoch.number,
            partitions=epoch.partitions,
            work=resolved.work if resolved else None,
            runs={trace: tuple(epoch.runs.get(trace, ())) for trace in traces},
            bounds_us={trace: epoch.bounds_us.get(trace) for trace in traces},
            staging=staging,
            emit=emit,
            durable=epoch.durable,
        )

    def _frame(self, node: Node, slices: Mapping[str, Slice], frames: dict[int, Any]) -> Any:
        """The rows that a step gives in this epoch."""
        found = frames.get(id(node))
        if found is not None:
            return found
        if isinstance(node, SourceNode):
            piece = slices.get(node.name)
            raw = (
                self._readers[node.name].read(self._spark, piece)
                if piece is not None
                else node.connector.empty(self._spark)
            )
            frames[id(node)] = source_frame(node, raw)
        elif isinstance(node, StepNode):
            frames[id(node)] = node.apply(self._frame(node.before, slices, frames))
        else:  # an operator that did not run has no changes
            output = self._resolved[node.name].work.output  # type: ignore[attr-defined]
            frames[id(node)] = self._spark.createDataFrame([], spark_schema(output))
        return frames[id(node)]


def _staged(frame: Any, spec: StageSpec, schema: Any) -> Any:
    def body(batches: Any) -> Any:
        return run_stage(spec, batches)

    return frame.mapInArrow(body, schema)


def _direct_sinks(graph: Graph) -> set[str]:
    """Sinks that the last stateful step can stage inside its own tasks."""
    return {sink.name for sink in graph.sinks if isinstance(sink.before, OperatorNode)}


def _feeding(graph: Graph, direct: set[str]) -> set[str]:
    """Operators whose rows go on to something else in Spark."""
    found: set[str] = set()
    targets: list[OperatorNode | SinkNode] = [
        *graph.operators,
        *(sink for sink in graph.sinks if sink.name not in direct),
    ]
    for target in targets:
        node: Node = target.before
        while isinstance(node, StepNode):
            node = node.before
        if isinstance(node, OperatorNode):
            found.add(node.name)
    return found
