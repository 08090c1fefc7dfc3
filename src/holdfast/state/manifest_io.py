"""Traces and checkpoints: runs go into a draft, and come back from a manifest.

Invariants:
- A manifest says everything that `segments` needs: restoring opens no run to learn about others.
- Only runs that still matter are listed, so that what a merge replaced can be collected.
- A run whose entry lacks a fact, or contradicts itself, is refused with its path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import CorruptionError, HoldfastError, InvalidInputError, NotFoundError
from holdfast.format.documents import Counts
from holdfast.format.manifest import FileEntry
from holdfast.ids import CheckpointId
from holdfast.state.partition import live_runs
from holdfast.state.run_info import RunInfo, VnodeRange
from holdfast.state.schema import TraceKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.checkpoint.draft import Draft
    from holdfast.format.manifest import Manifest

_RUN_KINDS = ("snapshot", "delta")


def put_trace(
    draft: Draft,
    operator: str,
    kind: TraceKind,
    runs: Sequence[RunInfo],
    *,
    partitions: int,
    rows: int = 0,
    keys: int = 0,
    counts: Counts = "unknown",
    version: int = 1,
) -> list[RunInfo]:
    """Make these runs the operator's state in the draft; returns those that are listed.

    `runs` is the whole list: the restored one, what this epoch wrote, what merges finished.
    rows, keys: those that live after the epoch, where `counts` says that they were counted.
    """
    for run in runs:
        if run.operator != operator or run.trace != kind:
            raise InvalidInputError(
                "the run belongs to another trace",
                kind="run_of_other_trace",
                path=run.path,
                expected=f"{operator} ({kind})",
                actual=f"{run.operator} ({run.trace})",
            )
    listed = live_runs(runs)
    draft.set_operator(
        operator,
        trace=kind.value,
        files=[entry_of(run) for run in listed],
        rows=rows,
        keys=keys,
        counts=counts,
        partitions=partitions,
        version=version,
    )
    return listed


def runs_of(manifest: Manifest, operator: str) -> tuple[RunInfo, ...]:
    """The run list of an operator's trace at a checkpoint, oldest first."""
    entry = manifest.operator(operator)
    if entry is None or entry.trace not in tuple(TraceKind):
        raise NotFoundError(
            "the checkpoint has no trace of that operator",
            kind="no_trace",
            operator=operator,
            checkpoint=manifest.checkpoint,
            traces=",".join(e.name for e in manifest.operators if e.trace != "small") or "none",
        )
    found = [info_of(file, entry.trace) for file in manifest.files_of(operator)]
    return tuple(live_runs(found))


def entry_of(run: RunInfo) -> FileEntry:
    """A run as an entry of the inventory."""
    if not run.snapshot and run.base is None:
        raise InvalidInputError(
            "a delta must say which checkpoint it builds on",
            kind="delta_without_base",
            path=run.path,
            remedy="set `base` of its RunTarget to the parent checkpoint",
        )
    return FileEntry(
        path=run.path,
        size=run.size,
        sha256=run.sha256,
        kind="snapshot" if run.snapshot else "delta",
        operator=run.operator,
        partition=run.partition,
        base=None if run.base is None else CheckpointId(run.base),
        rows=run.rows,
        hash_min=run.hash_min,
        hash_max=run.hash_max,
        time_min_us=run.time_min_us,
        time_max_us=run.time_max_us,
        vnode_low=run.vnodes.low,
        vnode_high=run.vnodes.high,
        epoch_low=run.epoch_low,
        epoch_high=run.epoch_high,
        generation=run.generation,
        pipeline=run.pipeline,
    )


def info_of(entry: FileEntry, trace: str) -> RunInfo:
    """An entry of the inventory as a run."""
    facts = (
        entry.operator, entry.partition, entry.hash_min, entry.hash_max,
        entry.vnode_low, entry.vnode_high, entry.epoch_low, entry.epoch_high,
    )  # fmt: skip
    if entry.kind not in _RUN_KINDS or any(fact is None for fact in facts):
        raise _unusable(entry, "a fact is missing, or it is no run")
    try:
        return RunInfo(
            path=entry.path,
            size=entry.size,
            sha256=entry.sha256,
            trace=trace,
            snapshot=entry.kind == "snapshot",
            operator=str(entry.operator),
            partition=int(entry.partition or 0),
            rows=entry.rows,
            hash_min=int(entry.hash_min or 0),
            hash_max=int(entry.hash_max or 0),
            vnodes=VnodeRange(int(entry.vnode_low or 0), int(entry.vnode_high or 0)),
            epoch_low=int(entry.epoch_low or 0),
            epoch_high=int(entry.epoch_high or 0),
            generation=entry.generation,
            time_min_us=entry.time_min_us,
            time_max_us=entry.time_max_us,
            base=entry.base,
            pipeline=entry.pipeline,
        )
    except (HoldfastError, ValueError) as error:
        raise _unusable(entry, str(error)) from error


def _unusable(entry: FileEntry, reason: str) -> CorruptionError:
    return CorruptionError(
        "an entry of the inventory does not describe a run",
        kind="run_entry_unusable",
        path=entry.path,
        reason=reason[:300],
        remedy="run `holdfast recover --plan` for the way back",
    )
