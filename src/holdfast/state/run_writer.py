"""One run on storage: an Arrow IPC file, sorted by hash, that describes itself.

Invariants:
- A run is written once, front to back, and digested while it is written. It is whole when the
  writer's `close` has returned, and durable after the storage barrier that names it.
- Hashes never decrease along a run. A latest run holds a key once; a bag run holds a row once,
  with a weight that is not zero.
- The last record batch has no rows: its metadata is the summary. A file without it is not whole.
- Every byte that an answer depends on is covered by a checksum of its own, so that a reader can
  check what it touches without reading the rest.

Spec: spec/run-v1.md.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
import pyarrow as pa

from holdfast.errors import InvalidInputError, invariant
from holdfast.state.arrow.message_bounds import UNPACKED_BYTES_MAX
from holdfast.state.arrow.numpy_views import pc
from holdfast.state.run_info import RunInfo, RunTarget, VnodeRange, object_path
from holdfast.state.schema import HASH, TraceKind, TraceSchema
from holdfast.storage.base import close_own

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from holdfast.storage.base import ObjectWriter, Storage

RUN_FORMAT = 1
HEADER_KEY = b"holdfast.run"
SUMMARY_KEY = b"holdfast.summary"
SUMMARY_CRC_KEY = b"holdfast.summary.crc32"
_MAGIC = b"ARROW1\0\0"
COMPRESSIONS = (None, "lz4", "zstd")
BATCH_BYTES_MAX = 64 << 20
_FITTING_BYTES = UNPACKED_BYTES_MAX - (1 << 20)  # the rest is for padding


class RunHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known before the first row: stored in the Arrow schema's metadata."""

    format: int
    trace: str
    keys: int
    time_column: str | None
    operator: str
    partition: int
    snapshot: bool
    vnode_low: int
    vnode_high: int
    epoch_low: int
    epoch_high: int
    generation: int
    base: str | None
    compression: str | None


class BatchFacts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One record batch: rows, smallest and largest hash (16 hexadecimal digits), its place.

    `crc32` covers the `length` bytes from `offset` on: the batch's message, framing included.
    """

    rows: int
    hash_min: str
    hash_max: str
    offset: int
    length: int
    crc32: int


class RunTotals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known after the last row: stored as metadata of the empty last batch."""

    rows: int
    hashes_distinct: bool
    time_min_us: int | None
    time_max_us: int | None
    batches: list[BatchFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWriterOptions:
    """How runs are written.

    `rows_max` and `bytes_max` bound one record batch: smaller ones cost a little on each lookup,
    larger ones cost memory where a compressed run is read, and time for the first touch, which
    checks a whole batch. `compression` (lz4 or zstd) makes files
    on object stores smaller; a compressed run cannot be read in place, so on local disk it only
    costs.
    """

    rows_max: int = 1 << 20
    bytes_max: int = 16 << 20
    compression: str | None = None

    def __post_init__(self) -> None:
        """Refuse what can never work."""
        if (
            min(self.rows_max, self.bytes_max) < 1
            or self.bytes_max > BATCH_BYTES_MAX
            or self.compression not in COMPRESSIONS
        ):
            raise InvalidInputError(
                "options of a run are not usable",
                kind="invalid_run_options",
                rows_max=self.rows_max,
                bytes_max=self.bytes_max,
                compression=self.compression,
                remedy=f"rows_max >= 1, 1 <= bytes_max <= {BATCH_BYTES_MAX}, "
                "compression one of None, 'lz4', 'zstd'",
            )


class _Digesting:
    """A file for Arrow that counts and digests on the way to storage."""

    closed = False

    def __init__(self, sink: ObjectWriter, head: int) -> None:
        self._sink = sink
        self._head = head
        self.digest = hashlib.sha256()
        self.size = self.start = self.crc = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if self.size == self._head:
            self.mark()  # Arrow writes magic and schema together with the first batch
        self.digest.update(view)
        self.crc = zlib.crc32(view, self.crc)
        self.size += view.nbytes
        self._sink.write(view)
        return view.nbytes

    def mark(self) -> None:
        """Begin a new range for `start` and `crc`."""
        self.start, self.crc = self.size, 0

    def flush(self) -> None:
        """Nothing is held back."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class RunWriter:
    """Writes sorted batches into one new run. Leaving by an exception leaves nothing behind."""

    def __init__(
        self,
        storage: Storage,
        schema: TraceSchema,
        target: RunTarget,
        vnodes: VnodeRange,
        *,
        epochs: tuple[int, int] | None = None,
        generation: int = 0,
        snapshot: bool = False,
        options: RunWriterOptions | None = None,
    ) -> None:
        """Begin the run; `epochs` are the first and last that it speaks for."""
        self._schema, self._target, self._vnodes = schema, target, vnodes
        self._epochs = epochs or (target.epoch, target.epoch)
        self._generation, self._snapshot = generation, snapshot
        self._options = options or RunWriterOptions()
        self._path = target.path(snapshot=snapshot)
        self._storage, self._name = storage, object_path(target.pipeline, self._path)
        self._object = storage.create(self._name)
        self._batches: list[BatchFacts] = []
        self._previous = -1
        self._distinct = True
        self._times: tuple[int, int] | None = None
        self._timeless = schema.time_column is None
        try:
            self._writer = self._open_writer()
        except BaseException:
            self._object.abort()
            raise

    def _open_writer(self) -> pa.RecordBatchFileWriter:
        header = RunHeader(
            format=RUN_FORMAT,
            trace=str(self._schema.kind),
            keys=len(self._schema.keys),
            time_column=self._schema.time_column,
            operator=self._target.operator,
            partition=self._target.partition,
            snapshot=self._snapshot,
            vnode_low=self._vnodes.low,
            vnode_high=self._vnodes.high,
            epoch_low=self._epochs[0],
            epoch_high=self._epochs[1],
            generation=self._generation,
            base=None if self._snapshot else self._target.base,
            compression=self._options.compression,
        )
        stored = self._schema.stored.with_metadata({HEADER_KEY: msgspec.json.encode(header)})
        self._arrow_schema = stored
        self._head = len(_MAGIC) + stored.serialize().size
        self._file = _Digesting(self._object, self._head)
        codec = cast("Literal['lz4', 'zstd'] | None", self._options.compression)
        options = pa.ipc.IpcWriteOptions(compression=codec)
        return pa.ipc.new_file(
            pa.PythonFile(cast("Any", self._file), mode="w"), stored, options=options
        )

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows, which continue the order of those before."""
        rows = pa.RecordBatch.from_arrays(rows.columns, schema=self._arrow_schema)
        fitting = self._options.bytes_max * rows.num_rows // max(1, rows.nbytes)
        step = max(1, min(self._options.rows_max, fitting))
        for start in range(0, rows.num_rows, step):
            self._write_fitting(rows.slice(start, step))

    def _write_fitting(self, rows: pa.RecordBatch) -> None:
        """Write rows as batches that each fit, however unevenly the bytes are spread."""
        waiting = [rows]
        while waiting:
            batch = waiting.pop()
            half = batch.num_rows // 2
            if half and batch.nbytes > self._options.bytes_max * 2:
                waiting += [batch.slice(half), batch.slice(0, half)]
                continue
            if self._options.compression is not None and batch.nbytes > _FITTING_BYTES:
                raise InvalidInputError(
                    "a row is larger than a compressed run may hold",
                    kind="row_too_large",
                    operator=self._target.operator,
                    bytes=batch.nbytes,
                    limit=_FITTING_BYTES,
                    remedy="write the run without compression, or keep large values elsewhere",
                )
            self._write_batch(batch)

    def _write_batch(self, batch: pa.RecordBatch) -> None:
        hashes = batch.column(0).to_numpy(zero_copy_only=False)
        low, high = int(hashes[0]), int(hashes[-1])
        steps = hashes[1:] >= hashes[:-1]
        invariant(
            self._previous <= low and bool(steps.all()),
            "rows of a run are out of order",
            path=self._path,
        )
        inside = self._vnodes.hash_low <= low and high <= self._vnodes.hash_high
        invariant(inside, "rows of a run lie outside its vnodes", path=self._path)
        self._distinct &= self._previous < low and bool((hashes[1:] != hashes[:-1]).all())
        self._previous = high
        self._note_times(batch)
        file = self._file
        file.mark()
        self._writer.write_batch(batch)
        invariant(file.start >= self._head, "a batch begins inside the header", path=self._path)
        self._batches.append(
            BatchFacts(
                batch.num_rows,
                f"{low:016x}",
                f"{high:016x}",
                file.start,
                file.size - file.start,
                file.crc,
            )
        )

    def _note_times(self, batch: pa.RecordBatch) -> None:
        """Keep the event-time range of the rows that are not tombstones; any null undoes it."""
        if self._timeless:
            return
        times = self._schema.times_us(batch)
        if self._schema.kind is TraceKind.LATEST:
            times = times.filter(pc.invert(batch.column(1)))
        if times.null_count:
            self._timeless = True
        elif len(times):
            low, high = pc.min_max(times).as_py().values()
            before = self._times or (low, high)
            self._times = (min(before[0], low), max(before[1], high))

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return sum(batch.rows for batch in self._batches)

    def close(self) -> RunInfo:
        """Make the run whole."""
        low, high = self._times if self._times and not self._timeless else (None, None)
        summary = RunTotals(
            rows=self.rows,
            hashes_distinct=self._distinct,
            time_min_us=low,
            time_max_us=high,
            batches=self._batches,
        )
        empty = pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in self._arrow_schema], schema=self._arrow_schema
        )
        raw = msgspec.json.encode(summary)
        check = f"{zlib.crc32(raw):08x}".encode()
        self._writer.write_batch(empty, custom_metadata={SUMMARY_KEY: raw, SUMMARY_CRC_KEY: check})
        self._writer.close()
        sha256 = self._file.digest.hexdigest()
        close_own(self._storage, self._name, self._object, size=self._file.size, sha256=sha256)
        hash_min = hash_max = self._vnodes.hash_low
        if self._batches:
            hash_min = int(self._batches[0].hash_min, 16)
            hash_max = int(self._batches[-1].hash_max, 16)
        return RunInfo(
            path=self._path,
            size=self._file.size,
            sha256=sha256,
            trace=str(self._schema.kind),
            snapshot=self._snapshot,
            operator=self._target.operator,
            partition=self._target.partition,
            rows=summary.rows,
            hash_min=hash_min,
            hash_max=hash_max,
            vnodes=self._vnodes,
            epoch_low=self._epochs[0],
            epoch_high=self._epochs[1],
            generation=self._generation,
            time_min_us=low,
            time_max_us=high,
            base=None if self._snapshot else self._target.base,
        )

    def abort(self) -> None:
        """Give up: nothing of the run stays."""
        self._object.abort()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Abort on an exception; `close` is called by who needs its answer."""
        if kind is not None:
            self.abort()


def write_run(
    storage: Storage,
    schema: TraceSchema,
    target: RunTarget,
    rows: pa.RecordBatch,
    vnodes: VnodeRange,
    *,
    snapshot: bool = False,
    options: RunWriterOptions | None = None,
) -> RunInfo:
    """Write one batch of stored rows, sorted by hash, as a run of the target's epoch."""
    invariant(rows.schema.names[0] == HASH, "rows are not stored rows")
    with RunWriter(storage, schema, target, vnodes, snapshot=snapshot, options=options) as writer:
        writer.write(rows)
        return writer.close()
