"""Rigs of the conformance suite: the world of every connector that ships, and of two small ones."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import holdfast as hf
from holdfast.connectors import (
    BAD_SCHEMA,
    Backlog,
    IncompatibleError,
    Location,
    OpenPosition,
    Source,
    SourceReader,
    Split,
    bad_row,
)
from holdfast.journal import JournalReader, JournalWriter, Query
from holdfast.testing.connectors import SinkRig, SourceRig
from tests.helpers.examples import example
from tests.helpers.journals import some
from tests.helpers.rest_api import EventsApi
from tests.helpers.toy_sink import SqliteTable

# Sources


class FilesRig(SourceRig):
    """JSON files of one row each."""

    rows_max = 3
    count = 0

    def source(self):
        (self.home / "in").mkdir(exist_ok=True)
        return hf.sources.Files(
            self.home / "in", schema="n long, s string", format="json", files_max=3, min_age_ms=0
        )

    def _write(self, text: str) -> None:
        (self.home / "in").mkdir(exist_ok=True)
        (self.home / "in" / f"{self.count:04d}.json").write_text(text)
        self.count += 1

    def add(self, count):
        rows = [(self.count + i, f"row {self.count + i}") for i in range(count)]
        for n, s in rows:
            self._write(json.dumps({"n": n, "s": s}) + "\n")
        return rows

    def add_bad(self, count):
        for _ in range(count):
            self._write('{"n": "no number"}\n')
        return True

    def directories(self):
        return [str(self.home / "in")]


class GeneratorRig(SourceRig):
    """Rows by number; a new declaration has more of them."""

    rows_max = 3
    grows = False
    total = 0

    def source(self):
        columns = {"n": "id", "s": "concat('row ', id)"}
        return hf.sources.Generator(columns, rows=self.total, rows_per_epoch=3)

    def add(self, count):
        rows = [(self.total + i, f"row {self.total + i}") for i in range(count)]
        self.total += count
        return rows


class JournalRig(SourceRig):
    """Events of one append each."""

    rows_max = 3
    count = 0
    compared = ("payload",)

    def _journal(self) -> Path:
        path = self.home / "journal"
        if not path.exists():
            with JournalWriter(path):
                pass
        return path

    def source(self):
        return hf.sources.Journal(self._journal(), events_max=3)

    def add(self, count):
        events = some(count, self.count)
        self.count += count
        with JournalWriter(self._journal()) as journal:
            for event in events:
                journal.append([event])
        return [(bytearray(event.payload),) for event in events]

    def directories(self):
        return [str(self.home / "journal")]


class Lines(Source):
    """Lines of a text file; those that begin with `!` cannot be read. The one that others break."""

    kind, schema_text, bad = "lines", "line string", BAD_SCHEMA

    def __init__(self, path: Path, password: str = "") -> None:
        self.path, self.password = path, password

    def columns(self):
        return ["line"]

    def empty(self, spark):
        return spark.createDataFrame([], "line string")

    def locations(self):
        return [Location(str(self.path.parent), "reads")]

    def open(self, name):
        return LinesReader(name, self)


class LinesReader(SourceReader):
    rows_max = 3

    def __init__(self, name: str, source: Lines) -> None:
        self.name, self.source, self.at = name, source, 0

    def lines(self) -> list[str]:
        return self.source.path.read_text().splitlines() if self.source.path.exists() else []

    def restore(self, manifest, reader) -> None:
        entry = manifest.source(self.name)
        if entry is None:
            return
        position = entry.position
        if not isinstance(position, OpenPosition) or position.kind != "lines":
            raise IncompatibleError("not a position of lines", source=self.name)
        self.at = int(position.offsets["line"])

    def plan(self, after=None):
        start = self.at if after is None else after.detail[1]
        stop = min(start + self.rows_max, len(self.lines()))
        return Split(self.name, stop - start, 0, (start, stop)) if stop > start else None

    def read(self, spark, split):
        start, stop = split.detail
        return self.frame(spark, self.lines()[start:stop])

    def frame(self, spark, lines):
        bad = bad_row(
            "line LIKE '!%'", raw="line", origin="'the file'", reason="'it begins with !'"
        )
        return spark.createDataFrame([(line,) for line in lines], "line string").selectExpr(
            "*", bad
        )

    def advance(self, split) -> None:
        self.at = split.detail[1]

    def save(self, draft):
        return OpenPosition(kind="lines", offsets={"line": str(self.at)}, order="number")

    def history(self):
        return [Split(self.name, self.at, 0, (0, self.at))] if self.at else []

    def backlog(self):
        return Backlog(self.at, max(self.at, len(self.lines())), "rows", bytes=None)


class LinesRig(SourceRig):
    """A text file, and a password that nobody else may see."""

    rows_max = 3
    secrets = ("hunter2",)
    kind: type[Source] = Lines
    count = 0

    def source(self):
        return self.kind(self.home / "text" / "lines.txt", "hunter2")

    def _append(self, lines: Iterable[str]) -> None:
        (self.home / "text").mkdir(exist_ok=True)
        with open(self.home / "text" / "lines.txt", "a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def add(self, count):
        lines = [f"line {self.count + i}" for i in range(count)]
        self.count += count
        self._append(lines)
        return [(line,) for line in lines]

    def add_bad(self, count):
        self._append(f"!{i}" for i in range(count))
        return True

    def directories(self):
        return [str(self.home / "text")]


class RestRig(SourceRig):
    """A REST API on loopback, page by page."""

    rows_max = 3
    secrets = ("s3cret-token",)

    def __init__(self, home, spark) -> None:
        super().__init__(home, spark)
        self.api = EventsApi(token="s3cret-token")
        os.environ["HOLDFAST_TEST_REST_TOKEN"] = "s3cret-token"

    def source(self):
        rest = example("connectors/rest_source.py")
        return rest.RestEvents(self.api.url, token="env:HOLDFAST_TEST_REST_TOKEN", page_max=3)

    compared = ("id", "kind")

    def add(self, count):
        return [(item["id"], item["kind"]) for item in self.api.add(count)]

    def add_bad(self, count):
        self.api.add_items([{"id": "no number", "kind": "x"}] * count)
        return True


# Sinks


def net(rows: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """What is there of a changelog: `(k, n, weight)` added up."""
    total: Counter = Counter()
    for k, n, weight in rows:
        total[k, n] += weight
    lacking = [(k, -n) for (k, n), count in total.items() if count < 0]  # no answer has these
    return [*total.elements(), *lacking]


class ParquetRig(SinkRig):
    """A changelog of directories."""

    mode = "changelog"

    def sink(self):
        return hf.sinks.Parquet(self.home / "out", mode=self.mode)

    def rows(self):
        if not any((self.home / "out").glob("hf_epoch=*")):
            return []
        frame = self.spark.read.parquet(str(self.home / "out"))
        return net((r["k"], r["n"], r["_weight"]) for r in frame.collect())

    def directories(self):
        return [str(self.home / "out")]


class UpsertRig(ParquetRig):
    """The rows as they are now, behind a link."""

    mode = "upsert"

    def rows(self):
        if not (self.home / "out").exists() or not any((self.home / "out").rglob("*.parquet")):
            return []
        return [(r["k"], r["n"]) for r in self.spark.read.parquet(str(self.home / "out")).collect()]


class FunctionRig(SinkRig):
    """A user function that writes down which keys it has seen."""

    deduplicates = True
    owned = False

    def __init__(self, home, spark) -> None:
        super().__init__(home, spark)
        self.seen: dict[str, list] = {}

    def sink(self):
        return hf.sinks.Function(self._handle, deduplicates=self.deduplicates)

    def _handle(self, rows, epoch, key) -> None:
        known = {epoch: found for (epoch, _), found in self.seen.items()}
        if epoch not in known:
            self.seen[epoch, key] = [(r["k"], r["n"], r["_weight"]) for r in rows.collect()]

    def rows(self):
        return net(row for rows in self.seen.values() for row in rows)


class JournalSinkRig(SinkRig):
    """Events of a journal, which others may write to as well."""

    owned = False

    def sink(self):
        return hf.sinks.Journal(self.home / "events", entity="=e", kind="=row")

    def rows(self):
        if not (self.home / "events").exists():
            return []
        with JournalReader(self.home / "events") as journal:
            events = journal.query(Query(kind="row")).to_table().to_pylist()
        found = [json.loads(event["payload"]) for event in events]
        return net((r["k"], r["n"], r["_weight"]) for r in found)

    def directories(self):
        return [str(self.home / "events")]


class SqliteRig(SinkRig):
    """The sink of the examples."""

    owned = False
    kind: type[SqliteTable] = SqliteTable

    def sink(self):
        return self.kind(self.home / "out.db", "counts")

    def rows(self):
        if not (self.home / "out.db").exists():
            return []
        with closing(sqlite3.connect(self.home / "out.db")) as database:
            names = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
            if "counts" not in names:
                return []
            return net(database.execute("SELECT k, n, _weight FROM counts").fetchall())
