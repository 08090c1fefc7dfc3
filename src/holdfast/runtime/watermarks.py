"""Watermarks: how far event time has come, by source and for the pipeline.

Invariants:
- A watermark never goes back, also not over a restart.
- The pipeline's watermark is that of the slowest source that is not idle. What an epoch sees of it
  was known before the epoch began, so every task sees the same, however often it is tried.
- A row from the far future takes part like any other, but does not move the watermark.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.clock import Clock, SystemClock
from holdfast.errors import InvalidInputError
from holdfast.operators.declaration import SourceNode
from holdfast.spark.ddl import quoted
from holdfast.spark.time_zones import micros_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("holdfast.pipeline")


@dataclass(frozen=True)
class SourceObservation:
    """The newest event time that counts, rows too far in the future to count, and all rows."""

    newest_us: int | None
    future: int
    rows: int = 0


@dataclass(frozen=True)
class Observed:
    """What a job sees of a source's event times, read after the job."""

    observation: Any

    def read(self) -> SourceObservation:
        """What went by; nothing where Spark found out that no row of the source can matter."""
        try:
            found = self.observation.get
        except Exception as error:  # noqa: BLE001 - Spark has no typed error for a metric that is not there
            log.warning("no event times were observed, so the watermark stays: %s", error)
            return SourceObservation(None, 0)
        newest = found.get("newest_us")
        future, rows = (int(found.get(name) or 0) for name in ("future", "rows"))
        return SourceObservation(None if newest is None else int(newest), future, rows)


def time_kind(node: SourceNode, frame: DataFrame) -> str:
    """The type of a source's event time; one that is no time is refused with its name."""
    found = next(f.dataType for f in frame.schema.fields if _same(f.name, node.event_time))
    kind = str(found.simpleString())
    if kind not in ("timestamp", "timestamp_ntz", "date"):
        raise InvalidInputError(
            "the event time must be a timestamp",
            kind="invalid_time_column",
            source=node.name,
            column=node.event_time,
            type=kind,
            remedy="declare the column as timestamp in the source's schema",
        )
    return kind


def _same(name: str, other: str | None) -> bool:
    return other is not None and name.lower() == other.lower()


def observe(
    node: SourceNode, frame: DataFrame, kind: str, clock: Clock
) -> tuple[DataFrame, Observed]:
    """Watch the rows and event times of a source go by, without a job of its own."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    times = micros_sql(quoted(str(node.event_time)), kind)
    inside, beyond = "true", "false"
    if node.future_us is not None:
        # Spark writes numbers into the code that it generates, and would compile new code for each
        # new limit; a struct is handed to the code next to it.
        limit = f"named_struct('us', {clock.wall_us() + node.future_us}L)"
        inside, beyond = (f"named_struct('us', {times}) {sign} {limit}" for sign in ("<=", ">"))
    watched = Observation()
    seen = frame.observe(
        watched,
        F.expr(f"max(CASE WHEN {inside} THEN {times} END)").alias("newest_us"),
        F.expr(f"count_if({beyond})").alias("future"),
        F.expr("count(*)").alias("rows"),
    )
    return seen, Observed(watched)


def count_rows(frame: DataFrame) -> tuple[DataFrame, Observed]:
    """Watch the rows of a source go by that has no event time."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    watched = Observation()
    return frame.observe(watched, F.expr("count(*)").alias("rows")), Observed(watched)


@dataclass
class Watermarks:
    """The marks of all sources, from epoch to epoch."""

    sources: Sequence[SourceNode]
    clock: Clock = field(default_factory=SystemClock)
    marks_us: dict[str, int] = field(default_factory=dict)
    previous_watermark_us: int | None = None
    _active_ms: dict[str, int] = field(default_factory=dict)

    def restore(self, previous_watermark_us: int | None, marks_us: Mapping[str, int]) -> None:
        """Continue from a checkpoint."""
        self.previous_watermark_us = previous_watermark_us
        self.marks_us = dict(marks_us)

    def seen(self, name: str, newest_us: int | None) -> None:
        """A source had rows; the newest was this."""
        self._active_ms[name] = self.clock.monotonic_ms()
        source = next(source for source in self.sources if source.name == name)
        if newest_us is not None:
            mark = newest_us - source.delay_us
            self.marks_us[name] = max(mark, self.marks_us.get(name, mark))

    def lag_us(self, watermark_us: int | None) -> int | None:
        """How far a watermark is behind the newest event time that was seen."""
        newest = [
            mark + source.delay_us
            for source in self.sources
            if (mark := self.marks_us.get(source.name)) is not None
        ]
        return None if watermark_us is None or not newest else max(newest) - watermark_us

    def idle(self, source: SourceNode) -> bool:
        """Whether a source has been silent for so long that the others need not wait for it."""
        if source.idle_us is None:
            return False
        since = self._active_ms.setdefault(source.name, self.clock.monotonic_ms())
        return (self.clock.monotonic_ms() - since) * 1_000 >= source.idle_us

    def is_idle(self, name: str) -> bool:
        """Whether the source of this name is idle."""
        return any(self.idle(source) for source in self.sources if source.name == name)

    def now_us(self) -> int | None:
        """The pipeline's watermark for the next epoch."""
        timed = [source for source in self.sources if source.event_time is not None]
        busy = [source for source in timed if not self.idle(source)]
        marks = [self.marks_us.get(source.name) for source in busy]
        known = [mark for mark in marks if mark is not None]
        if not known or len(known) < len(busy):
            return self.previous_watermark_us
        mark = min(known)
        return mark if self.previous_watermark_us is None else max(mark, self.previous_watermark_us)
