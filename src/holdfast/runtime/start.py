"""What a start does with a store and its outputs, decided before anything is touched.

Invariants:
- Deciding reads only. Every output is asked before the first one changes.
- What cannot follow is refused with its reasons, or rebuilt from state or source history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.checkpoint import PendingToken, Store, StoreReader, read_store, recovery_plan
from holdfast.connectors.base import SinkWriter
from holdfast.errors import HoldfastError, NotFoundError, RefusedError
from holdfast.format.documents import Summary
from holdfast.format.manifest import Manifest
from holdfast.format.topology import Topology
from holdfast.operators.base import Analyzed
from holdfast.runtime.evolution import ChangePlan, joined, plan_changes, plan_rebuild
from holdfast.runtime.graph import Graph
from holdfast.runtime.output_manager import Outputs
from holdfast.runtime.outputs import History, history_of, not_rebuildable, planned_history
from holdfast.settings import Settings
from holdfast.storage.open import StorageLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class StartPlanner:
    """Decides how a pipeline continues from a checkpoint."""

    graph: Graph
    place: StorageLocation
    settings: Settings
    resolve: Callable[[], Mapping[str, Analyzed]]

    def writers(self, spark: SparkSession) -> dict[str, SinkWriter]:
        """The sinks, opened."""
        return {
            node.name: node.connector.open(node.name, self.graph.pipeline, self.place, spark)
            for node in self.graph.sinks
        }

    def ask(
        self, outputs: Outputs, topology: Topology, resume: str | None, *, accept_duplicates: bool
    ) -> Manifest | None:
        """Ask every output whether it can follow, before the store is touched.

        Returns the manifest that the pipeline would continue from.
        """
        options = dict(self.place.options) or None
        try:
            plan = recovery_plan(
                self.place.url,
                self.graph.pipeline,
                resume=resume,
                settings=self.settings,
                accept_duplicates=accept_duplicates,
                options=options,
            )
        except NotFoundError:
            if resume is not None:
                raise
            return None  # nothing was ever run: every output is new
        if plan.refusal is not None:
            raise plan.refusal
        reader = read_store(self.place.url, self.graph.pipeline, options=options)
        history = planned_history(reader, plan)
        if history is not None:
            live = [candidate.summary for candidate in plan.candidates]
            self._look(outputs, topology, history, plan.manifest, reader, live)
        return plan.manifest

    def decide(self, outputs: Outputs, store: Store, topology: Topology) -> ChangePlan:
        """What an opened store and its outputs need; returns what is backfilled or rebuilt."""
        self._check_removed(store)
        return self._look(
            outputs,
            topology,
            self.history(store),
            store.current,
            store.reader,
            store.list(),
            store.pending(),
        )

    def history(self, store: Store) -> History:
        """What an opened store knows of its past."""
        return history_of(
            store.lineage,
            self.graph.pipeline,
            store.current,
            store.list(),
            store.outcomes,
            int(store.epoch_next),
        )

    def _look(
        self,
        outputs: Outputs,
        topology: Topology,
        history: History,
        manifest: Manifest | None,
        reader: StoreReader,
        live: Sequence[Summary],
        pending: Sequence[PendingToken] = (),
    ) -> ChangePlan:
        known = {part.name for part in manifest.topology.parts} if manifest is not None else None
        new = frozenset(
            n.name for n in self.graph.sinks if known is not None and n.name not in known
        )
        outputs.look(history, reader, live, new, pending)
        changes = self.changes(manifest, topology, new - outputs.asked("rebuild"))
        if manifest is None:
            return changes
        for error in self._lost_history(changes, manifest, reader):
            raise error
        rebuilds = outputs.asked("rebuild") - changes.new
        plans = [changes]
        for node in (node for node in self.graph.sinks if node.name in rebuilds):
            plan, reasons = plan_rebuild(manifest.topology, self.graph, self.resolve(), node)
            reasons += [str(error) for error in self._lost_history(plan, manifest, reader)]
            if not reasons:
                plans.append(plan)
            elif outputs.decisions[node.name].soft:
                outputs.soften(node.name)
            else:
                raise not_rebuildable(node.name, outputs.decisions[node.name].why, reasons)
        return joined(plans)

    def _lost_history(
        self, plan: ChangePlan, manifest: Manifest, reader: StoreReader
    ) -> list[HoldfastError]:
        """Why sources cannot give their past again."""
        errors = []
        for node in self.graph.sources:
            if node.name in plan.from_sources:
                source = node.connector.open(node.name)
                try:
                    source.restore(manifest, reader)
                    source.history()
                except HoldfastError as error:
                    errors.append(error)
        return errors

    def changes(
        self, manifest: Manifest | None, topology: Topology, unfilled: Collection[str] = ()
    ) -> ChangePlan:
        """What a changed pipeline does with the checkpoint that it continues from."""
        if manifest is None or manifest.topology == topology:
            return ChangePlan()
        return plan_changes(manifest.topology, topology, self.graph, self.resolve(), unfilled)

    def _check_removed(self, store: Store) -> None:
        known = {node.name for node in self.graph.sinks}
        left = sorted({token.sink for token in store.pending() if token.sink not in known})
        if left:
            raise RefusedError(
                "a removed sink has not published everything",
                kind="removed_sink_pending",
                sinks=",".join(left),
                remedy="run the old pipeline once more, then remove the sink; or give "
                "set_aside=[...] (--set-aside SINK) to move its rows to quarantine",
            )
