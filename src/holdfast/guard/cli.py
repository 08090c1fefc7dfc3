"""`holdfast guard …`: savepoints from the command line. Exit 0 good, 1 problem found, 2 usage."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from holdfast.console import clean, moment, run_app, verb, write, write_json
from holdfast.guard import admin as keeping
from holdfast.guard._restore import Restored, clone, restore
from holdfast.guard._save import save
from holdfast.guard._verify import verify

guard_app = typer.Typer(
    name="guard", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode=None, help="Savepoints for plain Spark Structured Streaming queries.",
)  # fmt: skip

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


def _line(text: str) -> None:
    write(clean(text) + "\n")


def _plain(value: object) -> object:
    """A value of the library as one that has a form in JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _json(value: object) -> None:
    write_json(_plain(value))


def _moment_ms(ms: int) -> str:
    """Milliseconds of Spark as a time; 0 is none."""
    return moment(ms * 1_000) if ms else "-"


def _rows(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    text = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in text) for column in range(len(head))]
    for row in text:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        _line("  ".join(cells).rstrip())


_TIMES = {
    "created_us": moment,
    "watermark_ms": _moment_ms,
    "next_watermark_ms": _moment_ms,
    "timestamp_ms": _moment_ms,
}


@guard_app.command("save")
@verb
def save_command(
    location: Location,
    store: StoreRoot,
    label: Annotated[str | None, typer.Option("--label", help="Pin it under this label.")] = None,
    name: NameOption = None,
    sink: SinkOption = None,
    note: Annotated[str, typer.Option("--note", help="Kept with the pin.")] = "",
    as_json: JsonOption = False,  # noqa: FBT002 - an option
) -> None:
    """Save the last committed batch, while the query runs or after it."""
    done = save(location, store, label, name=name, sink=sink, note=note)
    if as_json:
        _json(done)
        return
    how = "unchanged since" if done.reused else "saved as"
    _line(
        f"batch {done.batch} {how} {done.checkpoint} ({done.label}): {done.files} files, "
        f"{done.bytes} bytes, {done.new_bytes} copied, {done.tries} tries, {done.millis} ms"
    )


@guard_app.command("ls")
@verb
def ls_command(
    location: Location,
    store: StoreRoot,
    name: NameOption = None,
    as_json: JsonOption = False,  # noqa: FBT002 - an option
) -> None:
    """Savepoints, newest first."""
    found = keeping.ls(location, store, name=name)
    if as_json:
        _json(found)
    else:
        _rows(
            ["batch", "label", "pinned", "time (UTC)", "layout", "bytes", "new", "checkpoint", ""],
            [
                [s.batch, s.label, ",".join(s.pins), moment(s.created_us), s.layout, s.bytes,
                 s.bytes_new, s.checkpoint, s.damage or ("abandoned" if s.abandoned else "")]
                for s in found
            ],
        )  # fmt: skip
    if any(entry.damage for entry in found):
        raise typer.Exit(1)


@guard_app.command("show")
@verb
def show_command(
    location: Location,
    store: StoreRoot,
    ref: Annotated[str, typer.Argument(help="latest, label, batch or id.")] = "latest",
    name: NameOption = None,
    as_json: JsonOption = False,  # noqa: FBT002 - an option
) -> None:
    """Offsets by source, watermark, and state by operator."""
    shown = keeping.show(location, store, ref, name=name)
    if as_json:
        _json(shown)
        return
    for key, value in dataclasses.asdict(shown).items():
        if key not in ("sources", "state"):
            title = key.rpartition("_")[0] if key in _TIMES else key
            _line(f"{title:<18} {_TIMES.get(key, str)(value)}")
    for source in shown.sources:
        _line(f"source {source['name']}: {source['offset']}")
    _rows(
        ["operator", "name", "store", "partitions", "bytes", "keys", ""],
        [
            [s.operator, s.name, s.store, s.partitions, s.bytes,
             "?" if s.keys is None else s.keys, s.reason]
            for s in shown.state
        ],
    )  # fmt: skip


@guard_app.command("verify")
@verb
def verify_command(
    location: Location,
    store: Annotated[str | None, typer.Argument(help="Also against the last savepoint.")] = None,
    name: NameOption = None,
    shallow: Annotated[bool, typer.Option("--shallow", help="Do not hash savepoints.")] = False,  # noqa: FBT002
    as_json: JsonOption = False,  # noqa: FBT002 - an option
) -> None:
    """Is the checkpoint what the query left, and are its savepoints what was saved?"""
    report = verify(location, store, name=name, deep=not shallow)
    if as_json:
        _json({**dataclasses.asdict(report), "ok": report.ok})
    else:
        for finding in report.findings:
            _line(str(finding))
        _line(
            f"{'good' if report.ok else 'DAMAGED'}: batch {report.batch}, last savepoint "
            f"{report.savepoint}, {report.files} files, {report.covered} covered by a checksum, "
            f"{report.bytes} bytes"
        )
    if not report.ok:
        raise typer.Exit(1)


@guard_app.command("restore")
@verb
def restore_command(
    location: Location,
    store: StoreRoot,
    to: ToOption = "latest",
    into: Annotated[str | None, typer.Option("--into", help="A new location.")] = None,
    name: NameOption = None,
    sink: SinkOption = None,
    as_json: JsonOption = False,  # noqa: FBT002 - an option
) -> None:
    """Bring a savepoint back, into a new location or over the old one, which is kept aside."""
    _said(restore(location, store, to, into=into, name=name, sink=sink), as_json=as_json)


@guard_app.command("clone")
@verb
def clone_command(
    location: Location,
    store: StoreRoot,
    into: Annotated[str, typer.Argument(help="Where the copy goes.")],
    to: ToOption = "latest",
    same_id: Annotated[bool, typer.Option("--same-id", help="Keep the query id.")] = False,  # noqa: FBT002
    name: NameOption = None,
    as_json: JsonOption = False,  # noqa: FBT002 - an option
) -> None:
    """A copy for another query, such as staging, under a new query id."""
    _said(clone(location, store, into, to, same_id=same_id, name=name), as_json=as_json)


def _said(done: Restored, *, as_json: bool) -> None:
    if as_json:
        _json(done)
        return
    _line(f"batch {done.batch} is at {done.location}: {done.files} files, {done.bytes} bytes")
    _line(f"query id {done.query}")
    if done.aside:
        _line(f"the old checkpoint is kept at {done.aside}")
    if done.sink_aside:
        _line(f"the sink's old log is kept at {done.sink_aside}")
    if done.abandoned:
        _line(f"{done.abandoned} newer savepoints are marked as abandoned")
    for sentence in done.cannot_undo:
        _line(f"note: {sentence}")


@guard_app.command("diff")
@verb
def diff_command(
    location: Location,
    store: StoreRoot,
    older: Annotated[str, typer.Argument(help="label, batch or id.")],
    newer: Annotated[str, typer.Argument(help="label, batch or id.")] = "latest",
    name: NameOption = None,
    as_json: JsonOption = False,  # noqa: FBT002 - an option
) -> None:
    """Keys that changed between two savepoints, read without a JVM."""
    found = keeping.compare(location, store, older, newer, name=name)
    if as_json:
        _json(found)
        return
    _rows(
        ["operator", "store", "added", "removed", "changed", "same", ""],
        [[d.operator, d.store, d.added, d.removed, d.changed, d.same, d.reason] for d in found],
    )


@guard_app.command("pin")
@verb
def pin_command(
    location: Location,
    store: StoreRoot,
    label: Annotated[str, typer.Argument(help="The new label.")],
    ref: Annotated[str, typer.Argument(help="latest, batch or id.")] = "latest",
    name: NameOption = None,
    note: Annotated[str, typer.Option("--note", help="Kept with the pin.")] = "",
    as_json: JsonOption = False,  # noqa: FBT002 - an option
) -> None:
    """Hold a savepoint under a label."""
    done = keeping.pin(location, store, label, ref, name=name, note=note)
    if as_json:
        _json({"label": done.label, "checkpoint": done.checkpoint, "pinned": True})
        return
    _line(f"{done.label} holds {done.checkpoint}")


@guard_app.command("unpin")
@verb
def unpin_command(
    location: Location,
    store: StoreRoot,
    label: Annotated[str, typer.Argument(help="The label.")],
    name: NameOption = None,
    as_json: JsonOption = False,  # noqa: FBT002 - an option
) -> None:
    """Release a savepoint; the next collection may drop it."""
    keeping.unpin(location, store, label, name=name)
    if as_json:
        _json({"label": label, "pinned": False})
        return
    _line(f"{label} was unpinned")


@guard_app.command("gc")
@verb
def gc_command(
    location: Location,
    store: StoreRoot,
    keep: Annotated[int, typer.Option("--keep", help="Newest savepoints that stay.")] = 10,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show, do nothing.")] = False,  # noqa: FBT002
    name: NameOption = None,
    as_json: JsonOption = False,  # noqa: FBT002 - an option
) -> None:
    """Drop old savepoints that are not pinned, and what only they needed."""
    report = keeping.gc(location, store, keep=keep, dry_run=dry_run, name=name)
    if as_json:
        facts = {
            "dropped": [*report.dropped],
            "bytes": report.plan.bytes,
            "dry_run": dry_run,
            "files": len(report.plan.delete),
            "problem": "" if report.error is None else str(report.error),
        }
        _json(facts)
    else:
        what = "would drop" if dry_run else "dropped"
        _line(f"{what} {len(report.dropped)} savepoints, {report.plan.bytes} bytes")
        if report.error is not None:
            _line(f"problem: {report.error}")
    if report.error is not None:
        raise typer.Exit(1)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """`python -m holdfast.guard`."""
    given = sys.argv[1:] if arguments is None else [*arguments]
    sys.exit(run_app(guard_app, given, "holdfast guard"))
