"""Arguments and options that many verbs share."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from holdfast.cli.address import Place
from holdfast.clock import SystemClock
from holdfast.format.documents import Summary

StoreArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help="Root of the store or ROOT/PIPELINE: a path, s3://, gs:// or az://.",
        show_default=False,
    ),
]
PipelineOption = Annotated[
    Optional[str],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option(
        "--pipeline", "-p", metavar="NAME", help="Pipeline, where the root has several.",
        show_default=False,
    ),
]  # fmt: skip
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
ClientOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--option", metavar="KEY=VALUE", show_default=False,
        help="Option of the object store's client; beside AWS_*, GOOGLE_* and AZURE_*.",
    ),
]  # fmt: skip
RefArgument = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        help="Checkpoint: id, start of one, label, epoch, time (2026-11-15T21:30, ago:2h), latest.",
    ),
]
TakeoverOption = Annotated[
    bool, typer.Option("--takeover", help="Fence a pipeline that is running.")
]


def example(*lines: str) -> str:
    """The epilog of a verb: how it is called."""
    return "\b\nExample:\n" + "\n".join(f"  {each}" for each in lines)


def named(place: Place, ref: str) -> Summary:
    """The checkpoint that a user names."""
    from holdfast.checkpoint.reference import find_checkpoint

    place.reader.header()
    return find_checkpoint(place.reader, ref, SystemClock().wall_us())
