"""Sink: a journal; each published epoch is appended once, whole batches at a time.

Invariants:
- Event ids come from checkpoint, sink and row number, so appending an epoch again finds it there
  and returns the first receipt: the journal itself refuses duplicates.
- An epoch of up to `PIECE_BYTES` is one atomic append. A larger one is several, in order: memory
  stays bounded, and a repeat continues where the last one stopped. Staged files are read a batch at
  a time, on an object store by ranges.
- After a fall-back the same rows come under another checkpoint: the journal cannot retract them.
- Payloads lose nothing (`connectors/journal/`). What has no JSON is refused before the first epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.checkpoint import PendingToken
from holdfast.connectors.base import (
    OutputState,
    OutputWriter,
    Sink,
    parse_token,
    put_owner,
    read_owner,
    remove_staging,
    staging_root,
)
from holdfast.connectors.journal.encode import is_scalar, json_texts, plain_texts, refuse_types
from holdfast.connectors.locations import Location, local_path
from holdfast.connectors.parquet_files import staged_batches
from holdfast.errors import ConflictError, InvalidInputError
from holdfast.format.owner import NOTHING, Owner
from holdfast.operators.columns import WEIGHT
from holdfast.storage import Storage, open_storage
from holdfast.storage.open import StorageLocation, location_text, storage_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

PIECE_BYTES = 32 << 20


class JournalSink(Sink):
    """Rows become events: `entity`, `kind` and `scope` name columns, or are fixed texts after `=`.

    The payload is the whole row as JSON. `Journal("events", entity="customer", kind="=total")`.
    A null in such a column becomes an empty text; the payload still says null.
    The journal is made with its first rows.
    """

    kind = "journal"

    def __init__(
        self, path: str | PathLike[str], *, entity: str, kind: str, scope: str = "="
    ) -> None:
        """Remember what becomes of the columns."""
        self.path = local_path(location_text(path))
        self.entity, self.kind, self.scope = entity, kind, scope
        for name, wanted in self.params.items():
            if not isinstance(wanted, str) or not wanted:
                raise InvalidInputError(
                    "a journal sink needs a column or a fixed text",
                    kind="invalid_column",
                    option=name,
                    value=repr(wanted)[:100],
                    remedy="give the name of a column, or a fixed text such as '=total'",
                )

    @property
    def params(self) -> Mapping[str, str]:
        """What gives events their meaning."""
        return {"entity": self.entity, "kind": self.kind, "scope": self.scope}

    def check(self, name: str, schema: StructType) -> None:
        """Refuse, before the first epoch, what could never be published."""
        fields = [field for field in schema.fields if field.name != WEIGHT]
        refuse_types(type(schema)(fields), name)
        for option, wanted in self.params.items():
            if wanted.startswith("="):
                continue
            found = [field for field in fields if field.name.lower() == wanted.lower()]
            if not found:
                raise InvalidInputError(
                    "a column of the journal sink does not exist",
                    kind="unknown_column",
                    sink=name,
                    option=option,
                    column=wanted,
                    known=",".join(field.name for field in fields),
                    remedy="give the name of a column, or a fixed text such as '=total'",
                )
            if not is_scalar(found[0].dataType):
                raise InvalidInputError(
                    "a column of the journal sink is no single value",
                    kind="unsupported_type",
                    sink=name,
                    option=option,
                    column=wanted,
                    type=found[0].dataType.simpleString(),
                    remedy="give a column of texts, numbers or times, or a fixed text after '='",
                )

    def locations(self) -> list[Location]:
        """The journal; several sinks may append to it."""
        return [Location(self.path, "appends")]

    def open(
        self, name: str, pipeline: str, store: StorageLocation, spark: SparkSession
    ) -> JournalSinkWriter:
        """Begin to write; the journal is locked for this process."""
        del spark
        return JournalSinkWriter(name, pipeline, store, self)


class JournalSinkWriter(OutputWriter):
    """A journal sink while the pipeline runs."""

    def __init__(self, name: str, pipeline: str, store: StorageLocation, sink: JournalSink) -> None:
        """Rows are staged next to the pipelines of the store."""
        self._name, self._sink = name, sink
        self._place, self._storage = store, storage_of(store)
        self._root = staging_root(pipeline, name)
        self._record, self._owned = f"_sinks/{name}.json", False
        self._box: Storage | None = None

    def staging(self, checkpoint: str) -> tuple[StorageLocation, str]:
        """Below the root of the store, next to the pipelines."""
        return self._place, f"{self._root}/{checkpoint}"

    def commit(self, token: PendingToken) -> None:
        """Append the epoch; if it is there already, nothing happens."""
        from holdfast.journal import JournalWriter

        staged = parse_token(token)
        if not staged.files:
            return
        with JournalWriter(self._sink.path) as journal:
            for events in self._pieces(staged.files, token):
                _append(journal, events)

    def _pieces(self, files: Collection[str], token: PendingToken) -> Iterator[pa.Table]:
        """The epoch's events, in pieces; always cut in the same places."""
        seed = hashlib.sha256(f"{token.checkpoint}:{self._name}".encode()).digest()[:8]
        piece: list[pa.RecordBatch] = []
        size = first = 0
        for rows in staged_batches(self._storage, list(files), PIECE_BYTES):
            events = self._events(rows, seed, first)
            first += rows.num_rows
            if piece and size + events.nbytes > PIECE_BYTES:
                yield pa.Table.from_batches(piece)
                piece, size = [], 0
            piece.append(events)
            size += events.nbytes
        if piece:
            yield pa.Table.from_batches(piece)

    def _events(self, rows: pa.RecordBatch, seed: bytes, first: int) -> pa.RecordBatch:
        count = rows.num_rows
        ids = np.zeros((count, 2), ">u8")
        ids[:, 0] = int.from_bytes(seed, "big")
        ids[:, 1] = np.arange(first, first + count)
        return pa.record_batch(
            {
                "id": pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(16), count, [None, pa.py_buffer(ids.tobytes())]
                ),
                "entity": self._text(rows, self._sink.entity),
                "kind": self._text(rows, self._sink.kind),
                "scope": self._text(rows, self._sink.scope),
                "payload": json_texts(rows).cast(pa.string()),
            }
        )

    def _text(self, rows: pa.RecordBatch, wanted: str) -> Any:
        if wanted.startswith("="):
            return pa.repeat(pa.scalar(wanted[1:], pa.string()), rows.num_rows)
        names = [name.lower() for name in rows.schema.names]
        return plain_texts(rows.column(names.index(wanted.lower()))).cast(pa.string())

    def remove_stale_staging(self, keep: Collection[str]) -> None:
        """Remove staged rows of other checkpoints."""
        remove_staging(self._storage, self._root, keep)

    # The journal as an output: one owner record for each sink, so that several may append

    def inspect(self, after: int | None) -> OutputState:
        """Whether the journal is there, and who appends under the name of this sink."""
        del after
        there = (Path(self._sink.path) / "journal.meta").exists()
        owner = None
        if Path(self._sink.path).is_dir():
            self._box = open_storage(self._sink.path)
            owner = read_owner(self._box, self._record)
        self._owned = owner is not None
        return OutputState(
            where=self._sink.path,
            owner=owner,
            empty=not there,
            shared=True,
            whole=owner is None or owner.building or owner.parts == 0 or there,
        )

    def holds(self, token: PendingToken) -> bool:
        """Events of other producers lie between: that a journal is there has to do."""
        del token
        return True

    def claim(self, owner: Owner) -> Owner:
        """Inside the journal's directory."""
        self._box = self._box or open_storage(self._sink.path)
        sealed = put_owner(self._box, self._record, owner, first=not self._owned)
        self._owned = True
        return sealed

    def extent(self) -> tuple[int, int]:
        """One journal, once it exists."""
        return int((Path(self._sink.path) / "journal.meta").exists()), NOTHING

    def retract(self, after: int | None) -> None:
        """A journal cannot retract anything: that was accepted when the store was opened."""
        del after

    def replace(self, token: PendingToken) -> None:
        """The first rows of this sink in a journal."""
        self.commit(token)

    def clear(self) -> None:
        """What was appended stays."""


def _append(journal: Any, events: Any) -> None:
    """Append a piece; if it is there already, nothing happens.

    Another version may have cut or written the epoch in another way before it died: then the first
    rows are there under their ids, and the rest follows.
    """
    try:
        journal.append(events)
    except ConflictError as error:
        known = error.facts.get("known")
        if error.kind != "id_reused" or not isinstance(known, int):
            raise
        if known < events.num_rows:
            journal.append(events.slice(known))
