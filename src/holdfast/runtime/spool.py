"""The rows of one task: in memory while they are few, on local disk in order of vnodes beyond that.

Invariants:
- Rows of one key keep the order in which they came, however they are cut.
- The file on disk has no name while it is used: nobody has to remove it, also after a kill.
- Up to the budget nothing is copied and nothing written.
- In memory are about as many bytes as the budget, besides one incoming batch; only the rows of a
  key that must not be cut can be more.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidInputError, StorageError, invariant
from holdfast.ids import VNODE_BITS, VNODE_COUNT
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.state.arrow.batches import hash_order, one_batch
from holdfast.state.partition import vnodes_of
from holdfast.state.run_info import HASH_BITS, VnodeRange

GATHERED_BYTES_MAX = 512 << 20
"""At least so many bytes of a key that must not be cut are gathered in memory."""
_BUCKET_BITS = 16


@dataclass(frozen=True)
class SpoolPiece:
    """Some vnodes of a partition, and their rows.

    steps: the rows, one batch after the other; several where they are too many for one.
    """

    vnodes: VnodeRange
    steps: Iterator[pa.RecordBatch]
    several: bool = False


@dataclass(frozen=True)
class _Stored:
    """One batch on disk: the rows of one vnode out of one incoming batch, in hash order."""

    number: int
    rows: int
    bytes: int


class Spool:
    """Takes the rows of a task in, and gives them back in pieces."""

    def __init__(self, budget: int, directories: Sequence[str] | None = None) -> None:
        """budget: bytes in memory. directories: on local disk; Spark's unless given."""
        self._budget = budget
        self._directories = local_directories() if directories is None else directories
        self._held: list[pa.RecordBatch] = []
        self.first_hash: int | None = None
        self.rows = self.bytes = self.spilled_bytes = 0
        self._index: list[list[_Stored]] = [[] for _ in range(VNODE_COUNT)]
        self._file: Any = None
        self._writer: Any = None
        self._schema: pa.Schema | None = None
        self._readers: dict[bool, Any] = {}

    @property
    def spilled(self) -> bool:
        """Whether rows went to disk."""
        return self._file is not None

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows in, which have a hash."""
        if self.first_hash is None:
            self.first_hash = int(batch.column(HASH)[0].as_py())
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        if self._file is None and self.bytes <= self._budget:
            self._held.append(batch)
            return
        self._held.append(batch)
        self._spill_held()

    def pieces(self, vnodes: VnodeRange, budget: int, *, whole: bool) -> Iterator[SpoolPiece]:
        """All rows, vnodes ascending; the ranges of the pieces cover these vnodes.

        Args:
            vnodes: of the partition.
            budget: bytes of one step.
            whole: whether rows of a key must stand in one step.
        """
        if self._file is None and (self.bytes <= budget or not self._held):
            yield SpoolPiece(vnodes, iter([self._in_memory()]))
            return
        self._spill_held()
        self._close_writer()
        sizes = [sum(stored.bytes for stored in index) for index in self._index]
        inside = sum(sizes[vnodes.low : vnodes.high])
        invariant(inside == sum(sizes), "a task got rows of another partition")
        low, size = vnodes.low, 0
        for vnode in range(vnodes.low, vnodes.high):
            more = sizes[vnode]
            if size and size + more > budget:
                yield SpoolPiece(VnodeRange(low, vnode), self._one_step(low, vnode))
                low, size = vnode, 0
            if more > budget and not whole:
                # Vnodes without rows that lie before go along.
                yield SpoolPiece(
                    VnodeRange(low, vnode + 1), self._steps(vnode, budget), several=True
                )
                low, size = vnode + 1, 0
                continue
            if more > budget:
                self._check_gathered(vnode, more, budget)
            size += more
        if low < vnodes.high:
            yield SpoolPiece(VnodeRange(low, vnodes.high), self._one_step(low, vnodes.high))

    def _in_memory(self) -> pa.RecordBatch:
        held, self._held = self._held, []
        return one_batch(pa.Table.from_batches(held))

    # Disk

    def _spill_held(self) -> None:
        while self._held:
            self._spill(self._held.pop(0))

    def _spill(self, batch: pa.RecordBatch) -> None:
        """Write a batch in order of hashes, the rows of each vnode as one."""
        hashes = batch.column(HASH).to_numpy(zero_copy_only=False).view(np.uint64)
        order = hash_order(hashes)
        ordered = batch.take(pa.array(order))
        bounds = np.searchsorted(vnodes_of(hashes[order]), np.arange(VNODE_COUNT + 1))
        try:
            if self._file is None:
                self._file = _nameless(self._directories)
                self._schema = ordered.schema
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                sink = pa.PythonFile(self._file, mode="w")
                self._writer = pa.ipc.new_file(sink, ordered.schema, options=options)
                self._number = 0
            if (
                self._schema is not None and ordered.schema != self._schema
            ):  # what may be null differs from side to side
                ordered = ordered.cast(self._schema)
            for vnode in np.flatnonzero(np.diff(bounds)).tolist():
                start, stop = int(bounds[vnode]), int(bounds[vnode + 1])
                some = ordered.slice(start, stop - start)
                self._writer.write_batch(some)
                self._index[vnode].append(_Stored(self._number, some.num_rows, some.nbytes))
                self.spilled_bytes += some.nbytes
                self._number += 1
        except OSError as error:
            raise _failed(error) from error

    def _close_writer(self) -> None:
        if self._writer is not None:
            try:
                self._writer.close()
                self._file.flush()
            except OSError as error:
                raise _failed(error) from error
            self._writer = None

    def _read(self, number: int, *, hashes: bool = False) -> pa.RecordBatch:
        """One batch; with `hashes` only its column of hashes."""
        try:
            reader = self._readers.get(hashes)
            if reader is None:
                fields = [self._schema.get_field_index(HASH)] if hashes and self._schema else []
                options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
                file = pa.PythonFile(cast("Any", _Pread(self._file.fileno())), mode="r")
                reader = self._readers[hashes] = pa.ipc.open_file(file, options=options)
            return reader.get_batch(number)
        except OSError as error:
            raise _failed(error) from error

    def _one_step(self, low: int, high: int) -> Iterator[pa.RecordBatch]:
        stored = [s for vnode in range(low, high) for s in self._index[vnode]]
        batches = [self._read(s.number) for s in sorted(stored, key=lambda s: s.number)]
        yield one_batch(pa.Table.from_batches(batches, schema=self._schema))

    def _steps(self, vnode: int, budget: int) -> Iterator[pa.RecordBatch]:
        """The rows of a vnode that has too many: by ranges of the hash, heavy keys in parts.

        Of what must be cut inside of a key, rows that add come before rows that retract.
        """
        stored = self._index[vnode]
        counts = np.zeros(1 << _BUCKET_BITS, np.int64)
        for some in stored:
            counts += np.bincount(
                _buckets(self._read(some.number, hashes=True)), minlength=len(counts)
            )
        rows = sum(some.rows for some in stored)
        most = max(1, budget * rows // sum(some.bytes for some in stored))
        for low, high in _ranges(counts, most):
            inside = self._between(stored, low, high)
            if int(counts[low:high].sum()) <= most:
                yield one_batch(pa.Table.from_batches(list(inside), schema=self._schema))
            elif WEIGHT not in self._schema.names:  # type: ignore[union-attr]
                yield from _gathered(inside, most)
            else:
                yield from _gathered(_signed(inside, retracting=False), most)
                again = self._between(stored, low, high)
                yield from _gathered(_signed(again, retracting=True), most)

    def _between(self, stored: Sequence[_Stored], low: int, high: int) -> Iterator[pa.RecordBatch]:
        for some in stored:
            batch = self._read(some.number)
            start, stop = np.searchsorted(_buckets(batch), [low, high]).tolist()
            if start < stop:
                yield batch.slice(start, stop - start)

    def _check_gathered(self, vnode: int, size: int, budget: int) -> None:
        most = max(GATHERED_BYTES_MAX, 8 * budget)
        if size <= most:
            return
        hashes: dict[int, int] = {}
        for some in self._index[vnode]:
            values, times = np.unique(
                self._read(some.number, hashes=True).column(0).to_numpy(), return_counts=True
            )
            for value, count in zip(values.tolist(), times.tolist(), strict=True):
                hashes[value] = hashes.get(value, 0) + count
            hashes = dict(sorted(hashes.items(), key=lambda item: -item[1])[:1_000])
        heaviest, count = next(iter(hashes.items()))
        raise InvalidInputError(
            "a key has more rows in one epoch than can be gathered",
            kind="key_too_large",
            cause="key_too_large",
            sample_key=self._sample(vnode, heaviest),
            rows=count,
            bytes=size,
            limit=most,
            remedy="take smaller epochs (rows_max, bytes_max of the source), or raise "
            "Settings(task_bytes_max=...)",
        )

    def _sample(self, vnode: int, value: int) -> str:
        """The row of a hash, as far as it is short."""
        for some in self._index[vnode]:
            batch = self._read(some.number)
            places = np.flatnonzero(batch.column(HASH).to_numpy() == value)
            if len(places):
                row = batch.slice(int(places[0]), 1).to_pylist()[0]
                shown = {n: v for n, v in row.items() if not n.startswith("__hf_")}
                return ", ".join(f"{n}={str(v)[:40]}" for n, v in shown.items())[:200]
        return str(value)

    # Ending

    def close(self) -> None:
        """Release memory and disk."""
        self._held, self._readers, self._writer = [], {}, None
        if self._file is not None:
            self._file.close()
            pa.default_memory_pool().release_unused()

    def __enter__(self) -> Self:
        """Use as a context."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def local_directories() -> list[str]:
    """Where Spark lets a task spill; the system's temporary directory outside of Spark."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "")
    return [path for path in given.split(",") if path and os.path.isdir(path)] or [
        tempfile.gettempdir()
    ]


def _nameless(directories: Sequence[str]) -> Any:
    """A file for writing and reading that vanishes with its last user."""
    directory = directories[os.getpid() % len(directories)]
    return tempfile.TemporaryFile(mode="w+b", prefix="holdfast-spill-", dir=directory)


class _Pread(io.RawIOBase):
    """Reads an open file at places of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._place = descriptor, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        end = os.fstat(self._descriptor).st_size
        self._place = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: end}[whence] + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._descriptor, len(buffer), self._place)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def _failed(error: OSError) -> StorageError:
    return StorageError(
        "a task could not write or read rows on local disk",
        kind="spill_failed",
        cause="spill_failed",
        reason=str(error)[:200],
        retryable=True,
        remedy="free space in spark.local.dir, or let it be on another disk",
    )


def _buckets(batch: pa.RecordBatch) -> np.ndarray:
    """The bits of each hash behind those of the vnode."""
    column = batch.column(batch.schema.get_field_index(HASH))
    hashes = column.to_numpy(zero_copy_only=False).view(np.uint64)
    shift = np.uint64(HASH_BITS - VNODE_BITS - _BUCKET_BITS)
    buckets: np.ndarray = (hashes >> shift) & np.uint64((1 << _BUCKET_BITS) - 1)
    return buckets.astype(np.int64)


def _ranges(counts: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of buckets with at most so many rows; a bucket with more stands alone."""
    low = rows = 0
    for bucket in np.flatnonzero(counts).tolist():
        more = int(counts[bucket])
        if rows and rows + more > most:
            yield low, bucket
            low, rows = bucket, 0
        rows += more
    if rows:
        yield low, len(counts)


def _signed(batches: Iterator[pa.RecordBatch], *, retracting: bool) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        column = batch.column(WEIGHT).to_numpy(zero_copy_only=False)
        keep = ~(column > 0) if retracting else column > 0
        some = batch.filter(pa.array(keep))
        if some.num_rows:
            yield some


def _gathered(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most so many."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        for start in range(0, batch.num_rows, most):
            some = batch.slice(start, most)
            if held and rows + some.num_rows > most:
                yield one_batch(pa.Table.from_batches(held))
                held, rows = [], 0
            held.append(some)
            rows += some.num_rows
    if held:
        yield one_batch(pa.Table.from_batches(held))
