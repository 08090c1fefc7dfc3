"""The state of an operator as rows, at any retained checkpoint."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.api.spelling import VIEW_USES, unknown_name
from holdfast.arguments import instance_of
from holdfast.checkpoint import StoreReader
from holdfast.display import html_table, listed, shown, shown_html
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.format.documents import Summary
from holdfast.operators.base import Analyzed
from holdfast.runtime.task import source_of
from holdfast.spark.arrow_types import spark_schema
from holdfast.spark.session import check_session
from holdfast.state import TraceReader, runs_of
from holdfast.state.partition import partition_range
from holdfast.storage.open import StorageLocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import duckdb
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession


class View:
    """An operator's rows at one checkpoint: for Spark, Arrow, pandas or DuckDB.

    What the watermark of the checkpoint has passed is forgotten and does not show, whether or not
    it still lies on disk.
    """

    def __init__(
        self,
        resolved: Analyzed,
        place: StorageLocation,
        reader: StoreReader,
        at: str | Summary,
        partitions: int,
        spark: SparkSession,
    ) -> None:
        """Find the runs; nothing is read yet."""
        manifest = reader.manifest(at)
        name = resolved.declaration.name
        self.operator = name
        self.epoch = int(manifest.epoch)
        self.checkpoint = manifest.checkpoint
        self._pipeline = reader.directory.pipeline
        self._place, self._partitions, self._spark = place, partitions, spark
        if name not in resolved.task.traces:
            raise NotFoundError(
                "the operator does not keep its result",
                kind="nothing_to_show",
                operator=name,
                keeps=",".join(resolved.task.traces),
                remedy="give it a sink, or an operator after it that keeps one",
            )
        self._schema = resolved.task.traces[name]
        self._visible = resolved.task.visible
        self._runs = runs_of(manifest, name)
        mark = manifest.watermark_us
        bounds = {} if mark is None else resolved.task.bounds_us(mark)
        self._bound = bounds.get(name)
        shown = [n for n in resolved.task.shown if n in self._all]
        if not shown:
            raise NotFoundError("the operator keeps nothing to show", operator=name)
        self.columns = shown

    @property
    def _all(self) -> list[str]:
        return [field.name for field in self._fields]

    @property
    def _fields(self) -> list[pa.Field[Any]]:
        keys, values = self._schema.keys, self._schema.values  # noqa: PD011 - not of pandas
        return [*keys, *values]

    def _trace(self) -> TraceReader:
        return TraceReader(
            runs=self._runs,
            source=source_of(self._place, self._pipeline),
            schema=self._schema,
            time_bound_us=self._bound,
        )

    if not TYPE_CHECKING:  # a type checker refuses what is not there

        def __getattr__(self, name: str) -> Any:
            raise unknown_name(self, name, VIEW_USES)

    def __repr__(self) -> str:
        return shown(self, lambda: f"<View of {self._facts()}: {listed(self.columns)}>")

    def _facts(self) -> str:
        return f"{self.operator} at epoch {self.epoch}, checkpoint {self.checkpoint}"

    def _repr_html_(self) -> str:
        rows = [
            ("epoch", str(self.epoch)),
            ("checkpoint", self.checkpoint),
            ("columns", listed(self.columns)),
            ("rows", "to_spark(), to_arrow(), to_pandas(), to_duckdb()"),
        ]
        return shown_html(self, lambda: html_table(f"View of {self.operator}", rows))

    def to_arrow(self) -> pa.Table:
        """All rows as one Arrow table, read without Spark.

        Returns:
            The table.

        Raises:
            StorageError: a run of the state cannot be read.
            CorruptionError: a run does not hold what the checkpoint says.

        Example:
            >>> pipe.view("totals").to_arrow().column_names
            ['customer', 'total']
        """
        table = self._trace().table()
        return self._visible(table).select(self.columns)

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas DataFrame, read without Spark.

        Returns:
            The DataFrame.

        Raises:
            InvalidInputError: pandas is not installed.
            StorageError: a run of the state cannot be read.

        Example:
            >>> pipe.view("totals").to_pandas().sort_values("customer").total.tolist()
            [7.0, 5.0]
        """
        needs("pandas", "spark")
        return self.to_arrow().to_pandas()

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """All rows as a DuckDB relation, read without Spark.

        Args:
            connection: the relation's connection; by default DuckDB's own, as in `duckdb.sql`.

        Returns:
            The relation; `relation.query("totals", "SELECT ...")` asks it.

        Raises:
            InvalidInputError: duckdb is not installed.
            StorageError: a run of the state cannot be read.

        Example:
            >>> totals = pipe.view("totals").to_duckdb()
            >>> totals.aggregate("sum(total)").fetchall()
            [(12.0,)]
        """
        needs("duckdb", "sql")
        import duckdb

        if connection is not None:
            wanted = duckdb.DuckDBPyConnection
            instance_of(connection, wanted, "connection", "what duckdb.connect() returned")
        return duckdb.from_arrow(
            self.to_arrow(), connection=connection or duckdb.default_connection()
        )

    def to_spark(self, spark: SparkSession | None = None) -> DataFrame:
        """All rows as a Spark DataFrame, read by the executors.

        Args:
            spark: a session; by default that of the pipeline.

        Returns:
            The DataFrame.

        Raises:
            StorageError: when its rows are asked for, and a run of the state cannot be read.

        Example:
            >>> pipe.view("totals").to_spark().orderBy("customer").collect()
            [Row(customer='ann', total=7.0), Row(customer='bob', total=5.0)]
        """
        session = self._spark if spark is None else spark
        check_session(session)
        n, columns, trace_args = (
            self._partitions,
            self.columns,
            (
                self._runs,
                self._place,
                self._pipeline,
                self._schema,
                self._bound,
            ),
        )

        visible = self._visible

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            runs, place, pipeline, schema, bound = trace_args
            source = source_of(place, pipeline)
            trace = TraceReader(runs=runs, source=source, schema=schema, time_bound_us=bound)
            for batch in batches:
                partitions: list[Any] = batch.column(0).to_pylist()
                for partition in partitions:
                    for rows in trace.batches(partition_range(partition, n)):
                        yield visible(rows).select(columns)

        fields = {f.name: f for f in self._fields}
        shape = spark_schema(pa.schema([fields[name] for name in columns]))
        rows: DataFrame = session.range(0, n, 1, n).mapInArrow(read, shape)
        return rows


def needs(package: str, extra: str) -> None:
    """Refuse early and by name what an extra would bring."""
    if find_spec(package) is None:
        raise InvalidInputError(
            f"{package} is not installed",
            kind="missing_extra",
            package=package,
            remedy=f"pip install 'holdfast-spark[{extra}]'",
        )
