"""State: an operator's memory as immutable, sorted Arrow runs. No Spark in here.

Read first: `schema` (what a trace holds), `info` and `partition` (which runs speak for which
vnodes), then `latest` and `bag` (what an operator calls).
"""

from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_name

if TYPE_CHECKING:
    from holdfast.state.bag import BagAnswer, BagPartition
    from holdfast.state.cache import RunCache
    from holdfast.state.compaction import BackgroundMerge, replace, run_merge
    from holdfast.state.compaction_plan import (
        MergePlan,
        MergePolicy,
        expired_runs,
        plan_compaction,
        plan_merge,
    )
    from holdfast.state.latest import LatestAnswer, LatestPartition
    from holdfast.state.manifest_io import entry_of, info_of, put_trace, runs_of
    from holdfast.state.opening import open_trace
    from holdfast.state.partition import live_runs, partition_range, partition_table, vnodes_of
    from holdfast.state.reader import TraceReader, diff
    from holdfast.state.run_info import ALL_VNODES, RunInfo, RunTarget, VnodeRange
    from holdfast.state.run_reader import RunSource, Verify
    from holdfast.state.run_writer import RunOptions
    from holdfast.state.scan import TraceScan
    from holdfast.state.schema import DELETED, HASH, WEIGHT, TraceKind, TraceSchema
    from holdfast.state.small_state import SmallState

__all__ = [
    "ALL_VNODES",
    "DELETED",
    "HASH",
    "WEIGHT",
    "BackgroundMerge",
    "BagAnswer",
    "BagPartition",
    "LatestAnswer",
    "LatestPartition",
    "MergePlan",
    "MergePolicy",
    "RunCache",
    "RunInfo",
    "RunOptions",
    "RunSource",
    "RunTarget",
    "SmallState",
    "TraceKind",
    "TraceReader",
    "TraceScan",
    "TraceSchema",
    "Verify",
    "VnodeRange",
    "diff",
    "entry_of",
    "expired_runs",
    "info_of",
    "live_runs",
    "open_trace",
    "partition_range",
    "partition_table",
    "plan_compaction",
    "plan_merge",
    "put_trace",
    "replace",
    "run_merge",
    "runs_of",
    "vnodes_of",
]

# Loaded when first asked for: who reads a store does not pay for what writes one.
_WHERE = {
    "ALL_VNODES": "holdfast.state.run_info",
    "BackgroundMerge": "holdfast.state.compaction",
    "BagAnswer": "holdfast.state.bag",
    "BagPartition": "holdfast.state.bag",
    "DELETED": "holdfast.state.schema",
    "HASH": "holdfast.state.schema",
    "LatestAnswer": "holdfast.state.latest",
    "LatestPartition": "holdfast.state.latest",
    "MergePlan": "holdfast.state.compaction_plan",
    "MergePolicy": "holdfast.state.compaction_plan",
    "RunCache": "holdfast.state.cache",
    "RunInfo": "holdfast.state.run_info",
    "RunOptions": "holdfast.state.run_writer",
    "RunSource": "holdfast.state.run_reader",
    "RunTarget": "holdfast.state.run_info",
    "SmallState": "holdfast.state.small_state",
    "TraceKind": "holdfast.state.schema",
    "TraceReader": "holdfast.state.reader",
    "TraceScan": "holdfast.state.scan",
    "TraceSchema": "holdfast.state.schema",
    "Verify": "holdfast.state.run_reader",
    "VnodeRange": "holdfast.state.run_info",
    "WEIGHT": "holdfast.state.schema",
    "diff": "holdfast.state.reader",
    "entry_of": "holdfast.state.manifest_io",
    "expired_runs": "holdfast.state.compaction_plan",
    "info_of": "holdfast.state.manifest_io",
    "live_runs": "holdfast.state.partition",
    "open_trace": "holdfast.state.opening",
    "partition_range": "holdfast.state.partition",
    "partition_table": "holdfast.state.partition",
    "plan_compaction": "holdfast.state.compaction_plan",
    "plan_merge": "holdfast.state.compaction_plan",
    "put_trace": "holdfast.state.manifest_io",
    "replace": "holdfast.state.compaction",
    "run_merge": "holdfast.state.compaction",
    "runs_of": "holdfast.state.manifest_io",
    "vnodes_of": "holdfast.state.partition",
}


def __getattr__(name: str) -> Any:
    """A name of `__all__`, from its module."""
    return lazy_name(__name__, _WHERE, name)
