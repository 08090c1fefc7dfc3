"""`doctor`: is this machine, and this store, fit for Holdfast?"""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from holdfast.cli.address import parse_options
from holdfast.cli.output import emit, verb
from holdfast.cli.verbs.common import ClientOption, JsonOption, example


def register(app: typer.Typer) -> None:
    """Add the verb of this file."""
    app.command(epilog=example("holdfast doctor s3://bucket/checkpoints"))(doctor)


@verb
def doctor(
    store: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="STORE", show_default=False,
                       help="Also try this root: writes, syncs and removes small files there."),
    ] = None,
    *,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:  # fmt: skip
    """Check Java, Spark, packages and, with a STORE, disk or object store and permissions.

    Exit 1 when something that is needed is missing or does not work.
    """
    from holdfast.cli.facts.doctor import diagnose
    from holdfast.cli.views import state as views

    value = diagnose(store, parse_options(option))
    emit(value, views.diagnosis, as_json=as_json)
    raise typer.Exit(int(not value.ok))
