"""How a declared pipeline is run: the store opened, the outputs asked, the epochs made.

Invariants:
- Every output is asked before the store goes back to another checkpoint or anything is published.
- A run that ends, in whatever way, leaves Spark's settings as they were.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.api.callbacks import Callbacks
from holdfast.api.view import View
from holdfast.arguments import value_map, whole_number
from holdfast.checkpoint import Store, StoreReader, open_store, read_store
from holdfast.checkpoint.reference import find_checkpoint
from holdfast.clock import Clock
from holdfast.connectors.base import SourceReader
from holdfast.errors import InvalidInputError, NotFoundError, RefusedError
from holdfast.format.documents import Summary
from holdfast.format.topology import Topology
from holdfast.ids import IdSource
from holdfast.operators.base import Analyzed
from holdfast.operators.columns import WEIGHT
from holdfast.runtime.checkpoint_marks import check_tables, checked_marks, table_digests
from holdfast.runtime.engine import Engine
from holdfast.runtime.evolution import ChangePlan
from holdfast.runtime.graph import Graph
from holdfast.runtime.lag import Lag, LagMeter
from holdfast.runtime.locations import check_locations
from holdfast.runtime.output_manager import Outputs
from holdfast.runtime.outputs import Wish
from holdfast.runtime.quarantine import Quarantine
from holdfast.runtime.report import CheckpointReport, EpochReport, RunSummary
from holdfast.runtime.start import StartPlanner
from holdfast.settings import Settings
from holdfast.spark import classic
from holdfast.spark.session import RuntimeSettings, check_workers, is_local
from holdfast.storage.open import OBJECT_SCHEMES, StorageLocation, location_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.pipeline")

CheckpointRef = str | int | datetime
"""How a checkpoint is named: an id or its start, a label, an epoch, a time, `ago:2h`, `latest`."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What `Pipeline.run` is asked for."""

    forever: bool
    epochs: int | None
    poll_ms: int
    from_checkpoint: CheckpointRef | None
    accept_duplicates: bool
    allow_changes: bool
    takeover: bool
    label: str | None
    properties: Mapping[str, str] | None
    outputs: Mapping[str, Wish] | None
    set_aside: Collection[str]
    redrive: Collection[str]
    on_epoch: Callable[[EpochReport], None] | None
    on_checkpoint: Callable[[CheckpointReport], None] | None
    stop: Callable[[], bool]

    def __post_init__(self) -> None:
        """Refuse what has the wrong type, before anything is opened."""
        whole_number(
            0 if self.epochs is None else self.epochs, "epochs", least=0, kind="invalid_argument"
        )
        whole_number(self.poll_ms, "poll_ms", least=0, kind="invalid_argument")
        value_map(self.properties, "properties")
        value_map(self.outputs, "outputs")
        for argument in ("set_aside", "redrive"):
            names = getattr(self, argument)
            if isinstance(names, str) or not isinstance(names, Collection):
                raise _wrong(argument, names, f'a list of sinks: {argument}=["totals_out"]')
        for argument in ("on_epoch", "on_checkpoint", "stop"):
            function = getattr(self, argument)
            if function is not None and not callable(function):
                raise _wrong(argument, function, "a function")


def _wrong(argument: str, value: object, wanted: str) -> InvalidInputError:
    return InvalidInputError(
        f"{argument} cannot be this",
        kind="invalid_argument",
        argument=argument,
        value=repr(value)[:80],
        remedy=f"give {wanted}",
    )


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A declared pipeline, with what it takes to run it.

    session, resolve, partitions: asked when Spark is needed, and not before.
    """

    graph: Graph
    place: StorageLocation
    settings: Settings
    session: Callable[[], SparkSession]
    resolve: Callable[[], dict[str, Analyzed]]
    partitions: Callable[[SparkSession], int]
    clock: Clock
    ids: IdSource

    @property
    def pipeline(self) -> str:
        """Its name."""
        return self.graph.pipeline

    @property
    def _options(self) -> dict[str, Any] | None:
        return dict(self.place.options) or None

    def open_sources(self) -> dict[str, SourceReader]:
        """Check what can be known before Spark starts."""
        self.graph.check()
        check_locations(self.graph, self.place.url)
        readers = {node.name: node.connector.open(node.name) for node in self.graph.sources}
        for reader in readers.values():
            reader.check()
        return readers

    def reader(self) -> StoreReader:
        """The pipeline's checkpoints."""
        try:
            return read_store(self.place.url, self.pipeline, options=self._options)
        except NotFoundError as error:
            raise NotFoundError(
                "the pipeline has no checkpoint yet",
                kind="no_checkpoint",
                pipeline=self.pipeline,
                store=self.place.url,
                remedy="run it first, or correct the store's address",
            ) from error

    def lag(self) -> dict[str, Lag]:
        """What every source has left behind the newest checkpoint; nothing is read or committed."""
        readers = self.open_sources()
        try:
            store: StoreReader | None = self.reader()
            manifest = store.manifest("latest") if store is not None else None
        except NotFoundError:
            store = manifest = None
        for reader in readers.values():
            if store is not None and manifest is not None:
                reader.restore(manifest, store)
            reader.plan()  # only a look at what is there now
        return LagMeter(self.clock).measure(readers)[1]

    def view(self, resolved: Analyzed, reader: StoreReader, at: str | Summary) -> View:
        """What an operator's state shows."""
        spark = self.session()
        return View(resolved, self.place, reader, at, self.partitions(spark), spark)

    def run(self, options: RunOptions) -> RunSummary:
        """Run until the options say that it ends."""
        began = time.perf_counter()
        marks = checked_marks(options.label, options.properties)
        callbacks = Callbacks(options.on_epoch, options.on_checkpoint, options.stop)
        readers = self.open_sources()
        going_back = self._named(options.from_checkpoint)
        spark = self.session()
        runtime = RuntimeSettings(spark)
        allow_changes, accept_duplicates = options.allow_changes, options.accept_duplicates
        try:
            resolved = self.resolve()
            check_workers(spark)
            marks = replace(marks, tables=table_digests(self.graph, spark))
            topology = self._topology()
            planner = self._planner()
            asked = Outputs(planner.writers(spark), options.outputs or {})
            if going_back is not None:
                at = planner.ask(asked, topology, going_back, accept_duplicates=accept_duplicates)
                check_tables(at, marks.tables, allow_changes=allow_changes)
            with (
                closing(
                    open_store(
                        self.place.url,
                        self.pipeline,
                        topology=topology,
                        allow_changes=allow_changes,
                        settings=self.settings,
                        resume=going_back,
                        accept_duplicates=accept_duplicates,
                        takeover=options.takeover,
                        options=self._options,
                        spark=spark.version,
                        clock=self.clock,
                        ids=self.ids,
                    )
                ) as store,
                closing(
                    Engine(
                        spark=spark,
                        graph=self.graph,
                        resolved=resolved,
                        store=store,
                        place=self.place,
                        partitions=self.partitions(spark),
                        readers=readers,
                        outputs=asked,
                        durable_tasks=not is_local(spark),
                        on_epoch=callbacks.on_epoch,
                        on_checkpoint=callbacks.on_checkpoint,
                        marks=marks,
                        clock=self.clock,
                        ids=self.ids,
                    )
                ) as engine,
            ):
                notes = check_tables(store.current, marks.tables, allow_changes=allow_changes)
                self._begin(engine, store, planner, asked, topology, notes, options)
                _loop(engine, options, callbacks.stop, self.clock)
                engine.finish()
                engine.summary.notes.extend(classic.notes())
                engine.summary.milliseconds = (time.perf_counter() - began) * 1e3
                return engine.summary
        finally:
            runtime.restore()

    def _begin(
        self,
        engine: Engine,
        store: Store,
        planner: StartPlanner,
        asked: Outputs,
        topology: Topology,
        notes: list[str],
        options: RunOptions,
    ) -> None:
        """Decide about all outputs, then act on them; backfill what is new or must be rebuilt."""
        quarantine = Quarantine(store, self.place, asked.writers)
        quarantine.set_aside(options.set_aside, engine.summary.notes)
        changes = planner.decide(asked, store, topology)
        changed = bool(notes or (store.current and store.current.topology != topology))
        engine.start()
        engine.summary.notes.extend(notes)
        self._backfill(engine, store, changes, asked)
        quarantine.redrive(options.redrive, asked.since, engine.summary.notes)
        if changed and not changes.backfills:
            engine.note_change()

    def _backfill(self, engine: Engine, store: Store, changes: ChangePlan, asked: Outputs) -> None:
        for line in [*changes.lines(), *asked.lines()]:
            log.warning("%s", line)
            engine.summary.notes.append(line)
        manifest = store.current
        views = {}
        for name in changes.from_state:
            resolved = self.resolve()[name]
            at = manifest.checkpoint if manifest else "latest"
            rows = self.view(resolved, store.reader, at).to_spark()
            views[name] = rows.withColumn(WEIGHT, _one()) if resolved.declaration.retracts else rows
        engine.backfill(changes, views)

    def _named(self, ref: CheckpointRef | None) -> str | None:
        """The id of the checkpoint that a user names."""
        if ref is None:
            return None
        return find_checkpoint(self.reader(), ref, self.clock.wall_us()).checkpoint

    def _planner(self) -> StartPlanner:
        return StartPlanner(self.graph, self.place, self.settings, self.resolve)

    def _topology(self) -> Topology:
        parts = {
            name: {trace: schema.text() for trace, schema in resolved.task.traces.items()}
            for name, resolved in self.resolve().items()
        }
        return self.graph.topology(parts)

    def plan_outputs(
        self, from_checkpoint: CheckpointRef | None, outputs: Mapping[str, Wish]
    ) -> list[str]:
        """What the next start would do with the outputs; reads only."""
        self.open_sources()
        planner = self._planner()
        asked = Outputs(planner.writers(self.session()), outputs)
        going_back = self._named(from_checkpoint)
        planner.ask(asked, self._topology(), going_back, accept_duplicates=True)
        return [
            f"{name}: {decision.action}" + (f", {decision.why}" if decision.why else "")
            for name, decision in asked.decisions.items()
        ]

    def compact_output(self, sink: str, *, takeover: bool) -> bool:
        """Fold a changelog output now; returns whether anything was folded."""
        spark, planner = self.session(), self._planner()
        outputs = Outputs(planner.writers(spark), {})
        topology = self._topology()
        if sink not in outputs.writers:
            raise InvalidInputError(
                "no sink of that name",
                kind="unknown_sink",
                sink=sink,
                known=",".join(outputs.writers) or "none",
                remedy="give the name that pipe.sink got",
            )
        with open_store(
            self.place.url,
            self.pipeline,
            topology=topology,
            settings=self.settings,
            takeover=takeover,
            options=self._options,
            spark=spark.version,
            clock=self.clock,
            ids=self.ids,
        ) as store:
            outputs.look(planner.history(store), store.reader, store.list(), frozenset())
            if outputs.decisions[sink].action != "continue":
                raise RefusedError(
                    "the output does not stand where the pipeline stands",
                    kind="output_behind",
                    sink=sink,
                    why=outputs.decisions[sink].why,
                    remedy="run the pipeline first",
                )
            return outputs.compact(store, sink)


def store_location(
    store: str,
    storage_options: Mapping[str, Any] | None,
    cache: str | PathLike[str] | None,
) -> StorageLocation:
    """Where a pipeline keeps its checkpoints, and the cache for its runs."""
    remote = "://" in store and not store.startswith("file://")
    url = store if remote else str(Path(store.removeprefix("file://")).expanduser().absolute())
    cached = location_text(cache) if cache else None
    if remote and cached is None:
        cached = "~/.cache/holdfast/runs"  # of the user who runs the executor
    if remote and store.split("://", 1)[0] not in OBJECT_SCHEMES:
        raise InvalidInputError(
            "a pipeline's store must be reachable from every task",
            kind="unknown_scheme",
            store=store,
            remedy="use a directory, s3://, gs:// or az://",
        )
    return StorageLocation(url, value_map(storage_options, "storage_options"), cached)


def _loop(engine: Engine, options: RunOptions, stop: Callable[[], bool], clock: Clock) -> None:
    epochs, count = options.epochs, 0
    while not stop() and (epochs is None or count < epochs):
        last = epochs is not None and count + 1 == epochs
        if engine.step(last=last, stop=stop) is not None:
            count += 1
        elif options.forever:
            engine.finish(last=False)
            clock.sleep_ms(options.poll_ms)
        else:
            return


def _one() -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    return F.lit(1).cast("long")
