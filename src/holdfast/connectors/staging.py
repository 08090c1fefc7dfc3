"""Staging: a task writes the rows of one partition as one Parquet file, where nobody looks.

Invariant: the name has a random part that no other try of the task uses; the driver learns of the
file from the try that won.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.checkpoint.artifact import ArtifactWriter
from holdfast.connectors.base import StagedFile
from holdfast.errors import invariant
from holdfast.ids import RandomIds
from holdfast.operators.columns import WEIGHT
from holdfast.storage.open import StorageLocation, storage_of

STAGED_WEIGHT = "_weight"
"""The column of staged and published rows that says +1 or -1."""
SLOT = "__hf_slot"
"""The column of staged rows by which an upsert output finds those of one bucket."""
_SLOT_ROWS = 1 << 16
_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 32 << 20


@dataclass(frozen=True)
class Target:
    """A sink whose rows are staged by the task, changes or late rows.

    by_slot: in the order of their slots, so that one who needs some of them reads only those.
    """

    sink: str
    place: StorageLocation
    late: bool = False
    by_slot: bool = False


class StagedWriter:
    """Writes the rows of one task for one sink, piece by piece, as one file.

    The file begins with the first rows: a task without any leaves none.
    """

    def __init__(
        self, target: Target, directory: str, partition: int, *, ids: RandomIds, durable: bool
    ) -> None:
        """Nothing is written yet. directory: below the place of the sink."""
        self.target, self._durable = target, durable
        self._path = f"{directory}/part-{partition:05d}-{ids.token()}.parquet"
        self._artifact: ArtifactWriter | None = None
        self._parquet: Any = None
        self._rows = 0

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Append rows as row groups of a bounded size."""
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        names = [STAGED_WEIGHT if name == WEIGHT else name for name in table.schema.names]
        table = table.rename_columns(names)
        if self.target.by_slot:
            from holdfast.connectors.parquet_upsert.slots import by_slot

            table = by_slot(table)
        if self._parquet is None:
            self._artifact = ArtifactWriter(storage_of(self.target.place), self._path)
            file = pa.PythonFile(cast("Any", self._artifact), mode="w")
            self._parquet = pq.ParquetWriter(file, table.schema, compression="zstd")
        most = _SLOT_ROWS if self.target.by_slot else _GROUP_ROWS
        fitting = _GROUP_BYTES * table.num_rows // max(1, table.nbytes)
        self._parquet.write_table(table, row_group_size=max(1, min(most, fitting)))
        self._rows += table.num_rows

    def close(self) -> StagedFile | None:
        """Make the file whole; None where nothing was written."""
        if self._artifact is None:
            return None
        self._parquet.close()
        self._artifact.close()
        if self._durable:
            storage_of(self.target.place).barrier([self._path])
        written = self._artifact
        return StagedFile(self.target.sink, self._path, written.size, written.sha256, self._rows)

    def abort(self) -> None:
        """Give up: nothing of the file stays."""
        if self._artifact is not None:
            self._artifact.abort()


def stage_rows(
    target: Target,
    directory: str,
    partition: int,
    rows: pa.Table | pa.RecordBatch,
    *,
    ids: RandomIds,
    durable: bool,
) -> StagedFile:
    """Write rows that are all there as one Parquet file below the sink's staging directory."""
    writer = StagedWriter(target, directory, partition, ids=ids, durable=durable)
    try:
        writer.write(rows)
        staged = writer.close()
    except BaseException:
        writer.abort()
        raise
    invariant(staged is not None, "rows were staged without a file")
    return cast("StagedFile", staged)
