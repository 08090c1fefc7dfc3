"""Opening a trace from nothing but a manifest: the runs know their own schema.

Invariants:
- Only reads. What is not on local disk is mapped from the cache that is given.
- The schema comes from the first run's header; every other run is checked against it when opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from holdfast.errors import CorruptionError, NotFoundError
from holdfast.state.cache import map_file
from holdfast.state.manifest_io import runs_of
from holdfast.state.reader import TraceReader
from holdfast.state.run_info import object_path
from holdfast.state.run_reader import RunSource
from holdfast.state.run_writer import HEADER_KEY, RunHeader
from holdfast.state.schema import TraceKind, TraceSchema

if TYPE_CHECKING:
    from holdfast.format.manifest import Manifest
    from holdfast.state.cache import RunCache
    from holdfast.state.run_info import RunInfo
    from holdfast.storage.base import StorageReader

_MARKERS = 2  # hash, and tombstone or weight


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


def _content(storage: StorageReader, pipeline: str, run: RunInfo, cache: RunCache | None) -> Any:
    path = object_path(run.pipeline or pipeline, run.path)
    local = storage.local_path(path)
    try:
        if local is not None:
            return map_file(local)
        if cache is not None:
            return cache.fetch(storage, path, run)
        return pa.py_buffer(storage.get(path, bytes_max=run.size))
    except (FileNotFoundError, NotFoundError) as error:
        raise CorruptionError(
            "a run of the checkpoint is missing",
            kind="run_missing",
            path=path,
            operator=run.operator,
            remedy="run `holdfast recover --plan` for the way back",
        ) from error


def _schema(content: Any, run: RunInfo) -> TraceSchema:
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
