"""Holdfast: stateful, incremental data pipelines on Spark that never lose or double-count a row.

Importing this package starts fast and never imports pyspark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_name
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.api.windows import session
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
        IcebergPosition,
        JournalPosition,
        KafkaPosition,
        MysqlPosition,
        OpenPosition,
        PostgresPosition,
        PostgresSnapshot,
        TableProgress,
    )
    from holdfast.format.topology import Part, Topology, topology
    from holdfast.pipeline import (
        ApplyContext,
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
        interval,
        last,
        max,
        median,
        min,
        percentile,
        sinks,
        sliding,
        sources,
        stddev,
        sum,
        tumbling,
        udaf,
        variance,
    )
    from holdfast.settings import Settings
    from holdfast.storage import open_storage

__all__ = [
    "ApplyContext",
    "CounterPosition",
    "DeltaPosition",
    "Draft",
    "EpochReport",
    "FileEntry",
    "FilesPosition",
    "IcebergPosition",
    "JournalPosition",
    "KafkaPosition",
    "Manifest",
    "MysqlPosition",
    "OpenPosition",
    "Part",
    "PendingToken",
    "Pipeline",
    "PostgresPosition",
    "PostgresSnapshot",
    "RecoveryPlan",
    "RunSummary",
    "Schedule",
    "Settings",
    "Store",
    "StoreReader",
    "Stream",
    "TableProgress",
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
    "interval",
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
    "session",
    "sinks",
    "sliding",
    "sources",
    "stddev",
    "sum",
    "topology",
    "tumbling",
    "udaf",
    "variance",
    "verify_store",
]

# Loaded when first asked for: a command that reads a store does not pay for what writes one.
_WHERE = {
    "CounterPosition": "holdfast.format.position",
    "DeltaPosition": "holdfast.format.position",
    "Draft": "holdfast.checkpoint",
    "FileEntry": "holdfast.format.manifest",
    "FilesPosition": "holdfast.format.position",
    "IcebergPosition": "holdfast.format.position",
    "JournalPosition": "holdfast.format.position",
    "KafkaPosition": "holdfast.format.position",
    "Manifest": "holdfast.format.manifest",
    "MysqlPosition": "holdfast.format.position",
    "OpenPosition": "holdfast.format.position",
    "Part": "holdfast.format.topology",
    "PendingToken": "holdfast.checkpoint",
    "PostgresPosition": "holdfast.format.position",
    "PostgresSnapshot": "holdfast.format.position",
    "RecoveryPlan": "holdfast.checkpoint",
    "Schedule": "holdfast.checkpoint",
    "Settings": "holdfast.settings",
    "Store": "holdfast.checkpoint",
    "StoreReader": "holdfast.checkpoint",
    "TableProgress": "holdfast.format.position",
    "Topology": "holdfast.format.topology",
    "VerifyReport": "holdfast.checkpoint",
    "footprints": "holdfast.checkpoint",
    "list_pipelines": "holdfast.checkpoint",
    "open_storage": "holdfast.storage",
    "open_store": "holdfast.checkpoint",
    "plan_rebuild": "holdfast.checkpoint",
    "read_store": "holdfast.checkpoint",
    "rebuild_catalog": "holdfast.checkpoint",
    "recovery_plan": "holdfast.checkpoint",
    "session": "holdfast.api.windows",
    "topology": "holdfast.format.topology",
    "verify_store": "holdfast.checkpoint",
}
# These import pyspark, or packages of an extra.
_PIPELINE = frozenset(
    {
        "ApplyContext",
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
        "interval",
        "last",
        "max",
        "median",
        "min",
        "percentile",
        "sinks",
        "sliding",
        "sources",
        "stddev",
        "sum",
        "tumbling",
        "udaf",
        "variance",
    }
)
_PACKAGES = frozenset({"guard", "journal", "pipeline", "state", "testing"})


def __getattr__(name: str) -> Any:
    """A name of `__all__`, from its module."""
    if name in _PIPELINE:
        return getattr(import_module("holdfast.pipeline"), name)
    if name in _PACKAGES:
        return import_module(f"holdfast.{name}")
    return lazy_name(__name__, _WHERE, name)
