"""A journal as a sink: each published epoch is one atomic, idempotent append.

Invariants:
- Event ids come from checkpoint, sink and row number, so appending an epoch again finds it there
  and returns the first receipt: the journal itself refuses duplicates.
- After a fall-back the same rows come under another checkpoint: the journal cannot take them back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.checkpoint import PendingToken
from holdfast.errors import InvalidInputError
from holdfast.format.records import Replay
from holdfast.pipeline.sinks.api import parse_token, tidy_staging
from holdfast.pipeline.stage import Place, storage_of


class Journal:
    """Rows become events: `entity` and `kind` name the columns, or are fixed texts after `=`.

    The payload is the whole row as JSON. `Journal("events", entity="customer", kind="=total")`.
    """

    what = "journal"
    replay: Replay = "none"

    def __init__(self, path: str | Path, *, entity: str, kind: str, scope: str = "=") -> None:
        """Remember what becomes of the columns."""
        self.path = str(Path(path).expanduser().absolute())
        self.entity, self.kind, self.scope = entity, kind, scope

    @property
    def params(self) -> Mapping[str, str]:
        """What gives events their meaning."""
        return {"entity": self.entity, "kind": self.kind, "scope": self.scope}

    def open(self, name: str, pipeline: str, store: Place, spark: Any) -> JournalSinkWriter:
        """Begin to write; the journal is locked for this process."""
        del spark
        return JournalSinkWriter(name, pipeline, store, self)


class JournalSinkWriter:
    """A journal sink while the pipeline runs."""

    def __init__(self, name: str, pipeline: str, store: Place, sink: Journal) -> None:
        """Rows are staged beside the pipelines of the store."""
        self._name, self._sink = name, sink
        self._place, self._storage = store, storage_of(store)
        self._root = f".staging/{pipeline}/{name}"

    def staging(self, checkpoint: str) -> tuple[Place, str]:
        """Below the root of the store, beside the pipelines."""
        return self._place, f"{self._root}/{checkpoint}"

    def commit(self, token: PendingToken) -> None:
        """Append the epoch; if it is there already, nothing happens."""
        from holdfast.journal import JournalWriter

        staged = parse_token(token)
        if not staged.files:
            return
        tables = [pq.read_table(pa.BufferReader(self._storage.get(f))) for f in staged.files]
        rows = pa.concat_tables(tables)
        with JournalWriter(self._sink.path) as journal:
            journal.append(self._events(rows, token))

    def _events(self, rows: Any, token: PendingToken) -> Any:
        count = rows.num_rows
        seed = hashlib.sha256(f"{token.checkpoint}:{self._name}".encode()).digest()[:8]
        ids = np.zeros((count, 2), ">u8")
        ids[:, 0] = int.from_bytes(seed, "big")
        ids[:, 1] = np.arange(count)
        frame = rows.to_pandas()
        payload = frame.to_json(orient="records", lines=True, date_format="iso").splitlines()
        return pa.record_batch(
            {
                "id": pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(16), count, [None, pa.py_buffer(ids.tobytes())]
                ),
                "entity": self._text(rows, self._sink.entity),
                "kind": self._text(rows, self._sink.kind),
                "scope": self._text(rows, self._sink.scope),
                "payload": pa.array(payload, pa.string()),
            }
        )

    def _text(self, rows: Any, wanted: str) -> Any:
        if wanted.startswith("="):
            return pa.array([wanted[1:]] * rows.num_rows, pa.string())
        if wanted not in rows.schema.names:
            raise InvalidInputError(
                "a column of the journal sink does not exist", kind="unknown_column",
                sink=self._name, column=wanted, known=",".join(rows.schema.names),
            )  # fmt: skip
        return rows.column(wanted).combine_chunks().cast(pa.string()).fill_null("")

    def tidy(self, keep: Collection[str]) -> None:
        """Remove staged rows of other checkpoints."""
        tidy_staging(self._storage, self._root, keep)

    def retract(self, after: int | None) -> None:
        """A journal cannot take anything back."""
        del after
