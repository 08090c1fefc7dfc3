"""Run lists on their way to tasks: small ones inline, large ones in a document cut by partition.

A local property is shipped with every task, so that all runs to all tasks grows with the square of
the partitions. Where that comes to more than `INLINE_BYTES_MAX`, the driver writes the lists of
each partition one after the other into one document in the store, and a task reads its part.

Invariants:
- A document belongs to one epoch. It has a temporary name, which nobody lists and clean-up removes;
  the driver deletes it when the epoch's job has ended, however it has ended.
- What a task reads of it was written for this epoch: its name is new for each, and the bytes of a
  part are checked.
- Digests travel as 32 bytes, not as text.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.errors import CorruptionError
from holdfast.format import paths
from holdfast.ids import CheckpointId
from holdfast.state import RunInfo, VnodeRange, partition_table

INLINE_BYTES_MAX = 1 << 20
"""Of run lists, over all tasks of a stage."""
_ENTRY_BYTES = 300  # about what a run takes inline


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """The facts of a run, without their names."""

    path: str
    size: int
    sha256: bytes
    trace: str
    snapshot: bool
    operator: str
    partition: int
    rows: int
    hashes: tuple[int, int]
    vnodes: tuple[int, int]
    epochs: tuple[int, int]
    generation: int
    times: tuple[int, int] | None
    base: str | None
    pipeline: str | None


class ListDocument(msgspec.Struct, frozen=True, array_like=True):
    """Where the lists of a stage are: part n is that of partition n, with its length and CRC."""

    path: str
    start: int
    parts: list[tuple[int, int]]


Lists = Mapping[str, Sequence[RunInfo]]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, list[_Row]])


def pack(lists: Lists) -> bytes:
    """Lists of runs, by trace, as bytes."""
    return _encoder.encode({trace: [_row(run) for run in runs] for trace, runs in lists.items()})


def unpack(data: bytes) -> dict[str, list[RunInfo]]:
    """What `pack` was given."""
    return {trace: [_info(row) for row in rows] for trace, rows in _decoder.decode(data).items()}


def _row(run: RunInfo) -> _Row:
    times = None
    if run.time_min_us is not None and run.time_max_us is not None:
        times = run.time_min_us, run.time_max_us
    return _Row(
        run.path,
        run.size,
        bytes.fromhex(run.sha256),
        run.trace,
        run.snapshot,
        run.operator,
        run.partition,
        run.rows,
        (run.hash_min, run.hash_max),
        (run.vnodes.low, run.vnodes.high),
        (run.epoch_low, run.epoch_high),
        run.generation,
        times,
        run.base,
        run.pipeline,
    )


def _info(row: _Row) -> RunInfo:
    low, high = row.times or (None, None)
    return RunInfo(
        path=row.path,
        size=row.size,
        sha256=row.sha256.hex(),
        trace=row.trace,
        snapshot=row.snapshot,
        operator=row.operator,
        partition=row.partition,
        rows=row.rows,
        hash_min=row.hashes[0],
        hash_max=row.hashes[1],
        vnodes=VnodeRange(*row.vnodes),
        epoch_low=row.epochs[0],
        epoch_high=row.epochs[1],
        generation=row.generation,
        time_min_us=low,
        time_max_us=high,
        base=row.base,
        pipeline=row.pipeline,
    )


def needs_document(lists: Lists, tasks: int) -> bool:
    """Whether shipping these lists with every task costs too much."""
    runs = sum(len(some) for some in lists.values())
    return runs * tasks * _ENTRY_BYTES > INLINE_BYTES_MAX


def cut(lists: Lists, tasks: int) -> list[dict[str, list[RunInfo]]]:
    """For each partition of so many, the runs that it reads something of."""
    parts: list[dict[str, list[RunInfo]]] = [{t: [] for t in lists} for _ in range(tasks)]
    table = partition_table(tasks).tolist()
    for trace, runs in lists.items():
        for run in runs:
            for number in range(table[run.vnodes.low], table[run.vnodes.high - 1] + 1):
                parts[number][trace].append(run)
    return parts


class DocumentWriter:
    """The document of one epoch: lists of some stages, one after the other."""

    def __init__(self, checkpoint: CheckpointId | str, token: str) -> None:
        """Begin; `token` is new for each epoch."""
        directory = paths.checkpoint_dir(CheckpointId(checkpoint))
        self.path = paths.temporary(directory, token)
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, lists: Lists, tasks: int) -> ListDocument:
        """Append the lists of one stage; returns where its tasks find them."""
        start, parts = self._size, []
        for part in cut(lists, tasks):
            data = pack(part)
            parts.append((len(data), zlib.crc32(data)))
            self._pieces.append(data)
            self._size += len(data)
        return ListDocument(self.path, start, parts)

    @property
    def content(self) -> bytes:
        """Everything that was appended."""
        return b"".join(self._pieces)


def read_part(
    document: ListDocument, partition: int, get_range: Callable[[str, int, int], bytes]
) -> dict[str, list[RunInfo]]:
    """In a task: the lists of its partition.

    Args:
        document: where they are.
        partition: which one.
        get_range: reads bytes of a file: path, start and length.

    Raises:
        CorruptionError: other bytes came than were written.
    """
    length, crc = document.parts[partition]
    start = document.start + sum(size for size, _ in document.parts[:partition])
    data = get_range(document.path, start, length)
    if len(data) != length or zlib.crc32(data) != crc:
        raise CorruptionError(
            "the run lists of an epoch differ from what was written",
            kind="run_lists_differ",
            path=document.path,
            partition=partition,
            expected=length,
            actual=len(data),
        )
    return unpack(data)
