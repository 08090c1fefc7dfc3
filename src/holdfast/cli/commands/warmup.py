"""Keep Spark's classes ready, so that pipelines on this machine start sooner."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from holdfast.cli.app import command, flag
from holdfast.cli.output import Value, emit, say
from holdfast.cli.render import GOOD, Line, line, size
from holdfast.cli.targets import json_option
from holdfast.spark import class_archive as classes
from holdfast.spark.java import require_java


class Warmup(Value, frozen=True, kw_only=True, tag="holdfast.prepare/1", tag_field="schema"):
    """`holdfast warmup`."""

    path: str | None
    bytes: int
    seconds: float
    made: bool
    deleted: list[str]


def prepared() -> Warmup:
    """Make the archive, unless it is there."""
    found = classes.prepare(require_java(), _announce)
    return Warmup(
        path=str(found.path), bytes=found.size, seconds=found.seconds, made=found.made, deleted=[]
    )


def _announce() -> None:
    if sys.stderr.isatty():
        say("running a small pipeline to learn what Spark loads: about a minute")


def removed() -> Warmup:
    """Delete all archives."""
    return Warmup(
        path=None,
        bytes=0,
        seconds=0.0,
        made=False,
        deleted=[str(path) for path in classes.remove()],
    )


def warmup_lines(value: Warmup) -> Iterator[Line]:
    """What is stored now, or what was deleted."""
    if value.path is not None:
        how = f"in {value.seconds:.0f} s" if value.made else "before"
        yield line(("prepared", GOOD), f" {how}: {size(value.bytes)} in {value.path}")
        yield line("pipelines on this machine start sooner; --remove deletes it")
    elif value.deleted:
        for path in value.deleted:
            yield line(f"removed {path}")
    else:
        yield line("nothing was stored")


@command("holdfast warmup", "holdfast warmup --remove")
@flag("--remove", help="Delete what earlier calls have stored.")
@json_option
def warmup(*, remove: bool, as_json: bool) -> None:
    """Keep Spark's classes ready, so that pipelines on this machine start sooner.

    Runs a small pipeline for about a minute and stores what its JVM loaded, about 190 MB, in the
    user's cache directory or in HOLDFAST_CACHE. Another Java or Spark is not affected by it, and
    needs its own call. Pipelines give the same results without.
    """
    emit(removed() if remove else prepared(), warmup_lines, as_json=as_json)
