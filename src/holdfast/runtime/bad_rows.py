"""Rows that a source could not read: parted from the others, counted, and the first ones shown.

Invariants:
- Both parts are taken from one DataFrame, so a row is in exactly one of them.
- A row is counted once an epoch, however many take the bad rows, and by the job that reads it.
- All columns are asked for on the way: a reader that parses only what is needed would find another
  set of bad rows in each branch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.connectors.bad_rows import BAD, BAD_COLUMNS
from holdfast.errors import InvalidInputError
from holdfast.spark.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from holdfast.operators.declaration import Node, SourceNode

log = logging.getLogger("holdfast.pipeline")
_SHOWN = 3
_RAW_SHOWN = 200


@dataclass(frozen=True)
class BadRow:
    """One row that could not be read; `raw` is cut short."""

    source: str
    raw: str
    origin: str
    reason: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}: {self.raw}"


@dataclass(frozen=True)
class BadRows:
    """What a source could not read in one epoch: how many, and some of them."""

    count: int
    rows: int
    first: tuple[BadRow, ...] = ()


def good_rows(frame: DataFrame) -> DataFrame:
    """The rows that were read."""
    if BAD not in frame.columns:
        return frame
    return frame.where(f"{quoted(BAD)} IS NULL").drop(BAD)


def bad_rows(frame: DataFrame) -> DataFrame | None:
    """What could not be read; None where the frame has no such rows."""
    if BAD not in frame.columns:
        return None
    return frame.where(f"{quoted(BAD)} IS NOT NULL").select(f"{quoted(BAD)}.*")


def bad_schema(spark: SparkSession, node: Node, sources: Sequence[SourceNode]) -> StructType:
    """The types of a source's bad rows, as it declares them."""
    source = next(source for source in sources if source.name == node.bad_of)
    schema = spark.createDataFrame([], source.connector.bad).schema
    missing = [name for name in BAD_COLUMNS if name not in schema.names]
    if missing:
        raise InvalidInputError(
            "the schema of a source's bad rows lacks a column",
            kind="invalid_bad_rows",
            source=source.name,
            column=missing[0],
            remedy="declare bad = BAD_SCHEMA, or that and more",
        )
    return schema


@dataclass(frozen=True)
class ObservedBad:
    """Counts bad rows of a source while a job reads it."""

    source: str
    observation: Any

    def read(self) -> BadRows:
        """What was seen; asked after the job."""
        try:
            found = self.observation.get
        except Exception as error:  # noqa: BLE001 - Spark has no typed error for a metric that is not there
            log.warning("bad rows of %s were not counted: %s", self.source, error)
            return BadRows(0, 0)
        rows = []
        for index in range(_SHOWN):
            row = found.get(f"first_{index}")
            if row is not None:
                rows.append(BadRow(self.source, str(row[2]), str(row[0]), str(row[1])))
        return BadRows(int(found.get("bad") or 0), int(found.get("rows") or 0), tuple(rows))


def observe_bad(name: str, frame: DataFrame) -> tuple[DataFrame, ObservedBad]:
    """Watch the bad rows of a source go by, without a job of its own."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    bad = quoted(BAD)
    shown = (
        f"struct({bad}.origin, {bad}.reason, "
        f"make_valid_utf8(substring(CAST({bad}.raw AS STRING), 1, {_RAW_SHOWN})))"
    )
    # A few rows without keeping all: the smallest one of each of some classes of raw values.
    first = [
        F.expr(
            f"min(CASE WHEN {bad} IS NOT NULL AND pmod(xxhash64({bad}.raw), {_SHOWN}) = {index} "
            f"THEN {shown} END)"
        ).alias(f"first_{index}")
        for index in range(_SHOWN)
    ]
    cells = " + ".join(f"count({quoted(name)})" for name in frame.columns if name != BAD) or "0"
    watched = Observation()
    seen = frame.observe(
        watched,
        F.expr(f"count_if({bad} IS NOT NULL)").alias("bad"),
        F.expr("count(*)").alias("rows"),
        F.expr(cells).alias("cells"),
        *first,
    )
    return seen, ObservedBad(name, watched)


@dataclass
class BadCounts:
    """Bad rows of a run by source; the first of each are logged."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, BadRow] = field(default_factory=dict)

    def add(self, seen: Mapping[str, BadRows]) -> None:
        """What one epoch has seen."""
        for source, bad in seen.items():
            if not bad.count:
                continue
            if source not in self.counts:
                for row in bad.first:
                    log.warning("source %s could not read a row: %s", source, row)
            self.counts[source] = self.counts.get(source, 0) + bad.count
            if bad.first:
                self.first.setdefault(source, bad.first[0])

    def notes(self, taken: frozenset[str]) -> list[str]:
        """What a person should know at the end of a run. taken: sources whose bad rows are used."""
        lines = []
        for source, count in self.counts.items():
            where = "they are in .bad" if source in taken else "nobody takes .bad"
            first = f"; the first: {self.first[source]}" if source in self.first else ""
            rows = "1 row" if count == 1 else f"{count} rows"
            lines.append(f"source {source} could not read {rows}, {where}{first}")
        return lines


def refuse_bad(seen: Mapping[str, BadRows], sources: Sequence[SourceNode], epoch: int) -> None:
    """Fail an epoch with bad rows of a source that asks for it; nothing was committed."""
    for source in sources:
        bad = seen.get(source.name)
        if bad is None or not bad.count or source.connector.on_bad != "fail":
            continue
        first = bad.first[0] if bad.first else None
        raise InvalidInputError(
            "a source has rows that cannot be read",
            kind="bad_rows",
            source=source.name,
            epoch=epoch,
            rows=bad.count,
            origin=first.origin if first else None,
            reason=first.reason if first else None,
            record=first.raw if first else None,
            remedy='mend them where they lie, or say on_bad="keep": then they go to stream.bad',
        )
