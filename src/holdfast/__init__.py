"""Holdfast: stateful, incremental data pipelines on Spark that never lose or double-count a row.

Importing this package starts fast and never imports pyspark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint import (
    Draft,
    PendingToken,
    RecoveryPlan,
    Schedule,
    Store,
    StoreReader,
    VerifyReport,
    footprints,
    list_pipelines,
    open_store,
    plan_rebuild,
    read_store,
    rebuild_catalog,
    recovery_plan,
    verify_store,
)
from holdfast.format.manifest import FileEntry, Manifest
from holdfast.format.position import (
    CounterPosition,
    DeltaPosition,
    FilesPosition,
    JournalPosition,
    KafkaPosition,
    MysqlPosition,
    PostgresPosition,
)
from holdfast.format.topology import Part, Topology, topology
from holdfast.settings import Settings
from holdfast.storage import open_storage
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.pipeline import (
        EpochReport,
        Pipeline,
        RunSummary,
        Stream,
        avg,
        count,
        count_distinct,
        max,
        min,
        sinks,
        sliding,
        sources,
        stddev,
        sum,
        tumbling,
        variance,
    )
    from holdfast.pipeline.windows import session

__all__ = [
    "CounterPosition",
    "DeltaPosition",
    "Draft",
    "EpochReport",
    "FileEntry",
    "FilesPosition",
    "JournalPosition",
    "KafkaPosition",
    "Manifest",
    "MysqlPosition",
    "Part",
    "PendingToken",
    "Pipeline",
    "PostgresPosition",
    "RecoveryPlan",
    "RunSummary",
    "Schedule",
    "Settings",
    "Store",
    "StoreReader",
    "Stream",
    "Topology",
    "VerifyReport",
    "__version__",
    "avg",
    "count",
    "count_distinct",
    "footprints",
    "list_pipelines",
    "max",
    "min",
    "open_storage",
    "open_store",
    "plan_rebuild",
    "read_store",
    "rebuild_catalog",
    "recovery_plan",
    "session",
    "sinks",
    "sliding",
    "sources",
    "stddev",
    "sum",
    "topology",
    "tumbling",
    "variance",
    "verify_store",
]

# Loaded when they are first asked for: they import pyspark, or packages of an extra.
_PIPELINE = frozenset(
    {
        "EpochReport",
        "Pipeline",
        "RunSummary",
        "Stream",
        "avg",
        "count",
        "count_distinct",
        "max",
        "min",
        "sinks",
        "sliding",
        "sources",
        "stddev",
        "sum",
        "tumbling",
        "variance",
    }
)
_PACKAGES = frozenset({"guard", "journal", "pipeline", "state", "testing"})


def __getattr__(name: str) -> Any:
    """Parts that are too heavy to be loaded by everybody."""
    if name == "session":  # holdfast.pipeline.session is a module
        return import_module("holdfast.pipeline.windows").session
    if name in _PIPELINE:
        return getattr(import_module("holdfast.pipeline"), name)
    if name in _PACKAGES:
        return import_module(f"holdfast.{name}")
    message = f"module 'holdfast' has no attribute {name!r}"
    raise AttributeError(message)
