"""While a query runs: save every few batches, and check before a start.

The only module of the guard that touches Spark, and only through objects that it is given: pyspark
is imported when a listener is needed, so that everything else works without it.

Invariants:
- Nothing here runs on the query's path: the listener only counts; one thread of its own saves.
- A save that fails is reported and tried again when the next one is due; it never stops the query.
- An unknown Spark version is refused before anything is read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.durations import Duration, duration_us
from holdfast.errors import HoldfastError, IncompatibleError, InvalidInputError
from holdfast.guard._save import DEFAULTS, Savepoint, save
from holdfast.guard._verify import GuardReport, verify
from holdfast.guard.locations import check_save
from holdfast.guard.spark_files.layout import SUPPORTED_SPARK, version_of
from holdfast.spark.classic import is_classic, lighten, location_of
from holdfast.storage.base import Storage

if TYPE_CHECKING:
    from holdfast.spark.annotations import SparkSession, StreamingQuery

_log = logging.getLogger("holdfast.guard")
STORE_CONF = "spark.holdfast.guard.store"


class Attachment:
    """Savepoints of one running query. Use `attach`."""

    def __init__(
        self, saving: Callable[[], Savepoint], *, batches: int, every_ms: int, clock: Clock
    ) -> None:
        """Begin the thread; the first batch that is seen counts as already saved."""
        self._saving = saving
        self._batches = batches
        self._every_ms = every_ms
        self._clock = clock
        self._condition = threading.Condition()
        self._due = False
        self._stopped = False
        self._last_batch: int | None = None
        self._last_ms = clock.monotonic_ms()
        self._finished = 0
        self.saved: list[Savepoint] = []
        self.errors: list[HoldfastError] = []
        self.detach: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="holdfast-guard", daemon=True)
        self._thread.start()

    def progress(self, batch: int) -> None:
        """A batch has ended. Called by the listener; only counts."""
        with self._condition:
            if self._last_batch is None:
                self._last_batch = batch - 1
            passed = batch - self._last_batch
            waited = self._clock.monotonic_ms() - self._last_ms
            if passed <= 0:
                return
            if (self._batches and passed >= self._batches) or (
                self._every_ms and waited >= self._every_ms
            ):
                self._last_batch, self._last_ms = batch, self._clock.monotonic_ms()
                self._due = True
                self._condition.notify_all()

    def save_now(self) -> None:
        """Ask for a save of the last committed batch; does not wait."""
        with self._condition:
            self._due = True
            self._condition.notify_all()

    def wait(self, count: int, timeout_s: float = 60.0) -> bool:
        """Until so many saves have ended, well or not."""
        with self._condition:
            return self._condition.wait_for(lambda: self._finished >= count, timeout_s)

    def stop(self, *, final: bool = True, timeout_s: float = 60.0) -> None:
        """No more saves after this; with `final`, one last save of where the query stands."""
        self.detach()
        if final:
            self.save_now()
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._due or self._stopped)
                if not self._due:
                    return
                self._due = False
            self._save()

    def _save(self) -> None:
        found: Savepoint | None = None
        problem: HoldfastError | None = None
        try:
            found = self._saving()
        except HoldfastError as error:
            problem = error
            _log.warning("savepoint failed: %s", error)
        except Exception as error:  # noqa: BLE001 - the thread must live on, whatever happened
            problem = HoldfastError(
                "savepoint failed", kind="save_failed", reason=repr(error)[:300]
            )
            _log.warning("savepoint failed", exc_info=True)
        with self._condition:
            if found is not None:
                self.saved.append(found)
            if problem is not None:
                self.errors.append(problem)
            self._finished += 1
            self._condition.notify_all()


def attach(
    query: StreamingQuery,
    store: str | PathLike[str] | Storage,
    *,
    every: int | Duration = 10,
    checkpoint_location: str | PathLike[str] | None = None,
    spark: SparkSession | None = None,
    name: str | None = None,
    sink: str | PathLike[str] | None = None,
    retain: int = 10,
    options: dict[str, Any] | None = None,
    clock: Clock | None = None,
) -> Attachment:
    """Save a running query every N batches, or every so often ("5 minutes"), off its path.

    retain: how many savepoints to keep besides the pinned ones. Stop it with `Attachment.stop`.
    """
    batches, every_ms = _parse_every(every)
    _check_query(query)
    session = spark if spark is not None else _active_session()
    check_spark_version(session)
    _check_session(session, query)
    location = checkpoint_location or _location_of(query)
    check_save(location, store, sink)
    settings = msgspec.structs.replace(DEFAULTS, retain=retain)
    clock = clock or SystemClock()
    version = str(session.version)

    def saving() -> Savepoint:
        return save(
            location,
            store,
            name=name,
            sink=sink,
            spark_version=version,
            settings=settings,
            collect=True,
            options=options,
            clock=clock,
        )

    attachment = Attachment(saving, batches=batches, every_ms=every_ms, clock=clock)
    listener = _listener(str(query.id), attachment, classic=is_classic(session))
    session.streams.addListener(listener)
    attachment.detach = lambda: session.streams.removeListener(listener)
    return attachment


def protect(
    spark: SparkSession,
    checkpoint_location: str | PathLike[str],
    store: str | PathLike[str] | Storage | None = None,
    *,
    name: str | None = None,
    deep: bool = True,
    options: dict[str, Any] | None = None,
) -> GuardReport:
    """Check a checkpoint before its query starts; damage raises `CorruptionError`.

    store: by default what `spark.holdfast.guard.store` says. Without any, only the checkpoint's own
    consistency is checked, and the report says so.
    """
    check_spark_version(spark)
    if store is None:
        store = spark.conf.get(STORE_CONF, None)
    report = verify(checkpoint_location, store, name=name, deep=deep, options=options)
    report.check()
    return report


def check_spark_version(spark: SparkSession) -> None:
    """Refuse a Spark whose checkpoints were never looked at."""
    version = str(spark.version)
    if version_of(version) not in SUPPORTED_SPARK:
        raise IncompatibleError(
            "the guard does not know the checkpoints of this Spark version",
            kind="unsupported_spark",
            version=version,
            supported=",".join(SUPPORTED_SPARK),
            remedy="use a supported version; nothing was read or changed",
        )


def _parse_every(every: int | Duration) -> tuple[int, int]:
    batches, every_ms = 0, 0
    words = every.split() if isinstance(every, str) else []
    if len(words) == 2 and words[1] in ("batch", "batches"):
        batches = int(words[0]) if words[0].isdecimal() else 0
    elif isinstance(every, (str, timedelta)):
        with suppress(InvalidInputError):
            every_ms = duration_us(every) // 1_000
    else:
        batches = int(every)
    if batches <= 0 and every_ms <= 0:
        raise InvalidInputError(
            "not an interval",
            kind="invalid_interval",
            every=repr(every)[:60],
            remedy="give a number of batches, '5 minutes' or a timedelta",
        )
    return batches, every_ms


def _active_session() -> SparkSession:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        raise InvalidInputError(
            "there is no active Spark session in this thread",
            kind="no_session",
            remedy="give it as spark=…",
        )
    return session


def _check_query(query: StreamingQuery) -> None:
    """Refuse what is no streaming query, and one that has ended: it would never be saved."""
    active = getattr(query, "isActive", None)
    if not isinstance(active, bool) or not hasattr(query, "id"):
        raise InvalidInputError(
            "not a streaming query",
            kind="not_a_query",
            value=repr(query)[:80],
            remedy="give what `writeStream.start()` returned",
        )
    if not active:
        raise InvalidInputError(
            "the query is stopped",
            kind="query_stopped",
            query=str(query.id),
            remedy="attach to a running query, or call `guard.save` once",
        )


def _check_session(session: SparkSession, query: StreamingQuery) -> None:
    """Listeners hear the queries of their own session only: the wrong one would never save."""
    if query.isActive and all(str(other.id) != str(query.id) for other in session.streams.active):
        raise InvalidInputError(
            "the query was started by another Spark session",
            kind="other_session",
            query=str(query.id),
            remedy="give the session that started it as spark=…",
        )


def _location_of(query: StreamingQuery) -> str:
    """Classic Spark knows where a query's checkpoint lies; over Spark Connect it must be given."""
    found = location_of(query)
    if found is None:
        raise InvalidInputError(
            "the query does not say where its checkpoint lies",
            kind="no_location",
            query=str(query.id),
            remedy="give it as checkpoint_location=…",
        )
    return found


def _listener(query_id: str, attachment: Attachment, *, classic: bool) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    def progress(query: str, batch: int) -> None:
        if query == query_id:
            attachment.progress(batch)

    def ended(query: str) -> None:
        if query == query_id:
            attachment.save_now()

    class GuardListener(StreamingQueryListener):
        """Counts the batches of one query."""

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """Nothing to do."""

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """A batch has ended."""
            progress(str(event.progress.id), int(event.progress.batchId))

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """Nothing to do."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """The last committed batch is worth a savepoint."""
            ended(str(event.id))

    listener = GuardListener()
    if classic:
        lighten(listener, progress, ended)
    return listener
