"""An upsert output on an object store: one object for each bucket, replaced when it changes.

Objects are replaced one after the other: a reader may see some buckets an epoch ahead of others,
and while a bucket is split, its rows twice.

Invariants:
- Each object says which epoch wrote it. So an epoch that was published in part is continued.
- A bucket that is split goes when all its parts are there; until then it counts, and they do not.
- A touched bucket has an object, also without rows: nothing else would say that it is done.
- Tasks write below `_attempts/`, which readers skip; what they answer is copied by the server.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.checkpoint import PendingToken
from holdfast.connectors.base import OutputState, Token, parse_token, put_owner, read_owner
from holdfast.connectors.parquet_files import open_parquet
from holdfast.connectors.parquet_upsert.changes import StagedRows
from holdfast.connectors.parquet_upsert.plan import BucketWork, OldFile, touched
from holdfast.connectors.parquet_upsert.rewrite import NewFile, Rewriter, epoch_of
from holdfast.connectors.parquet_upsert.slots import Bucket, all_buckets, parse_name
from holdfast.connectors.parquet_upsert.tasks import rewrite_one
from holdfast.connectors.parquet_upsert.writer import Limits, UpsertWriter
from holdfast.failpoints import failpoint
from holdfast.format.owner import NOTHING, OWNER, Owner
from holdfast.ids import RandomIds
from holdfast.storage import Storage
from holdfast.storage.open import StorageLocation, storage_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS = "_attempts"


class RemoteUpsertWriter(UpsertWriter):
    """On an object store: one object for each bucket, replaced when it changes."""

    def __init__(
        self,
        name: str,
        pipeline: str,
        store: StorageLocation,
        path: str,
        options: Mapping[str, Any],
        *,
        spark: SparkSession | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Open the prefix."""
        super().__init__(name, pipeline, store, spark, limits or Limits())
        self._place = StorageLocation(path, dict(options))
        self._storage: Storage = storage_of(self._place)
        self._known: dict[Bucket, _Object] | None = None

    def commit(self, token: PendingToken) -> None:
        """Replace the buckets that this epoch touches; each remembers its newest epoch."""
        self._publish(token, self._objects())

    def replace(self, token: PendingToken) -> None:
        """Write the objects from scratch, then remove those that are left of before."""
        if not parse_token(token).files:
            return
        written = self._publish(token, {})
        self._known = None
        left = [bucket for bucket in self._objects() if bucket not in written]
        self._storage.delete_many([_path(bucket) for bucket in left])
        self._known = None

    def _publish(self, token: PendingToken, present: Mapping[Bucket, _Object]) -> set[Bucket]:
        """Apply an epoch to what is there; returns the buckets that were written."""
        staged = parse_token(token)
        if not staged.files:
            return set()
        old = {bucket: OldFile(_path(bucket), one.size) for bucket, one in present.items()}
        half_done = set(old) - set(all_buckets(old))
        written: set[Bucket] = set()
        with closing(StagedRows(self._store, staged.files)) as changes:
            work = touched(old, changes.ranges(), staged.bytes)
            small = self._in_driver(work)
            produced = (
                self._rewritten(work, changes, int(token.epoch))
                if small
                else self._attempted(work, token, staged)
            )
            for one, files in produced:
                kept = {file.bucket for file in files} if files is not None else {one.bucket}
                inside = {b for b in half_done if one.bucket.holds(b)}
                gone = (inside | ({one.bucket} if one.old else set())) - kept
                self._storage.delete_many([_path(bucket) for bucket in sorted(gone)])
                self._note(files or (), gone, int(token.epoch))
                written |= kept if files is not None else set()
                failpoint("output.after_bucket")
        return written

    def _note(self, files: Sequence[NewFile], gone: Collection[Bucket], epoch: int) -> None:
        if self._known is not None:
            for bucket in gone:
                self._known.pop(bucket, None)
            for file in files:
                self._known[file.bucket] = _Object(epoch, file.size)

    def _rewritten(
        self, work: Sequence[BucketWork], changes: StagedRows, epoch: int
    ) -> Iterator[tuple[BucketWork, list[NewFile] | None]]:
        """In this process, each object with one request."""

        def create(bucket: Bucket) -> tuple[str, _Collected]:
            return _path(bucket), _Collected(self._storage, _path(bucket))

        rewriter = Rewriter(
            self._name,
            changes,
            create,
            epoch=epoch,
            keep_empty=True,
            bucket_bytes=self._limits.bucket_bytes,
            part_bytes=self._limits.part_bytes,
        )
        for one in work:
            yield one, rewrite_one(rewriter, self._storage, one)

    def _attempted(
        self, work: Sequence[BucketWork], token: PendingToken, staged: Token
    ) -> Iterator[tuple[BucketWork, list[NewFile] | None]]:
        """In tasks, below a prefix of this try; what they answer is copied by the server."""
        attempts = f"{_ATTEMPTS}/{int(token.epoch)}-{RandomIds().token()}"
        produced = self._in_tasks(work, token, staged, self._place, attempts)
        failpoint("output.after_attempts")
        for one, files in zip(work, produced or (), strict=True):
            for file in files or ():
                source = f"{attempts}/{file.name}"
                self._storage.copy(source, _path(file.bucket))  # type: ignore[attr-defined]
            yield one, files
        self._remove_attempts(attempts)

    def _remove_attempts(self, directory: str) -> None:
        self._storage.delete_many([entry.path for entry in self._storage.list(directory)])

    def remove_stale_staging(self, keep: Collection[str]) -> None:
        """Remove staged rows of other checkpoints, and what tasks of a dead driver have written."""
        super().remove_stale_staging(keep)
        self._remove_attempts(_ATTEMPTS)

    # The output as a whole

    def _objects(self) -> dict[Bucket, _Object]:
        """The buckets, as they were last seen."""
        if self._known is None:
            self._known = {}
            for entry in self._storage.list(""):
                parsed = parse_name(entry.path)
                if parsed is not None and entry.path == _path(parsed[0]):
                    with open_parquet(self._storage, entry.path) as file:
                        self._known[parsed[0]] = _Object(epoch_of(file), entry.size)
        return self._known

    def inspect(self, after: int | None) -> OutputState:
        """The objects; those that were replaced are gone, so it goes back only to where it is."""
        self._owner = owner = read_owner(self._storage, OWNER)
        self._known = None
        count, newest = self.extent()
        missing = owner is not None and newest == owner.version and count < owner.parts
        older = owner is not None and newest < owner.version
        paths = {_path(bucket) for bucket in self._objects()}
        others = any(
            entry.path[0] not in "._" and entry.path not in paths
            for entry in self._storage.list("")
        )
        return OutputState(
            where=self._storage.url,
            owner=owner,
            epochs=(newest,) if count else (),
            empty=not count and not others,
            strange=others,
            whole=owner is None or owner.building or not (missing or older),
            retractable=newest <= (NOTHING if after is None else after),
        )

    def holds(self, token: PendingToken) -> bool:
        """Some object is at least that new."""
        self._known = None
        return self.extent()[1] >= int(token.epoch)

    def claim(self, owner: Owner) -> Owner:
        """Next to the objects, under a name that readers skip."""
        self._owner = put_owner(self._storage, OWNER, owner, first=self._owner is None)
        return self._owner

    def extent(self) -> tuple[int, int]:
        """Objects, and the epoch of the newest."""
        known = self._objects().values()
        return len(known), max((one.epoch for one in known), default=NOTHING)

    def retract(self, after: int | None) -> None:
        """Nothing to do: `look` allows it only where the output is not ahead."""

    def clear(self) -> None:
        """Remove every object."""
        self._known = None
        self._storage.delete_many([_path(bucket) for bucket in self._objects()])
        self._known = None


class _Object(NamedTuple):
    """An object: the newest epoch that it holds, and its size."""

    epoch: int
    size: int


def _path(bucket: Bucket) -> str:
    return f"part-{bucket.label}.parquet"


class _Collected(io.BytesIO):
    """A bucket that is collected, and sent whole when its context ends without an error."""

    def __init__(self, storage: Storage, path: str) -> None:
        """Begin empty."""
        super().__init__()
        self._storage, self._path = storage, path
        self.size = 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.size = self.tell()
            self._storage.put(self._path, self.getvalue())
        super().__exit__(kind, error, trace)
