"""Show one checkpoint: positions, watermarks, operators, sinks, lineage, fingerprint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.checkpoint.commit.catalog import CatalogState
from holdfast.checkpoint.reader import Outcomes
from holdfast.cli.app import command
from holdfast.cli.output import Value, emit
from holdfast.cli.parts import (
    OperatorView,
    SourceView,
    Status,
    findings,
    known,
    operator_views,
    operators,
    outcomes_of,
    pins_of,
    source_view,
    status_of,
    styled,
)
from holdfast.cli.render import Col, Line, Piece, age, line, plural, size, table, when, wrapped
from holdfast.cli.targets import (
    Place,
    find_place,
    named,
    parse_options,
    ref_argument,
    store_argument,
    store_options,
)
from holdfast.clock import SystemClock
from holdfast.format.documents import Counts, Summary
from holdfast.format.findings import Finding
from holdfast.format.manifest import Manifest
from holdfast.format.validate import validate


class SinkView(Value, frozen=True, kw_only=True):
    """What a sink has staged and what became of it."""

    name: str
    replay: str
    status: str
    token_bytes: int
    reason: str = ""


class FileView(Value, frozen=True, kw_only=True):
    """One file of the inventory."""

    path: str
    kind: str
    operator: str | None
    partition: int | None
    rows: int
    bytes: int
    sha256: str
    own: bool
    pipeline: str


class CheckpointView(Value, frozen=True, kw_only=True, tag="holdfast.show/1", tag_field="schema"):
    """`holdfast show STORE REF`."""

    root: str
    pipeline: str
    lineage: str
    checkpoint: str
    epoch: int
    sequence: int
    created_us: int
    age_us: int
    label: str | None
    pins: list[str]
    parent: str | None
    ancestors: list[str]
    children: list[str]
    incremental: bool
    abandoned: bool
    status: Status
    writer: str
    versions: dict[str, str]
    fingerprint: str
    vnodes: int
    watermark_us: int | None
    processed: int
    rows: int | None
    keys: int | None
    counts: Counts
    bytes_new: int
    bytes_total: int
    sources: list[SourceView]
    operators: list[OperatorView]
    sinks: list[SinkView]
    properties: dict[str, str]
    files: list[FileView]
    findings: list[Finding]


# How it is built


def show_checkpoint(place: Place, summary: Summary, now_us: int) -> CheckpointView:
    """One checkpoint, completely."""
    reader = place.reader
    header, state = reader.header(), reader.catalog()
    manifest = reader.manifest(summary)
    outcomes = outcomes_of(reader, [summary])
    pins, findings = pins_of(reader)
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
                path=entry.path,
                kind=entry.kind,
                operator=entry.operator,
                partition=entry.partition,
                rows=entry.rows,
                bytes=entry.size,
                sha256=entry.sha256,
                own=entry.pipeline is None and entry.path.startswith(own),
                pipeline=entry.pipeline or place.pipeline,
            )
            for entry in manifest.files
        ],
        findings=[*findings, *(f for f in validate(manifest) if f.severity != "info")],
    )


def _ancestors(state: CatalogState, summary: Summary) -> list[str]:
    """Live checkpoints that this one was built on, the nearest first."""
    known = {entry.checkpoint: entry for entry in state.live}
    found: list[str] = []
    step = summary.parent
    while step is not None and step in known and step not in found:
        found.append(step)
        step = known[step].parent
    return found


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


# How it is shown


def checkpoint_lines(value: CheckpointView) -> Iterator[Line]:
    """One checkpoint."""
    names = [label for label in (value.label,) if label]
    pairs: list[tuple[str, str | Piece]] = [
        ("checkpoint", (value.checkpoint, "cyan")),
        ("pipeline", f"{value.pipeline} (lineage {value.lineage})"),
        ("epoch", f"{value.epoch}, catalog record {value.sequence}"),
        ("created", f"{when(value.created_us)}, {age(value.age_us)} ago"),
        ("status", styled(value.status)),
        ("label", ", ".join(names) or "-"),
        ("pinned as", ", ".join(value.pins) or "-"),
        ("parent", value.parent or "-"),
        ("lineage", _lineage(value)),
        ("fingerprint", value.fingerprint),
        ("watermark", when(value.watermark_us)),
        ("processed", f"{value.processed} records"),
        ("state", _state(value)),
        ("bytes", _bytes(value)),
        ("written by", ", ".join(f"{k} {v}" for k, v in value.versions.items() if v)),
    ]
    for name, text in pairs:
        piece = (text, "") if isinstance(text, str) else text
        yield line((f"{name:<12}", "bold"), piece)
    for key, text in sorted(value.properties.items()):
        yield from wrapped(f"{key:<12}{text}")
    yield from _sources(value.sources)
    yield from operators(value.operators)
    yield from _sinks(value)
    yield from findings(value.findings)


def _bytes(value: CheckpointView) -> str:
    files = plural(len(value.files), "file")
    return f"{size(value.bytes_new)} new of {size(value.bytes_total)}, {files}"


def _lineage(value: CheckpointView) -> str:
    older, newer = len(value.ancestors), len(value.children)
    kind = "incremental" if value.incremental else "full"
    return f"{kind}, {plural(older, 'live ancestor')}, {plural(newer, 'child', 'children')}"


def _sources(found: list[SourceView]) -> Iterator[Line]:
    if not found:
        return
    yield line("")
    rows = []
    for source in found:
        for number, (name, point) in enumerate(sorted(source.position.items()) or [("-", "-")]):
            first = number == 0
            rows.append(
                (
                    source.name if first else "",
                    source.connector if first else "",
                    name,
                    point,
                    when(source.watermark_us) if first else "",
                    str(source.epoch) if first else "",
                )
            )
    columns = [
        Col("source", cut=True),
        Col("connector"),
        Col("partition", cut=True),
        Col("position", cut=True, least=12),
        Col("watermark"),
        Col("moved", right=True),
    ]
    yield from table(columns, rows)


def _state(value: CheckpointView) -> str:
    if value.rows is None or value.keys is None:
        return "rows and keys are not known: it was written in format 1"
    most = "at most " if value.counts == "bound" else ""
    return f"{most}{value.rows} rows, {value.keys} keys"


def _sinks(value: CheckpointView) -> Iterator[Line]:
    if not value.sinks:
        return
    yield line("")
    columns = [
        Col("sink", cut=True),
        Col("status"),
        Col("when run again"),
        Col("token", right=True),
        Col("reason", cut=True),
    ]
    yield from table(
        columns,
        [
            (
                sink.name,
                styled(sink.status),
                sink.replay if sink.replay != "none" else "doubles",
                size(sink.token_bytes),
                sink.reason,
            )
            for sink in value.sinks
        ],
    )


@command("holdfast show checkpoints/orders latest")
@store_argument
@ref_argument
@store_options
def show(
    *, store: str, ref: str, pipeline: str | None, as_json: bool, option: Sequence[str]
) -> bool:
    """Show one checkpoint: positions, watermarks, operators, sinks, lineage, fingerprint."""
    place = find_place(store, pipeline, parse_options(option))
    value = show_checkpoint(place, named(place, ref), SystemClock().wall_us())
    emit(value, checkpoint_lines, as_json=as_json)
    return any(finding.severity == "error" for finding in value.findings)
