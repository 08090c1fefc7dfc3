"""The rows of many files in few large ones, in order: what a fold does, in the driver or in tasks.

Invariants:
- Memory is bounded by one row group, whatever is folded.
- A task writes into a directory that belongs to one try of one driver, under names of its own, and
  makes no directory. What is not in its answer goes with the directory.
- A file is durable before it is told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.parquet_files import row_batches
from holdfast.ids import RandomIds
from holdfast.storage.local.disk import Disk, current_disk
from holdfast.storage.local.writer import DiskFile

if TYPE_CHECKING:
    from pathlib import Path

_ROWS, _BYTES = 1 << 16, 16 << 20
_ids = RandomIds()


class FoldAnswer(msgspec.Struct, frozen=True):
    """The files of a directory, in order; None if the task cannot reach it."""

    names: list[str] | None


@dataclass(frozen=True)
class FoldTask:
    """Folds a group of directories. Crosses to executors with the job."""

    attempts: str
    target_bytes: int

    def __call__(self, piece: bytes) -> bytes:
        """The piece: the files of a group."""
        files = msgspec.json.decode(piece, type=list[str])
        if not os.path.isdir(self.attempts):
            return msgspec.json.encode(FoldAnswer(None))
        mark = f"-{_ids.token()}"
        names = rewrite_files(current_disk(), files, self.attempts, self.target_bytes, mark)
        return msgspec.json.encode(FoldAnswer(names))


def rewrite_files(
    disk: Disk, files: Sequence[str | Path], target: str, target_bytes: int, mark: str = ""
) -> list[str]:
    """Write the rows into files of about so many bytes; returns their names."""
    file: DiskFile | None = None
    writer: Any = None
    schema: pa.Schema | None = None
    names: list[str] = []

    def finish() -> None:
        if writer is not None and file is not None:
            writer.close()
            file.sync()
            file.close()

    try:
        for table in (table for path in files for table in _tables(path)):
            full = file is not None and file.size >= target_bytes
            if full or (schema is not None and schema != table.schema):
                finish()
                writer = None
            if writer is None:
                schema = table.schema
                names.append(f"part-{len(names):05d}{mark}-folded.parquet")
                file = DiskFile(disk, f"{target}/{names[-1]}")
                writer = pq.ParquetWriter(cast("Any", file), schema, compression="zstd")
            writer.write_table(table, max(1, table.num_rows))
        finish()
    except BaseException:
        if file is not None:
            file.close()
        raise
    return names


def _tables(path: str | Path) -> Iterator[pa.Table]:
    """The rows of a file, so many at a time as make a row group."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    with pq.ParquetFile(path) as file:
        for batch in row_batches(file):
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _ROWS or size >= _BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)
