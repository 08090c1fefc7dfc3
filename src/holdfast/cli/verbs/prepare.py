"""`prepare`: let pipelines on this machine start sooner."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.output import emit, verb
from holdfast.cli.verbs.common import JsonOption, example


def register(app: typer.Typer) -> None:
    """Add the verb of this file."""
    app.command(epilog=example("holdfast prepare", "holdfast prepare --remove"))(prepare)


@verb
def prepare(
    *,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete what earlier calls have stored.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Keep Spark's classes ready, so that pipelines on this machine start sooner.

    Runs a small pipeline for about a minute and stores what its JVM loaded, about 190 MB, in the
    user's cache directory or in HOLDFAST_CACHE. Another Java or Spark is not affected by it, and
    needs its own call. Pipelines give the same results without.
    """
    from holdfast.cli.facts.preparing import prepared, removed
    from holdfast.cli.views import state as views

    emit(removed() if remove else prepared(), views.preparation, as_json=as_json)
