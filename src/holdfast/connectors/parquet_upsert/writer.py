"""Sink: Parquet files that hold the rows as they are now; changes are applied, not appended.

Rows lie in buckets by a hash of the row (`slots.py`); an epoch rewrites the buckets that it
touches (`rewrite.py`), while the next epoch runs. Up to `driver_bytes` of staged rows and touched
buckets, the driver does it in the commit thread. Above, tasks of one Spark job do (`tasks.py`), and
the driver only links, renames or copies what they have written. Either way a bucket is worked on in
parts of a bounded size.

Invariants:
- Applying an epoch again, also in another process, changes nothing.
- A row that is retracted must be there: otherwise somebody else changed the output, which is an
  error, never a guess.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from holdfast.connectors.base import OutputWriter, remove_staging, staging_root
from holdfast.connectors.parquet_upsert.plan import BucketWork, grouped
from holdfast.connectors.parquet_upsert.rewrite import BUCKET_BYTES, PART_BYTES, NewFile
from holdfast.connectors.parquet_upsert.tasks import Answer, RewriteTask
from holdfast.connectors.task_pool import run_pieces
from holdfast.format.owner import Owner
from holdfast.storage.open import StorageLocation, storage_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.checkpoint import PendingToken
    from holdfast.connectors.base import Token

log = logging.getLogger("holdfast.pipeline")
DRIVER_BYTES = 32 << 20


@dataclass(frozen=True)
class Limits:
    """How much of an epoch the driver does itself, and how large buckets and parts become."""

    driver_bytes: int = DRIVER_BYTES
    bucket_bytes: int = BUCKET_BYTES
    part_bytes: int = PART_BYTES


class UpsertWriter(OutputWriter):
    """What both places share: staged files in, buckets of rows out."""

    def __init__(
        self,
        name: str,
        pipeline: str,
        store: StorageLocation,
        spark: SparkSession | None,
        limits: Limits,
    ) -> None:
        """Rows are staged next to the pipelines of the store."""
        self._name = name
        self._store_place, self._store = store, storage_of(store)
        self._root = staging_root(pipeline, name)
        self._owner: Owner | None = None
        self._spark, self._limits = spark, limits
        self._alone = False  # tasks do not reach the output

    needs_every_epoch = True
    """A change that is left out makes every later one wrong: nothing can be set aside."""

    def staging(self, checkpoint: str) -> tuple[StorageLocation, str]:
        """Below the root of the store, next to the pipelines."""
        return self._store_place, f"{self._root}/{checkpoint}"

    def remove_stale_staging(self, keep: Collection[str]) -> None:
        """Remove staged rows of other checkpoints."""
        remove_staging(self._store, self._root, keep)

    def _in_driver(self, work: Sequence[BucketWork]) -> bool:
        return self._alone or sum(one.size for one in work) <= self._limits.driver_bytes

    def _in_tasks(
        self,
        work: Sequence[BucketWork],
        token: PendingToken,
        staged: Token,
        output: StorageLocation,
        attempts: str,
    ) -> list[list[NewFile] | None] | None:
        """What takes the place of each bucket; None where tasks do not reach the output."""
        function = RewriteTask(
            self._name,
            int(token.epoch),
            self._store_place,
            tuple(staged.files),
            output,
            attempts,
            self._limits.bucket_bytes,
            self._limits.part_bytes,
        )
        groups = grouped(work)
        pieces = [(sum(one.size for one in g), msgspec.json.encode(g)) for g in groups]
        answers = run_pieces(
            self._spark,
            function,
            pieces,
            description=f"holdfast: publish epoch {token.epoch} of {self._name}",
            epoch=int(token.epoch),
        )
        buckets: list[list[NewFile] | None] = []
        for answer in answers:
            found = msgspec.json.decode(answer, type=Answer).buckets
            if found is None:
                self._alone = True
                log.warning(
                    "sink %s: tasks do not reach %s, so the driver publishes alone; use a shared "
                    "file system or an object store",
                    self._name,
                    output.url,
                )
                return None
            buckets.extend(found)
        return buckets
