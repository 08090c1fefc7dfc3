"""Sink: a user function gets the rows of an epoch, the epoch and an idempotence key.

Invariants:
- Rows are staged durably first, so the function gets the same rows again after a crash.
- The function may be called again for an epoch that it has seen, with the same key: it must be
  idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from holdfast.checkpoint import PendingToken
from holdfast.connectors.base import (
    Sink,
    SinkWriter,
    parse_token,
    remove_staging,
    staging_root,
)
from holdfast.errors import InvalidInputError
from holdfast.format.documents import Replay
from holdfast.storage.open import OBJECT_SCHEMES, StorageLocation, storage_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Handler = Callable[["DataFrame", int, str], None]


class Function(Sink):
    """Calls `handler(rows, epoch, key)` for every epoch that has rows.

    rows: a DataFrame; with `_weight` where rows can be retracted. key: the same for the same
    rows, different for all others; write it with the rows and refuse what was written before.
    deduplicates: say True only if the handler does that, also after a fall-back to an older
    checkpoint: then epochs that were published can be run again.
    """

    kind = "function"

    def __init__(self, handler: Handler, *, deduplicates: bool = False) -> None:
        """Remember the function."""
        if not callable(handler):
            raise InvalidInputError(
                "a function sink needs a function",
                kind="not_callable",
                value=repr(handler)[:80],
                remedy="give handler(rows, epoch, key)",
            )
        self.handler = handler
        self.replay: Replay = "deduplicates" if deduplicates else "none"

    def open(
        self, name: str, pipeline: str, store: StorageLocation, spark: SparkSession
    ) -> FunctionWriter:
        """Begin to write."""
        return FunctionWriter(name, pipeline, store, spark, self)


class FunctionWriter(SinkWriter):
    """A function sink while the pipeline runs."""

    def __init__(
        self, name: str, pipeline: str, store: StorageLocation, spark: SparkSession, sink: Function
    ) -> None:
        """Rows are staged next to the pipelines of the store."""
        self._name, self._sink, self._spark = name, sink, spark
        self._place = store
        self._storage = storage_of(store)
        self._root = staging_root(pipeline, name)

    def staging(self, checkpoint: str) -> tuple[StorageLocation, str]:
        """Below the root of the store, next to the pipelines."""
        return self._place, f"{self._root}/{checkpoint}"

    def commit(self, token: PendingToken) -> None:
        """Call the function, then forget the staged rows."""
        staged = parse_token(token)
        if not staged.files:
            return
        base = self._place.url
        if base.split("://", 1)[0] in OBJECT_SCHEMES and base.startswith("s3://"):
            base = "s3a://" + base.split("://", 1)[1]
        rows = self._spark.read.parquet(*(f"{base}/{file}" for file in staged.files))
        self._sink.handler(rows, int(token.epoch), f"{token.checkpoint}:{self._name}")

    def remove_stale_staging(self, keep: Collection[str]) -> None:
        """Remove staged rows of other checkpoints."""
        remove_staging(self._storage, self._root, keep)
