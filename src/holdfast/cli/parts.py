"""Parts of documents that several commands share: the value, how it is built, how it is shown.

Invariant: what cannot be read or counted is said, never left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from holdfast.checkpoint.reader import Outcomes, StoreReader, as_finding
from holdfast.cli.failures import Failure
from holdfast.cli.output import Value
from holdfast.cli.render import (
    BAD,
    DIM,
    GOOD,
    WARN,
    Col,
    Line,
    Piece,
    count,
    line,
    size,
    table,
    wrapped,
)
from holdfast.errors import CorruptionError
from holdfast.format.documents import Counts, Pin, Summary
from holdfast.format.findings import Finding
from holdfast.format.manifest import Manifest, OperatorEntry, SourceEntry

Status = Literal["committed", "pending", "failed", "aborted", "abandoned"]
_STYLES = {
    "ok": GOOD,
    "committed": GOOD,
    "damaged": BAD,
    "failed": BAD,
    "pending": WARN,
    "abandoned": DIM,
    "aborted": DIM,
}
_FINDING = {"error": BAD, "warning": WARN, "info": DIM}


class SourceView(Value, frozen=True, kw_only=True):
    """Where a source stands."""

    name: str
    connector: str
    position: dict[str, str]
    epoch: int
    watermark_us: int | None
    idle: bool


class PartitionView(Value, frozen=True, kw_only=True):
    """State of one partition of an operator."""

    partition: int
    files: int
    rows: int
    bytes: int


class OperatorView(Value, frozen=True, kw_only=True):
    """State of one operator."""

    name: str
    what: str
    trace: str
    version: int
    rows: int | None
    keys: int | None
    counts: Counts
    bytes: int
    files: int
    partitions: list[PartitionView]


# How they are built


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


def pins_of(reader: StoreReader) -> tuple[Sequence[Pin], list[Finding]]:
    """The savepoints, or why they cannot be read."""
    try:
        return reader.pins(), []
    except CorruptionError as error:
        return [], [as_finding(error)]


def outcomes_of(reader: StoreReader, shown: Sequence[Summary]) -> Outcomes:
    """What became of the sinks of these checkpoints."""
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


# How they are shown


def styled(word: str) -> Piece:
    """A status word in its colour."""
    return word, _STYLES.get(word, "")


def findings(found: list[Finding]) -> Iterator[Line]:
    """What a check noticed, each with its file."""
    for each in found:
        text = f"{each.severity}: {each.message}"
        yield from wrapped(text, style=_FINDING[each.severity])
        for name in ("path", "expected", "actual"):
            if fact := getattr(each, name):
                yield from wrapped(f"{name} {fact}", indent="  ")


def failure(value: Failure) -> Iterator[Line]:
    """Why something is refused."""
    yield from wrapped(f"refused: {value.what}", style=BAD)
    for key, fact in value.facts.items():
        yield from wrapped(f"{key}: {fact}", indent="  ")
    if value.remedy:
        yield from wrapped(f"try: {value.remedy}", indent="  ")


def operators(found: list[OperatorView]) -> Iterator[Line]:
    """Operators, each with a line for every partition."""
    if not found:
        return
    yield line("")
    rows: list[tuple[str | Piece, ...]] = []
    for operator in found:
        rows.append(
            (
                (operator.name, "bold"),
                f"{operator.what} {operator.trace}".strip(),
                count(operator.rows, operator.counts),
                count(operator.keys, operator.counts),
                size(operator.bytes),
                str(operator.files),
            )
        )
        rows.extend(
            (
                f"  partition {part.partition}",
                "",
                count(part.rows),
                "",
                size(part.bytes),
                str(part.files),
            )
            for part in operator.partitions
        )
    columns = [
        Col("operator", cut=True, least=16),
        Col("kind", cut=True),
        Col("rows", right=True),
        Col("keys", right=True),
        Col("bytes", right=True),
        Col("files", right=True),
    ]
    yield from table(columns, rows)


CheckStatus = Literal["ok", "warning", "problem", "skipped"]


class Check(Value, frozen=True, kw_only=True):
    """One thing that `doctor` looked at."""

    name: str
    status: CheckStatus
    found: str
    remedy: str = ""
