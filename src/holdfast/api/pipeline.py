"""`hf.Pipeline`: what a user declares, and how it is run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from holdfast.api.spelling import keywords
from holdfast.api.stream import Stream
from holdfast.api.view import View
from holdfast.checkpoint import Store, StoreReader, open_store, read_store
from holdfast.checkpoint.reference import find_checkpoint
from holdfast.clock import SystemClock
from holdfast.connectors.base import Sink, Source
from holdfast.durations import Duration, duration_us
from holdfast.errors import InvalidInputError, NotFoundError, RefusedError
from holdfast.format.topology import Topology
from holdfast.ids import VNODE_COUNT
from holdfast.operators.analysis import Resolved
from holdfast.runtime.analysis import resolve
from holdfast.runtime.checkpoint_marks import check_tables, checked_marks, table_digests
from holdfast.runtime.engine import Engine
from holdfast.runtime.evolution import ChangePlan
from holdfast.runtime.graph import WEIGHT, Graph, SinkNode, SourceNode, checked_names
from holdfast.runtime.locations import check_locations
from holdfast.runtime.output_manager import Outputs
from holdfast.runtime.outputs import Wish
from holdfast.runtime.quarantine import Quarantine
from holdfast.runtime.report import CheckpointReport, EpochReport, RunSummary
from holdfast.runtime.start import StartPlanner
from holdfast.settings import Settings
from holdfast.spark.session import (
    RuntimeSettings,
    check_session,
    check_workers,
    is_local,
    open_session,
)
from holdfast.storage.open import OBJECT_SCHEMES, StorageLocation

log = logging.getLogger("holdfast.pipeline")

CheckpointRef = str | int | datetime
"""How a checkpoint is named: an id or its start, a label, an epoch, a time, `ago:2h`, `latest`."""

loading: ContextVar[bool] = ContextVar("loading", default=False)
"""True while `holdfast run` loads a file, which declares its pipeline and must not run it."""


class Pipeline:
    """A named graph of sources, operators and sinks, with its checkpoints in a store.

    store: a directory or an `s3://`, `gs://`, `az://` address. settings: how checkpoints are made;
    by default one after each epoch (`epochs_max=1`); with `epochs_max=None` by `interval_ms`.
    partitions: how many tasks share the state; may change between runs. master: Spark's master,
    `local[*]` by default, or an `sc://` address. cache: where runs of a remote store are kept on
    the executors' disks.
    """

    def __init__(
        self,
        name: str,
        store: str | PathLike[str],
        *,
        settings: Settings | None = None,
        partitions: int | None = None,
        master: str | None = None,
        spark: Any = None,
        spark_config: Mapping[str, str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | PathLike[str] | None = None,
    ) -> None:
        """Declare a pipeline; nothing happens before `run`."""
        self._graph = Graph(name)
        self.name = name
        self.settings = (settings or Settings()).for_pipeline()
        self._partitions = None if partitions is None else _check_partitions(partitions)
        if not self.settings.incremental:
            raise InvalidInputError(
                "a pipeline's checkpoints are incremental", kind="not_incremental",
                remedy="leave incremental=True; `holdfast sync` makes self-contained copies",
            )  # fmt: skip
        self._master, self._spark, self._config = master, spark, dict(spark_config or {})
        self._resolved: tuple[tuple[int, ...], dict[str, Resolved]] | None = None
        text = fspath(store)
        remote = "://" in text and not text.startswith("file://")
        url = text if remote else str(Path(text.removeprefix("file://")).expanduser().absolute())
        cached = (fspath(cache) if cache else None) or (
            str(Path.home() / ".cache" / "holdfast" / "runs") if remote else None
        )
        self._place = StorageLocation(url, dict(storage_options or {}), cached)
        if remote and text.split("://", 1)[0] not in OBJECT_SCHEMES:
            raise InvalidInputError(
                "a pipeline's store must be reachable from every task", kind="unknown_scheme",
                store=text, remedy="use a directory, s3://, gs:// or az://",
            )  # fmt: skip

    # Declaring

    def source(
        self,
        name: str,
        connector: Source,
        *,
        event_time: str | None = None,
        delay: Duration = "0 seconds",
        future: Duration | None = "1 day",
        idle_after: Duration | None = None,
    ) -> Stream:
        """Where rows come from.

        event_time: the column that makes the source's watermark: the newest time seen minus
        `delay`. future: times that lie further than this ahead of the wall clock do not move the
        watermark (None: all do). idle_after: after so long without a row the other sources need not
        wait for this one.
        """
        node = SourceNode(
            columns=connector.columns(), changes=connector.weight is not None, name=name,
            connector=connector, event_time=event_time, delay_us=duration_us(delay),
            future_us=None if future is None else duration_us(future),
            idle_us=None if idle_after is None else duration_us(idle_after),
        )  # fmt: skip
        if event_time is not None:
            checked_names([event_time], node, name)
        self._graph.add(node)
        return Stream(self._graph, node)

    def sink(self, name: str, stream: Stream, connector: Sink) -> None:
        """Where rows go."""
        if not isinstance(stream, Stream):
            raise InvalidInputError(
                "a sink needs a stream as its input", kind="sink_without_input", sink=name,
                value=repr(stream)[:80], remedy="give what a source or an operator returned",
            )  # fmt: skip
        if stream._graph is not self._graph:  # noqa: SLF001 - one family
            raise InvalidInputError(
                "the stream belongs to another pipeline", kind="foreign_stream", sink=name
            )
        node = SinkNode(
            columns=stream.columns, changes=stream.node.changes, name=name, before=stream.node,
            connector=connector,
        )  # fmt: skip
        self._graph.add(node)

    def configure(self, *, master: str | None = None, partitions: int | None = None) -> None:
        """Change where it runs, from the command line; None leaves a setting as it is."""
        if partitions is not None:
            self._partitions = _check_partitions(partitions)
        if master is not None:
            self._master = master

    # Running

    def session(self) -> Any:
        """The Spark session of this pipeline."""
        if self._spark is None:
            self._spark = open_session(app=self.name, master=self._master, config=self._config)
        check_session(self._spark)
        return self._spark

    def resolve(self) -> dict[str, Resolved]:
        """Check the whole pipeline with Spark, without reading or writing anything."""
        self._graph.check()
        size = self._graph.size  # a pipeline that has grown is looked at again
        if self._resolved is None or self._resolved[0] != size:
            self._resolved = size, resolve(self._graph, self.session())
        return self._resolved[1]

    def check(self) -> None:
        """Check what can be known before Spark starts: the graph, directories, file names."""
        self._open_sources()

    def _open_sources(self) -> dict[str, Any]:
        self._graph.check()
        check_locations(self._graph, self._place.url)
        readers = {node.name: node.connector.open(node.name) for node in self._graph.sources}
        for reader in readers.values():
            reader.check()
        return readers

    @keywords('run(from_checkpoint="ago:2h")', positional=1, renamed={"resume": "from_checkpoint"})
    def run(
        self,
        *,
        forever: bool = False,
        epochs: int | None = None,
        poll_ms: int = 500,
        from_checkpoint: CheckpointRef | None = None,
        accept_duplicates: bool = False,
        allow_changes: bool = False,
        takeover: bool = False,
        label: str | None = None,
        properties: Mapping[str, str] | None = None,
        outputs: Mapping[str, Wish] | None = None,
        set_aside: Collection[str] = (),
        redrive: Collection[str] = (),
        on_epoch: Callable[[EpochReport], None] | None = None,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> RunSummary:
        """Run until the sources are drained, or `forever`, or for some epochs.

        from_checkpoint: go back to this checkpoint first, named as in `view`. allow_changes: the
        pipeline may differ from the one that wrote the store: parts may be gone, and new ones are
        filled from history or state; what cannot be done is refused before anything runs.
        label, properties: written on every checkpoint of this run; the newest one can be named by
        its label. outputs: by sink, what to do with an output that is not simply continued: "adopt"
        (take it over from its owner and rebuild it), "keep" (take it over as it is) or "empty" (let
        it begin empty). set_aside: sinks whose failed epochs are moved to quarantine. redrive:
        sinks whose quarantine is published now. on_epoch: called after each epoch, on_checkpoint:
        in the commit thread, when a checkpoint is durable and published. stop: asked between
        epochs; True ends the run cleanly.
        """
        began = time.perf_counter()
        self._check_not_loading()
        marks = checked_marks(label, properties)
        readers = self._open_sources()
        going_back = self._named(from_checkpoint)
        spark = self.session()
        runtime = RuntimeSettings(spark)
        try:
            resolved = self.resolve()
            check_workers(spark)
            marks = replace(marks, tables=table_digests(self._graph, spark))
            topology = self._graph.topology(operator_parts(resolved))
            planner = self._planner()
            asked = Outputs(planner.writers(spark), outputs or {})
            if going_back is not None:
                at = planner.ask(asked, topology, going_back, accept_duplicates=accept_duplicates)
                check_tables(at, marks.tables, allow_changes=allow_changes)
            with closing(open_store(
                self._place.url, self.name, topology=topology, allow_changes=allow_changes,
                settings=self.settings, resume=going_back, accept_duplicates=accept_duplicates,
                takeover=takeover, options=dict(self._place.options) or None, spark=spark.version,
            )) as store, closing(Engine(
                spark=spark, graph=self._graph, resolved=resolved, store=store, place=self._place,
                partitions=self._count(spark), readers=readers, outputs=asked,
                durable_tasks=not is_local(spark), on_epoch=on_epoch, on_checkpoint=on_checkpoint,
                marks=marks,
            )) as engine:  # fmt: skip
                notes = check_tables(store.current, marks.tables, allow_changes=allow_changes)
                self._begin(engine, store, planner, asked, topology, notes, set_aside, redrive)
                self._loop(engine, forever=forever, epochs=epochs, poll_ms=poll_ms, stop=stop)
                engine.finish()
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
        set_aside: Collection[str],
        redrive: Collection[str],
    ) -> None:
        """Decide about all outputs, then act on them; backfill what is new or must be rebuilt."""
        quarantine = Quarantine(store, self._place, asked.writers)
        quarantine.set_aside(set_aside, engine.summary.notes)
        changes = planner.decide(asked, store, topology)
        changed = bool(notes or (store.current and store.current.topology != topology))
        engine.start()
        engine.summary.notes.extend(notes)
        self._backfill(engine, store, changes, asked)
        quarantine.redrive(redrive, asked.since, engine.summary.notes)
        if changed and not changes.backfills:
            engine.note_change()

    def _check_not_loading(self) -> None:
        if loading.get():
            raise InvalidInputError(
                "the file runs its pipeline while it is loaded",
                kind="runs_itself",
                pipeline=self.name,
                remedy='put `pipe.run()` below `if __name__ == "__main__":`, or start the file '
                "with python",
            )

    def _named(self, ref: CheckpointRef | None) -> str | None:
        """The id of the checkpoint that a user names."""
        if ref is None:
            return None
        return find_checkpoint(self.reader(), ref, SystemClock().wall_us()).checkpoint

    def _planner(self) -> StartPlanner:
        return StartPlanner(self._graph, self._place, self.settings, self.resolve)

    @keywords(
        'plan_outputs(from_checkpoint="ago:2h")',
        positional=1,
        renamed={"resume": "from_checkpoint"},
    )
    def plan_outputs(
        self,
        *,
        from_checkpoint: CheckpointRef | None = None,
        outputs: Mapping[str, Wish] | None = None,
    ) -> list[str]:
        """What the next start would do with the outputs, one line each; reads only.

        from_checkpoint: as if the pipeline went back to this checkpoint. What a start would refuse
        is raised here, too.
        """
        self.check()
        planner = self._planner()
        asked = Outputs(planner.writers(self.session()), outputs or {})
        topology = self._graph.topology(operator_parts(self.resolve()))
        planner.ask(asked, topology, self._named(from_checkpoint), accept_duplicates=True)
        return [
            f"{name}: {decision.action}" + (f", {decision.why}" if decision.why else "")
            for name, decision in asked.decisions.items()
        ]

    def compact_output(self, sink: str, *, takeover: bool = False) -> bool:
        """Fold a changelog output now, as far as no retained checkpoint needs its epochs apart.

        The pipeline must not run meanwhile. Returns whether anything was folded.
        """
        spark, planner = self.session(), self._planner()
        outputs = Outputs(planner.writers(spark), {})
        topology = self._graph.topology(operator_parts(self.resolve()))
        if sink not in outputs.writers:
            raise InvalidInputError(
                "no sink of that name",
                kind="unknown_sink",
                sink=sink,
                known=",".join(outputs.writers) or "none",
            )
        with open_store(
            self._place.url,
            self.name,
            topology=topology,
            settings=self.settings,
            takeover=takeover,
            options=dict(self._place.options) or None,
            spark=spark.version,
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

    def _backfill(self, engine: Engine, store: Store, changes: ChangePlan, asked: Outputs) -> None:
        for line in [*changes.lines(), *asked.lines()]:
            log.warning("%s", line)
            engine.summary.notes.append(line)
        spark, manifest = self.session(), store.current
        views = {}
        for name in changes.from_state:
            found = self.resolve()[name]
            at = manifest.checkpoint if manifest else "latest"
            rows = View(found, self._place, store.reader, at, self._count(spark), spark).to_spark()
            views[name] = rows.withColumn(WEIGHT, _one()) if found.node.changes else rows
        engine.backfill(changes, views)

    def _loop(
        self, engine: Engine, *, forever: bool, epochs: int | None, poll_ms: int,
        stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        done = 0
        while not stop() and (epochs is None or done < epochs):
            last = epochs is not None and done + 1 == epochs
            if engine.step(last=last, stop=stop) is not None:
                done += 1
            elif forever:
                engine.finish(last=False)
                time.sleep(poll_ms / 1_000)
            else:
                return

    def _count(self, spark: Any) -> int:
        if self._partitions is not None:
            return self._partitions
        try:
            return min(VNODE_COUNT, max(1, int(spark.sparkContext.defaultParallelism)))
        except Exception:  # noqa: BLE001 - Spark Connect has no context
            return 8

    # Looking

    def reader(self) -> StoreReader:
        """The pipeline's checkpoints, for reading."""
        try:
            return self._reader()
        except NotFoundError as error:
            raise NotFoundError(
                "the pipeline has no checkpoint yet",
                kind="no_checkpoint",
                pipeline=self.name,
                store=self._place.url,
                remedy="run it first, or correct the store's address",
            ) from error

    def _reader(self) -> StoreReader:
        return read_store(self._place.url, self.name, options=dict(self._place.options) or None)

    def view(self, operator: str, *, at: CheckpointRef = "latest") -> View:
        """The state of an operator at a checkpoint: `.to_spark()` or `.to_arrow()`.

        at: as `holdfast state --at`: an id or its start, a label, an epoch, a time, `ago:2h`.
        """
        resolved = self.resolve().get(operator)
        if resolved is None:
            raise NotFoundError(
                "no operator of that name", kind="no_operator", operator=operator,
                known=",".join(self.resolve()) or "none",
            )  # fmt: skip
        reader = self.reader()
        found = find_checkpoint(reader, at, SystemClock().wall_us())
        spark = self.session()
        return View(resolved, self._place, reader, found, self._count(spark), spark)


def _check_partitions(partitions: int) -> int:
    if not 1 <= partitions <= VNODE_COUNT:
        raise InvalidInputError(
            "the number of partitions is out of range", kind="invalid_partitions",
            partitions=partitions, limit=VNODE_COUNT,
        )  # fmt: skip
    return partitions


def operator_parts(resolved: Mapping[str, Resolved]) -> dict[str, dict[str, str]]:
    """By operator: its traces, each with its columns and types."""
    return {
        name: {trace: schema.text() for trace, schema in found.work.traces.items()}
        for name, found in resolved.items()
    }


def _one() -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    return F.lit(1).cast("long")
