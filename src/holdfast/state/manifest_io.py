"""Traces and checkpoints: runs go into a draft, and come back from a manifest.

Invariants:
- A manifest says everything that `run_slices` needs: restoring opens no run to learn about others.
- Only runs that still matter are listed, so that what a compaction replaced can be collected.
- A run whose entry lacks a fact, or contradicts itself, is refused with its path.
- A trace opens from nothing but a manifest: the schema comes from the first run's header, and
  every other run is checked against it when opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from holdfast.errors import (
    CorruptionError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
)
from holdfast.format.documents import Counts
from holdfast.format.manifest import FileEntry
from holdfast.ids import CheckpointId
from holdfast.state.cache import map_file
from holdfast.state.partition import live_runs
from holdfast.state.reader import TraceReader
from holdfast.state.run_info import RunInfo, VnodeRange, object_path
from holdfast.state.run_reader import RunSource
from holdfast.state.run_writer import HEADER_KEY, RunHeader
from holdfast.state.schema import TraceKind, TraceSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.checkpoint.draft import Draft
    from holdfast.format.manifest import Manifest
    from holdfast.state.cache import RunCache
    from holdfast.state.run_index import RunIndex
    from holdfast.storage.base import StorageReader

_RUN_KINDS = ("snapshot", "delta")
_MARKERS = 2  # hash, and tombstone or weight


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

    `runs` is the whole list: the restored one, what this epoch wrote, what compactions finished.
    rows, keys: those that live after the epoch, where `counts` says that they were counted.
    """
    _check_trace(runs, operator, kind)
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


def _check_trace(runs: Iterable[RunInfo], operator: str, kind: TraceKind) -> None:
    for run in runs:
        if run.operator != operator or run.trace != kind:
            raise InvalidInputError(
                "the run belongs to another trace",
                kind="run_of_other_trace",
                path=run.path,
                expected=f"{operator} ({kind})",
                actual=f"{run.operator} ({run.trace})",
            )


def put_index(
    draft: Draft,
    operator: str,
    kind: TraceKind,
    index: RunIndex,
    *,
    rows: int = 0,
    keys: int = 0,
    counts: Counts = "unknown",
    version: int = 1,
) -> None:
    """`put_trace` for an index: what changed since its last `mark` goes into the draft.

    It is marked again. Where the draft did not begin with what the index had at its mark, the whole
    list is put instead.
    """
    changes = index.changes()
    _check_trace(changes.added, operator, kind)
    count = draft.count_files(operator) + len(changes.added) - len(changes.removed)
    inherited = draft.inherits_files(operator) and count == len(index)
    draft.set_operator(
        operator,
        trace=kind.value,
        files=None if inherited else [entry_of(run) for run in index.runs()],
        rows=rows,
        keys=keys,
        counts=counts,
        partitions=index.partitions,
        version=version,
    )
    if inherited:
        draft.remove_files(operator, [(run.pipeline, run.path) for run in changes.removed])
        for run in changes.added:
            draft.add_file(entry_of(run))
    index.mark()


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
    runs = [info_of(file, entry.trace) for file in manifest.files_of(operator)]
    return tuple(live_runs(runs))


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
        entry.operator,
        entry.partition,
        entry.hash_min,
        entry.hash_max,
        entry.vnode_low,
        entry.vnode_high,
        entry.epoch_low,
        entry.epoch_high,
    )
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


def open_trace(
    storage: StorageReader, manifest: Manifest, operator: str, *, cache: RunCache | None = None
) -> TraceReader:
    """An operator's trace at a checkpoint, without knowing the pipeline that wrote it."""
    runs = runs_of(manifest, operator)
    if not runs:
        raise NotFoundError(
            "the operator has no rows at this checkpoint",
            kind="no_rows",
            operator=operator,
            checkpoint=manifest.checkpoint,
        )
    schema = _schema(_content(storage, manifest.pipeline, runs[0], cache), runs[0])
    source = RunSource(storage, cache=cache, pipeline=manifest.pipeline)
    return TraceReader(runs=runs, source=source, schema=schema)


def _content(
    storage: StorageReader, pipeline: str, run: RunInfo, cache: RunCache | None
) -> pa.Buffer:
    path = object_path(run.pipeline or pipeline, run.path)
    local = storage.local_path(path)
    try:
        if local is not None:
            return map_file(local)
        if cache is not None:
            return cache.fetch(storage, path, run)
        return pa.py_buffer(storage.get(path, bytes_max=run.size))
    except (FileNotFoundError, NotFoundError) as error:
        raise NotFoundError(
            "a run of the checkpoint is missing",
            kind="run_missing",
            path=path,
            operator=run.operator,
            remedy="run `holdfast recover --plan` for the way back",
        ) from error


def _schema(content: pa.Buffer, run: RunInfo) -> TraceSchema:
    try:
        stored = pa.ipc.open_file(content).schema
        header = msgspec.json.decode((stored.metadata or {})[HEADER_KEY], type=RunHeader)
        end = _MARKERS + header.keys
        fields = [stored.field(i) for i in range(len(stored))]
        return TraceSchema(
            TraceKind(header.trace),
            pa.schema(fields[_MARKERS:end]),
            pa.schema(fields[end:]),
            header.time_column,
        )
    except (pa.ArrowException, OSError, ValueError, KeyError, msgspec.MsgspecError) as error:
        raise CorruptionError(
            "a run cannot be decoded",
            kind="run_undecodable",
            path=run.path,
            reason=str(error)[:300],
            remedy="run `holdfast verify --deep` to see what is damaged",
        ) from error
