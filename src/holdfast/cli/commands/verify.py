"""Check that every file is there and whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import click

from holdfast.checkpoint.verify import VerifyReport, verify_checkpoints, verify_store
from holdfast.cli.app import command, flag, option
from holdfast.cli.output import Value, emit, progress
from holdfast.cli.parts import findings
from holdfast.cli.render import BAD, GOOD, Line, line, plural, size
from holdfast.cli.targets import (
    Place,
    find_place,
    named,
    parse_options,
    store_argument,
    store_options,
)
from holdfast.format.documents import Summary
from holdfast.format.findings import Finding

Progress = Callable[[int, int], None]


class Verification(Value, frozen=True, kw_only=True, tag="holdfast.verify/1", tag_field="schema"):
    """`holdfast verify STORE`."""

    root: str
    pipeline: str
    ok: bool
    deep: bool
    checkpoints: int
    damaged: list[str]
    files: int
    bytes: int
    seconds: float
    bytes_per_second: float
    findings: list[Finding]


def verify_place(
    place: Place,
    *,
    deep: bool,
    only: Summary | None = None,
    progress: Progress | None = None,
    threads: int = 2,
) -> Verification:
    """Check a pipeline, or one of its checkpoints."""
    start = time.perf_counter()
    if only is None:
        report = verify_store(place.reader, deep=deep, progress=progress, threads=threads)
    else:
        report = VerifyReport(deep=deep)
        verify_checkpoints(place.reader, [only], report, progress=progress, threads=threads)
    seconds = time.perf_counter() - start
    damaged = [
        checkpoint
        for checkpoint, found in report.by_checkpoint.items()
        if any(finding.severity == "error" for finding in found)
    ]
    return Verification(
        root=place.root,
        pipeline=place.pipeline,
        ok=report.ok,
        deep=deep,
        checkpoints=report.checkpoints,
        damaged=[*damaged],
        files=report.files,
        bytes=report.bytes,
        seconds=round(seconds, 6),
        bytes_per_second=round(report.bytes / seconds, 1) if deep and seconds else 0.0,
        findings=report.all_findings(),
    )


def verification_lines(value: Verification) -> Iterator[Line]:
    """What a check found."""
    yield from findings(value.findings)
    how = "deep" if value.deep else "shallow"
    speed = f" at {_speed(value.bytes_per_second)}" if value.deep else ""
    word = ("ok", GOOD) if value.ok else ("damaged", BAD)
    yield line(word, f": pipeline {value.pipeline}, {plural(value.checkpoints, 'checkpoint')}")
    yield line(
        f"{how}: {plural(value.files, 'file')}, {size(value.bytes)} in {value.seconds:.2f}s{speed}"
    )
    if value.damaged:
        yield line((plural(len(value.damaged), "damaged checkpoint"), BAD), ":")
        for each in value.damaged:
            yield line("  ", each)
    if not value.ok:
        yield line("try: holdfast recover --plan shows the newest intact checkpoint")


def _speed(bytes_per_second: float) -> str:
    if bytes_per_second < 1e8:
        return f"{bytes_per_second / 1e6:.1f} MB/s"
    return f"{bytes_per_second / 1e9:.2f} GB/s"


@command("holdfast verify --deep s3://bucket/checkpoints")
@store_argument
@flag("--deep", help="Hash every byte of every file.")
@option("--at", metavar="REF", help="Only this checkpoint.")
@option(
    "--threads",
    type=click.IntRange(1, 64),
    default=2,
    metavar="N",
    help="Files hashed at once.",
)
@store_options
def verify(
    *,
    store: str,
    deep: bool,
    at: str | None,
    threads: int,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> bool:
    """Check that every file is there and whole. Exit 1 when something is damaged."""
    place = find_place(store, pipeline, parse_options(option))
    only = None if at is None else named(place, at)
    with progress("verify", quiet=as_json) as bar:
        value = verify_place(place, deep=deep, only=only, progress=bar, threads=threads)
    emit(value, verification_lines, as_json=as_json)
    return not value.ok
