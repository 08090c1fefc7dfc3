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
        approx_count_distinct,
        avg,
        collect_list,
        collect_set,
        count,
        count_distinct,
        first,
        last,
        max,
        median,
        min,
        percentile,
        sinks,
        sources,
        stddev,
        sum,
        udaf,
        variance,
    )

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
    "approx_count_distinct",
    "avg",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "first",
    "footprints",
    "last",
    "list_pipelines",
    "max",
    "median",
    "min",
    "open_storage",
    "open_store",
    "percentile",
    "plan_rebuild",
    "read_store",
    "rebuild_catalog",
    "recovery_plan",
    "sinks",
    "sources",
    "stddev",
    "sum",
    "topology",
    "udaf",
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
        "approx_count_distinct",
        "avg",
        "collect_list",
        "collect_set",
        "count",
        "count_distinct",
        "first",
        "last",
        "max",
        "median",
        "min",
        "percentile",
        "sinks",
        "sources",
        "stddev",
        "sum",
        "udaf",
        "variance",
    }
)
_PACKAGES = frozenset({"guard", "journal", "pipeline", "state", "testing"})


def __getattr__(name: str) -> Any:
    """Parts that are too heavy to be loaded by everybody."""
    if name in _PIPELINE:
        return getattr(import_module("holdfast.pipeline"), name)
    if name in _PACKAGES:
        return import_module(f"holdfast.{name}")
    message = f"module 'holdfast' has no attribute {name!r}"
    raise AttributeError(message)
