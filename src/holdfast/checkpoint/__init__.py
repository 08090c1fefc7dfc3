"""Checkpoints: commit protocol, catalog, fence, verification, recovery, retention."""

from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_name

if TYPE_CHECKING:
    from holdfast.checkpoint.draft import Draft
    from holdfast.checkpoint.gc.reachability import SweepReport
    from holdfast.checkpoint.gc.usage import Footprint, footprints
    from holdfast.checkpoint.reader import StoreReader, list_pipelines, read_store
    from holdfast.checkpoint.recovery.open import recovery_plan
    from holdfast.checkpoint.recovery.plan import PendingToken, RecoveryPlan
    from holdfast.checkpoint.recovery.rebuild import RebuildPlan, plan_rebuild, rebuild_catalog
    from holdfast.checkpoint.schedule import Schedule
    from holdfast.checkpoint.store import SinkHandler, Store, open_store
    from holdfast.checkpoint.upgrade import UpgradePlan, plan_upgrade, upgrade_store
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
    "UpgradePlan",
    "VerifyReport",
    "footprints",
    "list_pipelines",
    "open_store",
    "plan_rebuild",
    "plan_upgrade",
    "read_store",
    "rebuild_catalog",
    "recovery_plan",
    "upgrade_store",
    "verify_store",
]

# Loaded when first asked for: who reads a store does not pay for what writes one.
_WHERE = {
    "Draft": "holdfast.checkpoint.draft",
    "Footprint": "holdfast.checkpoint.gc.usage",
    "PendingToken": "holdfast.checkpoint.recovery.plan",
    "RebuildPlan": "holdfast.checkpoint.recovery.rebuild",
    "RecoveryPlan": "holdfast.checkpoint.recovery.plan",
    "Schedule": "holdfast.checkpoint.schedule",
    "SinkHandler": "holdfast.checkpoint.store",
    "Store": "holdfast.checkpoint.store",
    "StoreReader": "holdfast.checkpoint.reader",
    "SweepReport": "holdfast.checkpoint.gc.reachability",
    "UpgradePlan": "holdfast.checkpoint.upgrade",
    "VerifyReport": "holdfast.checkpoint.verify",
    "footprints": "holdfast.checkpoint.gc.usage",
    "list_pipelines": "holdfast.checkpoint.reader",
    "open_store": "holdfast.checkpoint.store",
    "plan_rebuild": "holdfast.checkpoint.recovery.rebuild",
    "plan_upgrade": "holdfast.checkpoint.upgrade",
    "read_store": "holdfast.checkpoint.reader",
    "rebuild_catalog": "holdfast.checkpoint.recovery.rebuild",
    "recovery_plan": "holdfast.checkpoint.recovery.open",
    "upgrade_store": "holdfast.checkpoint.upgrade",
    "verify_store": "holdfast.checkpoint.verify",
}


def __getattr__(name: str) -> Any:
    """A name of `__all__`, from its module."""
    return lazy_name(__name__, _WHERE, name)
