"""The Spark session: local by default, a cluster by `master`, Spark Connect by `sc://`."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidInputError, StorageError
from holdfast.spark import daemon
from holdfast.spark.class_archive import archive_options
from holdfast.spark.classic import is_classic
from holdfast.spark.executors import check_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.pipeline")

# What the epoch loop relies on; set on every session that Holdfast uses.
RUNTIME = {
    "spark.sql.adaptive.enabled": "false",  # partition numbers must stay what they are
    # One batch a task, unless its rows are too many bytes for one.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    # A user's Python function on columns would get room for a whole batch of that size at once.
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
    # A filter inside these readers would hide rows from their count; it saves little.
    "spark.sql.csv.filterPushdown.enabled": "false",
    "spark.sql.json.filterPushdown.enabled": "false",
}
_BATCH_ROWS_4_0 = "100000"
"""Spark 4.0 does not promise to count bytes where it calls Python for batches."""
_STATIC = {
    "spark.sql.session.timeZone": "UTC",  # a session of Holdfast's own means the same everywhere
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
# Every epoch is planned from scratch, by more code than a small machine compiles in minutes.
# Methods wait four times longer for the optimising compiler, which leaves the cores to the epochs;
# loops don't.
_COMPILE_LATER = (
    "-XX:Tier4InvocationThreshold=20000 -XX:Tier4MinInvocationThreshold=4000"
    " -XX:Tier4CompileThreshold=40000"
)


def open_session(
    *, app: str, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """A session for a pipeline; an active one is used as it is."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InvalidInputError(
            "pipelines need Spark",
            kind="missing_extra",
            remedy="pip install 'holdfast-spark[spark]'",
        ) from error
    from holdfast.spark.java import require_java

    active = SparkSession.getActiveSession()
    if active is not None and master is None:
        return active
    builder = SparkSession.builder.appName(f"holdfast-{app}")
    if master is not None:
        check_master(master)
    if master is not None and master.startswith("sc://"):
        return _opened(builder.remote(master), master)
    java = require_java()
    given = dict(config or {})
    # Under spark-submit the master is already set: one of ours would overrule it.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    where = master or given.get("spark.master", "" if submitted else "local[*]")
    settings = {**_STATIC, **RUNTIME}
    if where.startswith("local"):
        # Loopback unless the user says otherwise: a laptop that changes networks keeps working.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Workers must be the Python that has Holdfast, not whatever PATH finds first.
        python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        options = f"{_COMPILE_LATER} {archive_options(java)}".strip()
        settings["spark.driver.extraJavaOptions"] = options
        if daemon.found_by(python):
            settings["spark.python.daemon.module"] = daemon.MODULE
    for key, value in {**settings, **given}.items():
        builder = builder.config(key, value)
    spark = _opened(builder.master(where) if where else builder, where)
    if active is None and where.startswith("local") and not where.startswith("local-cluster"):
        threading.Thread(target=_start_workers, args=[spark], daemon=True).start()
    return spark


def _opened(builder: Any, where: str) -> SparkSession:
    """The session, or why a master did not give one."""
    try:
        spark: SparkSession = builder.getOrCreate()
        if not where.startswith("local"):
            _ = spark.version  # of a context that gave up, or a server that is none
    except Exception as error:
        if where.startswith("local"):
            raise
        raise StorageError(
            "Spark's master gave no session",
            kind="session_failed",
            master=where.partition(";")[0],
            reason=str(error).strip().partition("\n")[0][:300],
            retryable=True,
            remedy="look at the master's log: the address, its version of Spark, and whether it "
            "accepts applications; nothing of the store was touched",
            took_effect=False,
        ) from error
    return spark


def _start_workers(spark: SparkSession) -> None:
    """Let Spark start its Python workers while the pipeline is still being planned."""
    try:
        count = min(spark.sparkContext.defaultParallelism, os.cpu_count() or 1)
        spark.sparkContext.setJobDescription("Holdfast: start the Python workers")
        spark.range(0, count, 1, count).mapInArrow(_nothing, "id long").collect()
    except Exception:  # the first epoch starts them, and its error counts
        log.debug("no Python worker was started ahead", exc_info=True)


def _nothing(batches: Iterable[Any]) -> Iterator[Any]:
    for _ in batches:
        yield from ()


class RuntimeSettings:
    """Sets what the epoch loop relies on, and puts the user's values back afterwards."""

    def __init__(self, spark: SparkSession) -> None:
        """Remember what was set before."""
        self._spark = spark
        wanted = dict(RUNTIME)
        if spark.version.startswith("4.0"):
            wanted["spark.sql.execution.arrow.maxRecordsPerBatch"] = _BATCH_ROWS_4_0
        self._before = {key: spark.conf.get(key, None) for key in wanted}
        for key, value in wanted.items():
            spark.conf.set(key, value)

    def restore(self) -> None:
        """Put the user's values back."""
        try:
            for key, value in self._before.items():
                if value is None:
                    self._spark.conf.unset(key)
                else:
                    self._spark.conf.set(key, value)
        except Exception:  # a session that died meanwhile: why the run ended counts
            log.debug("the settings of the session were not put back", exc_info=True)


def check_session(spark: SparkSession) -> None:
    """Refuse a session that was stopped, or whose Java is gone, before anything is asked of it."""
    if not hasattr(spark, "createDataFrame"):
        raise InvalidInputError(
            "not a Spark session",
            kind="invalid_argument",
            argument="spark",
            value=repr(spark)[:80],
            remedy="give what pipe.session() or SparkSession.builder.getOrCreate() returned",
        )
    if not is_classic(spark):
        return
    reason = None
    try:
        _ = spark.sparkContext.defaultParallelism  # a context that was stopped refuses to say
    except Exception as error:  # noqa: BLE001 - stopped, or nobody answers: it is the same
        reason = f"it was stopped, or its Java does not answer: {type(error).__name__}"
    if reason is not None:
        raise InvalidInputError(
            "the Spark session of the pipeline cannot be used",
            kind="session_stopped",
            reason=reason,
            remedy="declare the pipeline in a new session; the last checkpoint is untouched",
        )


_checked: set[str] = set()


def check_workers(spark: SparkSession) -> None:
    """Refuse executors whose Python cannot run Holdfast, before the first job; once a session.

    Nothing is started where the workers are this very interpreter on this machine.
    """
    if not is_classic(spark):  # the server's Python is its own affair until the first job
        return
    context = spark.sparkContext
    python = str(getattr(context, "pythonExec", ""))
    if context.applicationId in _checked or (is_local(spark) and _is_this(python)):
        return
    try:
        rows = spark.range(0, 1, 1, 1).mapInArrow(_describe, "text string").collect()
        found = str(rows[0][0])
    except Exception as error:
        raise _wrong_python(python, _reason(str(error))) from error
    if found != "ok":
        raise _wrong_python(python, found)
    _checked.add(context.applicationId)


def _is_this(python: str) -> bool:
    found = shutil.which(python)
    return (
        found is not None
        and os.path.realpath(found) == os.path.realpath(sys.executable)
        and (os.path.dirname(found) == os.path.dirname(sys.executable))
    )


def _describe(batches: Iterable[Any]) -> Iterator[Any]:
    """In a worker: whether everything is there; imports nothing that may be missing."""
    import importlib.util

    import pyarrow as pa

    for _ in batches:
        missing = [n for n in ("holdfast", "numpy", "msgspec") if not importlib.util.find_spec(n)]
        text = f"No module named {', '.join(missing)}" if missing else "ok"
        yield pa.RecordBatch.from_arrays([pa.array([text])], ["text"])


_describe.__module__ = "__main__"  # travels by value: the worker may not have Holdfast


def _reason(text: str) -> str:
    marks = ("PYTHON_VERSION_MISMATCH", "ModuleNotFoundError", "ImportError", "Cannot run program")
    lines = [line.strip() for line in text.splitlines() if any(mark in line for mark in marks)]
    return (lines or text.splitlines() or [""])[0][:300]


def _wrong_python(python: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        "the Python of the executors cannot run this pipeline",
        kind="worker_python",
        python=python,
        driver=sys.executable,
        version=".".join(str(part) for part in sys.version_info[:2]),
        reason=reason,
        remedy="set PYSPARK_PYTHON (or spark.pyspark.python) to a Python of the same version with "
        "`pip install 'holdfast-spark[spark]'`, before the session starts",
    )


def is_local(spark: SparkSession) -> bool:
    """Whether tasks run on this machine, so that one barrier here covers what they wrote."""
    try:
        return str(spark.conf.get("spark.master", "")).startswith("local")
    except Exception:  # noqa: BLE001 - Spark Connect may not tell: then tasks make their files durable
        return False
