"""State: an operator's memory as immutable, sorted Arrow runs. No Spark in here.

Read first: `schema` (what a trace holds), `info` and `partition` (which runs speak for which
vnodes), then `latest` and `bag` (what an operator calls).
"""

from holdfast.state.bag import BagAnswer, BagPartition
from holdfast.state.cache import RunCache
from holdfast.state.checkpoint import entry_of, info_of, put_trace, runs_of
from holdfast.state.info import ALL_VNODES, RunInfo, RunTarget, VnodeRange
from holdfast.state.latest import LatestAnswer, LatestPartition
from holdfast.state.merge import BackgroundMerge, replace, run_merge
from holdfast.state.opening import open_trace
from holdfast.state.partition import live_runs, partition_range, partition_table, vnodes_of
from holdfast.state.plan import (
    MergePlan,
    MergePolicy,
    expired_runs,
    plan_compaction,
    plan_merge,
)
from holdfast.state.reader import TraceReader, diff
from holdfast.state.run import RunOptions
from holdfast.state.runfile import RunSource, Verify
from holdfast.state.scan import TraceScan
from holdfast.state.schema import DELETED, HASH, WEIGHT, TraceKind, TraceSchema
from holdfast.state.small import SmallState

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
