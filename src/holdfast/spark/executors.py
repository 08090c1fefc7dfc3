"""A look at every executor: Python, packages, clock, disk, and the store from there.

Invariants:
- The probe travels by value and needs nothing on the executor but Python: that is what it asks for.
- It waits for executors only so long. Without any, an error says so.
- The store is left as it was: a file is removed by the side that put it there.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import InvalidInputError, StorageError
from holdfast.format import paths
from holdfast.ids import RandomIds
from holdfast.spark import probe
from holdfast.spark.classic import is_classic
from holdfast.storage.open import OBJECT_SCHEMES, StorageLocation, storage_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUIRED = ("pyspark", "pyarrow", "numpy", "msgspec")
"""What every task imports, besides Holdfast itself."""
REMOTE = ("obstore",)
"""What tasks need besides for a store on an object store."""
_HOLD_S = 0.3  # a probe stays so long in its slot, so that the others find other slots
_ROUNDS = 6
_CONNECT_S = 5.0


class Executor(msgspec.Struct, frozen=True, kw_only=True):
    """What one executor has said.

    packages: by name the version, or None where it cannot be imported.
    holdfast: its version; None where it cannot be imported, and `holdfast_failed` says why.
    skew_s: how far its clock is off this driver's at least; 0 when it may be none.
    store_ms: put, get and list of a small object, in milliseconds; `store_failed` says why not.
    store_shared: whether it sees what the driver has put into the store.
    """

    host: str
    process: int
    directory: str
    python: str
    executable: str
    packages: dict[str, str | None]
    holdfast: str | None
    holdfast_failed: str | None
    skew_s: float
    cache: str | None
    cache_free_bytes: int | None
    cache_writable: bool | None
    store_ms: dict[str, float] | None
    store_failed: str | None
    store_shared: bool | None

    @property
    def name(self) -> str:
        """Host and number, as Spark's pages show them where the directory tells."""
        return f"{self.host}/{self.directory.rstrip('/').rsplit('/', 1)[-1] or self.process}"


def check_master(master: str) -> None:
    """Refuse a master that nobody answers for, which Spark itself would try for a minute.

    Args:
        master: `spark://host:port`, several of them with commas, or `sc://host:port`. Others pass.

    Raises:
        InvalidInputError: the address cannot be read.
        StorageError: nobody listens at any of the addresses.
    """
    scheme, mark, rest = master.partition("://")
    if not mark or scheme not in ("spark", "sc"):
        return
    reasons = []
    for address in rest.split(",") if scheme == "spark" else [rest.partition("/")[0]]:
        reason = _unreachable(scheme, address, master)
        if reason is None:
            return
        reasons.append(f"{address}: {reason}")
    raise StorageError(
        "nobody answers at the address of Spark's master",
        kind="master_unreachable",
        master=master.partition(";")[0],
        reason="; ".join(reasons),
        retryable=True,
        remedy="start the master, or correct --master: its own page and its log show the address",
        took_effect=False,
    )


def _unreachable(scheme: str, address: str, master: str) -> str | None:
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port or (15002 if scheme == "sc" else 7077)
    except ValueError:
        host, port = None, 0
    if not host:
        raise InvalidInputError(
            "not an address of a Spark master",
            kind="invalid_argument",
            argument="master",
            value=master[:80],
            remedy="write spark://host:7077 or sc://host:15002",
        )
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return None


def look_at_executors(
    spark: SparkSession,
    place: StorageLocation | None = None,
    *,
    timeout_s: float = 60.0,
    packages: Sequence[str] = (*REQUIRED, *REMOTE),
    clock: Clock | None = None,
) -> list[Executor]:
    """Run a probe on every executor that the session has.

    Args:
        spark: the session, classic or of Spark Connect.
        place: a store to try from every executor, with what reaches it.
        timeout_s: how long to wait for a first answer.
        packages: whose versions to ask for.
        clock: to compare the executors' clocks with.

    Returns:
        What each of them has said, by name.

    Raises:
        StorageError: no executor took a task in time, or the session died.
    """
    seen: dict[tuple[str, int], Executor] = {}
    wall = clock or SystemClock()

    def now() -> float:
        return wall.wall_us() / 1e6

    marker = paths.temporary("", RandomIds().token())
    if place is not None:
        storage_of(place).put_new(marker, b"holdfast")
    try:
        slots = _slots(spark)
        for turn in range(_ROUNDS):
            began = now()
            found = _probe(spark, place, marker, packages, 2 * slots, timeout_s)
            ended = now()
            before = len(seen)
            for facts in found:
                skew = max(began - facts["now"], facts["now"] - ended, 0.0)
                one = msgspec.convert({**facts, "skew_s": round(skew, 3)}, Executor)
                seen.setdefault((one.host, one.process), one)
            if turn and len(seen) == before:
                break
            slots = max(slots, 2 * len(seen))
    finally:
        if place is not None:
            storage_of(place).delete(marker)
    return sorted(seen.values(), key=lambda one: (one.name, one.process))


def _client(place: StorageLocation) -> dict[str, Any]:
    """Options of the store's client, which gives up before the look does."""
    soon = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
    remote = place.url.split("://", 1)[0] in OBJECT_SCHEMES
    return ({"retry_config": soon} if remote else {}) | dict(place.options)


def _slots(spark: SparkSession) -> int:
    """How many tasks run at once; a guess over Spark Connect, which does not say."""
    if is_classic(spark):
        return max(2, int(spark.sparkContext.defaultParallelism))
    return 8


def _probe(
    spark: SparkSession,
    place: StorageLocation | None,
    marker: str,
    packages: Sequence[str],
    tasks: int,
    timeout_s: float,
) -> list[dict[str, Any]]:
    """One job of probes; each answer is one JSON text."""
    from pyspark import cloudpickle

    given = {
        "url": place.url if place is not None else None,
        "options": _client(place) if place is not None else {},
        "cache": place.cache if place is not None else None,
        "marker": marker,
        "packages": [*packages],
        "hold_s": _HOLD_S,
    }
    cloudpickle.register_pickle_by_value(probe)  # type: ignore[no-untyped-call]  # the executor may not have Holdfast
    try:
        return _answers(spark, given, tasks, timeout_s)
    finally:
        cloudpickle.unregister_pickle_by_value(probe)  # type: ignore[no-untyped-call]


def _answers(
    spark: SparkSession, given: Mapping[str, Any], tasks: int, timeout_s: float
) -> list[dict[str, Any]]:
    from pyspark.sql.functions import udf

    describe = probe.describe

    def answer(number: int) -> str:
        del number
        return describe(given)

    answer.__module__ = "__main__"  # by value, too
    ask = udf(answer, "string", useArrow=False)  # Arrow may be what is missing
    frame = spark.range(0, tasks, 1, tasks).select(ask("id").alias("facts"))
    rows = _within(spark, frame.collect, timeout_s)
    return [json.loads(row[0]) for row in rows]


def _within(spark: SparkSession, job: Callable[[], Iterable[Any]], timeout_s: float) -> Any:
    """The result of a job, or an error and no job after so many seconds."""
    box: dict[str, Any] = {}

    def run() -> None:
        try:
            box["rows"] = job()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            box["error"] = error

    thread = threading.Thread(target=run, name="holdfast-probe", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        if is_classic(spark):
            spark.sparkContext.cancelAllJobs()
        else:
            spark.interruptAll()
        thread.join(10)
        raise StorageError(
            "no executor took a task",
            kind="no_executors",
            seconds=timeout_s,
            retryable=True,
            remedy="see the master's page: are workers alive, and have they the cores and the "
            "memory that an executor asks for (spark.executor.memory, spark.executor.cores)?",
            took_effect=False,
        )
    if "error" in box:
        raise box["error"]
    return box["rows"]
