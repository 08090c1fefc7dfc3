"""Make DST a replica of SRC: disk to object store, back, or any other pair."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from holdfast.checkpoint.replication.sync import SyncReport, sync_pipeline
from holdfast.cli.app import argument, command, flag, option
from holdfast.cli.output import Value, emit, progress
from holdfast.cli.render import WARN, Line, line, plural, size, wrapped
from holdfast.cli.targets import (
    find_place,
    is_object,
    open_root,
    parse_options,
    pipelines_of,
    split_address,
    store_options,
)
from holdfast.errors import ConflictError, HoldfastError, InvalidInputError, RefusedError
from holdfast.storage.base import Storage

Progress = Callable[[int, int], None]


class SyncedPipeline(Value, frozen=True, kw_only=True):
    """One pipeline that was brought over."""

    pipeline: str
    checkpoints: int
    new_checkpoints: int
    files_copied: int
    bytes_copied: int
    files_present: int
    bytes_present: int
    pins: int
    pins_only_there: list[str]
    removed_files: int
    removed_bytes: int
    up_to_date: bool
    notes: list[str]


class Sync(Value, frozen=True, kw_only=True, tag="holdfast.sync/1", tag_field="schema"):
    """`holdfast sync SRC DST`."""

    source: str
    destination: str
    seconds: float
    pipelines: list[SyncedPipeline]


def sync_places(
    source: Storage,
    target: Storage,
    names: list[str],
    *,
    deep: bool,
    prune: bool,
    progress: Progress | None,
) -> Sync:
    """Bring pipelines to another root; those that share files come after their origins."""
    start = time.perf_counter()
    reports: list[SyncReport] = []
    waiting = list(names)
    while waiting:
        later: list[str] = []
        for name in waiting:
            try:
                reports.append(
                    sync_pipeline(source, target, name, deep=deep, prune=prune, progress=progress)
                )
            except RefusedError as error:
                if error.kind != "origin_missing" or error.facts.get("origin") not in waiting:
                    raise
                later.append(name)
        if len(later) == len(waiting):
            raise ConflictError("forks share files in a circle", kind="fork_circle")
        waiting = later
    return Sync(
        source=source.url,
        destination=target.url,
        seconds=round(time.perf_counter() - start, 6),
        pipelines=[_synced(report) for report in reports],
    )


def _synced(report: SyncReport) -> SyncedPipeline:
    return SyncedPipeline(
        pipeline=report.pipeline,
        checkpoints=report.checkpoints,
        new_checkpoints=report.new_checkpoints,
        files_copied=report.files_copied,
        bytes_copied=report.bytes_copied,
        files_present=report.files_present,
        bytes_present=report.bytes_present,
        pins=report.pins,
        pins_only_there=[*report.pins_only_there],
        removed_files=report.removed_files,
        removed_bytes=report.removed_bytes,
        up_to_date=report.up_to_date,
        notes=report.notes,
    )


def sync_lines(value: Sync) -> Iterator[Line]:
    """What was brought over."""
    for each in value.pipelines:
        if each.up_to_date:
            yield line((each.pipeline, "bold"), f": up to date, {each.checkpoints} checkpoints")
        else:
            yield line(
                (each.pipeline, "bold"),
                f": {plural(each.new_checkpoints, 'new checkpoint')} of {each.checkpoints}",
            )
            speed = each.bytes_copied / value.seconds if value.seconds else 0
            yield line(
                f"  copied and verified {plural(each.files_copied, 'file')}, "
                f"{size(each.bytes_copied)} ({size(int(speed))}/s)"
            )
            yield line(
                f"  there already {plural(each.files_present, 'file')}, {size(each.bytes_present)}"
            )
        if each.removed_files:
            yield line(
                f"  removed {plural(each.removed_files, 'old file')}, {size(each.removed_bytes)}"
            )
        for label in each.pins_only_there:
            yield line((f"  savepoint {label} exists only there: kept (--prune removes it)", WARN))
        for note in each.notes:
            yield from wrapped(note, indent="  ", style=WARN)


@command("holdfast sync checkpoints s3://bucket/checkpoints")
@argument("source", "SRC", "ROOT or ROOT/PIPELINE to copy from; a root brings all pipelines.")
@argument("target", "DST", "Root to copy to.")
@flag("--deep", help="Hash again what an earlier sync has verified.")
@flag("--prune", help="Remove savepoints that only DST has.")
@store_options
@option(
    "--to-option",
    "target_option",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of DST's client; --option is for SRC's, or for both.",
)
def sync(
    *,
    source: str,
    target: str,
    deep: bool,
    prune: bool,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
    target_option: Sequence[str],
) -> None:
    """Make DST a replica of SRC: disk to object store, back, or any other pair.

    Copies only what is missing and verifies it on arrival. Can be interrupted at any moment and
    run again; DST is a valid store all the time. A DST that was written to by itself is refused.
    """
    options = parse_options(option)
    there = parse_options(target_option) or (options if is_object(target) else {})
    here = options if is_object(source) else {}
    root, names = _pipelines(source, pipeline, here)
    if len(names) == 1 and split_address(target)[1] == names[0] and _is_home(target, there):
        target = split_address(target)[0]
    destination = open_root(target, there, create=True)
    with progress("sync", quiet=as_json) as bar:
        value = sync_places(root, destination, names, deep=deep, prune=prune, progress=bar)
    emit(value, sync_lines, as_json=as_json)


def _pipelines(
    source: str, pipeline: str | None, options: dict[str, object]
) -> tuple[Storage, list[str]]:
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
    try:
        place = find_place(target, None, options)
        return place.root == split_address(target)[0]
    except HoldfastError:
        return False
