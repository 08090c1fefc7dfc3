"""Canaries: every fast path tried on the Spark that is there, against its public way.

Used by the tests of each supported Spark, and by `holdfast doctor --spark`.

Invariants:
- A canary changes nothing of the user's: temporary directories, frames and queries of its own.
- A fast path that a canary finds wrong is named with its reason; nothing is raised.
"""

from __future__ import annotations

import importlib
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.spark import classic
from holdfast.spark.session import RuntimeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS_MAX = 60


@dataclass(frozen=True)
class Canary:
    """What became of one fast path. reason: why it does not work; None where it does."""

    path: str
    reason: str | None = None


def try_fast_paths(spark: SparkSession) -> list[Canary]:
    """Try every fast path of a classic session; takes a few seconds."""
    settings = RuntimeSettings(spark)
    try:
        return [_tried(name, spark) for name in classic.FAST_PATHS]
    finally:
        settings.restore()


def _tried(name: str, spark: SparkSession) -> Canary:
    try:
        _CANARIES[name](spark)
    except Exception as error:  # noqa: BLE001 - a canary tells, whatever it is
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return Canary(name, classic.turned_off().get(name, reason))
    return Canary(name, classic.turned_off().get(name))


def _check(found: object, wanted: object) -> None:
    if found != wanted:
        raise ValueError(f"{found} instead of {wanted}")


def _selection(spark: SparkSession) -> None:
    texts = ("id", "id * 2 AS `a b`")
    select = classic.Selection(*texts)
    for frame in (spark.range(3), spark.range(5)):
        _check(select(frame).collect(), frame.selectExpr(*texts).collect())


def _as_it_is(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


def _arrow_map(spark: SparkSession) -> None:
    mapped = classic.ArrowMap(_as_it_is, "id long")
    for frame in (spark.range(3), spark.range(5)):
        _check(mapped(frame).collect(), frame.collect())


def _plan_ahead(spark: SparkSession) -> None:
    frame = spark.range(3).selectExpr("id + 1 AS id")
    classic.plan_now(frame)
    _check(frame.count(), 3)


def _plan_text(spark: SparkSession) -> None:
    frame = spark.range(3).alias("canary").groupBy("id").count()
    lines = classic.analyzed_lines(frame, "SubqueryAlias canary", list)
    _check([line.split("[")[0].strip() for line in lines], ["Aggregate", "+- SubqueryAlias canary"])


def _begin_ahead(spark: SparkSession) -> None:
    frame = spark.range(0, 100, 1, 2).repartition(2, "id")
    stages = classic.begin_shuffles(frame)
    _check(len(stages), 1)
    _check(classic.finished(stages), wanted=True)
    _check(len(frame.collect()), 100)


def _row_counts(spark: SparkSession) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-canary-") as home:
        spark.range(0, 100, 1, 2).write.parquet(f"{home}/in")
        files = [str(file) for file in sorted(Path(home, "in").glob("*.parquet"))]
        frame = spark.read.schema("id long").parquet(*files).selectExpr("id + 1 AS id")
        frame.collect()
        scans = classic.scans_of(frame)
    if not scans:
        raise ValueError("no reading of files was found")
    _check([(scan.files, scan.rows, scan.pushed) for scan in scans], [(2, 100, False)])


def _python_daemon(_: Any) -> None:
    manager = getattr(importlib.import_module("pyspark.daemon"), "manager", None)
    if not callable(manager):
        raise TypeError("pyspark.daemon has no manager")


def _error_causes(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("assert_true(id > 1, 'canary') AS x")
    try:
        frame.collect()
    except Exception as error:  # noqa: BLE001 - what is looked at
        conditions = [cause.condition for cause in classic.causes_of(error)]
    else:
        raise ValueError("no error came")
    if "USER_RAISED_EXCEPTION" not in conditions:
        raise ValueError(f"{conditions} without USER_RAISED_EXCEPTION")


def _streaming(spark: SparkSession) -> tuple[str, str | None, set[str]]:
    """A small query from its start to its end: its location twice, and what a listener heard."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    heard: set[str] = set()
    over = threading.Event()

    class Quiet(StreamingQueryListener):
        """Hears nothing by itself."""

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """Nothing."""

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """Nothing."""

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """Nothing."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: ARG002, N802 - Spark's name
            """So that nobody waits for what is not heard."""
            over.set()

    def ended(_: str) -> None:
        heard.add("ended")
        over.set()

    listener = Quiet()
    classic.lighten(listener, lambda _, batch: heard.add(f"batch {batch}"), ended)
    spark.streams.addListener(listener)
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-canary-") as home:
            spark.range(3).write.parquet(f"{home}/in")
            source = spark.readStream.schema("id long").parquet(f"{home}/in")
            writer = source.writeStream.format("noop").option("checkpointLocation", f"{home}/cp")
            query = writer.start()
            try:
                query.processAllAvailable()
                found = classic.location_of(query)
            finally:
                query.stop()
            over.wait(_SECONDS_MAX)
            return f"{home}/cp", found, heard
    finally:
        spark.streams.removeListener(listener)


def _light_listener(spark: SparkSession) -> None:
    heard = _streaming(spark)[2]
    if not {"batch 0", "ended"} <= heard:
        raise ValueError(f"a query was not heard: {sorted(heard)}")


def _location(spark: SparkSession) -> None:
    wanted, found, _ = _streaming(spark)
    if found is None or not found.endswith(wanted):
        raise ValueError(f"{found} instead of {wanted}")


_CANARIES: Mapping[str, Callable[[Any], None]] = {
    "selection": _selection,
    "arrow map": _arrow_map,
    "plan ahead": _plan_ahead,
    "plan text": _plan_text,
    "begin ahead": _begin_ahead,
    "row counts": _row_counts,
    "python daemon": _python_daemon,
    "error causes": _error_causes,
    "light listener": _light_listener,
    "checkpoint location": _location,
}
