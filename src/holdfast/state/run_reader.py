"""Reading runs: memory-mapped where there is a file, through the disk cache where there is none.

Invariants:
- Opening costs the same for a small and a large run: no data page is touched.
- An uncompressed run is read in place. A batch is checked against its checksum when it is first
  used, so an answer never comes from damaged bytes.
- Every failure is typed and names the file: missing, truncated, damaged, another schema, newer.
- A batch is unpacked only after its framing was found to ask for no more than its rows can need.
- A reader never changes or repairs what it reads.

Spec: spec/run-v1.md, sections 3 and 4.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.errors import (
    CorruptionError,
    HoldfastError,
    IncompatibleError,
    NotFoundError,
    StorageError,
)
from holdfast.state.arrow.batches import number_order
from holdfast.state.arrow.message_bounds import check_message, last_message
from holdfast.state.arrow.numpy_views import numbers
from holdfast.state.cache import map_file
from holdfast.state.run_info import RunInfo, object_path
from holdfast.state.run_writer import (
    HEADER_KEY,
    RUN_FORMAT,
    SUMMARY_CRC_KEY,
    SUMMARY_KEY,
    RunHeader,
    RunTotals,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from holdfast.state.cache import RunCache
    from holdfast.state.schema import TraceSchema
    from holdfast.storage.base import StorageReader

_T = TypeVar("_T")
_REMEDY = (
    'stop the pipeline and start it with Settings(recovery_verify="deep"): it resumes from the '
    "newest checkpoint that is whole; `holdfast recover --plan --verify deep` shows which"
)
_BATCHES_KEPT = 2
_READ_LOCKS = 16
_DECODING = (
    pa.ArrowException, msgspec.MsgspecError, OSError, ValueError, KeyError, IndexError, TypeError,
    OverflowError,
)  # fmt: skip


class Verify(StrEnum):
    """How much is checked.

    TOUCHED: size, schema and facts at opening, and the checksum of each record batch when it is
    first used: opening takes the same time for every size, and no answer comes from damaged
    bytes. DIGEST: also SHA-256 over the whole file at opening, once for each file in a process.
    STRUCTURE: no checksums of rows, for who has verified the store already.
    """

    STRUCTURE = "structure"
    TOUCHED = "touched"
    DIGEST = "digest"


class RunSource:
    """Opens runs of one store, and keeps the ones used last open.

    Runs never change, so a worker process that serves many epochs should keep one source: a run
    that is still open needs no framing read and no page faults. `open_max` bounds how many; a
    run that was deleted meanwhile holds its disk space until it is the least recently used or
    `retain` drops it. `cache` is the disk cache, for stores without local files. `pipeline` is
    the directory below the storage's root; None when the storage begins there.
    """

    def __init__(
        self,
        storage: StorageReader,
        *,
        cache: RunCache | None = None,
        verify: Verify = Verify.TOUCHED,
        pipeline: str | None = None,
        open_max: int = 256,
    ) -> None:
        """Remember where runs come from and how much to check."""
        self.storage = storage
        self._cache = cache
        self._verify = verify
        self._pipeline = pipeline
        self._verified: set[tuple[str, int, int, int]] = set()
        self._open_max = open_max
        self._opened: dict[RunInfo, RunFile] = {}
        self._lock = threading.Lock()

    def open(self, info: RunInfo, schema: TraceSchema, *, keep: bool = True) -> RunFile:
        """Open one run, or find it open; `keep` is for runs that will be asked for again."""
        with self._lock:
            run_file = self._opened.pop(info, None)
            if run_file is not None:
                self._opened[info] = run_file  # youngest again
        if run_file is not None and run_file.schema == schema:
            return run_file
        run = self._open(info, schema)
        if keep:
            with self._lock:
                self._opened[info] = run
                while len(self._opened) > self._open_max or self._too_large():
                    self._opened.pop(next(iter(self._opened)))
        return run

    def _too_large(self) -> bool:
        """Whether open runs hold more than half of the cache, which cannot evict them."""
        if self._cache is None or len(self._opened) < 2:
            return False
        return sum(info.size for info in self._opened) > self._cache.bytes_max // 2

    def retain(self, runs: Iterable[RunInfo]) -> None:
        """Close every open run that is not among these."""
        retained = set(runs)
        with self._lock:
            for info in [info for info in self._opened if info not in retained]:
                del self._opened[info]

    def _open(self, info: RunInfo, schema: TraceSchema) -> RunFile:
        path = object_path(info.pipeline or self._pipeline, info.path)
        local = self.storage.local_path(path)
        if local is not None:
            return self._open_local(local, info, schema)
        if self._cache is not None:
            return self._open_cached(self._cache, path, info, schema)
        data = self.storage.get(path, bytes_max=info.size)
        _check_size(len(data), info)
        _check_digest(hashlib.sha256(data).hexdigest(), info)
        return RunFile(pa.py_buffer(data), info, schema, checked=False)

    def _open_cached(
        self, cache: RunCache, path: str, info: RunInfo, schema: TraceSchema
    ) -> RunFile:
        """Open a run from the cache; bytes that this disk has damaged are fetched again."""

        def fetch() -> pa.Buffer:
            return cache.fetch(self.storage, path, info)

        def renew() -> pa.Buffer:
            cache.discard(info)
            return fetch()

        checked = self._verify is Verify.TOUCHED
        content = fetch()
        try:
            if self._verify is Verify.DIGEST:
                _check_digest(hashlib.sha256(content).hexdigest(), info)
            return RunFile(content, info, schema, checked=checked, renew=renew)
        except CorruptionError:
            return RunFile(renew(), info, schema, checked=checked)

    def _open_local(self, local: Path, info: RunInfo, schema: TraceSchema) -> RunFile:
        try:
            status = local.stat()
            _check_size(status.st_size, info)
            content = map_file(local)
        except OSError as error:
            raise_missing_or_storage(error, info)
        if self._verify is Verify.DIGEST:
            mark = (info.sha256, status.st_dev, status.st_ino, status.st_mtime_ns)
            if mark not in self._verified:
                _check_digest(hashlib.sha256(content).hexdigest(), info)
                self._verified.add(mark)
        return RunFile(content, info, schema, checked=self._verify is Verify.TOUCHED)


def raise_missing_or_storage(error: OSError, info: RunInfo) -> NoReturn:
    """A failed system call as a typed error that names the run."""
    if isinstance(error, FileNotFoundError):
        raise NotFoundError(
            "a run of the checkpoint is missing",
            kind="run_missing",
            path=info.path,
            operator=info.operator,
            remedy=_REMEDY,
        ) from error
    raise StorageError(
        "a run cannot be read", kind="run_unreadable", path=info.path, reason=str(error)
    ) from error


def _check_size(actual: int, info: RunInfo) -> None:
    if actual != info.size:
        raise CorruptionError(
            "the size of a run differs from its record",
            kind="run_size_differs",
            path=info.path,
            expected=info.size,
            actual=actual,
            remedy=_REMEDY,
        )


def _check_digest(actual: str, info: RunInfo) -> None:
    if actual != info.sha256:
        raise CorruptionError(
            "the digest of a run differs from its record",
            kind="run_digest_differs",
            path=info.path,
            expected=info.sha256,
            actual=actual,
            remedy=_REMEDY,
        )


class RunFile:
    """One open run."""

    def __init__(
        self,
        content: Any,
        info: RunInfo,
        schema: TraceSchema,
        *,
        checked: bool,
        renew: Callable[[], pa.Buffer] | None = None,
    ) -> None:
        """Read framing, header and summary of the file's bytes; touch no rows.

        `renew` gets the bytes from where they came, once, when rows turn out to be damaged.
        """
        self._renew = renew
        self.info, self.schema = info, schema
        self._content = content
        self._kept: dict[int, pa.RecordBatch] = {}
        self._times: tuple[np.ndarray, np.ndarray] | None = None
        self._lock = threading.Lock()
        self._reading = [threading.Lock() for _ in range(_READ_LOCKS)]
        self._unchecked: set[int] = set()
        self._guard(lambda: self._load(checked=checked))

    def _load(self, *, checked: bool) -> None:
        reader = pa.ipc.open_file(self._content)
        header = self._header(reader.schema)
        # A batch that is a view of the file costs nothing to keep; an unpacked one does.
        self._kept_max = None if header.compression is None else _BATCHES_KEPT
        self._check_schema(reader.schema)
        self._arrow_schema = reader.schema
        if reader.num_record_batches:
            last = pa.ipc.read_message(self._content.slice(*last_message(self._content)))
            check_message(last, reader.schema, 0)
        self._summary = self._read_summary(reader)
        self._check_facts(header)
        facts = self._summary.batches
        if checked:
            self._unchecked.update(range(len(facts)))
        self.batch_starts = np.concatenate(([0], np.cumsum([b.rows for b in facts], dtype=int)))
        self.hash_mins = np.array([int(b.hash_min, 16) for b in facts], np.uint64)
        self.hash_maxs = np.array([int(b.hash_max, 16) for b in facts], np.uint64)

    def _guard(self, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except IncompatibleError as error:
            self._check_digest(error)
            raise
        except HoldfastError:
            raise
        except _DECODING as error:
            raise self._corrupt("a run cannot be decoded", error) from error

    def _check_digest(self, because: IncompatibleError) -> None:
        """A flipped bit in the schema or the version looks like another format: it is damage."""
        actual = hashlib.sha256(self._content).hexdigest()
        if actual != self.info.sha256:
            raise self._corrupt("a run differs from its digest", because.what) from because

    def _corrupt(self, what: str, reason: object) -> CorruptionError:
        return CorruptionError(
            what,
            kind="run_undecodable",
            path=self.info.path,
            reason=str(reason)[:300],
            remedy=_REMEDY,
        )

    def _header(self, schema: pa.Schema) -> RunHeader:
        raw = (schema.metadata or {}).get(HEADER_KEY)
        if raw is None:
            raise self._corrupt("not a run", "no header in the Arrow schema")
        version = msgspec.json.decode(raw, type=dict[str, Any]).get("format")
        if isinstance(version, int) and version > RUN_FORMAT:
            raise IncompatibleError(
                "a run was written by a newer Holdfast",
                kind="newer_format",
                path=self.info.path,
                format=version,
                supported=RUN_FORMAT,
                remedy="upgrade Holdfast; nothing was changed",
            )
        return msgspec.json.decode(raw, type=RunHeader)

    def _check_schema(self, actual: Any) -> None:
        expected = self.schema.stored
        if actual.equals(expected, check_metadata=False):
            return
        expected_fields = {f"{f.name}: {f.type}" for f in expected}
        present = {f"{f.name}: {f.type}" for f in actual}
        raise IncompatibleError(
            "a run has another schema than its trace",
            kind="run_schema_differs",
            path=self.info.path,
            missing="; ".join(sorted(expected_fields - present)) or None,
            unexpected="; ".join(sorted(present - expected_fields)) or None,
            order=None if expected_fields != present else "columns or nullability differ",
            remedy="open the trace with the schema that it was written with",
        )

    def _read_summary(self, reader: Any) -> RunTotals:
        count = reader.num_record_batches
        last = reader.get_batch_with_custom_metadata(count - 1) if count else None
        notes = dict(last.custom_metadata or {}) if last else {}
        raw = notes.get(SUMMARY_KEY)
        if raw is None or notes.get(SUMMARY_CRC_KEY) != f"{zlib.crc32(raw):08x}".encode():
            raise self._corrupt("a run is not whole", "no intact summary")
        summary = msgspec.json.decode(raw, type=RunTotals)
        if len(summary.batches) != count - 1:
            raise self._corrupt("a run is not whole", "batches differ")
        return summary

    def _check_facts(self, header: RunHeader) -> None:
        """The file and its record must tell the same story."""
        info, summary = self.info, self._summary
        batches, first = summary.batches, f"{info.vnodes.hash_low:016x}"
        pairs = {
            "trace": (info.trace, header.trace),
            "keys": (len(self.schema.keys), header.keys),
            "time_column": (self.schema.time_column, header.time_column),
            "operator": (info.operator, header.operator),
            "snapshot": (info.snapshot, header.snapshot),
            "vnodes": (
                (info.vnodes.low, info.vnodes.high),
                (header.vnode_low, header.vnode_high),
            ),
            "epochs": ((info.epoch_low, info.epoch_high), (header.epoch_low, header.epoch_high)),
            "generation": (info.generation, header.generation),
            "rows": (info.rows, summary.rows),
            "counted": (info.rows, sum(batch.rows for batch in batches)),
            "hash_min": (f"{info.hash_min:016x}", batches[0].hash_min if batches else first),
            "hash_max": (f"{info.hash_max:016x}", batches[-1].hash_max if batches else first),
            "times": (
                (info.time_min_us, info.time_max_us),
                (summary.time_min_us, summary.time_max_us),
            ),
        }
        differences = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        if info.trace != str(self.schema.kind):
            raise IncompatibleError(
                "a run belongs to another kind of trace",
                kind="run_schema_differs",
                path=info.path,
                expected=str(self.schema.kind),
                actual=info.trace,
            )
        if differences:
            raise CorruptionError(
                "a run contradicts its record",
                kind="run_facts_differ",
                path=info.path,
                **{
                    name: f"{want} in the record, {got} in the file"
                    for name, (want, got) in differences.items()
                },
                remedy=_REMEDY,
            )

    @property
    def rows(self) -> int:
        """How many rows."""
        return self.info.rows

    @property
    def batch_count(self) -> int:
        """How many record batches with rows."""
        return len(self._summary.batches)

    @property
    def in_place(self) -> bool:
        """Whether a batch is a view of the file, so that keeping it costs nothing."""
        return self._kept_max is None

    @property
    def hashes_distinct(self) -> bool:
        """Whether no two rows have the same hash."""
        return self._summary.hashes_distinct

    def batch(self, number: int) -> pa.RecordBatch:
        """One record batch; in place, unless the run is compressed."""
        batch = self._kept.get(number)
        if batch is not None:
            return batch
        # Threads may share an open run: one batch is checked once, different ones side by side.
        with self._reading[number % _READ_LOCKS]:
            batch = self._kept.get(number)
            if batch is None:
                batch = self._guard(lambda: self._read_batch(number))
                with self._lock:
                    while self._kept_max is not None and len(self._kept) >= self._kept_max:
                        self._kept.pop(next(iter(self._kept)))
                    self._kept[number] = batch
        return batch

    def hashes(self, number: int) -> np.ndarray:
        """The hashes of one record batch."""
        return numbers(self.batch(number).column(0))

    def time_index(self) -> tuple[np.ndarray, np.ndarray]:
        """Event times in microseconds, ascending, and the row of each; rows without are left out.

        Made when it is first asked for and kept while the run is open: runs never change.
        """
        index = self._times
        if index is None:
            index = self._times = self._guard(self._make_time_index)
        return index

    def _make_time_index(self) -> tuple[np.ndarray, np.ndarray]:
        times, rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for number in range(self.batch_count):
            column = self.schema.times_us(self.batch(number))
            valid_rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
            times.append(column.drop_null().to_numpy())
            rows.append(valid_rows + self.batch_starts[number])
        micros = np.concatenate(times)
        if not len(micros):
            return micros, micros
        # Unsigned, since the first and the last time may lie further apart than 63 bits.
        order = number_order(micros.view(np.uint64) - micros.min().view(np.uint64))
        return micros[order], np.concatenate(rows)[order]

    def _read_batch(self, number: int) -> pa.RecordBatch:
        """Decode exactly the bytes that the checksum covers; the file's footer is not asked."""
        facts = self._summary.batches[number]
        raw = self._content.slice(facts.offset, facts.length)
        if number in self._unchecked:
            actual = zlib.crc32(raw)
            if actual != facts.crc32 and self._renew is not None:
                renew, self._renew = self._renew, None
                self._content = renew()
                raw = self._content.slice(facts.offset, facts.length)
                actual = zlib.crc32(raw)
            if actual != facts.crc32:
                raise CorruptionError(
                    "rows of a run disagree with their checksum",
                    kind="run_checksum_differs",
                    path=self.info.path,
                    batch=number,
                    offset=facts.offset,
                    expected=f"{facts.crc32:08x}",
                    actual=f"{actual:08x}",
                    remedy=_REMEDY,
                )
            self._unchecked.discard(number)
        message = pa.ipc.read_message(raw)
        check_message(message, self._arrow_schema, facts.rows)
        batch = pa.ipc.read_record_batch(message, self._arrow_schema)
        batch.validate()  # lengths only: no row is looked at
        return batch
