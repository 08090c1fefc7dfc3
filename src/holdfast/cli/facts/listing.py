"""`ls` and `show`: what is there.

Invariants:
- Listing never skips: what cannot be read is a row that says so.
- The cost follows what is shown: outcomes and files of older checkpoints are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.checkpoint.commit.catalog import CatalogState
from holdfast.checkpoint.gc.usage import File, footprints_of
from holdfast.checkpoint.reader import Outcomes, StoreReader, as_finding
from holdfast.cli.address import Place, pipelines_of
from holdfast.cli.values import (
    CheckpointRow,
    CheckpointView,
    FileView,
    Health,
    Listing,
    OperatorView,
    PartitionView,
    PipelineRow,
    Pipelines,
    SinkView,
    SourceView,
    Status,
)
from holdfast.errors import CorruptionError, HoldfastError, NotFoundError
from holdfast.format import paths
from holdfast.format.documents import Counts, Pin, Summary
from holdfast.format.findings import Finding
from holdfast.format.manifest import Manifest, OperatorEntry, SourceEntry
from holdfast.format.validate import validate
from holdfast.ids import CheckpointId
from holdfast.storage.base import Storage

_LOOKS = 5  # at a store that changes meanwhile


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
    pins, findings = _pins(reader)
    outcomes = _outcomes(reader, shown)
    sizes, files = footprints_of(reader, live, newest=len(shown))
    broken = _missing_files(reader, files)
    suspects = {*broken, *(size.checkpoint for size in sizes if not size.readable)}
    gone = reader.retired(suspects) if suspects else set()
    rows = []
    for summary, size in zip(shown, sizes, strict=True):
        if summary.checkpoint in gone:
            continue
        problem = broken.get(summary.checkpoint, "")
        health: Health = "damaged" if problem or not size.readable else "ok"
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
                bytes_exclusive=size.exclusive if size.readable else None,
                incremental=summary.incremental,
                parent=summary.parent,
                status=status_of(summary, outcomes),
                health=health,
                problem=problem or ("" if size.readable else "manifest is missing or damaged"),
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


def _pins(reader: StoreReader) -> tuple[Sequence[Pin], list[Finding]]:
    try:
        return reader.pins(), []
    except CorruptionError as error:
        return [], [as_finding(error)]


def _outcomes(reader: StoreReader, shown: Sequence[Summary]) -> Outcomes:
    epochs = {summary.epoch for summary in shown if summary.sinks}
    return reader.outcomes(epochs=epochs) if epochs else Outcomes({})


def status_of(summary: Summary, outcomes: Outcomes) -> Status:
    """One word for what became of a checkpoint's sinks."""
    if summary.abandoned:
        return "abandoned"
    found = {outcomes.status(summary.checkpoint, sink.name) for sink in summary.sinks}
    for status in ("failed", "pending", "aborted"):
        if status in found:
            return status
    return "committed"


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


# show


def show_checkpoint(place: Place, summary: Summary, now_us: int) -> CheckpointView:
    """One checkpoint, completely."""
    reader = place.reader
    header, state = reader.header(), reader.catalog()
    manifest = reader.manifest(summary)
    outcomes = _outcomes(reader, [summary])
    pins, findings = _pins(reader)
    own = manifest.own_prefix()
    versions = manifest.versions
    return CheckpointView(
        root=place.root,
        pipeline=place.pipeline,
        lineage=header.lineage,
        checkpoint=manifest.checkpoint,
        epoch=manifest.epoch,
        sequence=summary.sequence,
        created_us=manifest.created_us,
        age_us=max(0, now_us - manifest.created_us),
        label=manifest.label,
        pins=sorted(pin.label for pin in pins if pin.checkpoint == summary.checkpoint),
        parent=manifest.parent,
        ancestors=_ancestors(state, summary),
        children=[entry.checkpoint for entry in state.live if entry.parent == summary.checkpoint],
        incremental=manifest.incremental,
        abandoned=summary.abandoned,
        status=status_of(summary, outcomes),
        writer=manifest.writer,
        versions={
            "format": str(manifest.format),
            "holdfast": versions.holdfast,
            "python": versions.python,
            "spark": versions.spark,
            "pyarrow": versions.pyarrow,
        },
        fingerprint=manifest.fingerprint,
        vnodes=manifest.topology.vnodes,
        watermark_us=manifest.watermark_us,
        processed=manifest.processed,
        rows=known(manifest.rows, manifest.counts),
        keys=known(manifest.keys, manifest.counts),
        counts=manifest.counts,
        bytes_new=manifest.bytes_new,
        bytes_total=manifest.bytes_total,
        sources=[source_view(entry) for entry in manifest.sources],
        operators=operator_views(manifest),
        sinks=_sink_views(manifest, summary, outcomes),
        properties=manifest.properties,
        files=[
            FileView(
                path=entry.path, kind=entry.kind, operator=entry.operator,
                partition=entry.partition, rows=entry.rows, bytes=entry.size, sha256=entry.sha256,
                own=entry.pipeline is None and entry.path.startswith(own),
                pipeline=entry.pipeline or place.pipeline,
            )
            for entry in manifest.files
        ],
        findings=[*findings, *(f for f in validate(manifest) if f.severity != "info")],
    )  # fmt: skip


def _ancestors(state: CatalogState, summary: Summary) -> list[str]:
    """Live checkpoints that this one was built on, the nearest first."""
    known = {entry.checkpoint: entry for entry in state.live}
    found: list[str] = []
    step = summary.parent
    while step is not None and step in known and step not in found:
        found.append(step)
        step = known[step].parent
    return found


def source_view(entry: SourceEntry) -> SourceView:
    """A source, its position by partition."""
    return SourceView(
        name=entry.name,
        connector=entry.position.__struct_config__.tag or "",  # type: ignore[arg-type]
        position=position_text(entry),
        epoch=entry.epoch,
        watermark_us=entry.watermark_us,
        idle=entry.idle,
    )


def position_text(entry: SourceEntry) -> dict[str, str]:
    """The place in every partition, as text."""
    return {name: _point(point) for name, point in entry.position.points().items()}


def _point(point: object) -> str:
    if isinstance(point, tuple):
        return ":".join(_point(part) for part in point)
    return str(point)


def known(count: int, counts: Counts) -> int | None:
    """A count of rows or keys; None where nothing can be said, as in stores of format 1."""
    return None if counts == "unknown" else count


def operator_views(manifest: Manifest) -> list[OperatorView]:
    """Operators with rows and bytes for each partition."""
    parts = {part.name: part for part in manifest.topology.parts}
    found = []
    for entry in manifest.operators:
        files = manifest.files_of(entry.name)
        counts = entry.counts if entry.trace in ("latest", "bag") else "live"
        found.append(
            OperatorView(
                name=entry.name,
                what=parts[entry.name].what if entry.name in parts else "",
                trace=entry.trace,
                version=entry.version,
                rows=known(entry.rows, counts),
                keys=known(entry.keys, counts),
                counts=counts,
                bytes=entry.bytes,
                files=len(files),
                partitions=_partitions(manifest, entry),
            )
        )
    return found


def _partitions(manifest: Manifest, operator: OperatorEntry) -> list[PartitionView]:
    by_number: dict[int, list[tuple[int, int]]] = {}
    for file in manifest.files_of(operator.name):
        by_number.setdefault(file.partition or 0, []).append((file.rows, file.size))
    return [
        PartitionView(
            partition=number,
            files=len(some),
            rows=sum(rows for rows, _ in some),
            bytes=sum(size for _, size in some),
        )
        for number, some in sorted(by_number.items())
    ]


def _sink_views(manifest: Manifest, summary: Summary, outcomes: Outcomes) -> list[SinkView]:
    found = []
    for sink in manifest.sinks:
        known = outcomes.by_token.get((summary.checkpoint, sink.name), [])
        found.append(
            SinkView(
                name=sink.name,
                replay=sink.replay,
                status=outcomes.status(summary.checkpoint, sink.name),
                token_bytes=len(sink.token.encode()),
                reason=known[-1].reason if known else "",
            )
        )
    return found
