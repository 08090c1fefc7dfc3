"""`holdfast guard …`: savepoints from the command line. Exit 0 good, 1 problem found, 2 usage."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, ParamSpec, TypeVar

import msgspec
import typer

from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.guard import keeping
from holdfast.guard.restoring import Restored, clone, restore
from holdfast.guard.savepoint import save
from holdfast.guard.verifying import verify

guard_app = typer.Typer(
    name="guard", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Savepoints for plain Spark Structured Streaming queries.",
)  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")
Location = Annotated[str, typer.Argument(help="The query's checkpoint location.")]
StoreRoot = Annotated[str, typer.Argument(help="Where savepoints are kept: path or address.")]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="Name in the store; derived from the location if absent."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document.")]
SinkOption = Annotated[
    str | None, typer.Option("--sink", help="Output directory of a file sink (_spark_metadata).")
]
ToOption = Annotated[str, typer.Option("--to", help="latest, a label, a batch or a checkpoint id.")]


def _guarded(verb: Callable[P, R]) -> Callable[P, R]:
    """Errors of Holdfast become one line and an exit code."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return verb(*args, **kwargs)
        except InvalidInputError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error
        except HoldfastError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error

    return run


def _json(value: object) -> None:
    typer.echo(msgspec.json.encode(value, enc_hook=_plain).decode())


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _rows(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    text = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in text) for column in range(len(head))]
    for row in text:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


@guard_app.command("save")
@_guarded
def save_command(
    location: Location,
    store: StoreRoot,
    label: Annotated[str | None, typer.Option("--label", help="Pin it under this label.")] = None,
    name: NameOption = None,
    sink: SinkOption = None,
    note: Annotated[str, typer.Option("--note", help="Kept with the pin.")] = "",
    json: JsonOption = False,  # noqa: FBT002 - an option, not a parameter
) -> None:
    """Save the last committed batch, while the query runs or after it."""
    done = save(location, store, label, name=name, sink=sink, note=note)
    if json:
        _json(done)
        return
    how = "unchanged since" if done.reused else "saved as"
    typer.echo(
        f"batch {done.batch} {how} {done.checkpoint} ({done.label}): {done.files} files, "
        f"{done.bytes} bytes, {done.new_bytes} copied, {done.tries} tries, {done.millis} ms"
    )


@guard_app.command("ls")
@_guarded
def ls_command(
    location: Location,
    store: StoreRoot,
    name: NameOption = None,
    json: JsonOption = False,  # noqa: FBT002 - an option, not a parameter
) -> None:
    """Savepoints, newest first."""
    found = keeping.ls(location, store, name=name)
    if json:
        _json(found)
    else:
        _rows(
            ["batch", "label", "pinned", "time (UTC)", "layout", "bytes", "new", "checkpoint", ""],
            [
                [s.batch, s.label, ",".join(s.pins), _time(s.created_us), s.layout, s.bytes,
                 s.bytes_new, s.checkpoint, s.damage or ("abandoned" if s.abandoned else "")]
                for s in found
            ],
        )  # fmt: skip
    if any(entry.damage for entry in found):
        raise typer.Exit(1)


@guard_app.command("show")
@_guarded
def show_command(
    location: Location,
    store: StoreRoot,
    ref: Annotated[str, typer.Argument(help="latest, label, batch or id.")] = "latest",
    name: NameOption = None,
    json: JsonOption = False,  # noqa: FBT002 - an option, not a parameter
) -> None:
    """Offsets by source, watermark, and state by operator."""
    shown = keeping.show(location, store, ref, name=name)
    if json:
        _json(shown)
        return
    for key, value in dataclasses.asdict(shown).items():
        if key not in ("sources", "state"):
            typer.echo(f"{key.ljust(18)} {_time(value) if key == 'created_us' else value}")
    for source in shown.sources:
        typer.echo(f"source {source['name']}: {source['offset']}")
    _rows(
        ["operator", "name", "store", "partitions", "bytes", "keys", ""],
        [
            [s.operator, s.name, s.store, s.partitions, s.bytes,
             "?" if s.keys is None else s.keys, s.reason]
            for s in shown.state
        ],
    )  # fmt: skip


@guard_app.command("verify")
@_guarded
def verify_command(
    location: Location,
    store: Annotated[str | None, typer.Argument(help="Also against the last savepoint.")] = None,
    name: NameOption = None,
    shallow: Annotated[bool, typer.Option("--shallow", help="Do not hash savepoints.")] = False,  # noqa: FBT002
    json: JsonOption = False,  # noqa: FBT002 - an option, not a parameter
) -> None:
    """Is the checkpoint what the query left, and are its savepoints what was saved?"""
    report = verify(location, store, name=name, deep=not shallow)
    if json:
        _json({**dataclasses.asdict(report), "ok": report.ok})
    else:
        for finding in report.findings:
            typer.echo(str(finding))
        typer.echo(
            f"{'good' if report.ok else 'DAMAGED'}: batch {report.batch}, last savepoint "
            f"{report.savepoint}, {report.files} files, {report.covered} covered by a checksum, "
            f"{report.bytes} bytes"
        )
    if not report.ok:
        raise typer.Exit(1)


@guard_app.command("restore")
@_guarded
def restore_command(
    location: Location,
    store: StoreRoot,
    to: ToOption = "latest",
    into: Annotated[str | None, typer.Option("--into", help="A new location.")] = None,
    name: NameOption = None,
    sink: SinkOption = None,
    json: JsonOption = False,  # noqa: FBT002 - an option, not a parameter
) -> None:
    """Bring a savepoint back, into a new location or over the old one, which is kept aside."""
    _said(restore(location, store, to, into=into, name=name, sink=sink), json=json)


@guard_app.command("clone")
@_guarded
def clone_command(
    location: Location,
    store: StoreRoot,
    into: Annotated[str, typer.Argument(help="Where the copy goes.")],
    to: ToOption = "latest",
    same_id: Annotated[bool, typer.Option("--same-id", help="Keep the query id.")] = False,  # noqa: FBT002
    name: NameOption = None,
    json: JsonOption = False,  # noqa: FBT002 - an option, not a parameter
) -> None:
    """A copy for another query, such as staging, under a new query id."""
    _said(clone(location, store, into, to, same_id=same_id, name=name), json=json)


def _said(done: Restored, *, json: bool) -> None:
    if json:
        _json(done)
        return
    typer.echo(f"batch {done.batch} is at {done.location}: {done.files} files, {done.bytes} bytes")
    typer.echo(f"query id {done.query}")
    if done.aside:
        typer.echo(f"the old checkpoint is kept at {done.aside}")
    if done.sink_aside:
        typer.echo(f"the sink's old log is kept at {done.sink_aside}")
    if done.abandoned:
        typer.echo(f"{done.abandoned} newer savepoints are marked as abandoned")
    for sentence in done.cannot_undo:
        typer.echo(f"note: {sentence}")


@guard_app.command("diff")
@_guarded
def diff_command(
    location: Location,
    store: StoreRoot,
    older: Annotated[str, typer.Argument(help="label, batch or id.")],
    newer: Annotated[str, typer.Argument(help="label, batch or id.")] = "latest",
    name: NameOption = None,
    json: JsonOption = False,  # noqa: FBT002 - an option, not a parameter
) -> None:
    """Keys that changed between two savepoints, read without a JVM."""
    found = keeping.compare(location, store, older, newer, name=name)
    if json:
        _json(found)
        return
    _rows(
        ["operator", "store", "added", "removed", "changed", "same", ""],
        [[d.operator, d.store, d.added, d.removed, d.changed, d.same, d.reason] for d in found],
    )


@guard_app.command("pin")
@_guarded
def pin_command(
    location: Location,
    store: StoreRoot,
    label: Annotated[str, typer.Argument(help="The new label.")],
    ref: Annotated[str, typer.Argument(help="latest, batch or id.")] = "latest",
    name: NameOption = None,
    note: Annotated[str, typer.Option("--note", help="Kept with the pin.")] = "",
) -> None:
    """Hold a savepoint under a label."""
    done = keeping.pin(location, store, label, ref, name=name, note=note)
    typer.echo(f"{done.label} holds {done.checkpoint}")


@guard_app.command("unpin")
@_guarded
def unpin_command(
    location: Location,
    store: StoreRoot,
    label: Annotated[str, typer.Argument(help="The label.")],
    name: NameOption = None,
) -> None:
    """Let a savepoint go."""
    keeping.unpin(location, store, label, name=name)
    typer.echo(f"{label} was unpinned")


@guard_app.command("gc")
@_guarded
def gc_command(
    location: Location,
    store: StoreRoot,
    keep: Annotated[int, typer.Option("--keep", help="Newest savepoints that stay.")] = 10,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show, do nothing.")] = False,  # noqa: FBT002
    name: NameOption = None,
    json: JsonOption = False,  # noqa: FBT002 - an option, not a parameter
) -> None:
    """Drop old savepoints that are not pinned, and what only they needed."""
    report = keeping.gc(location, store, keep=keep, dry_run=dry_run, name=name)
    if json:
        facts = {"dropped": [*report.dropped], "bytes": report.plan.bytes, "dry_run": dry_run,
                 "files": len(report.plan.delete)}  # fmt: skip
        _json(facts)
    else:
        verb = "would drop" if dry_run else "dropped"
        typer.echo(f"{verb} {len(report.dropped)} savepoints, {report.plan.bytes} bytes")
    if report.error is not None:
        raise report.error


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m holdfast.guard`."""
    guard_app(args=list(arguments) if arguments is not None else sys.argv[1:])
