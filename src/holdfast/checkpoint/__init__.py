"""Checkpoints: commit protocol, catalog, fence, verification, recovery, retention."""

from holdfast.checkpoint.draft import Draft
from holdfast.checkpoint.footprint import Footprint, footprints
from holdfast.checkpoint.opening import recovery_plan
from holdfast.checkpoint.reader import StoreReader, list_pipelines, read_store
from holdfast.checkpoint.rebuild import RebuildPlan, plan_rebuild, rebuild_catalog
from holdfast.checkpoint.recovery import PendingToken, RecoveryPlan
from holdfast.checkpoint.schedule import Schedule
from holdfast.checkpoint.store import SinkHandler, Store, open_store
from holdfast.checkpoint.sweep import SweepReport
from holdfast.checkpoint.verify import VerifyReport, verify_store

__all__ = [
    "Draft",
    "Footprint",
    "PendingToken",
    "RebuildPlan",
    "RecoveryPlan",
    "Schedule",
    "SinkHandler",
    "Store",
    "StoreReader",
    "SweepReport",
    "VerifyReport",
    "footprints",
    "list_pipelines",
    "open_store",
    "plan_rebuild",
    "read_store",
    "rebuild_catalog",
    "recovery_plan",
    "verify_store",
]
