"""`state`: an operator's rows at a checkpoint, through DuckDB over Arrow record batches.

Invariants:
- Rows are streamed: memory follows the query and a few windows of the trace, not the trace. A query
  that reads the rows more than once reads the runs more than once.
- The table of a query is called `state`.
- A file is written under a temporary name, and has its own only when it is whole.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.directory import enclosing_pipeline
from holdfast.cli.address import Place
from holdfast.cli.facts.sql import Database, database
from holdfast.cli.values import Column, OperatorList, StateRows
from holdfast.errors import HoldfastError, InvalidInputError, NotFoundError
from holdfast.format.documents import Summary
from holdfast.format.manifest import Manifest
from holdfast.ids import RandomIds

if TYPE_CHECKING:
    from holdfast.state import TraceScan

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".arrow": "arrow"}
_CACHE_BYTES = 1 << 40


def operator_list(place: Place, summary: Summary) -> OperatorList:
    """What could be asked for."""
    from holdfast.cli.facts.listing import operator_views

    manifest = place.reader.manifest(summary)
    return OperatorList(
        root=place.root, pipeline=place.pipeline, checkpoint=summary.checkpoint,
        epoch=summary.epoch, operators=operator_views(manifest),
    )  # fmt: skip


def query_state(
    place: Place,
    summary: Summary,
    operator: str,
    *,
    where: str | None = None,
    sql: str | None = None,
    to: str | None = None,
    force: bool = False,
    limit: int | None = 20,
) -> StateRows:
    """Rows of an operator, filtered or queried, shown or written to a file."""
    manifest = place.reader.manifest(summary)
    entry = manifest.operator(operator)
    if entry is None:
        raise _no_operator(manifest, operator)
    kind = file_format(to, force=force)
    if entry.trace == "small":
        return _small(place, summary, manifest, operator)
    if sql is not None and where is not None:
        raise InvalidInputError(
            "--where and --sql cannot be given together", kind="two_queries",
            remedy="put the condition into the query",
        )  # fmt: skip
    with (
        place.reader.reading(summary.checkpoint),
        rows_of(place, manifest, operator) as found,  # first: it reads while DuckDB is loaded
        database(to) as db,
        found.as_table(db),
    ):
        query = _query(db, where, sql)
        columns: list[Column] = []
        rows: list[list[Any]] = []
        more, written = False, None
        if to is None:
            columns, rows, more = db.fetch(query, limit)
        else:
            written = db.write(query, to, kind)
    return StateRows(
        root=place.root,
        pipeline=place.pipeline,
        operator=operator,
        checkpoint=summary.checkpoint,
        epoch=summary.epoch,
        columns=columns,
        rows=rows,
        more=more,
        written=to,
        rows_written=written,
    )


def _no_operator(manifest: Manifest, operator: str) -> NotFoundError:
    return NotFoundError(
        "the checkpoint has no operator of that name",
        kind="no_operator",
        operator=operator,
        known=",".join(entry.name for entry in manifest.operators) or "none",
        remedy="choose one of these",
    )


def _query(db: Database, where: str | None, sql: str | None) -> str:
    if sql is not None:
        return db.checked(sql)
    return "SELECT * FROM state" if where is None else db.condition(where)


def file_format(to: str | None, *, force: bool) -> str:
    """The kind of file that a name asks for; a place that may not be written to is refused."""
    if to is None:
        return ""
    kind = _FORMATS.get(os.path.splitext(to)[1].lower())
    if kind is None:
        raise InvalidInputError(
            "unknown kind of file", kind="unknown_format", file=to,
            remedy="end the name with .parquet, .csv or .arrow",
        )  # fmt: skip
    inside = enclosing_pipeline(to)
    if inside is not None:
        raise InvalidInputError(
            "the file would lie inside the store",
            kind="inside_store",
            file=to,
            pipeline=inside,
            remedy="choose another place",
        )
    if os.path.exists(to) and not force:
        raise InvalidInputError(
            "the file exists already", kind="file_exists", file=to,
            remedy="choose another name, or give --force",
        )  # fmt: skip
    if not os.path.isdir(os.path.dirname(os.path.abspath(to))):
        raise InvalidInputError("the directory does not exist", kind="no_directory", file=to)
    return kind


def _small(place: Place, summary: Summary, manifest: Manifest, operator: str) -> StateRows:
    """Small state is one value: its bytes, read as MessagePack where they are that."""
    import msgspec

    data = place.reader.small_state(manifest, operator)
    try:
        value: Any = msgspec.msgpack.decode(data)
        if isinstance(value, list) and len(value) == 3 and isinstance(value[2], (bytes, dict)):
            value = value[2] if isinstance(value[2], dict) else msgspec.msgpack.decode(value[2])
    except msgspec.MsgspecError:
        value = data.hex()
    fields = value if isinstance(value, dict) else {"state": value}
    return StateRows(
        root=place.root, pipeline=place.pipeline, operator=operator,
        checkpoint=summary.checkpoint, epoch=summary.epoch,
        columns=[Column(name=str(name), type=type(v).__name__) for name, v in fields.items()],
        rows=[[*fields.values()]], more=False, written=None, rows_written=None,
    )  # fmt: skip


# Rows


@contextmanager
def rows_of(place: Place, manifest: Manifest, operator: str) -> Iterator[Rows]:
    """The operator's rows; reading begins at once, beside what the caller does next."""
    from holdfast.state import RunCache, open_trace

    with tempfile.TemporaryDirectory(prefix="holdfast-runs-") as directory:
        cache = RunCache(directory, bytes_max=_CACHE_BYTES, ids=RandomIds())
        scan = open_trace(place.storage, manifest, operator, cache=cache).scan()
        try:
            scan.start()
            yield Rows(scan)
        finally:
            scan.close()


class Rows:
    """A scan as DuckDB reads it, each time anew; what goes wrong in it is remembered."""

    def __init__(self, scan: TraceScan) -> None:
        """Use `rows_of`."""
        self._scan = scan
        self._failures: list[HoldfastError] = []

    def __arrow_c_schema__(self) -> object:
        """The columns."""
        return self._scan.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """One pass over the rows."""
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self._scan.schema, self._watched())
        return reader.__arrow_c_stream__(requested_schema)

    def _watched(self) -> Iterator[Any]:
        try:
            yield from self._scan.marked()
        except HoldfastError as error:
            self._failures.append(error)
            raise

    @contextmanager
    def as_table(self, db: Database) -> Iterator[None]:
        """Make the rows that count the table `state` of the database."""
        marker = self._scan.schema.names[0]
        bag = marker == "__hf_weight"
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
