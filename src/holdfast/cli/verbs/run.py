"""`run`: start a pipeline. The only verb that may import pyspark."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Optional

import typer

from holdfast.cli.output import verb
from holdfast.cli.verbs.common import example
from holdfast.errors import InvalidInputError


def register(app: typer.Typer) -> None:
    """Add the verb of this file."""
    app.command(
        epilog=example("holdfast run pipelines/orders.py"),
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(run)


@verb
def run(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Python file with a pipeline.", show_default=False)
    ],
    arguments: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="ARGS", help="For the pipeline.", show_default=False),
    ] = None,
) -> None:
    """Run a pipeline until its sources are drained, with a live table of epochs.

    After FILE: --forever, --epochs N, --resume REF, --accept-duplicates, --allow-changes,
    --takeover, --master URL, --partitions N, --metrics-port PORT, --plain, --log-json. FILE
    declares one Pipeline.
    """
    try:
        run_command = import_module("holdfast.pipeline").run_command
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(
            "running pipelines needs Spark",
            kind="missing_extra",
            missing=error.name or None,
            remedy="pip install 'holdfast[spark]', and see `holdfast doctor` for Java",
        ) from error
    raise typer.Exit(int(run_command(file, arguments or []) or 0))
