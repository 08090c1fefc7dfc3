"""`ls`, `show`, `verify`, `recover`: verbs that only read."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from holdfast.cli.address import Place, find_place, open_root, parse_options
from holdfast.cli.output import emit, progress, verb
from holdfast.cli.verbs.common import (
    ClientOption,
    JsonOption,
    PipelineOption,
    RefArgument,
    StoreArgument,
    example,
)
from holdfast.clock import SystemClock
from holdfast.errors import InvalidInputError

_LIMIT = 50


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    app.command(epilog=example("holdfast ls checkpoints/orders"))(ls)
    app.command(epilog=example("holdfast show checkpoints/orders latest"))(show)
    app.command(epilog=example("holdfast verify --deep s3://bucket/checkpoints"))(verify)
    app.command(epilog=example("holdfast recover --plan checkpoints/orders"))(recover)


@verb
def ls(
    store: StoreArgument,
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="PIPELINE", help="Pipeline of a root.", show_default=False),
    ] = None,
    *,
    limit: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--limit", "-n", min=0, metavar="N", show_default=False,
                     help="Newest N only; 0 is all. Tables show 50, JSON all."),
    ] = None,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:  # fmt: skip
    """List checkpoints, newest first; or the pipelines of a root.

    `new` is what the checkpoint wrote, `own` what deleting it would free. A label with a star is
    a savepoint. Exit 1 when something is damaged. Health is by presence and size of the files:
    only `verify --deep` reads every byte.
    """
    from holdfast.cli.facts.listing import list_checkpoints, list_root
    from holdfast.cli.views import inspect as views

    given = name or pipeline
    try:
        place = find_place(store, given, parse_options(option))
    except InvalidInputError as error:
        if error.kind != "several_pipelines":
            raise
        roots = list_root(open_root(store, parse_options(option)), store)
        emit(roots, views.pipelines, as_json=as_json)
        raise typer.Exit(int(any(row.problem for row in roots.pipelines))) from error
    if limit is None and not as_json:
        limit = _LIMIT
    value = list_checkpoints(place, SystemClock().wall_us(), limit or None)
    emit(value, views.listing, as_json=as_json)
    bad = any(row.health != "ok" for row in value.checkpoints) or value.findings
    raise typer.Exit(int(bool(bad)))


@verb
def show(
    store: StoreArgument,
    ref: RefArgument = "latest",
    *,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:
    """Show one checkpoint: positions, watermarks, operators, sinks, lineage, fingerprint."""
    from holdfast.cli.facts.listing import show_checkpoint
    from holdfast.cli.views import inspect as views

    place, now_us = find_place(store, pipeline, parse_options(option)), SystemClock().wall_us()
    value = show_checkpoint(place, _summary(place, ref, now_us), now_us)
    emit(value, views.checkpoint, as_json=as_json)
    raise typer.Exit(int(any(finding.severity == "error" for finding in value.findings)))


@verb
def verify(
    store: StoreArgument,
    *,
    deep: Annotated[bool, typer.Option("--deep", help="Hash every byte of every file.")] = False,
    at: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--at", metavar="REF", help="Only this checkpoint.", show_default=False),
    ] = None,
    threads: Annotated[
        int, typer.Option("--threads", min=1, max=64, metavar="N", help="Files hashed at once.")
    ] = 2,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:
    """Check that every file is there and whole. Exit 1 when something is damaged."""
    from holdfast.cli.facts.checking import verify_place
    from holdfast.cli.views import inspect as views

    place = find_place(store, pipeline, parse_options(option))
    only = None if at is None else _summary(place, at, SystemClock().wall_us())
    with progress("verify", quiet=as_json) as bar:
        value = verify_place(place, deep=deep, only=only, progress=bar, threads=threads)
    emit(value, views.verification, as_json=as_json)
    raise typer.Exit(int(not value.ok))


@verb
def recover(
    store: StoreArgument,
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be chosen.")] = False,
    to: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--to", metavar="REF", help="As if this one were asked for.",
                     show_default=False),
    ] = None,
    accept_duplicates: Annotated[
        bool, typer.Option("--accept-duplicates", help="As if duplicates were accepted.")
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="As if a lost sink token were accepted.")
    ] = False,
    check: Annotated[
        str, typer.Option("--verify", metavar="HOW", help="auto, shallow or deep.")
    ] = "auto",
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:  # fmt: skip
    """Show which checkpoint the pipeline would resume from, and why not the others.

    Nothing is changed: recovery itself happens when the pipeline starts. Exit 1 when a checkpoint
    is damaged or recovery would be refused.
    """
    from holdfast.cli.facts.checking import plan_place
    from holdfast.cli.views import inspect as views

    if not plan:
        raise InvalidInputError(
            "recovery happens when the pipeline starts; this command only shows the plan",
            kind="plan_only",
            remedy="give --plan, or use `holdfast restore` to go back to a checkpoint",
        )
    place = find_place(store, pipeline, parse_options(option))
    place.reader.header()
    wanted = None if to is None else _summary(place, to, SystemClock().wall_us()).checkpoint
    value, made = plan_place(
        place, resume=wanted, accept_duplicates=accept_duplicates, accept_loss=accept_loss,
        verify=check,
    )  # fmt: skip
    emit(value, views.recovery, as_json=as_json)
    raise typer.Exit(int(made.refusal is not None or made.damaged))


def _summary(place: Place, ref: str, now_us: int):  # type: ignore[no-untyped-def] # noqa: ANN202
    from holdfast.checkpoint.reference import find_checkpoint

    place.reader.header()
    return find_checkpoint(place.reader, ref, now_us)
