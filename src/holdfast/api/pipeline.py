"""`hf.Pipeline`: what a user declares, runs and looks at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from os import PathLike
from typing import TYPE_CHECKING, Any

from holdfast.api.checked import check_connector, check_partitions, pipeline_settings
from holdfast.api.graph import DRAWN_MAX, PipelineGraph, pipeline_graph
from holdfast.api.launch import CheckpointRef, Launch, RunOptions, store_location
from holdfast.api.spelling import keywords
from holdfast.api.stream import Stream
from holdfast.api.view import View
from holdfast.arguments import value_map
from holdfast.checkpoint import StoreReader
from holdfast.checkpoint.reference import find_checkpoint
from holdfast.clock import Clock, SystemClock
from holdfast.connectors.base import Sink, Source
from holdfast.display import html_table, listed, short, shown, shown_html
from holdfast.durations import Duration, duration_us
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.ids import VNODE_COUNT, IdSource, RandomIds
from holdfast.operators.base import Analyzed
from holdfast.operators.declaration import SinkNode, SourceNode, checked_names
from holdfast.runtime.analysis import analyze
from holdfast.runtime.graph import Graph
from holdfast.runtime.lag import Lag
from holdfast.runtime.outputs import Wish
from holdfast.runtime.report import CheckpointReport, EpochReport, RunSummary
from holdfast.settings import Settings
from holdfast.spark.session import check_session, open_session
from holdfast.storage.open import location_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

loading: ContextVar[bool] = ContextVar("loading", default=False)
"""True while `holdfast run` loads a file, which declares its pipeline and must not run it."""


class Pipeline:
    """A named graph of sources, operators and sinks, with its checkpoints in a store.

    Args:
        name: of the pipeline, in its store.
        store: a directory or an `s3://`, `gs://`, `az://` address.
        settings: how checkpoints are made; by default one after each epoch (`epochs_max=1`), with
            `epochs_max=None` by `interval_ms`.
        partitions: the most tasks that share the state (small epochs use fewer); may change.
        master: Spark's master, `local[*]` by default, or an `sc://` address.
        spark: a session to run in; by default the pipeline opens one.
        spark_config: settings of the session that it opens.
        storage_options: how the store is reached, for object stores.
        cache: where runs of a remote store are kept on the executors' disks.
        clock: where time and waiting come from; by default the machine's.
        ids: where checkpoint ids come from, by default random; with both a run can be replayed.

    Raises:
        InvalidInputError: a name, address or setting can never work.

    Example:
        >>> pipe = hf.Pipeline("orders", store=folder / "checkpoints", partitions=4)
        >>> pipe.name
        'orders'
    """

    def __init__(
        self,
        name: str,
        store: str | PathLike[str],
        *,
        settings: Settings | None = None,
        partitions: int | None = None,
        master: str | None = None,
        spark: SparkSession | None = None,
        spark_config: Mapping[str, str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | PathLike[str] | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self._graph = Graph(name)
        self.name = name
        self.settings = pipeline_settings(settings)
        self._partitions = None if partitions is None else check_partitions(partitions)
        self._master, self._config = master, value_map(spark_config, "spark_config")
        self._spark = spark
        self._resolved: tuple[tuple[int, ...], dict[str, Analyzed]] | None = None
        self._place = store_location(location_text(store), storage_options, cache)
        self._launch = Launch(
            graph=self._graph,
            place=self._place,
            settings=self.settings,
            session=self.session,
            resolve=self.resolve,
            partitions=self._count,
            clock=clock or SystemClock(),
            ids=ids or RandomIds(),
        )

    def __repr__(self) -> str:
        return shown(self, self._line)

    def _line(self) -> str:
        graph = self._graph
        parts = {
            "sources": [node.name for node in graph.sources],
            "operators": [node.name for node in graph.operators],
            "sinks": [node.name for node in graph.sinks],
        }
        texts = [f"{what}: {listed(names, 5)}" for what, names in parts.items() if names]
        return f"<{'; '.join([f'Pipeline {self.name} in {short(self._place.url)}', *texts])}>"

    def _repr_html_(self) -> str:
        return shown_html(self, self._html)

    def _html(self) -> str:
        graph = self.graph()
        facts = html_table(f"Pipeline {self.name}", [("store", self._place.url)])
        if not graph.boxes:
            return facts
        if len(graph.boxes) > DRAWN_MAX:
            return facts + html_table("", [("parts", listed(box.name for box in graph.boxes))])
        return facts + graph.svg()

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

        Args:
            name: of the source.
            connector: one of `hf.sources`, or your own.
            event_time: the column that makes the source's watermark.
            delay: the watermark is the newest time seen minus this.
            future: times that lie further than this ahead of the wall clock do not move the
                watermark; None: all do.
            idle_after: after so long without a row the other sources need not wait for this one.

        Returns:
            The stream of its rows.

        Raises:
            InvalidInputError: the name is taken, or the connector or a column cannot be used.

        Example:
            >>> files = hf.sources.Files(folder / "in", schema="customer string, at timestamp")
            >>> pipe.source("visits", files, event_time="at", delay="10 minutes").columns
            ['customer', 'at']
        """
        check_connector(connector, Source, "source", name)
        node = SourceNode(
            columns=connector.columns(),
            retracts=connector.weight is not None,
            name=name,
            connector=connector,
            event_time=event_time,
            delay_us=duration_us(delay),
            future_us=None if future is None else duration_us(future),
            idle_us=None if idle_after is None else duration_us(idle_after),
        )
        if event_time is not None:
            checked_names([event_time], node, name)
        self._graph.add_source(node)
        return Stream(self._graph, node)

    def sink(self, name: str, stream: Stream, connector: Sink) -> None:
        """Where rows go.

        Args:
            name: of the sink.
            stream: whose rows.
            connector: one of `hf.sinks`, or your own.

        Raises:
            InvalidInputError: the name is taken, or the stream or the connector cannot be used.

        Example:
            >>> pipe.sink("copy", orders, hf.sinks.Parquet(folder / "copy"))
        """
        if not isinstance(stream, Stream):
            raise InvalidInputError(
                "a sink needs a stream as its input",
                kind="sink_without_input",
                sink=name,
                value=repr(stream)[:80],
                remedy="give what a source or an operator returned",
            )
        if stream._graph is not self._graph:  # noqa: SLF001 - one family
            raise InvalidInputError(
                "the stream belongs to another pipeline",
                kind="foreign_stream",
                sink=name,
                remedy="give a stream of this pipeline",
            )
        check_connector(connector, Sink, "sink", name)
        node = SinkNode(
            columns=stream.columns,
            retracts=stream.node.retracts,
            name=name,
            inputs=(stream.node,),
            connector=connector,
        )
        self._graph.add_sink(node)

    def configure(
        self,
        *,
        master: str | None = None,
        partitions: int | None = None,
        spark_config: Mapping[str, str] | None = None,
    ) -> None:
        """Change where it runs, from the command line.

        Args:
            master: Spark's master; None leaves it as it is.
            partitions: how many tasks share the state; None leaves it as it is.
            spark_config: settings of the session, above those of the pipeline.

        Raises:
            InvalidInputError: the number of partitions is out of range.

        Example:
            >>> pipe.configure(partitions=8)
        """
        if partitions is not None:
            self._partitions = check_partitions(partitions)
        if master is not None:
            self._master = master
        self._config = {**self._config, **value_map(spark_config, "spark_config")}

    # Running

    def session(self) -> SparkSession:
        """The Spark session of this pipeline; opened when it is first asked for.

        Returns:
            The session.

        Raises:
            InvalidInputError: its version or its settings cannot be used.

        Example:
            >>> pipe.session() is spark
            True
        """
        if self._spark is None:
            self._spark = open_session(app=self.name, master=self._master, config=self._config)
        check_session(self._spark)
        return self._spark

    def resolve(self) -> dict[str, Analyzed]:
        """Check the whole pipeline with Spark, without reading or writing anything.

        Returns:
            By operator, its types and expressions.

        Raises:
            InvalidInputError: Spark refuses a step; the error names it.

        Example:
            >>> sorted(pipe.resolve())
            ['totals']
        """
        self._graph.check()
        size = self._graph.size  # a pipeline that has grown is looked at again
        if self._resolved is None or self._resolved[0] != size:
            self._resolved = size, analyze(self._graph, self.session())
        return self._resolved[1]

    def check(self) -> None:
        """Check what can be known before Spark starts: the graph, directories, file names.

        Raises:
            InvalidInputError: the pipeline is not complete, or a directory cannot be used.

        Example:
            >>> pipe.check()
        """
        self._launch.open_sources()

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

        Args:
            forever: wait for more rows, `poll_ms` at a time, instead of ending.
            epochs: end after so many.
            poll_ms: how long to wait for more rows.
            from_checkpoint: go back to this checkpoint first, named as in `view`. Every output is
                asked before anything is touched.
            accept_duplicates: go back although a sink would publish rows twice.
            allow_changes: the pipeline may differ from the one that wrote the store; new parts are
                backfilled, and what cannot be done is refused before anything runs.
            takeover: fence a writer that still holds the store.
            label: the newest checkpoint of the run can be named by it.
            properties: written on every checkpoint of the run.
            outputs: by sink, "adopt" (take it over and rebuild it), "keep" (take it over as it is)
                or "empty" (let it begin empty), where an output is not simply continued.
            set_aside: sinks whose failed epochs are moved to quarantine.
            redrive: sinks whose quarantine is published now.
            on_epoch: called after each epoch.
            on_checkpoint: called in the commit thread, when a checkpoint is durable and published.
            stop: asked between epochs; True ends the run cleanly.

        Returns:
            What the run did.

        Raises:
            HoldfastError: its class says what to do about it.

        Example:
            >>> pipe.run().rows
            3
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        self._check_not_loading()
        return self._launch.run(RunOptions(**given))

    def _check_not_loading(self) -> None:
        if loading.get():
            raise InvalidInputError(
                "the file runs its pipeline while it is loaded",
                kind="runs_itself",
                pipeline=self.name,
                remedy='put `pipe.run()` below `if __name__ == "__main__":`, or start the file '
                "with python",
            )

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
        """What the next start would do with the outputs; reads only.

        Args:
            from_checkpoint: as if the pipeline went back to this checkpoint.
            outputs: as in `run`.

        Returns:
            One line for each output.

        Raises:
            HoldfastError: what a start would refuse.

        Example:
            >>> pipe.plan_outputs(from_checkpoint="latest")
            ['totals_out: continue']
        """
        return self._launch.plan_outputs(from_checkpoint, outputs or {})

    def compact_output(self, sink: str, *, takeover: bool = False) -> bool:
        """Fold a changelog output now, as far as no retained checkpoint needs its epochs apart.

        The pipeline must not run meanwhile.

        Args:
            sink: the sink's name.
            takeover: fence a writer that still holds the store.

        Returns:
            Whether anything was folded.

        Raises:
            InvalidInputError: no sink has this name.
            RefusedError: the output does not stand where the pipeline stands.

        Example:
            >>> pipe.compact_output("totals_out")
            False
        """
        return self._launch.compact_output(sink, takeover=takeover)

    def lag(self) -> dict[str, Lag]:
        """What every source has left behind the newest checkpoint, asked now; Spark is not needed.

        Returns:
            By source, rows, bytes and seconds, as far as they are known without reading.

        Raises:
            HoldfastError: a source cannot be looked at.

        Example:
            >>> pipe.lag()["orders"].bytes
            0
        """
        return self._launch.lag()

    def _count(self, spark: SparkSession) -> int:
        if self._partitions is not None:
            return self._partitions
        try:
            return min(VNODE_COUNT, max(1, int(spark.sparkContext.defaultParallelism)))
        except Exception:  # noqa: BLE001 - Spark Connect has no context
            return 8

    def graph(self) -> PipelineGraph:
        """The graph as it is declared now, as text, Mermaid or SVG; Spark is not needed.

        Returns:
            The graph; a notebook draws it.

        Example:
            >>> print(pipe.graph().mermaid().splitlines()[1])
              n0(["orders<br/>files<br/>event_time = at<br/>delay_us = 0"])
        """
        return pipeline_graph(self._graph, self._place.url)

    def explain(self) -> None:
        """Print the sources, operators and sinks, and what each does; Spark is not needed.

        Example:
            >>> pipe.explain()  # doctest: +ELLIPSIS
            pipeline shop
              store     ...
              source    orders (files)
            ...
        """
        print(self.graph().text())  # noqa: T201 - as DataFrame.explain

    def reader(self) -> StoreReader:
        """The pipeline's checkpoints, for reading.

        Returns:
            The reader.

        Raises:
            NotFoundError: the pipeline has no checkpoint yet.

        Example:
            >>> len(pipe.reader().list())
            1
        """
        return self._launch.reader()

    def view(self, operator: str, *, at: CheckpointRef = "latest") -> View:
        """The state of an operator at a checkpoint.

        Args:
            operator: its name.
            at: an id or its start, a label, an epoch, a time, `ago:2h`, or `latest`.

        Returns:
            Its rows, for Spark, Arrow, pandas or DuckDB.

        Raises:
            NotFoundError: no operator has this name, or there is no such checkpoint.

        Example:
            >>> pipe.view("totals", at=0).to_arrow().num_rows
            2
        """
        resolved = self.resolve().get(str(operator))
        if resolved is None:
            raise NotFoundError(
                "no operator of that name",
                kind="no_operator",
                operator=operator,
                known=",".join(self.resolve()) or "none",
                remedy="give the name= of an operator",
            )
        reader = self.reader()
        at_summary = find_checkpoint(reader, at, self._launch.clock.wall_us())
        return self._launch.view(resolved, reader, at_summary)
