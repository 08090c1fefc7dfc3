"""Which record of a file could not be read: found after the job failed, never on the way.

Spark says which file, not which line. The file is read once more with bad records kept, and the
first one is looked up in the file's lines.
"""

from __future__ import annotations

import bz2
import gzip
import itertools
import logging
from collections.abc import Iterator
from typing import Any

from holdfast.connectors.files.frames import FileFrames

log = logging.getLogger("holdfast.pipeline")
_SHOWN = 120
_LINES_MAX = 5_000_000


def bad_record(
    spark: Any,
    frames: FileFrames,
    root: str | None,
    path: str,
    format: str,  # noqa: A002
) -> dict[str, object]:
    """The first bad record of a file and its line, as far as they can be told."""
    try:
        record = frames.first_bad(spark, path)
        line = _line(f"{root}/{path}", record) if root is not None and record else None
    except Exception:  # the job's own error counts
        log.debug("the bad record of %s was not found", path, exc_info=True)
        return {}
    if record is None:
        return {}
    facts: dict[str, object] = {"record": record[:_SHOWN], "format": format}
    return facts if line is None else {"line": line, **facts}


def _line(path: str, record: str) -> int | None:
    wanted = record.strip("\r\n")
    for number, text in enumerate(itertools.islice(_lines(path), _LINES_MAX), 1):
        if text.rstrip("\r\n") == wanted:
            return number
    return None


def _lines(path: str) -> Iterator[str]:
    reader: Any = open
    if path.endswith(".gz"):
        reader = gzip.open
    elif path.endswith(".bz2"):
        reader = bz2.open
    with reader(path, "rt", encoding="utf-8", errors="replace", newline="\n") as file:
        yield from file
