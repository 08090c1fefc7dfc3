"""Rows of an operator at a checkpoint, without Spark: Arrow, and SQL through DuckDB.

Invariants:
- Rows are streamed: memory follows the query and a few windows of the trace, not the trace. A query
  that reads the rows more than once reads the runs more than once.
- The table of a query is called `state`; a query reads it and nothing else (see `sql`).
- Only rows that count are given. A bag's rows have their multiplicity in `__hf_weight`.
- A checkpoint that is retired while it is read is said to be, instead of half its rows given.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.arguments import instance_of, text_of
from holdfast.checkpoint.reader import StoreReader
from holdfast.checkpoint.reference import Ref, find_checkpoint
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.ids import RandomIds
from holdfast.state.cache import RunCache
from holdfast.state.manifest_io import open_trace
from holdfast.state.schema import WEIGHT
from holdfast.state.sql import database

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.format.manifest import Manifest
    from holdfast.state.reader import TraceReader
    from holdfast.state.scan import TraceScan
    from holdfast.state.sql import Database

_CACHE_BYTES = 1 << 40


def read_state(
    reader: StoreReader, operator: str, *, at: Ref = "latest", clock: Clock | None = None
) -> OperatorState:
    """The rows of an operator at any retained checkpoint, without Spark.

    Args:
        reader: The pipeline, as `holdfast.checkpoint.read_store` gives it.
        operator: Name of the operator.
        at: The checkpoint: an epoch, an id, a label, a time, `ago:2h` or `latest`.
        clock: Says what time it is, for `ago:`.

    Returns:
        The rows; nothing is read yet.

    Raises:
        NotFoundError: There is no such checkpoint, or it has no such operator, or the operator
            keeps no rows.

    Example:
        >>> from holdfast.checkpoint import read_store
        >>> from holdfast.state import read_state
        >>> totals = read_state(read_store("checkpoints", "orders"), "totals", at="latest")
        >>> totals.to_arrow().num_rows
        3
        >>> totals.sql("SELECT max(total) AS most FROM state").to_pylist()
        [{'most': 30}]
    """
    instance_of(reader, StoreReader, "reader", "what holdfast.checkpoint.read_store returned")
    summary = find_checkpoint(reader, at, (clock or SystemClock()).wall_us())
    return OperatorState(reader, reader.manifest(summary), operator)


class OperatorState:
    """An operator's rows at one checkpoint. Made by `read_state`; every call reads on its own."""

    def __init__(self, reader: StoreReader, manifest: Manifest, operator: str) -> None:
        """Check that there is such an operator and that it keeps rows."""
        entry = manifest.operator(operator)
        if entry is None:
            raise NotFoundError(
                "the checkpoint has no operator of that name",
                kind="no_operator",
                operator=operator,
                known=",".join(each.name for each in manifest.operators) or "none",
                remedy="choose one of these",
            )
        if entry.trace == "small":
            raise NotFoundError(
                "the operator keeps no rows",
                kind="no_trace",
                operator=operator,
                checkpoint=manifest.checkpoint,
                traces=",".join(o.name for o in manifest.operators if o.trace != "small") or "none",
                remedy="choose one of these",
            )
        self.operator = operator
        self.checkpoint = manifest.checkpoint
        self.epoch = int(manifest.epoch)
        self._reader, self._manifest = reader, manifest

    def __repr__(self) -> str:
        """Operator and checkpoint."""
        return f"OperatorState({self.operator!r}, epoch={self.epoch}, id={self.checkpoint!r})"

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows as one Arrow table, in no order.

        Args:
            columns: Only these columns; keys and values without it.

        Returns:
            A `pyarrow.Table`.

        Raises:
            CorruptionError: A run is damaged or missing.
        """
        with self.batches(columns) as stream:
            return stream.read_all()

    @contextmanager
    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatchReader]:
        """All rows as a stream of record batches, for state that is larger than memory.

        Args:
            columns: Only these columns; keys and values without it.

        Yields:
            A `pyarrow.RecordBatchReader` that is valid inside the `with` block.

        Raises:
            CorruptionError: A run is damaged or missing.

        Example:
            >>> from holdfast.checkpoint import read_store
            >>> from holdfast.state import read_state
            >>> totals = read_state(read_store("checkpoints", "orders"), "totals")
            >>> with totals.batches(["total"]) as stream:
            ...     sum(sum(batch.column("total").to_pylist()) for batch in stream)
            60
        """
        with self.scan() as rows:
            names = list(columns) if columns is not None else rows.shown
            yield rows.reader(names)

    def sql(self, query: str) -> pa.Table:
        """The answer of one SELECT over the table `state`, computed by DuckDB.

        Args:
            query: One statement that only reads, and only the table `state`.

        Returns:
            A `pyarrow.Table`.

        Raises:
            InvalidInputError: The query is refused, or DuckDB cannot run it or is not installed.
            CorruptionError: A run is damaged or missing.
        """
        text_of(query, "query", self.operator, "SELECT * FROM state")
        with self.scan() as rows, database() as db, rows.as_table(db):
            return db.stream(db.checked(query)).read_all()

    @contextmanager
    def scan(self) -> Iterator[ScanTable]:
        """The rows for several readers; reading begins at once, while the caller gets ready."""
        with (
            self._reader.reading(self._manifest.checkpoint),
            traces(self._reader, self.operator, self._manifest) as (trace,),
        ):
            scan = trace.scan()
            try:
                scan.start()
                yield ScanTable(scan)
            finally:
                scan.close()


@contextmanager
def traces(
    reader: StoreReader, operator: str, *manifests: Manifest
) -> Iterator[tuple[TraceReader, ...]]:
    """An operator's trace at each of these checkpoints; remote runs are fetched once."""
    with tempfile.TemporaryDirectory(prefix="holdfast-runs-") as directory:
        cache = RunCache(directory, bytes_max=_CACHE_BYTES, ids=RandomIds())
        storage = reader.directory.storage
        yield tuple(open_trace(storage, each, operator, cache=cache) for each in manifests)


class ScanTable:
    """A scan as DuckDB reads it, each time from its start; a failure inside it is remembered."""

    def __init__(self, scan: TraceScan) -> None:
        """Use `OperatorState.scan`."""
        self._scan = scan
        self._failures: list[HoldfastError] = []
        names = scan.schema.names
        self.shown: list[str] = names if names[0] == WEIGHT else names[1:]

    def reader(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        """These columns of the rows that count."""
        unknown = [name for name in columns if name not in self.shown]
        if unknown:
            raise NotFoundError(
                "the operator has no such column",
                kind="no_column",
                column=unknown[0],
                known=",".join(self.shown),
                remedy="choose one of these",
            )
        schema = pa.schema([self._scan.schema.field(name) for name in columns])
        return pa.RecordBatchReader.from_batches(schema, self._scan.batches(columns))

    def __arrow_c_schema__(self) -> object:
        """The columns."""
        return self._scan.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """One pass over the rows."""
        reader: Any = pa.RecordBatchReader.from_batches(self._scan.schema, self._watched())
        stream: object = reader.__arrow_c_stream__(requested_schema)
        return stream

    def _watched(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._scan.marked()
        except HoldfastError as error:
            self._failures.append(error)
            raise

    @contextmanager
    def as_table(self, db: Database) -> Iterator[None]:
        """Make the rows that count the table `state` of the database."""
        marker = self._scan.schema.names[0]
        bag = marker == WEIGHT
        shown, counts = ("*", f"{marker} <> 0") if bag else (f"* EXCLUDE {marker}", f"NOT {marker}")
        db.connection.register("hf_rows", self)
        view = f"SELECT {shown} FROM hf_rows WHERE {counts}"  # noqa: S608 - names of our own
        db.connection.execute(f"CREATE VIEW state AS {view}")
        try:
            yield
        except Exception:
            if self._failures:  # DuckDB wraps what the reader raised: the cause is worth more
                raise self._failures[0] from None
            raise
