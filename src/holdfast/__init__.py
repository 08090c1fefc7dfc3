"""Holdfast: stateful, incremental data pipelines on Spark that never lose or double-count a row.

Importing this package starts fast and never imports pyspark.
"""

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

__all__ = [
    "CounterPosition",
    "DeltaPosition",
    "Draft",
    "FileEntry",
    "FilesPosition",
    "JournalPosition",
    "KafkaPosition",
    "Manifest",
    "MysqlPosition",
    "Part",
    "PendingToken",
    "PostgresPosition",
    "RecoveryPlan",
    "Schedule",
    "Settings",
    "Store",
    "StoreReader",
    "Topology",
    "VerifyReport",
    "__version__",
    "footprints",
    "list_pipelines",
    "open_storage",
    "open_store",
    "plan_rebuild",
    "read_store",
    "rebuild_catalog",
    "recovery_plan",
    "topology",
    "verify_store",
]
