"""A source in one file: the lines of a text file that others append to.

Copy it to begin a source of your own. What a source promises stands in
`holdfast.connectors.base`; CONTRIBUTING.md, "Add a source", lists the files to touch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast.connectors.base import Backlog, Source, SourceReader, Split
from holdfast.connectors.locations import Location
from holdfast.errors import IncompatibleError, InvalidInputError
from holdfast.format.position import OpenPosition


class TextLines(Source):
    """Whole lines of a text file, in order; the last one counts when its end is there.

    bytes_max: limit of one epoch. A line that is longer is refused.
    """

    kind = "toy_lines"  # stored: never changes
    schema_text = "line string"  # stored, too

    def __init__(self, path: str | Path, *, bytes_max: int = 1 << 20) -> None:
        self.path, self.bytes_max = str(Path(path).absolute()), bytes_max

    def columns(self) -> list[str]:
        return ["line"]

    def empty(self, spark: Any) -> Any:
        return spark.createDataFrame([], self.schema_text)

    def open(self, name: str) -> TextLinesReader:
        return TextLinesReader(name, self)

    def locations(self) -> list[Location]:
        return [Location(self.path, "reads")]


class TextLinesReader(SourceReader):
    """The position is a byte offset: everything before it was read, nothing after it."""

    def __init__(self, name: str, source: TextLines) -> None:
        self._name, self._source, self._at = name, source, 0

    def check(self) -> None:
        if not os.path.isfile(self._source.path):
            raise InvalidInputError(
                "the text file does not exist", kind="no_such_file", path=self._source.path
            )

    def restore(self, manifest: Any, reader: Any) -> None:
        entry = manifest.source(self._name)
        if entry is None:
            return  # the checkpoint is older than this source: begin at the start
        if not isinstance(entry.position, OpenPosition):
            raise IncompatibleError("the position is not a text file's", source=self._name)
        self._at = int(entry.position.offsets["byte"])

    def plan(self, after: Split | None = None) -> Split | None:
        start = self._at if after is None else after.detail[1]
        with open(self._source.path, "rb") as file:
            file.seek(start)
            data = file.read(self._source.bytes_max)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return None
        return Split(self._name, whole.count(b"\n"), len(whole), (start, start + len(whole)))

    def read(self, spark: Any, split: Split) -> Any:
        start, stop = split.detail  # the same bytes, however often it is read
        with open(self._source.path, "rb") as file:
            file.seek(start)
            lines = file.read(stop - start).decode().splitlines()
        return spark.createDataFrame([(line,) for line in lines], self._source.schema_text)

    def advance(self, split: Split) -> None:
        self._at = split.detail[1]

    def save(self, draft: Any) -> OpenPosition:
        return OpenPosition(kind=TextLines.kind, offsets={"byte": str(self._at)}, order="number")

    def history(self) -> list[Split]:
        """A text file keeps its past: new operators can be filled from it."""
        if not self._at:
            return []
        with open(self._source.path, "rb") as file:
            rows = file.read(self._at).count(b"\n")
        return [Split(self._name, rows, self._at, (0, self._at))]

    def backlog(self) -> Backlog:
        return Backlog(self._at, os.path.getsize(self._source.path), "bytes")
