"""`state` and `diff`: what operators know, and how it changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from holdfast.cli.address import find_place, parse_options
from holdfast.cli.output import emit, verb
from holdfast.cli.verbs.common import (
    ClientOption,
    JsonOption,
    PipelineOption,
    StoreArgument,
    example,
    named,
)

if TYPE_CHECKING:
    from holdfast.cli.text import Line
    from holdfast.cli.values import OperatorList, StateRows

LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=0, metavar="N", help="Rows to show; 0 is all.")
]


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    app.command(
        epilog=example(
            "holdfast state checkpoints/orders totals --where 'total > 100'",
            "holdfast state checkpoints/orders totals --at before-upgrade \\",
            "  --sql 'SELECT count(*), sum(total) FROM state' --json",
        )
    )(state)
    app.command(
        epilog=example("holdfast diff checkpoints/orders epoch:17 latest --operator totals")
    )(diff)


@verb
def state(
    store: StoreArgument,
    operator: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="OPERATOR", show_default=False,
                       help="Operator; without one, all of them are listed."),
    ] = None,
    *,
    at: Annotated[
        str, typer.Option("--at", metavar="REF", help="Checkpoint: id, label, epoch, time.")
    ] = "latest",
    where: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--where", metavar="SQL", help="Only rows that meet this condition.",
                     show_default=False),
    ] = None,
    sql: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--sql", metavar="SQL", help="Query over the table `state` (DuckDB).",
                     show_default=False),
    ] = None,
    to: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--to", metavar="FILE", help="Write to .parquet, .csv or .arrow.",
                     show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    limit: LimitOption = 20,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:  # fmt: skip
    """Show or query the rows of an operator at any checkpoint, or write them to a file.

    A bag's rows have their multiplicity in the column __hf_weight.
    """
    from holdfast.cli.facts import state as facts

    place = find_place(store, pipeline, parse_options(option))
    summary = named(place, at)
    if operator is None:
        emit(facts.operator_list(place, summary), _operators, as_json=as_json)
        return
    value = facts.query_state(
        place, summary, operator, where=where, sql=sql, to=to, force=force, limit=limit or None
    )
    emit(value, _rows, as_json=as_json)


def _operators(value: OperatorList) -> Iterable[Line]:
    from holdfast.cli.views import state as views  # not loaded for a JSON document

    return views.operator_list(value)


def _rows(value: StateRows) -> Iterable[Line]:
    from holdfast.cli.views import state as views

    return views.rows(value)


@verb
def diff(
    store: StoreArgument,
    before: Annotated[
        str, typer.Argument(metavar="A", help="The earlier checkpoint.", show_default=False)
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The later one.")] = "latest",
    *,
    operator: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--operator", metavar="NAME", show_default=False,
                     help="Compare the rows of this operator."),
    ] = None,
    to: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--to", metavar="FILE", show_default=False,
                     help="Write the changed rows to .parquet, .csv or .arrow."),
    ] = None,
    limit: LimitOption = 20,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:  # fmt: skip
    """Compare two checkpoints: positions, operators and, for one operator, row by row."""
    from holdfast.cli.facts.diff import diff_places
    from holdfast.cli.views import state as views

    place = find_place(store, pipeline, parse_options(option))
    value = diff_places(
        place, named(place, before), named(place, after), operator=operator, limit=limit or None,
        to=to,
    )  # fmt: skip
    emit(value, views.difference, as_json=as_json)
