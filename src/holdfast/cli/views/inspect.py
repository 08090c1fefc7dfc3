"""`ls`, `show`, `verify`, `recover` for people."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cli.text import (
    Col,
    Line,
    Piece,
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
from holdfast.cli.values import (
    CheckpointRow,
    CheckpointView,
    Failure,
    Listing,
    OperatorView,
    Pipelines,
    Recovery,
    SourceView,
    Verification,
)
from holdfast.format.findings import Finding

_GOOD, _BAD, _MEH, _DIM = "green", "bold red", "yellow", "dim"
_STYLES = {"ok": _GOOD, "committed": _GOOD, "damaged": _BAD, "failed": _BAD, "pending": _MEH,
           "abandoned": _DIM, "aborted": _DIM}  # fmt: skip
_FINDING = {"error": _BAD, "warning": _MEH, "info": _DIM}


def styled(word: str) -> Piece:
    """A status word in its colour."""
    return word, _STYLES.get(word, "")


def pipelines(value: Pipelines) -> Iterator[Line]:
    """A root with several pipelines."""
    if not value.pipelines:
        yield line("no pipeline in ", value.root)
        return
    columns = [Col("pipeline", cut=True), Col("checkpoints", right=True), Col("epoch", right=True),
               Col("newest"), Col("problem", cut=True)]  # fmt: skip
    yield from table(
        columns,
        [
            (row.pipeline, str(row.checkpoints), "-" if row.epoch is None else str(row.epoch),
             when(row.created_us), (row.problem, _BAD))
            for row in value.pipelines
        ],
    )  # fmt: skip


def listing(value: Listing) -> Iterator[Line]:
    """Checkpoints, newest first."""
    yield from findings(value.findings)
    if not value.checkpoints:
        what = "nothing is shown of it" if value.total else "nothing was committed yet"
        yield line("pipeline ", value.pipeline, f": {what}")
        return
    names = short_ids([row.checkpoint for row in value.checkpoints])
    columns = [
        Col("id"), Col("epoch", right=True), Col("age", right=True), Col("label", cut=True),
        Col("rows", right=True), Col("keys", right=True), Col("new", right=True),
        Col("own", right=True), Col("status"), Col("health"),
    ]  # fmt: skip
    yield from table(
        columns,
        [
            ((names[row.checkpoint], "cyan"), str(row.epoch), age(row.age_us), _label(row),
             count(row.rows, row.counts), count(row.keys, row.counts), size(row.bytes_new),
             size(row.bytes_exclusive),
             styled(row.status), styled(row.health))
            for row in value.checkpoints
        ],
    )  # fmt: skip
    for row in value.checkpoints:
        if row.problem:
            yield from wrapped(f"{names[row.checkpoint]}: {row.problem}", style=_BAD)
    hidden = value.total - len(value.checkpoints)
    if hidden:
        yield [(f"and {plural(hidden, 'older one')}: --limit 0 shows all", _DIM)]


def _label(row: CheckpointRow) -> str:
    """What holds it: its savepoints, or the label it was committed with."""
    held = ",".join(row.pins)
    return f"*{held}" if held else row.label or ""


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
    yield from wrapped(f"refused: {value.what}", style=_BAD)
    for key, fact in value.facts.items():
        yield from wrapped(f"{key}: {fact}", indent="  ")
    if value.remedy:
        yield from wrapped(f"try: {value.remedy}", indent="  ")


# show


def checkpoint(value: CheckpointView) -> Iterator[Line]:
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
    ]  # fmt: skip
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
                (source.name if first else "", source.connector if first else "", name, point,
                 when(source.watermark_us) if first else "", str(source.epoch) if first else "")
            )  # fmt: skip
    columns = [
        Col("source", cut=True), Col("connector"), Col("partition", cut=True),
        Col("position", cut=True, least=12), Col("watermark"), Col("moved", right=True),
    ]  # fmt: skip
    yield from table(columns, rows)


def _state(value: CheckpointView) -> str:
    if value.rows is None or value.keys is None:
        return "rows and keys are not known: it was written in format 1"
    most = "at most " if value.counts == "bound" else ""
    return f"{most}{value.rows} rows, {value.keys} keys"


def operators(found: list[OperatorView]) -> Iterator[Line]:
    """Operators, each with a line for every partition."""
    if not found:
        return
    yield line("")
    rows: list[tuple[str | Piece, ...]] = []
    for operator in found:
        rows.append(
            ((operator.name, "bold"), f"{operator.what} {operator.trace}".strip(),
             count(operator.rows, operator.counts), count(operator.keys, operator.counts),
             size(operator.bytes), str(operator.files))
        )  # fmt: skip
        rows.extend(
            (f"  partition {part.partition}", "", count(part.rows), "", size(part.bytes),
             str(part.files))
            for part in operator.partitions
        )  # fmt: skip
    columns = [
        Col("operator", cut=True, least=16), Col("kind", cut=True), Col("rows", right=True),
        Col("keys", right=True), Col("bytes", right=True), Col("files", right=True),
    ]  # fmt: skip
    yield from table(columns, rows)


def _sinks(value: CheckpointView) -> Iterator[Line]:
    if not value.sinks:
        return
    yield line("")
    columns = [Col("sink", cut=True), Col("status"), Col("when run again"),
               Col("token", right=True), Col("reason", cut=True)]  # fmt: skip
    yield from table(
        columns,
        [
            (sink.name, styled(sink.status), sink.replay if sink.replay != "none" else "doubles",
             size(sink.token_bytes), sink.reason)
            for sink in value.sinks
        ],
    )  # fmt: skip


# verify and recover


def verification(value: Verification) -> Iterator[Line]:
    """What a check found."""
    yield from findings(value.findings)
    how = "deep" if value.deep else "shallow"
    speed = f" at {_speed(value.bytes_per_second)}" if value.deep else ""
    word = ("ok", _GOOD) if value.ok else ("damaged", _BAD)
    yield line(word, f": pipeline {value.pipeline}, {plural(value.checkpoints, 'checkpoint')}")
    yield line(
        f"{how}: {plural(value.files, 'file')}, {size(value.bytes)} in {value.seconds:.2f}s{speed}"
    )
    if value.damaged:
        yield line((plural(len(value.damaged), "damaged checkpoint"), _BAD), ":")
        for each in value.damaged:
            yield line("  ", each)
    if not value.ok:
        yield line("try: holdfast recover --plan shows the newest intact checkpoint")


def _speed(bytes_per_second: float) -> str:
    if bytes_per_second < 1e8:
        return f"{bytes_per_second / 1e6:.1f} MB/s"
    return f"{bytes_per_second / 1e9:.2f} GB/s"


def recovery(value: Recovery) -> Iterator[Line]:
    """What opening would do."""
    if value.refusal is not None:
        yield from failure(value.refusal)
    elif value.checkpoint is None:
        yield line("fresh: ", f"nothing committed yet, starts at epoch {value.epoch_next}")
    else:
        yield line(("resumes", _GOOD), f" from epoch {value.epoch}, next is {value.epoch_next} "
                   f"({value.depth} check)")  # fmt: skip
    names = short_ids([each.checkpoint for each in value.candidates])
    rows = [
        ((names[each.checkpoint], "cyan"), str(each.epoch), when(each.created_us),
         (each.verdict, {"chosen": _GOOD, "damaged": _BAD}.get(each.verdict, _DIM)))
        for each in value.candidates
    ]  # fmt: skip
    if rows:
        yield from table(
            [Col("id"), Col("epoch", right=True), Col("created"), Col("verdict", cut=True)], rows
        )
    for each in value.candidates:
        if each.verdict == "damaged":
            yield line((names[each.checkpoint], "cyan"), ":")
            yield from findings(each.findings)
    for token in value.roll_forward:
        yield from wrapped(
            f"sink {token.sink}: epoch {token.epoch} is {token.status}, will be published",
            style=_MEH,
        )
    for note in value.notes:
        yield from wrapped(f"note: {note}")
