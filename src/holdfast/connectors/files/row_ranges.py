"""Ranges of rows of Parquet files as a DataFrame, read by pyarrow in tasks.

Spark has no public way to read some row groups of a file: a filter on row numbers reads all of it.
Only files of which both read the same values come here (`sizes`).
Decision: docs/adr/0144-large-files-take-several-epochs.md.

Invariants:
- Every row of a range is given once, in however many tasks; in memory is a batch at a time.
- A file that has other rows by now fails the task: nothing of the epoch counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from holdfast.connectors.files.pieces import FilePiece
from holdfast.connectors.files.sizes import opened
from holdfast.errors import InvalidInputError
from holdfast.storage.open import StorageLocation, storage_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 32_768
_STREAM_BYTES = 1 << 20


@dataclass(frozen=True)
class RowRange:
    """Rows `start` to before `stop` of one file; `total`: how many it has."""

    path: str
    size: int
    start: int
    stop: int
    total: int
    row_bytes: int


@dataclass(frozen=True)
class RangeReader:
    """Reads ranges in tasks. root: on local disk; otherwise the files are those of `place`."""

    place: StorageLocation
    root: str | None
    schema: pa.Schema
    ranges: tuple[tuple[RowRange, ...], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The body of `mapInArrow`: each incoming row is the number of a list of ranges."""
        for batch in batches:
            for number in batch.column(0).to_numpy():
                for some in self.ranges[int(number)]:
                    yield from self._read(some)

    def _read(self, some: RowRange) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._rows(some)
        except (OSError, pa.ArrowException) as error:
            raise InvalidInputError(
                "a part of a file cannot be read",
                kind="unreadable_file",
                cause="unreadable_file",
                path=some.path,
                reason=" ".join(str(error).split())[:300],
                remedy="correct or remove the file, or the schema",
            ) from error

    def _rows(self, some: RowRange) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        storage: Any = None if self.root is not None else storage_of(self.place)
        source = opened(storage, self.root, some.path, some.size)
        step = max(1, min(_BATCH_ROWS, _BATCH_BYTES // some.row_bytes))
        with pq.ParquetFile(source, buffer_size=_STREAM_BYTES, pre_buffer=False) as file:
            meta = file.metadata
            if meta.num_rows != some.total:
                raise InvalidInputError(
                    "a file was changed while it was read",
                    kind="file_changed",
                    cause="file_changed",
                    path=some.path,
                    rows_then=some.total,
                    rows_now=meta.num_rows,
                    remedy="nothing was committed: bring the old bytes back",
                )
            first = 0
            for group in range(meta.num_row_groups):
                count = meta.row_group(group).num_rows
                if first < some.stop and first + count > some.start:
                    low, high = max(0, some.start - first), min(count, some.stop - first)
                    yield from self._group(file, group, low, high, step)
                first += count

    def _group(
        self, file: Any, group: int, low: int, high: int, step: int
    ) -> Iterator[pa.RecordBatch]:
        place = 0
        for batch in file.iter_batches(
            step, row_groups=[group], columns=self.schema.names, use_threads=False
        ):
            start, stop = max(0, low - place), min(batch.num_rows, high - place)
            if start < stop:
                rows = batch.slice(start, stop - start).select(self.schema.names)
                yield rows.cast(self.schema)
            place += batch.num_rows
            if place >= high:
                return


def ranges_of(pieces: Sequence[FilePiece], tasks: int) -> tuple[tuple[RowRange, ...], ...]:
    """The rows of some pieces for so many tasks, cut where row groups begin."""
    found = []
    for piece in pieces:
        total = int(piece.facts.rows or 0)
        stop = total if piece.stop is None else piece.stop
        step = -(-(stop - piece.start) // tasks)
        cuts = [piece.start]
        for bound in piece.facts.bounds or ():
            if bound < stop and bound - cuts[-1] >= step:
                cuts.append(bound)
        for low, high in zip(cuts, [*cuts[1:], stop], strict=True):
            size = piece.entry.size
            found.append(RowRange(piece.path, size, low, high, total, piece.facts.row_bytes))
    return tuple((some,) for some in found)


def range_frame(
    spark: SparkSession,
    pieces: Sequence[FilePiece],
    *,
    place: StorageLocation,
    root: str | None,
    schema: Any,
    tasks: int,
) -> DataFrame:
    """The rows of pieces of files, each read by a task. schema: the `StructType` of the source."""
    from pyspark.sql.types import StructField, StructType

    from holdfast.spark.arrow_types import arrow_type

    ranges = ranges_of(pieces, tasks)
    kinds = [pa.field(f.name, cast("Any", arrow_type(f.dataType))) for f in schema.fields]
    reader = RangeReader(place, root, pa.schema(kinds), ranges)
    count = len(ranges)
    nullable = StructType([StructField(f.name, f.dataType) for f in schema.fields])
    return spark.range(0, count, 1, count).mapInArrow(_body(reader), nullable)


def _body(reader: RangeReader) -> Any:
    def body(batches: Any) -> Any:
        return reader(batches)

    return body
