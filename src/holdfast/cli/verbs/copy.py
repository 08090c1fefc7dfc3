"""`fork` and `sync`: pipelines from pipelines."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from holdfast.cli.address import (
    find_place,
    open_root,
    parse_options,
    pipelines_of,
    split_address,
)
from holdfast.cli.output import emit, progress, verb
from holdfast.cli.verbs.common import (
    ClientOption,
    JsonOption,
    PipelineOption,
    RefArgument,
    StoreArgument,
    example,
    named,
)
from holdfast.clock import SystemClock
from holdfast.errors import InvalidInputError


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    app.command(epilog=example("holdfast fork checkpoints/orders before-upgrade orders-test"))(fork)
    app.command(epilog=example("holdfast sync checkpoints s3://bucket/checkpoints"))(sync)


@verb
def fork(
    store: StoreArgument,
    ref: RefArgument,
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="Name of the new pipeline.", show_default=False)
    ],
    *,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:
    """Begin a new pipeline at any checkpoint of another one, in the same root, without copying."""
    from holdfast.cli.facts.keeping import fork_place
    from holdfast.cli.views import keep as views

    place = find_place(store, pipeline, parse_options(option))
    value = fork_place(place, named(place, ref), new, SystemClock())
    emit(value, views.fork, as_json=as_json)


@verb
def sync(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", show_default=False,
                       help="ROOT or ROOT/PIPELINE to copy from; a root brings all pipelines."),
    ],
    target: Annotated[
        str, typer.Argument(metavar="DST", help="Root to copy to.", show_default=False)
    ],
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Hash again what an earlier sync has verified.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove savepoints that only DST has.")
    ] = False,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
    target_option: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--to-option", metavar="KEY=VALUE", show_default=False,
                     help="Option of DST's client; --option is for SRC's, or for both."),
    ] = None,
) -> None:  # fmt: skip
    """Make DST a replica of SRC: disk to object store, back, or any other pair.

    Copies only what is missing and verifies it on arrival. Can be interrupted at any moment and
    run again; DST is a valid store all the time. A DST that was written to by itself is refused.
    """
    from holdfast.cli.address import is_object
    from holdfast.cli.facts.keeping import sync_places
    from holdfast.cli.views import keep as views

    options = parse_options(option)
    there = parse_options(target_option) or (options if is_object(target) else {})
    here = options if is_object(source) else {}
    root, names = _pipelines(source, pipeline, here)
    if len(names) == 1 and split_address(target)[1] == names[0] and _is_home(target, there):
        target = split_address(target)[0]
    destination = open_root(target, there, create=True)
    with progress("sync", quiet=as_json) as bar:
        value = sync_places(root, destination, names, deep=deep, prune=prune, progress=bar)
    emit(value, views.sync, as_json=as_json)


def _pipelines(source: str, pipeline: str | None, options: dict[str, object]):  # type: ignore[no-untyped-def] # noqa: ANN202
    """The source's root, and which of its pipelines are meant."""
    try:
        place = find_place(source, pipeline, options)
    except InvalidInputError as error:
        if error.kind != "several_pipelines":
            raise
        root = open_root(source, options)
        return root, pipelines_of(root)
    place.reader.header()
    return place.storage, [place.pipeline]


def _is_home(target: str, options: dict[str, object]) -> bool:
    """Whether DST was written as ROOT/PIPELINE of a pipeline that is there already."""
    from holdfast.errors import HoldfastError

    try:
        place = find_place(target, None, options)
        return place.root == split_address(target)[0]
    except HoldfastError:
        return False
