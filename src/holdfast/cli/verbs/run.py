"""`run`: start a pipeline. The only verb that may import pyspark."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from holdfast.cli.machine import Run
from holdfast.cli.output import emit, verb
from holdfast.cli.text import Line, line
from holdfast.cli.verbs.common import JsonOption, example
from holdfast.errors import HoldfastError, InvalidInputError

if TYPE_CHECKING:
    from holdfast.runtime.report import RunSummary

_Number = Optional[int]  # noqa: UP045 - typer reads the annotation at run time

_File = Annotated[
    str, typer.Argument(metavar="FILE", help="Python file with a pipeline.", show_default=False)
]
_Forever = Annotated[bool, typer.Option("--forever", help="Wait for more when drained.")]
_Epochs = Annotated[
    _Number, typer.Option("--epochs", min=1, metavar="N", help="Stop after so many.")
]
_Resume = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--resume", metavar="REF", help="Go back to this checkpoint first."),
]
_AcceptDuplicates = Annotated[
    bool, typer.Option("--accept-duplicates", help="Let a sink publish epochs twice.")
]
_AllowChanges = Annotated[
    bool,
    typer.Option("--allow-changes", help="The pipeline may differ from the one of the store."),
]
_Takeover = Annotated[bool, typer.Option("--takeover", help="Fence another live writer.")]
_Label = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--label", metavar="NAME", help="A label for the checkpoints of this run."),
]
_Properties = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--property", metavar="KEY=VALUE", help="A note on the checkpoints; repeat."),
]
_Outputs = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--output",
        metavar="SINK=WISH",
        help="adopt, keep or empty an output that is not simply continued.",
    ),
]
_SetAside = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set-aside",
        metavar="SINK",
        help="Move epochs that this sink cannot publish to quarantine.",
    ),
]
_Redrive = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--redrive", metavar="SINK", help="Publish what was set aside."),
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would become of the outputs.")
]
_Master = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--master", metavar="URL", help="Spark's master, or sc:// for Connect."),
]
_Partitions = Annotated[
    _Number, typer.Option("--partitions", metavar="N", help="How many tasks share the state.")
]
_MetricsPort = Annotated[
    _Number,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        metavar="PORT",
        help="Serve Prometheus metrics on loopback.",
    ),
]
_Plain = Annotated[bool, typer.Option("--plain", help="One line an epoch.")]
_LogJson = Annotated[bool, typer.Option("--log-json", help="Structured logs on standard error.")]


def register(app: typer.Typer) -> None:
    """Add the verb of this file."""
    app.command(
        epilog=example("holdfast run pipelines/orders.py", "holdfast run --forever orders.py")
    )(run)


@verb
def run(
    file: _File,
    *,
    forever: _Forever = False,
    epochs: _Epochs = None,
    resume: _Resume = None,
    accept_duplicates: _AcceptDuplicates = False,
    allow_changes: _AllowChanges = False,
    takeover: _Takeover = False,
    label: _Label = None,
    properties: _Properties = None,
    outputs: _Outputs = None,
    set_aside: _SetAside = None,
    redrive: _Redrive = None,
    dry_run: _DryRun = False,
    master: _Master = None,
    partitions: _Partitions = None,
    metrics_port: _MetricsPort = None,
    plain: _Plain = False,
    log_json: _LogJson = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Run a pipeline until its sources are drained, with a live table of epochs.

    FILE declares one Pipeline and does not run it. Options may stand before or after FILE.
    """
    try:
        run_command = import_module("holdfast.runtime.run_command").run_command
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(
            "running pipelines needs Spark",
            kind="missing_extra",
            missing=error.name or None,
            remedy="pip install 'holdfast-spark[spark]', and see `holdfast doctor` for Java",
        ) from error
    summary = run_command(
        file, forever=forever, epochs=epochs, resume=resume, accept_duplicates=accept_duplicates,
        allow_changes=allow_changes, takeover=takeover, label=label, properties=properties or (),
        outputs=outputs or (), set_aside=set_aside or (), redrive=redrive or (), dry_run=dry_run,
        master=master, partitions=partitions, metrics_port=metrics_port, plain=plain,
        quiet=as_json, log_json=log_json,
    )  # fmt: skip
    emit(_value(summary), _lines, as_json=as_json)


def _value(summary: RunSummary | None) -> Run:
    if summary is None:
        raise HoldfastError("abandoned: the last checkpoint is as it was", kind="interrupted")
    return Run(
        epochs=summary.epochs,
        rows=summary.rows,
        changes=summary.changes,
        late=summary.late,
        resumed_from=summary.resumed_from,
        last_epoch=summary.last_epoch,
        seconds=round(summary.milliseconds / 1_000, 3),
        notes=[*summary.notes],
    )


def _lines(value: Run) -> Iterable[Line]:
    resumed = "" if value.resumed_from is None else f", resumed after epoch {value.resumed_from}"
    yield line(
        f"{value.epochs} epochs, {value.rows} rows, {value.changes} changes, {value.late} late, "
        f"{value.seconds:.1f} s{resumed}"
    )
    yield from (line(f"note: {note}") for note in value.notes)
