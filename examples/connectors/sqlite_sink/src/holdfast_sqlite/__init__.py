"""A sink in one file: rows of a SQLite table, each epoch exactly once.

Copy it to begin a sink of your own. `pip install` of this package makes it `hf.sinks.SqliteTable`:
its pyproject.toml has the entry point. What a sink promises: docs/guides/connectors.md.

Exactly once: the rows of an epoch and its number go into the database in one transaction. An epoch
that is published again, after a crash, finds its number there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors import (
    Location,
    PendingToken,
    Sink,
    SinkWriter,
    StorageLocation,
    parse_token,
    remove_staging,
    staging_root,
    storage_of,
)

__all__ = ["SqliteTable"]


class SqliteTable(Sink):
    """Appends rows to a table; `_weight` says +1 or -1 where rows can be retracted."""

    kind = "toy_sqlite"  # stored: never changes

    def __init__(self, path: str | Path, table: str) -> None:
        self.path, self.table = str(Path(path).absolute()), table

    @property
    def params(self) -> dict[str, str]:
        return {"table": self.table}  # another table is another sink; a moved file is not

    def open(
        self, name: str, pipeline: str, store: StorageLocation, spark: Any
    ) -> SqliteTableWriter:
        return SqliteTableWriter(name, pipeline, store, self)

    def locations(self) -> list[Location]:
        return [Location(self.path, "writes")]


class SqliteTableWriter(SinkWriter):
    """Rows wait in the store until their checkpoint is durable; then they move, once."""

    def __init__(self, name: str, pipeline: str, store: StorageLocation, sink: SqliteTable) -> None:
        self._sink, self._store = sink, store
        self._owner = f"{pipeline}/{name}"
        self._root = staging_root(pipeline, name)

    def staging(self, checkpoint: str) -> tuple[StorageLocation, str]:
        return self._store, f"{self._root}/{checkpoint}"

    def commit(self, token: PendingToken) -> None:
        storage = storage_of(self._store)
        files = parse_token(token).files
        if not files:
            return
        tables = [pq.read_table(pa.BufferReader(storage.get(file))) for file in files]
        rows = pa.concat_tables(tables)
        names = ", ".join(f'"{name}"' for name in rows.schema.names)
        marks = ", ".join("?" * rows.num_columns)
        with closing(sqlite3.connect(self._sink.path)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS published (owner PRIMARY KEY, epoch)")
            database.execute(f'CREATE TABLE IF NOT EXISTS "{self._sink.table}" ({names})')
            newest = database.execute(
                "SELECT epoch FROM published WHERE owner = ?", [self._owner]
            ).fetchone()
            if newest is not None and newest[0] >= token.epoch:
                return  # published before
            values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
            database.executemany(f'INSERT INTO "{self._sink.table}" VALUES ({marks})', values)
            database.execute(
                "INSERT OR REPLACE INTO published VALUES (?, ?)", [self._owner, int(token.epoch)]
            )

    def remove_stale_staging(self, keep: Collection[str]) -> None:
        remove_staging(storage_of(self._store), self._root, keep)
