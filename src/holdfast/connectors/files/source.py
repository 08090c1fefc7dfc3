"""Source: files in a directory; new ones are found by listing, each is read exactly once.

The declaration; what it does while the pipeline runs is in `reader`.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from holdfast.arguments import value_map, whole_number
from holdfast.clock import Clock, SystemClock
from holdfast.connectors.bad_rows import BAD_SCHEMA
from holdfast.connectors.base import OnBad, Source
from holdfast.connectors.files.after_read import AfterRead, checked_archive
from holdfast.connectors.files.formats import checked_format, checked_options, keeps_bad_rows
from holdfast.connectors.files.pieces import EpochLimits
from holdfast.connectors.locations import Location, Use
from holdfast.durations import Duration, duration_us
from holdfast.errors import InvalidInputError
from holdfast.spark.ddl import check_weight, ddl_columns, schema_ddl
from holdfast.storage.open import OBJECT_SCHEMES, location_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from holdfast.connectors.files.reader import FilesReader

Format = Literal["parquet", "json", "csv"]
OnChange = Literal["refuse", "keep"]

MIN_AGE_MS = 250
ROWS_MAX = 1_000_000
BYTES_MAX = 128 << 20


class Files(Source):
    """Parquet, JSON or CSV files below a directory or prefix.

    schema: as SQL writes it, `customer string, amount double`, or a `StructType`. Never guessed: a
        guess from one file would be wrong for the next. Columns that directories name
        (`day=2024-01-01/`) are filled from there, as in Spark.
    format: by default what the extensions say, through compressions: `.parquet`, `.json`, `.jsonl`,
        `.ndjson`, `.csv`. pattern: only files whose name (with `/`: whose path) fits.
    files_max, rows_max, bytes_max: limits of one epoch. Bytes are those of rows in memory, by the
        footers of Parquet and by a sample. A Parquet file that is larger takes several epochs; of
        other formats, and where a column is nested, a file is the least that an epoch takes.
    min_age_ms: leave files alone that were changed more recently than this, for writers that do not
        rename. By default 250 on local disk, 0 on object stores, where objects appear whole.
    weight: a column with the weight of each row (+1 adds it, -1 retracts it).
    options: of Spark's reader, such as `{"header": True}`.
    ordered: names ascend. Then only the last 500 names are remembered, and an object store is
        listed from there; a file with a smaller name than those counts as read.
    forget_after: files older than this, behind the newest one read, count as read and are forgotten
        ("30 days"). Without it and `ordered`, every name is remembered.
    after_read: "archive" moves files to `archive`, "delete" deletes them, once no retained
        checkpoint would read them again.
    on_change: what to do about other bytes under the name of a file that was read: "refuse", or
        "keep" what was read and leave the new bytes unread.
    on_bad: what to do about records of JSON and CSV that do not fit the schema: "keep" gives them
        to `stream.bad`, the usual way; "fail" fails the epoch. With a `mode` among the options
        Spark does as that says.
    """

    kind = "files"

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        schema: str | StructType,
        format: Format | None = None,  # noqa: A002 - everybody's name for it
        pattern: str | None = None,
        files_max: int = 1_000,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
        min_age_ms: int | None = None,
        weight: str | None = None,
        options: Mapping[str, Any] | None = None,
        ordered: bool = False,
        forget_after: Duration | None = None,
        after_read: AfterRead = "keep",
        archive: str | PathLike[str] | None = None,
        on_change: OnChange = "refuse",
        on_bad: OnBad | None = None,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Refuse what can never work."""
        self.format = checked_format(format)
        self.path, self.weight = location_text(path), weight
        self.remote = self.path.split("://", 1)[0] in OBJECT_SCHEMES
        if min_age_ms is None:
            min_age_ms = 0 if self.remote else MIN_AGE_MS
        whole_number(files_max, "files_max", least=1, kind="invalid_limit")
        whole_number(rows_max, "rows_max", least=1, kind="invalid_limit")
        whole_number(bytes_max, "bytes_max", least=1, kind="invalid_limit")
        whole_number(min_age_ms, "min_age_ms", least=0, kind="invalid_limit")
        if on_change not in ("refuse", "keep"):
            raise InvalidInputError(
                "unknown way to treat changed files",
                kind="invalid_option",
                on_change=str(on_change)[:60],
                remedy="use refuse or keep",
            )
        self.schema_text = schema_ddl(schema, f"files {path}")
        self.limits = EpochLimits(files_max, rows_max, bytes_max)
        self.min_age_ms = min_age_ms
        self.pattern, self.ordered, self.on_change = pattern, ordered, on_change
        self.forget_us = None if forget_after is None else duration_us(forget_after)
        self.after_read: AfterRead = after_read
        self.archive = checked_archive(self.path, after_read, archive)
        self.options = checked_options(value_map(options, "options"), self.format)
        self.keeps_bad = keeps_bad_rows(on_bad, self.format, self.options)
        self.bad = BAD_SCHEMA if self.keeps_bad else None
        self.storage_options = value_map(storage_options, "storage_options")
        self.clock = clock or SystemClock()
        self._names = ddl_columns(self.schema_text, f"files {path}")
        check_weight(weight, self._names)

    def columns(self) -> list[str]:
        """Column names without the weight."""
        return [name for name in self._names if name != self.weight]

    def all_columns(self) -> list[str]:
        """Column names in the order of the schema."""
        return list(self._names)

    def empty(self, spark: SparkSession) -> DataFrame:
        """A DataFrame of the right shape without rows."""
        return spark.createDataFrame([], self.schema_text)

    def locations(self) -> list[Location]:
        """The directory, and where files go that were read."""
        use: Use = "reads" if self.after_read == "keep" else "consumes"
        directory = Location(self.path, use, self.pattern)
        return [directory, *([Location(self.archive, "archives")] if self.archive else [])]

    def open(self, name: str) -> FilesReader:
        """Begin with every file unread."""
        from holdfast.connectors.files.reader import FilesReader

        return FilesReader(name, self)
