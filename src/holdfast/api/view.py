"""The state of an operator as rows, at any retained checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.checkpoint import StoreReader
from holdfast.errors import NotFoundError
from holdfast.format.documents import Summary
from holdfast.operators.aggregate.execute import ROWS
from holdfast.operators.analysis import Resolved, spark_schema
from holdfast.operators.base import WEIGHT
from holdfast.operators.setops.execute import SHOWN
from holdfast.runtime.task import source_of
from holdfast.state import TraceReader, runs_of
from holdfast.state.partition import partition_range
from holdfast.storage.open import StorageLocation


class View:
    """An operator's rows at one checkpoint: as a Spark DataFrame or an Arrow table.

    What the watermark of the checkpoint has passed is forgotten and does not show, whether or not
    it still lies on disk.
    """

    def __init__(
        self,
        resolved: Resolved,
        place: StorageLocation,
        reader: StoreReader,
        at: str | Summary,
        partitions: int,
    ) -> None:
        """Find the runs; nothing is read yet."""
        manifest = reader.manifest(at)
        name = resolved.node.name
        self.epoch = int(manifest.epoch)
        self.checkpoint = manifest.checkpoint
        self._pipeline = reader.directory.pipeline
        self._place, self._partitions = place, partitions
        if name not in resolved.work.traces:
            raise NotFoundError(
                "the operator does not keep its result", kind="nothing_to_show", operator=name,
                keeps=",".join(resolved.work.traces),
                remedy="give it a sink, or an operator after it that keeps one",
            )  # fmt: skip
        self._schema = resolved.work.traces[name]
        self._runs = runs_of(manifest, name)
        mark = manifest.watermark_us
        bounds = {} if mark is None else resolved.work.bounds_us(mark)
        self._bound = bounds.get(name)
        shown = [n for n in resolved.work.shown if n in self._all]
        if not shown:
            raise NotFoundError("the operator keeps nothing to show", operator=name)
        self.columns = shown

    @property
    def _all(self) -> list[str]:
        return [*self._schema.keys.names, *self._schema.values.names]

    def _trace(self) -> TraceReader:
        return TraceReader(
            runs=self._runs, source=source_of(self._place, self._pipeline), schema=self._schema,
            time_bound_us=self._bound,
        )  # fmt: skip

    def arrow(self) -> Any:
        """All rows as one Arrow table."""
        table = self._trace().table()
        return _present(table).select(self.columns)

    def dataframe(self, spark: Any) -> Any:
        """All rows as a Spark DataFrame, read by the executors."""
        n, columns, trace_args = self._partitions, self.columns, (
            self._runs, self._place, self._pipeline, self._schema, self._bound,
        )  # fmt: skip

        def read(batches: Any) -> Any:
            runs, place, pipeline, schema, bound = trace_args
            source = source_of(place, pipeline)
            trace = TraceReader(runs=runs, source=source, schema=schema, time_bound_us=bound)
            for batch in batches:
                for partition in batch.column(0).to_pylist():
                    for rows in trace.batches(partition_range(partition, n)):
                        yield _present(rows).select(columns)

        fields = {f.name: f for f in [*self._schema.keys, *self._schema.values]}
        shape = spark_schema(pa.schema([fields[name] for name in columns]))
        return spark.range(0, n, 1, n).mapInArrow(read, shape)


def _present(rows: Any) -> Any:
    """Only what shows: groups and rows whose count is more than zero, bags as often as it says."""
    for name in (SHOWN, WEIGHT):
        index = rows.schema.get_field_index(name)
        if index >= 0:
            counts = np.maximum(rows.column(index).to_numpy(zero_copy_only=False), 0)
            return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), counts)))
    for name in (ROWS, "_count"):
        if name in rows.schema.names:
            import pyarrow.compute as pc

            return rows.filter(pc.greater(rows.column(name), 0))
    return rows
