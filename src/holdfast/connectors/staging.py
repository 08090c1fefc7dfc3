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
from holdfast.ids import RandomIds
from holdfast.operators.columns import WEIGHT
from holdfast.storage.open import StorageLocation, storage_of

STAGED_WEIGHT = "_weight"
"""The column of staged and published rows that says +1 or -1."""
SLOT = "__hf_slot"
"""The column of staged rows by which an upsert output finds those of one bucket."""
_SLOT_ROWS = 1 << 16


@dataclass(frozen=True)
class Target:
    """A sink whose rows are staged by the task, changes or late rows.

    by_slot: in the order of their slots, so that one who needs some of them reads only those.
    """

    sink: str
    place: StorageLocation
    late: bool = False
    by_slot: bool = False


def stage_rows(
    target: Target,
    directory: str,
    partition: int,
    rows: pa.Table | pa.RecordBatch,
    *,
    ids: RandomIds,
    durable: bool,
) -> StagedFile:
    """Write rows as one Parquet file below the sink's staging directory."""
    storage = storage_of(target.place)
    path = f"{directory}/part-{partition:05d}-{ids.token()}.parquet"
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    names = [STAGED_WEIGHT if name == WEIGHT else name for name in table.schema.names]
    table = table.rename_columns(names)
    if target.by_slot:
        from holdfast.connectors.parquet_upsert.slots import by_slot

        table = by_slot(table)
    writer = ArtifactWriter(storage, path)
    with writer:
        pq.write_table(
            table,
            pa.PythonFile(cast("Any", writer), mode="w"),
            compression="zstd",
            row_group_size=_SLOT_ROWS if target.by_slot else None,
        )
    if durable:
        storage.barrier([path])
    return StagedFile(target.sink, path, writer.size, writer.sha256, table.num_rows)
