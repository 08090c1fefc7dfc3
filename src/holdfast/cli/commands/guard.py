"""Savepoints for plain Spark Structured Streaming queries."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from holdfast.cli.app import argument, command, flag, group, option
from holdfast.cli.output import emit
from holdfast.cli.render import BAD, GOOD, Col, Line, line, moment, table
from holdfast.cli.targets import dry_run_option, json_option
from holdfast.guard import admin
from holdfast.guard._restore import Restored, clone, restore
from holdfast.guard._save import Savepoint, save
from holdfast.guard._verify import GuardReport, verify
from holdfast.guard.admin import Shown
from holdfast.guard.savepoints import Listed
from holdfast.guard.spark_files.state_inspect import StoreDiff

_REF = "Savepoint: id, start of one, label, batch, time (2026-11-15T21:30, ago:2h), latest."

location_argument = argument("location", "LOCATION", "The query's checkpoint location.")
store_argument = argument("store", "STORE", "Where savepoints are kept: path or address.")
ref_argument = argument("ref", "REF", _REF, default="latest")
name_option = option(
    "--name", metavar="NAME", help="Name in the store; derived from the location if absent."
)
sink_option = option(
    "--sink", metavar="DIR", help="Output directory of a file sink (_spark_metadata)."
)
to_option = option("--to", metavar="REF", default="latest", help=_REF)
note_option = option("--note", metavar="TEXT", default="", help="Kept with the pin.")

guard = group("guard", "Savepoints for plain Spark Structured Streaming queries.")


def _moment_ms(ms: int) -> str:
    """Milliseconds of Spark as a time; 0 is none."""
    return moment(ms * 1_000) if ms else "-"


_TIMES = {
    "created_us": moment,
    "watermark_ms": _moment_ms,
    "next_watermark_ms": _moment_ms,
    "timestamp_ms": _moment_ms,
}


# save


def saved_lines(value: Savepoint) -> Iterator[Line]:
    """What was saved, and what it cost."""
    how = "unchanged since" if value.reused else "saved as"
    yield line(
        f"batch {value.batch} {how} {value.checkpoint} ({value.label}): {value.files} files, "
        f"{value.bytes} bytes, {value.new_bytes} copied, {value.tries} tries, {value.millis} ms"
    )


@command("holdfast guard save /checkpoints/query savepoints --label before", name="save")
@location_argument
@store_argument
@option("--label", metavar="NAME", help="Pin it under this label.")
@name_option
@sink_option
@note_option
@json_option
def save_command(
    *,
    location: str,
    store: str,
    label: str | None,
    name: str | None,
    sink: str | None,
    note: str,
    as_json: bool,
) -> None:
    """Save the last committed batch, while the query runs or after it."""
    value = save(location, store, label, name=name, sink=sink, note=note)
    emit(value, saved_lines, as_json=as_json, schema="holdfast.guard.save/1")


# ls


def savepoint_lines(savepoints: Sequence[Listed]) -> Iterator[Line]:
    """Savepoints, newest first."""
    columns = [
        Col("batch", right=True),
        Col("label", cut=True),
        Col("pinned", cut=True),
        Col("time (UTC)"),
        Col("layout"),
        Col("bytes", right=True),
        Col("new", right=True),
        Col("checkpoint"),
        Col(""),
    ]
    rows = [
        (
            str(each.batch),
            each.label,
            ",".join(each.pins),
            moment(each.created_us),
            str(each.layout),
            str(each.bytes),
            str(each.bytes_new),
            (each.checkpoint, "cyan"),
            (each.damage or ("abandoned" if each.abandoned else ""), BAD),
        )
        for each in savepoints
    ]
    yield from table(columns, rows)


@command("holdfast guard ls /checkpoints/query savepoints", name="ls")
@location_argument
@store_argument
@name_option
@json_option
def ls_command(*, location: str, store: str, name: str | None, as_json: bool) -> bool:
    """Savepoints, newest first."""
    savepoints = admin.ls(location, store, name=name)
    emit(savepoints, savepoint_lines, as_json=as_json, schema="holdfast.guard.ls/1")
    return any(each.damage for each in savepoints)


# show


def shown_lines(value: Shown) -> Iterator[Line]:
    """One savepoint."""
    for key, fact in dataclasses.asdict(value).items():
        if key not in ("sources", "state"):
            title = key.rpartition("_")[0] if key in _TIMES else key
            yield line((f"{title:<18} ", "bold"), _TIMES.get(key, str)(fact))
    for source in value.sources:
        yield line(f"source {source['name']}: {source['offset']}")
    columns = [
        Col("operator", right=True),
        Col("name"),
        Col("store"),
        Col("partitions", right=True),
        Col("bytes", right=True),
        Col("keys", right=True),
        Col("", cut=True),
    ]
    rows = [
        (
            str(each.operator),
            each.name,
            each.store,
            str(each.partitions),
            str(each.bytes),
            "?" if each.keys is None else str(each.keys),
            each.reason,
        )
        for each in value.state
    ]
    yield from table(columns, rows)


@command("holdfast guard show /checkpoints/query savepoints before", name="show")
@location_argument
@store_argument
@ref_argument
@name_option
@json_option
def show_command(*, location: str, store: str, ref: str, name: str | None, as_json: bool) -> None:
    """Offsets by source, watermark, and state by operator."""
    emit(
        admin.show(location, store, ref, name=name),
        shown_lines,
        as_json=as_json,
        schema="holdfast.guard.show/1",
    )


# verify


def _verify_lines(report: GuardReport) -> Iterator[Line]:
    for finding in report.findings:
        yield line(str(finding))
    yield line(
        ("good", GOOD) if report.ok else ("DAMAGED", BAD),
        f": batch {report.batch}, last savepoint {report.savepoint}, {report.files} files, "
        f"{report.covered} covered by a checksum, {report.bytes} bytes",
    )


@command("holdfast guard verify /checkpoints/query savepoints", name="verify")
@location_argument
@argument("store", "STORE", "Also against the last savepoint.", required=False)
@name_option
@flag("--shallow", help="Do not hash savepoints.")
@json_option
def verify_command(
    *, location: str, store: str | None, name: str | None, shallow: bool, as_json: bool
) -> bool:
    """Is the checkpoint what the query left, and are its savepoints what was saved?"""
    report = verify(location, store, name=name, deep=not shallow)
    document = {**dataclasses.asdict(report), "ok": report.ok}
    emit(
        document, lambda _: _verify_lines(report), as_json=as_json, schema="holdfast.guard.verify/1"
    )
    return not report.ok


# restore and clone


def restored_lines(value: Restored) -> Iterator[Line]:
    """Where it is now, and what is kept."""
    yield line(
        f"batch {value.batch} is at {value.location}: {value.files} files, {value.bytes} bytes"
    )
    yield line(f"query id {value.query}")
    if value.aside:
        yield line(f"the old checkpoint is kept at {value.aside}")
    if value.sink_aside:
        yield line(f"the sink's old log is kept at {value.sink_aside}")
    if value.abandoned:
        yield line(f"{value.abandoned} newer savepoints are marked as abandoned")
    for sentence in value.cannot_undo:
        yield line(f"note: {sentence}")


@command("holdfast guard restore /checkpoints/query savepoints --to before", name="restore")
@location_argument
@store_argument
@to_option
@option("--into", metavar="DIR", help="A new location.")
@name_option
@sink_option
@json_option
def restore_command(
    *,
    location: str,
    store: str,
    to: str,
    into: str | None,
    name: str | None,
    sink: str | None,
    as_json: bool,
) -> None:
    """Bring a savepoint back, into a new location or over the old one, which is kept aside."""
    value = restore(location, store, to, into=into, name=name, sink=sink)
    emit(value, restored_lines, as_json=as_json, schema="holdfast.guard.restore/1")


@command("holdfast guard clone /checkpoints/query savepoints /checkpoints/staging", name="clone")
@location_argument
@store_argument
@argument("into", "INTO", "Where the copy goes.")
@to_option
@flag("--same-id", help="Keep the query id.")
@name_option
@json_option
def clone_command(
    *,
    location: str,
    store: str,
    into: str,
    to: str,
    same_id: bool,
    name: str | None,
    as_json: bool,
) -> None:
    """A copy for another query, such as staging, under a new query id."""
    value = clone(location, store, into, to, same_id=same_id, name=name)
    emit(value, restored_lines, as_json=as_json, schema="holdfast.guard.clone/1")


# diff


def difference_lines(differences: Sequence[StoreDiff]) -> Iterator[Line]:
    """By operator, how many keys differ."""
    columns = [
        Col("operator", right=True),
        Col("store"),
        Col("added", right=True),
        Col("removed", right=True),
        Col("changed", right=True),
        Col("same", right=True),
        Col("", cut=True),
    ]
    rows = [
        (
            str(each.operator),
            each.store,
            str(each.added),
            str(each.removed),
            str(each.changed),
            str(each.same),
            each.reason,
        )
        for each in differences
    ]
    yield from table(columns, rows)


@command("holdfast guard diff /checkpoints/query savepoints before latest", name="diff")
@location_argument
@store_argument
@argument("older", "OLDER", "The earlier savepoint.")
@argument("newer", "NEWER", "The later one.", default="latest")
@name_option
@json_option
def diff_command(
    *, location: str, store: str, older: str, newer: str, name: str | None, as_json: bool
) -> None:
    """Keys that changed between two savepoints, read without a JVM."""
    value = admin.compare(location, store, older, newer, name=name)
    emit(value, difference_lines, as_json=as_json, schema="holdfast.guard.diff/1")


# pin and unpin


@command("holdfast guard pin /checkpoints/query savepoints keep", name="pin")
@location_argument
@store_argument
@argument("label", "LABEL", "The new label.")
@ref_argument
@name_option
@note_option
@json_option
def pin_command(
    *,
    location: str,
    store: str,
    label: str,
    ref: str,
    name: str | None,
    note: str,
    as_json: bool,
) -> None:
    """Hold a savepoint under a label."""
    made = admin.pin(location, store, label, ref, name=name, note=note)
    document = {"label": made.label, "checkpoint": made.checkpoint, "pinned": True}
    emit(
        document,
        lambda _: [line(f"{made.label} holds {made.checkpoint}")],
        as_json=as_json,
        schema="holdfast.guard.pin/1",
    )


@command("holdfast guard unpin /checkpoints/query savepoints keep", name="unpin")
@location_argument
@store_argument
@argument("label", "LABEL", "The label.")
@name_option
@json_option
def unpin_command(
    *, location: str, store: str, label: str, name: str | None, as_json: bool
) -> None:
    """Release a savepoint; the next collection may drop it."""
    admin.unpin(location, store, label, name=name)
    document = {"label": label, "pinned": False}
    emit(
        document,
        lambda _: [line(f"{label} was unpinned")],
        as_json=as_json,
        schema="holdfast.guard.unpin/1",
    )


# gc


@command("holdfast guard gc --dry-run --keep 5 /checkpoints/query savepoints", name="gc")
@location_argument
@store_argument
@option("--keep", type=int, default=10, metavar="N", help="Newest savepoints that stay.")
@dry_run_option
@name_option
@json_option
def gc_command(
    *, location: str, store: str, keep: int, dry_run: bool, name: str | None, as_json: bool
) -> bool:
    """Drop old savepoints that are not pinned, and what only they needed."""
    report = admin.gc(location, store, keep=keep, dry_run=dry_run, name=name)
    problem = "" if report.error is None else str(report.error)
    document = {
        "dropped": [*report.dropped],
        "bytes": report.plan.bytes,
        "dry_run": dry_run,
        "files": len(report.plan.delete),
        "problem": problem,
    }
    word = "would drop" if dry_run else "dropped"
    lines = [line(f"{word} {len(report.dropped)} savepoints, {report.plan.bytes} bytes")]
    lines += [line((f"problem: {problem}", BAD))] if problem else []
    emit(document, lambda _: lines, as_json=as_json, schema="holdfast.guard.gc/1")
    return bool(problem)


guard.add(
    save_command,
    ls_command,
    show_command,
    verify_command,
    restore_command,
    clone_command,
    diff_command,
    pin_command,
    unpin_command,
    gc_command,
)
