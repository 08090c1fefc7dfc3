"""Listed files as a DataFrame: each name is a literal, whatever it contains.

Spark takes the paths that it is given for patterns, and Hadoop cannot name some files at all. So:

- What a pattern could mean is escaped.
- Local files with a colon in their name are read without Hadoop's checksum layer, which cannot name
  their checksum file. Where a path has both, the file is read by itself with patterns turned off:
  turned off for several paths, Spark reads each of them several times.
- Files below `column=value` directories are read with the source's directory as their base, those
  of one set of columns at a time: given several sets at once, Spark refuses or leaves files out.

A record that does not fit the schema is kept as a bad row, with what Spark and its values tell of
the reason. Where a source is to fail instead, the record is looked for after the job has failed:
Spark says which file, not which line.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import itertools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.connectors.bad_rows import bad_row
from holdfast.spark.classic import NO_PATTERNS, RAW_FILES
from holdfast.spark.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

log = logging.getLogger("holdfast.pipeline")
_SHOWN = 120
_LINES_MAX = 5_000_000
_PATTERN = re.compile(r"[\\*?\[\]{}]")
_BAD = "__hf_corrupt"
_ORIGIN = "_metadata.file_path"


def escaped(path: str) -> str:
    """A path as a pattern that fits nothing but this path."""
    return _PATTERN.sub(lambda match: "\\" + match.group(), path)


def partition_columns(path: str) -> tuple[str, ...]:
    """The columns that the directories of a file name: `day=2024-01-01/hour=7/a.parquet`."""
    parts = path.split("/")[:-1]
    return tuple(
        part.split("=", 1)[0] for part in parts if "=" in part and not part.startswith("=")
    )


def footer_rows(paths: Sequence[str]) -> int | None:
    """Rows of Parquet files by their footers; None where one cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return sum(int(pq.read_metadata(path).num_rows) for path in paths)
    except (OSError, pa.ArrowException):
        return None


class FileFrames:
    """Makes DataFrames of files below one base."""

    def __init__(
        self,
        *,
        base: str,
        local: bool,
        schema: str,
        columns: Sequence[str],
        format: str,  # noqa: A002
        options: Mapping[str, str],
        keeps_bad: bool = False,
    ) -> None:
        """base: the directory or prefix, as Spark is to see it. keeps_bad: as bad rows."""
        self._base, self._local, self._schema = base.rstrip("/"), local, schema
        self._columns, self._format = list(columns), format
        mode = {} if format == "parquet" else {"mode": "FAILFAST"}
        if keeps_bad:
            mode = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}
        self._kept_schema = f"{schema}, {quoted(_BAD)} string" if keeps_bad else schema
        self._keeps_bad = keeps_bad
        self._options = {**mode, **options}
        self._plain: tuple[SparkSession, DataFrameReader] | None = None

    def url(self, path: str) -> str:
        """A file as Spark names it."""
        return f"{'file:' if self._local else ''}{self._base}/{path}"

    def read(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """The rows of these files, with the declared columns in their order."""
        groups: dict[tuple[tuple[str, ...], str], list[str]] = {}
        for path in paths:
            groups.setdefault((partition_columns(path), self._way(path)), []).append(path)
        frames = [self._group(spark, columns, way, some) for (columns, way), some in groups.items()]
        return functools.reduce(lambda left, right: left.union(right), frames)

    def _way(self, path: str) -> str:
        """How a file must be read: usual, raw, or by itself under its own name."""
        whole = f"{self._base}/{path}"
        if self._local and ":" in whole:
            if _PATTERN.search(whole):
                return path
            if ":" in path.rsplit("/", 1)[-1]:
                return "raw:"
        return "usual:"

    def _group(
        self, spark: SparkSession, columns: tuple[str, ...], way: str, paths: list[str]
    ) -> DataFrame:
        if way == "usual:" and not columns:
            if self._plain is None or self._plain[0] is not spark:
                self._plain = spark, self._reader(spark, {})
            frame = self._plain[1].load(self._texts(paths))
            return frame.selectExpr(*self._parts()) if self._keeps_bad else frame
        options: dict[str, str] = {} if way == "usual:" else dict(RAW_FILES)
        alone = way not in ("usual:", "raw:")
        if alone:
            options |= NO_PATTERNS
        if columns:
            options["basePath"] = self.url("").rstrip("/")
        reader = self._reader(spark, options)
        frame = reader.load([self.url(path) for path in paths] if alone else self._texts(paths))
        return frame.selectExpr(*self._parts())

    def _parts(self) -> list[str]:
        """The declared columns in their order, and what could not be read."""
        parts = [quoted(name) for name in self._columns]
        if not self._keeps_bad:
            return parts
        bad = quoted(_BAD)
        reason = _reason(self._columns, self._format)
        return [*parts, bad_row(f"{bad} IS NOT NULL", raw=bad, origin=_ORIGIN, reason=reason)]

    def _texts(self, paths: list[str]) -> str | list[str]:
        texts = [escaped(self.url(path)) for path in paths]
        return texts[0] if len(texts) == 1 else texts

    def first_bad(self, spark: SparkSession, path: str) -> str | None:
        """The first record of a text file that does not fit the schema."""
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}
        if self._local:
            options |= {**RAW_FILES, **NO_PATTERNS}
        reader = self._reader(spark, options)
        frame = reader.schema(f"{self._schema}, `{_BAD}` string").load(self.url(path))
        rows = frame.where(f"`{_BAD}` IS NOT NULL").limit(1).collect()
        return str(rows[0][_BAD]) if rows else None

    def _reader(self, spark: SparkSession, more: Mapping[str, str]) -> DataFrameReader:
        options = {**self._options, **more}
        return spark.read.schema(self._kept_schema).options(**options).format(self._format)


def _reason(columns: Sequence[str], format: str) -> str:  # noqa: A002
    """Why a record could not be read, in SQL: Spark keeps the values that it could read."""
    record = quoted(_BAD)
    if format == "csv":
        empty = [f"CASE WHEN {quoted(n)} IS NULL THEN {_text(n)} END" for n in columns]
        return (
            f"concat('not a record of the schema; without a value: ', "
            f"coalesce(nullif(concat_ws(', ', {', '.join(empty)}), ''), 'none'))"
        )
    lost = [
        f"CASE WHEN {quoted(n)} IS NULL AND get_json_object({record}, {_text(_path(n))}) "
        f"IS NOT NULL THEN {_text(n)} END"
        for n in columns
        if "'" not in n
    ]
    return (
        f"CASE WHEN get_json_object({record}, '$') IS NULL THEN 'not JSON' "
        f"ELSE concat('values that do not fit their columns: ', "
        f"coalesce(nullif(concat_ws(', ', {', '.join(lost) or 'NULL'}), ''), 'not told')) END"
    )


def _path(name: str) -> str:
    return f"$['{name}']"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def bad_record(
    spark: SparkSession,
    frames: FileFrames,
    root: str | None,
    path: str,
    format: str,  # noqa: A002
) -> dict[str, object]:
    """The first bad record of a file and its line, as far as they can be told.

    The file is read once more with bad records kept; the first one is looked up in its lines.
    """
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
