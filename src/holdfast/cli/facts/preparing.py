"""`prepare`: what is kept on this machine to start Spark sooner."""

from __future__ import annotations

import sys

from holdfast.cli.machine import Preparation
from holdfast.spark import class_archive as classes
from holdfast.spark.java import require_java


def prepared() -> Preparation:
    """Make the archive, unless it is there."""
    found = classes.prepare(require_java(), _announce)
    return Preparation(
        path=str(found.path), bytes=found.size, seconds=found.seconds, made=found.made, deleted=[]
    )


def _announce() -> None:
    if sys.stderr.isatty():
        print("running a small pipeline to learn what Spark loads: about a minute", file=sys.stderr)  # noqa: T201


def removed() -> Preparation:
    """Delete all archives."""
    return Preparation(
        path=None, bytes=0, seconds=0.0, made=False,
        deleted=[str(path) for path in classes.remove()],
    )  # fmt: skip
