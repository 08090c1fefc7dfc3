"""Rewriting buckets in tasks: groups of buckets in, files with names of their own out.

Invariants:
- A task writes below a directory that only this try of the driver uses, under names that no other
  attempt uses. What is not in an answer is nobody's, and goes with the directory.
- A task makes no directory: where it does not find that of the driver, the machines share no disk,
  and it says so.
- On local disk a file is durable before it is answered.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow.parquet as pq

from holdfast.checkpoint.artifact import ArtifactWriter
from holdfast.connectors.parquet_files import open_parquet
from holdfast.connectors.parquet_upsert.changes import StagedRows
from holdfast.connectors.parquet_upsert.plan import BucketWork
from holdfast.connectors.parquet_upsert.rewrite import PART_BYTES, NewFile, Rewriter
from holdfast.connectors.parquet_upsert.slots import Bucket
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.ids import RandomIds
from holdfast.storage.base import StorageReader
from holdfast.storage.local.disk import current_disk
from holdfast.storage.local.writer import DiskFile
from holdfast.storage.open import OBJECT_SCHEMES, StorageLocation, storage_of

_ids = RandomIds()


class Answer(msgspec.Struct, frozen=True):
    """What became of the buckets of a group, in their order; None if the task cannot reach them."""

    buckets: list[list[NewFile] | None] | None


@dataclass(frozen=True)
class RewriteTask:
    """What is the same for all groups of an epoch. Crosses to executors with the job.

    output: where buckets lie. attempts: the directory below it for what tasks write.
    """

    sink: str
    epoch: int
    store: StorageLocation
    staged: tuple[str, ...]
    output: StorageLocation
    attempts: str
    bucket_bytes: int
    part_bytes: int = PART_BYTES

    @property
    def remote(self) -> bool:
        """Whether the output lies on an object store."""
        return self.output.url.split("://", 1)[0] in OBJECT_SCHEMES

    def __call__(self, piece: bytes) -> bytes:
        """Rewrite a group of buckets."""
        try:
            return msgspec.json.encode(
                self._rewrite(msgspec.json.decode(piece, type=list[BucketWork]))
            )
        except HoldfastError as error:
            error.facts.setdefault("sink", self.sink)
            error.facts.setdefault("cause", error.kind)  # all of an error that Spark keeps
            raise

    def _rewrite(self, group: list[BucketWork]) -> Answer:
        if not self.remote and not os.path.isdir(f"{self.output.url}/{self.attempts}"):
            return Answer(None)
        output = storage_of(self.output)
        with closing(StagedRows(storage_of(self.store), self.staged)) as changes:
            rewriter = Rewriter(
                self.sink,
                changes,
                self._create,
                epoch=self.epoch if self.remote else None,
                keep_empty=self.remote,
                bucket_bytes=self.bucket_bytes,
                part_bytes=self.part_bytes,
            )
            return Answer([rewrite_one(rewriter, output, work) for work in group])

    def _create(self, bucket: Bucket) -> tuple[str, AbstractContextManager[Any]]:
        name = f"part-{bucket.label}-{self.epoch}-{_ids.token()}.parquet"
        path = f"{self.attempts}/{name}"
        if self.remote:
            return name, ArtifactWriter(storage_of(self.output), path)
        return name, DiskFile(current_disk(), f"{self.output.url}/{path}")


def rewrite_one(
    rewriter: Rewriter, output: StorageReader, work: BucketWork
) -> list[NewFile] | None:
    """Apply the changes to one bucket; None if there are none for it."""

    def open_old() -> pq.ParquetFile | None:
        try:
            return None if work.old is None else open_parquet(output, work.old.path)
        except NotFoundError:
            return None

    return rewriter.rewrite(work.bucket, open_old, work.old.size if work.old is not None else 0)
