"""Sink: a user function gets the rows of an epoch, the epoch and an idempotence key.

Invariants:
- Rows are staged durably first, so the function gets the same rows again after a crash.
- The rows of an epoch are never gathered here: a DataFrame reads them where Spark runs, batches are
  read one at a time as the function asks for them.
- The function may be called again for an epoch that it has seen, with the same key: it must be
  idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

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
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FrameHandler = Callable[["DataFrame", int, str], None]
BatchHandler = Callable[[Iterator["pa.RecordBatch"], int, str], None]


class Function(Sink):
    """Calls `handler(rows, epoch, key)` for every epoch that has rows.

    rows: what the handler gets. "frame": a DataFrame, which Spark reads when and where the handler
    uses it; `rows.toArrow()` brings all of it into the driver. "batches": an iterator of Arrow
    record batches, in the driver, of a few megabytes each, so that an epoch of any size fits; in
    the same order if the epoch comes again. Both have `_weight` where rows can be retracted.
    key: the same for the same rows, different for all others; write it with the rows and refuse
    what was written before.
    deduplicates: say True only if the handler does that, also after a fall-back to an older
    checkpoint: then epochs that were published can be run again.
    """

    kind = "function"

    @overload
    def __init__(
        self,
        handler: FrameHandler,
        *,
        rows: Literal["frame"] = "frame",
        deduplicates: bool = False,
    ) -> None: ...

    @overload
    def __init__(
        self, handler: BatchHandler, *, rows: Literal["batches"], deduplicates: bool = False
    ) -> None: ...

    def __init__(
        self,
        handler: FrameHandler | BatchHandler,
        *,
        rows: Literal["frame", "batches"] = "frame",
        deduplicates: bool = False,
    ) -> None:
        """Remember the function."""
        if rows not in ("frame", "batches"):
            raise InvalidInputError(
                "a function sink cannot give rows like that",
                kind="invalid_argument",
                argument="rows",
                value=repr(rows)[:80],
                remedy='give rows="frame" for a DataFrame or rows="batches" for Arrow batches',
            )
        if not callable(handler):
            raise InvalidInputError(
                "a function sink needs a function",
                kind="not_callable",
                value=repr(handler)[:80],
                remedy="give handler(rows, epoch, key)",
            )
        self.handler, self.rows = handler, rows
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
        key = f"{token.checkpoint}:{self._name}"
        handler: Any = self._sink.handler
        batches = self._sink.rows == "batches"
        rows = self._batches(staged.files) if batches else self._frame(staged.files)
        handler(rows, int(token.epoch), key)

    def _frame(self, files: Sequence[str]) -> DataFrame:
        base = self._place.url
        if base.split("://", 1)[0] in OBJECT_SCHEMES and base.startswith("s3://"):
            base = "s3a://" + base.split("://", 1)[1]
        return self._spark.read.parquet(*(f"{base}/{file}" for file in files))

    def _batches(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        from holdfast.connectors.parquet_files import staged_batches

        for batch in staged_batches(self._storage, files):
            yield batch.replace_schema_metadata(None)

    def remove_stale_staging(self, keep: Collection[str]) -> None:
        """Remove staged rows of other checkpoints."""
        remove_staging(self._storage, self._root, keep)
