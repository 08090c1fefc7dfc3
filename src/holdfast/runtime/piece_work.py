"""One operator over the pieces of a partition: state in, changes out, one new run for each trace.

Pieces ascend by hash, and so do the rows that they write: they go into one run. The steps of a
piece that is too large for one batch are like epochs of one watermark: each sees what those before
it have written, in temporary runs, which become part of the one run when the piece is done.

Invariants:
- A partition that is worked through in pieces shows and stores what it would at once.
- What a step does about time (closing, firing, forgetting) happens in the first one only.
- Nothing of a try that fails stays: neither runs nor temporary files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ids import CheckpointId, Epoch, RandomIds
from holdfast.operators.base import EpochContext, OperatorTask, TaskResult, weights_of
from holdfast.operators.columns import WEIGHT
from holdfast.runtime.spool import SpoolPiece, local_directories
from holdfast.runtime.stage_job import StageJob
from holdfast.state import (
    BagPartition,
    LatestPartition,
    RunInfo,
    RunSource,
    RunTarget,
    TraceKind,
    TraceSchema,
)
from holdfast.state.arrow.batches import group_rows
from holdfast.state.arrow.row_equality import normalise, row_codes
from holdfast.state.merge_iterator import Combine, combined
from holdfast.state.partition import partition_range, run_slices
from holdfast.state.run_info import VnodeRange
from holdfast.state.run_view import RunView
from holdfast.state.run_writer import RunWriter
from holdfast.storage import open_storage

if TYPE_CHECKING:
    from holdfast.storage.base import Storage

_NETTED_BYTES = 16 << 20
"""So many bytes of changes of a key that is cut wait for what retracts them."""


@dataclass(frozen=True)
class PartitionPlace:
    """Where the runs of a partition are read and written."""

    pipeline: str
    storage: Storage
    source: RunSource
    partition: int
    partitions: int
    durable: bool
    budget: int


@dataclass
class PieceWork:
    """Works through the pieces of one partition of one operator."""

    operator: OperatorTask
    job: StageJob
    place: PartitionPlace
    ids: RandomIds
    wanted: bool
    counters: dict[str, int] = field(default_factory=dict)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    _writers: dict[str, RunWriter] = field(default_factory=dict)

    def results(self, pieces: Iterator[SpoolPiece]) -> Iterator[TaskResult]:
        """What the pieces come to, one after the other; `runs` has what was written."""
        for piece in pieces:
            if piece.several:
                yield from self._steps(piece)
            else:
                for rows in piece.steps:
                    yield self._one(piece.vnodes, rows)

    def runs(self) -> list[RunInfo]:
        """Make the written runs whole."""
        done = [writer.close() for writer in self._writers.values()]
        if self.place.durable:
            for run in done:
                self.place.storage.barrier([f"{self.place.pipeline}/{run.path}"])
        return done

    def abort(self) -> None:
        """Leave nothing."""
        for writer in self._writers.values():
            writer.abort()

    def _one(self, vnodes: VnodeRange, rows: pa.RecordBatch) -> TaskResult:
        """A piece at once."""
        job = self.job
        opened = self._open(vnodes, job.previous_watermark_us)
        context = EpochContext(job.epoch, job.watermark_us, job.previous_watermark_us, self.wanted)
        result = self._processed(rows, opened, context)
        for name, update in result.updates.items():
            stored = opened[name].combine(update) if update.num_rows else None
            if stored is not None:
                self._write(name, stored)
        self._count(opened)
        return result

    def _steps(self, piece: SpoolPiece) -> Iterator[TaskResult]:
        """A piece in several steps; changes that cancel out are left out."""
        schemas = self.operator.traces
        previous = self.job.previous_watermark_us
        nets = WEIGHT in self.operator.output.names
        pending: Any = None
        with _Temporary(piece.vnodes, schemas, self) as temporary:
            for rows in piece.steps:
                opened = self._open(piece.vnodes, previous)
                fresh = {name: trace.fresh for name, trace in opened.items()}
                for name, views in temporary.views.items():
                    opened[name].extend(views)
                context = EpochContext(self.job.epoch, self.job.watermark_us, previous, self.wanted)
                result = self._processed(rows, opened, context)
                for name, update in result.updates.items():
                    stored = opened[name].combine(update) if update.num_rows else None
                    if stored is not None:
                        temporary.write(name, stored)
                self._count(opened)
                previous = self.job.watermark_us
                if not nets or result.changes is None:
                    yield result
                    continue
                pending = netted([pending, result.changes])
                if pending.nbytes <= max(_NETTED_BYTES, self.place.budget):
                    yield replace(result, changes=None)
                else:
                    yield replace(result, changes=pending)
                    pending = None
            for name, views in temporary.views.items():
                how = Combine(bottom=fresh[name])
                for stored in combined(views, schemas[name], how):
                    self._write(name, stored.replace_schema_metadata(None))
        if pending is not None:
            yield TaskResult(pending)

    def _open(self, vnodes: VnodeRange, watermark_us: int | None) -> dict[str, Any]:
        bounds = self._bounds(watermark_us)
        opened = {}
        for name, schema in self.operator.traces.items():
            kind = LatestPartition if schema.kind is TraceKind.LATEST else BagPartition
            opened[name] = kind.open(
                self.job.runs.get(name, ()),
                self.place.source,
                schema,
                partition=self.place.partition,
                partitions=self.place.partitions,
                time_bound_us=bounds.get(name),
                vnodes=vnodes,
            )
        return opened

    def _bounds(self, watermark_us: int | None) -> Mapping[str, int]:
        return {} if watermark_us is None else self.operator.bounds_us(watermark_us)

    def _processed(
        self, rows: pa.RecordBatch, opened: dict[str, Any], context: EpochContext
    ) -> TaskResult:
        if self.operator.timed:  # heartbeats only say which partition this is
            rows = rows.filter(pc.not_equal(rows.column(WEIGHT), 0))
        result = self.operator.process(rows, opened, context)
        counters = {
            "rows": rows.num_rows,
            "rows_in": int(np.abs(weights_of(rows)).sum()),
            **result.counters,
        }
        for name, value in counters.items():
            self.counters[name] = self.counters.get(name, 0) + value
        return result

    def _count(self, opened: dict[str, Any]) -> None:
        job = self.job
        now = job.watermark_us if job.watermark_us is not None else job.previous_watermark_us
        after = self._bounds(now)
        for name, trace in opened.items():
            rows, keys = trace.change(after.get(name))
            before = self.counts.get(name, (0, 0))
            self.counts[name] = (before[0] + rows, before[1] + keys)

    def target(self, trace: str) -> RunTarget:
        """A run of the epoch that nobody else writes."""
        job, place = self.job, self.place
        return RunTarget(
            checkpoint=CheckpointId(job.checkpoint),
            operator=trace,
            partition=place.partition,
            partitions=place.partitions,
            attempt=self.ids.token(),
            epoch=Epoch(job.epoch),
            base=CheckpointId(job.parent) if job.parent else None,
            pipeline=place.pipeline,
        )

    def _write(self, trace: str, stored: pa.RecordBatch) -> None:
        """Append to the new run of a trace; the first run of a partition is a snapshot."""
        writer = self._writers.get(trace)
        if writer is None:
            place = self.place
            vnodes = partition_range(place.partition, place.partitions)
            writer = self._writers[trace] = RunWriter(
                place.storage,
                self.operator.traces[trace],
                self.target(trace),
                vnodes,
                snapshot=not run_slices(self.job.runs.get(trace, ()), vnodes),
            )
        writer.write(stored)


class _Temporary:
    """What the steps of one piece have written so far, in files without a name."""

    def __init__(
        self, vnodes: VnodeRange, schemas: Mapping[str, TraceSchema], work: PieceWork
    ) -> None:
        self._vnodes, self._schemas, self._work = vnodes, schemas, work
        self.views: dict[str, list[RunView]] = {}

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(
            prefix="holdfast-steps-", dir=local_directories()[0], ignore_cleanup_errors=True
        )
        self._storage: Any = open_storage(self._directory.name)
        return self

    def write(self, trace: str, stored: pa.RecordBatch) -> None:
        """One more run, mapped into memory and removed from its directory at once."""
        schema = self._schemas[trace]
        target = replace(self._work.target(trace), pipeline=None)
        with RunWriter(self._storage, schema, target, self._vnodes) as writer:
            writer.write(stored)
            info = writer.close()
        run = RunSource(self._storage).open(info, schema, keep=False)
        self._storage.delete(info.path)
        self.views.setdefault(trace, []).append(RunView(run, self._vnodes))

    def __exit__(self, *failed: object) -> None:
        self.views = {}
        self._directory.cleanup()


def netted(changes: list[pa.RecordBatch | None]) -> pa.RecordBatch:
    """Changes of several steps as one: each distinct row once, what went before what came."""
    given = [some for some in changes if some is not None]
    table = pa.Table.from_batches(given)
    if not table.num_rows:
        return given[-1]
    rows = table.combine_chunks().to_batches()[0]
    names = [name for name in rows.schema.names if name != WEIGHT]
    columns = [normalise(rows.column(name)) for name in names]
    groups = group_rows(row_codes(columns), [])
    sums = groups.sums(rows.column(WEIGHT).to_numpy(zero_copy_only=False))
    kept = np.flatnonzero(sums)
    kept = kept[np.argsort(sums[kept], kind="stable")]
    whole = rows.take(pa.array(groups.first()[kept]))
    place = whole.schema.get_field_index(WEIGHT)
    return whole.set_column(place, whole.schema.field(place), pa.array(sums[kept]))
