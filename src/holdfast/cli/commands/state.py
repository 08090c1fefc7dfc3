"""Show or query the rows of an operator at any checkpoint, or write them to a file.

Invariant: a file is written under a temporary name, and gets its own only when it is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.checkpoint.directory import enclosing_pipeline
from holdfast.cli.app import argument, command, flag, option
from holdfast.cli.output import Value, emit
from holdfast.cli.parts import OperatorView, operator_views, operators
from holdfast.cli.render import DIM, Col, Line, line, plural, table, width, wrapped
from holdfast.cli.targets import (
    REF,
    Place,
    find_place,
    named,
    parse_options,
    store_argument,
    store_options,
)
from holdfast.errors import InvalidInputError
from holdfast.format.documents import Summary
from holdfast.format.manifest import Manifest

if TYPE_CHECKING:
    from holdfast.state.sql import Database

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".arrow": "arrow"}
_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "HUGEINT")

limit_option = option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    metavar="N",
    help="Rows to show; 0 is all.",
)


class Column(Value, frozen=True, kw_only=True):
    """A column of a result."""

    name: str
    type: str


class StateRows(Value, frozen=True, kw_only=True, tag="holdfast.state/1", tag_field="schema"):
    """`holdfast state STORE OPERATOR`."""

    root: str
    pipeline: str
    operator: str
    checkpoint: str
    epoch: int
    columns: list[Column]
    rows: list[list[Any]]
    more: bool
    written: str | None
    rows_written: int | None


class OperatorList(
    Value, frozen=True, kw_only=True, tag="holdfast.operators/1", tag_field="schema"
):
    """`holdfast state STORE`."""

    root: str
    pipeline: str
    checkpoint: str
    epoch: int
    operators: list[OperatorView]


# How it is built


def operator_list(place: Place, summary: Summary) -> OperatorList:
    """What could be asked for."""
    manifest = place.reader.manifest(summary)
    return OperatorList(
        root=place.root,
        pipeline=place.pipeline,
        checkpoint=summary.checkpoint,
        epoch=summary.epoch,
        operators=operator_views(manifest),
    )


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
    kind = file_format(to, force=force) if entry is not None else ""
    if entry is not None and entry.trace == "small":
        return _small(place, summary, manifest, operator)
    from holdfast.state.query import OperatorState
    from holdfast.state.sql import database

    state = OperatorState(place.reader, manifest, operator)
    if sql is not None and where is not None:
        raise InvalidInputError(
            "--where and --sql cannot be given together",
            kind="two_queries",
            remedy="put the condition into the query",
        )
    columns: list[tuple[str, str]] = []
    rows: list[list[Any]] = []
    more, written = False, None
    with state.scan() as scan, database(to) as db, scan.as_table(db):
        query = _query(db, where, sql)
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
        columns=[Column(name=name, type=type_) for name, type_ in columns],
        rows=rows,
        more=more,
        written=to,
        rows_written=written,
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
            "unknown kind of file",
            kind="unknown_format",
            file=to,
            remedy="end the name with .parquet, .csv or .arrow",
        )
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
            "the file exists already",
            kind="file_exists",
            file=to,
            remedy="choose another name, or give --force",
        )
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
        root=place.root,
        pipeline=place.pipeline,
        operator=operator,
        checkpoint=summary.checkpoint,
        epoch=summary.epoch,
        columns=[Column(name=str(name), type=type(v).__name__) for name, v in fields.items()],
        rows=[[*fields.values()]],
        more=False,
        written=None,
        rows_written=None,
    )


# How it is shown


def cell(value: Any) -> str:
    """A value of a row."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def operator_lines(value: OperatorList) -> Iterator[Line]:
    """Which operators there are."""
    yield line(f"pipeline {value.pipeline}, epoch {value.epoch} {value.checkpoint}")
    yield from operators(value.operators)


def row_lines(value: StateRows) -> Iterator[Line]:
    """Rows of an operator, or of a query over them."""
    if value.written is not None:
        yield from wrapped(f"wrote {plural(value.rows_written or 0, 'row')} to {value.written}")
        return
    yield from _grid(value)
    if value.more:
        yield [("more rows: --limit 0 shows all, --to FILE writes them", DIM)]


def _grid(value: StateRows) -> Iterator[Line]:
    columns = [
        Col(column.name, cut=True, least=4, right=any(word in column.type for word in _NUMBERS))
        for column in value.columns
    ]
    room = width()
    fit = max(1, (room + 1) // 5)
    if len(columns) > fit:  # more columns than can be told apart: one line for each value
        for number, row in enumerate(value.rows):
            yield [(f"row {number}", "bold")]
            for column, item in zip(value.columns, row, strict=True):
                yield from wrapped(f"{column.name}: {cell(item)}", indent="  ")
        return
    yield from table(columns, [[cell(item) for item in row] for row in value.rows], room)


@command(
    "holdfast state checkpoints/orders totals --where 'total > 100'",
    "holdfast state checkpoints/orders totals --at before-upgrade \\",
    "  --sql 'SELECT count(*), sum(total) FROM state' --json",
)
@store_argument
@argument("operator", "OPERATOR", "Operator; without one, all of them are listed.", required=False)
@option("--at", metavar="REF", default="latest", help=REF)
@option("--where", metavar="SQL", help="Only rows that meet this condition.")
@option("--sql", metavar="SQL", help="Query over the table `state` (DuckDB).")
@option("--to", metavar="FILE", help="Write to .parquet, .csv or .arrow.")
@flag("--force", help="Replace the file.")
@limit_option
@store_options
def state(
    *,
    store: str,
    operator: str | None,
    at: str,
    where: str | None,
    sql: str | None,
    to: str | None,
    force: bool,
    limit: int,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> None:
    """Show or query the rows of an operator at any checkpoint, or write them to a file.

    A bag's rows have their multiplicity in the column __hf_weight. In Python:
    `holdfast.state.read_state`.
    """
    place = find_place(store, pipeline, parse_options(option))
    summary = named(place, at)
    if operator is None:
        emit(operator_list(place, summary), operator_lines, as_json=as_json)
        return
    value = query_state(
        place, summary, operator, where=where, sql=sql, to=to, force=force, limit=limit or None
    )
    emit(value, row_lines, as_json=as_json)
