"""List checkpoints, newest first; or the pipelines of a root.

Invariants:
- Listing never skips: what cannot be read is a row that says so.
- The cost follows what is shown: outcomes and files of older checkpoints are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import click

from holdfast.checkpoint.gc.usage import File, footprints_of
from holdfast.checkpoint.reader import StoreReader
from holdfast.cli.app import argument, command, option
from holdfast.cli.output import Value, emit
from holdfast.cli.parts import (
    Status,
    findings,
    known,
    outcomes_of,
    pins_of,
    status_of,
    styled,
)
from holdfast.cli.render import (
    BAD,
    DIM,
    Col,
    Line,
    age,
    count,
    line,
    plural,
    short_ids,
    size,
    table,
    when,
    wrapped,
)
from holdfast.cli.targets import (
    Place,
    find_place,
    open_root,
    parse_options,
    pipelines_of,
    store_argument,
    store_options,
)
from holdfast.clock import SystemClock
from holdfast.errors import CorruptionError, HoldfastError, InvalidInputError, NotFoundError
from holdfast.format import paths
from holdfast.format.documents import Counts
from holdfast.format.findings import Finding
from holdfast.ids import CheckpointId
from holdfast.storage.base import Storage

Health = Literal["ok", "damaged"]
_LIMIT = 50
_LOOKS = 5  # at a store that changes meanwhile


class PipelineRow(Value, frozen=True, kw_only=True):
    """One pipeline of a root."""

    pipeline: str
    checkpoints: int
    epoch: int | None
    created_us: int | None
    problem: str = ""


class Pipelines(Value, frozen=True, kw_only=True, tag="holdfast.pipelines/1", tag_field="schema"):
    """`holdfast ls ROOT`, where the root has several pipelines."""

    root: str
    pipelines: list[PipelineRow]


class CheckpointRow(Value, frozen=True, kw_only=True):
    """One checkpoint of a listing."""

    checkpoint: str
    epoch: int
    created_us: int
    age_us: int
    label: str | None
    pins: list[str]
    rows: int | None
    keys: int | None
    counts: Counts
    processed: int
    bytes_new: int
    bytes_total: int
    bytes_exclusive: int | None
    incremental: bool
    parent: str | None
    status: Status
    health: Health
    problem: str = ""


class Listing(Value, frozen=True, kw_only=True, tag="holdfast.ls/1", tag_field="schema"):
    """`holdfast ls STORE`."""

    root: str
    pipeline: str
    lineage: str
    total: int
    checkpoints: list[CheckpointRow]
    findings: list[Finding]


# How it is built


def list_root(storage: Storage, root: str) -> Pipelines:
    """All pipelines of a root."""
    rows = []
    for name in pipelines_of(storage):
        place = Place(storage, root, name)
        try:
            live = place.reader.list()
        except HoldfastError as error:
            rows.append(_broken(name, error))
            continue
        newest = next((entry for entry in live if not entry.abandoned), None)
        rows.append(
            PipelineRow(
                pipeline=name,
                checkpoints=len(live),
                epoch=newest.epoch if newest else None,
                created_us=newest.created_us if newest else None,
            )
        )
    return Pipelines(root=root, pipelines=rows)


def _broken(name: str, error: HoldfastError) -> PipelineRow:
    return PipelineRow(
        pipeline=name, checkpoints=0, epoch=None, created_us=None, problem=error.what
    )


def list_checkpoints(place: Place, now_us: int, limit: int | None = None) -> Listing:
    """The newest checkpoints of a pipeline, all of them without a limit.

    What the pipeline gives up while it is listed is neither there nor damaged: one looks again.
    """
    for _ in range(_LOOKS):
        listing, gone = _list_once(place, now_us, limit)
        if not gone:
            break
    return listing


def _list_once(place: Place, now_us: int, limit: int | None) -> tuple[Listing, set[CheckpointId]]:
    reader = place.reader
    header = reader.header()
    state = reader.catalog()
    live = [*reversed(state.live)]
    shown = live if limit is None else live[:limit]
    pins, findings = pins_of(reader)
    outcomes = outcomes_of(reader, shown)
    sizes, files = footprints_of(reader, live, newest=len(shown))
    broken = _missing_files(reader, files)
    suspects = {*broken, *(each.checkpoint for each in sizes if not each.readable)}
    gone = reader.retired(suspects) if suspects else set()
    rows = []
    for summary, footprint in zip(shown, sizes, strict=True):
        if summary.checkpoint in gone:
            continue
        problem = broken.get(summary.checkpoint, "")
        health: Health = "damaged" if problem or not footprint.readable else "ok"
        rows.append(
            CheckpointRow(
                checkpoint=summary.checkpoint,
                epoch=summary.epoch,
                created_us=summary.created_us,
                age_us=max(0, now_us - summary.created_us),
                label=summary.label,
                pins=sorted(pin.label for pin in pins if pin.checkpoint == summary.checkpoint),
                rows=known(summary.rows, summary.counts),
                keys=known(summary.keys, summary.counts),
                counts=summary.counts,
                processed=summary.processed,
                bytes_new=summary.bytes_new,
                bytes_total=summary.bytes_total,
                bytes_exclusive=footprint.exclusive if footprint.readable else None,
                incremental=summary.incremental,
                parent=summary.parent,
                status=status_of(summary, outcomes),
                health=health,
                problem=problem or ("" if footprint.readable else "manifest is missing or damaged"),
            )
        )
    listing = Listing(
        root=place.root,
        pipeline=place.pipeline,
        lineage=header.lineage,
        total=len(live) - len(gone),
        checkpoints=rows,
        findings=[*state.damage, *outcomes.damage, *findings],
    )
    return listing, gone


def _missing_files(
    reader: StoreReader, files: Mapping[CheckpointId, Sequence[File] | None]
) -> dict[CheckpointId, str]:
    """By checkpoint, the first file that is missing or has another size."""
    directory = reader.directory
    named = {
        _place(directory.pipeline, file): file.size
        for some in files.values()
        for file in some or ()
    }
    actual = _sizes(reader, named)
    bad = {path: actual.get(path) for path, size in named.items() if actual.get(path) != size}
    broken: dict[CheckpointId, str] = {}
    if not bad:
        return broken
    for checkpoint, some in files.items():
        for file in some or ():
            path = _place(directory.pipeline, file)
            if path in bad:
                what = "is missing" if bad[path] is None else "has another size"
                broken[checkpoint] = f"{path} {what}"
                break
    return broken


def _place(pipeline: str, file: File) -> str:
    return f"{file.pipeline or pipeline}/{file.path}"


def _sizes(reader: StoreReader, named: Mapping[str, int]) -> dict[str, int]:
    """Sizes of stored files: one look each on disk, listings over a network."""
    storage = reader.directory.storage
    found: dict[str, int] = {}
    if storage.parallel > 1:
        for pipeline in {path.split("/", 1)[0] for path in named}:
            for entry in storage.list(f"{pipeline}/{paths.CHECKPOINTS}"):
                found[entry.path] = entry.size
        return found
    for path in named:
        try:
            found[path] = storage.stat(path).size
        except (NotFoundError, CorruptionError):
            continue
    return found


# How it is shown


def pipeline_lines(value: Pipelines) -> Iterator[Line]:
    """A root with several pipelines."""
    if not value.pipelines:
        yield line("no pipeline in ", value.root)
        return
    columns = [
        Col("pipeline", cut=True),
        Col("checkpoints", right=True),
        Col("epoch", right=True),
        Col("newest"),
        Col("problem", cut=True),
    ]
    yield from table(
        columns,
        [
            (
                row.pipeline,
                str(row.checkpoints),
                "-" if row.epoch is None else str(row.epoch),
                when(row.created_us),
                (row.problem, BAD),
            )
            for row in value.pipelines
        ],
    )


def checkpoint_lines(value: Listing) -> Iterator[Line]:
    """Checkpoints, newest first."""
    yield from findings(value.findings)
    if not value.checkpoints:
        what = "nothing is shown of it" if value.total else "nothing was committed yet"
        yield line("pipeline ", value.pipeline, f": {what}")
        return
    names = short_ids([row.checkpoint for row in value.checkpoints])
    columns = [
        Col("id"),
        Col("epoch", right=True),
        Col("age", right=True),
        Col("label", cut=True),
        Col("rows", right=True),
        Col("keys", right=True),
        Col("new", right=True),
        Col("own", right=True),
        Col("status"),
        Col("health"),
    ]
    yield from table(
        columns,
        [
            (
                (names[row.checkpoint], "cyan"),
                str(row.epoch),
                age(row.age_us),
                _label(row),
                count(row.rows, row.counts),
                count(row.keys, row.counts),
                size(row.bytes_new),
                size(row.bytes_exclusive),
                styled(row.status),
                styled(row.health),
            )
            for row in value.checkpoints
        ],
    )
    for row in value.checkpoints:
        if row.problem:
            yield from wrapped(f"{names[row.checkpoint]}: {row.problem}", style=BAD)
    hidden = value.total - len(value.checkpoints)
    if hidden:
        yield [(f"and {plural(hidden, 'older one')}: --limit 0 shows all", DIM)]


def _label(row: CheckpointRow) -> str:
    """What holds it: its savepoints, or the label it was committed with."""
    held = ",".join(row.pins)
    return f"*{held}" if held else row.label or ""


@command("holdfast ls checkpoints/orders")
@store_argument
@argument("name", "PIPELINE", "Pipeline of a root.", required=False)
@option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="Newest N only; 0 is all. Tables show 50, JSON all.",
)
@store_options
def ls(
    *,
    store: str,
    name: str | None,
    limit: int | None,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> bool:
    """List checkpoints, newest first; or the pipelines of a root.

    `new` is what the checkpoint wrote, `own` what deleting it would free. A label with a star is
    a savepoint. Exit 1 when something is damaged. Health is by presence and size of the files:
    only `verify --deep` reads every byte.
    """
    try:
        place = find_place(store, name or pipeline, parse_options(option))
    except InvalidInputError as error:
        if error.kind != "several_pipelines":
            raise
        roots = list_root(open_root(store, parse_options(option)), store)
        emit(roots, pipeline_lines, as_json=as_json)
        return any(row.problem for row in roots.pipelines)
    if limit is None and not as_json:
        limit = _LIMIT
    value = list_checkpoints(place, SystemClock().wall_us(), limit or None)
    emit(value, checkpoint_lines, as_json=as_json)
    return any(row.health != "ok" for row in value.checkpoints) or bool(value.findings)
