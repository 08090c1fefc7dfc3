"""Parquet files of any storage, read in bounded pieces.

Invariants:
- Nothing here reads a large object whole: local files are read in place, objects by ranges.
- A batch has few rows, and fewer where rows are wide.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import CorruptionError, NotFoundError
from holdfast.storage.base import StorageReader

BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 13  # a dictionary can make megabytes of a few bytes: rows have a bound, too
_WHOLE_BYTES = 4 << 20


class RangeFile(io.RawIOBase):
    """An object as a file that is read by ranges."""

    def __init__(self, storage: StorageReader, path: str, size: int) -> None:
        """Begin at its first byte."""
        super().__init__()
        self._storage, self._path, self._size, self._at = storage, path, size, 0

    def readable(self) -> bool:
        """It is only read."""
        return True

    def seekable(self) -> bool:
        """Any byte can be next."""
        return True

    def tell(self) -> int:
        """Where the next byte comes from."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """That many bytes, or all that are left."""
        left = max(0, self._size - self._at)
        count = left if size is None or size < 0 else min(size, left)
        data = self._storage.get_range(self._path, self._at, count) if count else b""
        self._at += len(data)
        return data


def open_parquet(storage: StorageReader, path: str) -> pq.ParquetFile:
    """A file of a storage, to be closed by the caller; `NotFoundError` if it is not there."""
    local = storage.local_path(path)
    try:
        if local is not None:
            return pq.ParquetFile(local)
        try:
            return pq.ParquetFile(pa.BufferReader(storage.get(path, bytes_max=_WHOLE_BYTES)))
        except CorruptionError as error:
            if error.kind != "object_too_large":
                raise
        size = storage.stat(path).size
        return pq.ParquetFile(cast("Any", RangeFile(storage, path, size)), pre_buffer=True)
    except FileNotFoundError as error:
        raise NotFoundError("object does not exist", path=path) from error
    except pa.ArrowInvalid as error:
        raise CorruptionError(
            "a Parquet file cannot be read",
            kind="unreadable_output",
            path=path,
            reason=str(error)[:200],
            remedy="bring the file back from a copy, or rebuild the output: "
            'run(outputs={"sink": "adopt"})',
        ) from error


def unpacked_bytes(file: pq.ParquetFile) -> int:
    """The size of all rows as encoded, without compression; a dictionary may hide a part of it."""
    groups = range(file.num_row_groups)
    return sum(file.metadata.row_group(number).total_byte_size for number in groups)


def row_batches(
    file: pq.ParquetFile,
    groups: Sequence[int] | None = None,
    columns: list[str] | None = None,
    bytes_max: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups, so many at a time as take about so many bytes in memory."""
    for number in range(file.num_row_groups) if groups is None else groups:
        group = file.metadata.row_group(number)
        wide = max(1, group.total_byte_size // max(1, group.num_rows))
        count = max(1, min(_BATCH_ROWS, bytes_max // (4 * wide)))
        yield from file.iter_batches(count, row_groups=[number], columns=columns)


def staged_batches(
    storage: StorageReader, paths: Sequence[str], bytes_max: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """All rows of some files, one file after the other."""
    for path in paths:
        with open_parquet(storage, path) as file:
            yield from row_batches(file, bytes_max=bytes_max)
