"""An upsert output on local disk: a directory for each version, and a link to the newest.

`<path>` is a link to `<parent>/.<name>.versions/<epoch>/`, whose files are hard links to those of
the version before where a bucket did not change. The link is swapped in one rename: a reader sees
one published epoch, whole.

Invariants:
- A version is complete and durable before the link points to it.
- Tasks write into `attempts-<epoch>-<random>/`, which belongs to one try of one driver; only what
  they answer is renamed into the version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.checkpoint import PendingToken
from holdfast.connectors.base import OutputState, Token, parse_token, put_owner, read_owner
from holdfast.connectors.locations import versions_of
from holdfast.connectors.parquet_upsert.changes import StagedRows
from holdfast.connectors.parquet_upsert.plan import BucketWork, OldFile, touched
from holdfast.connectors.parquet_upsert.rewrite import NewFile, Rewriter
from holdfast.connectors.parquet_upsert.slots import Bucket, all_buckets, parse_name
from holdfast.connectors.parquet_upsert.tasks import rewrite_one
from holdfast.connectors.parquet_upsert.writer import Limits, UpsertWriter
from holdfast.errors import RefusedError
from holdfast.failpoints import failpoint
from holdfast.format.owner import NOTHING, OWNER, Owner
from holdfast.ids import RandomIds
from holdfast.storage import Storage, open_storage
from holdfast.storage.local.disk import current_disk
from holdfast.storage.local.writer import DiskFile
from holdfast.storage.open import StorageLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSIONS_KEPT = 10
_ATTEMPTS = "attempts-"


class LocalUpsertWriter(UpsertWriter):
    """On local disk: a directory for each version, and a link to the newest."""

    def __init__(
        self,
        name: str,
        pipeline: str,
        store: StorageLocation,
        path: Path,
        *,
        spark: SparkSession | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Refuse a place that is somebody else's."""
        super().__init__(name, pipeline, store, spark, limits or Limits())
        self._link = path
        self._versions = versions_of(path)
        self._versions_storage: Storage | None = None
        self._disk = current_disk()
        strange = path.is_symlink() and self._current() is None
        if strange or (path.exists() and not path.is_symlink()):
            raise RefusedError(
                "the output exists and is not a link of ours",
                kind="output_not_empty",
                sink=name,
                path=str(path),
                remedy="choose a path that does not exist yet",
            )

    def _published(self) -> list[int]:
        if not self._versions.is_dir():
            return []
        return sorted(int(v.name) for v in self._versions.iterdir() if v.name.isdigit())

    def _current(self) -> int | None:
        """The version that readers see; a link to anything else is not ours."""
        if not self._link.is_symlink():
            return None
        directory, _, name = os.readlink(self._link).rpartition("/")
        return int(name) if directory == self._versions.name and name.isdigit() else None

    def commit(self, token: PendingToken) -> None:
        """Make the next version and point the link at it."""
        current = self._current()
        if current is not None and current >= int(token.epoch):
            return
        self._make(token, None if current is None else self._version(current))

    def _make(self, token: PendingToken, base: Path | None) -> None:
        staged = parse_token(token)
        if not staged.files:
            return
        target = self._versions / f"{int(token.epoch):020d}"
        draft = self._versions / f"draft-{int(token.epoch)}"
        self._disk.remove_tree(str(draft))
        self._disk.remove_tree(str(target))  # was never linked: the link is older
        self._disk.make_dirs(str(draft))
        self._write(draft, base, token, staged)
        self._disk.rename(str(draft), str(target))
        self._disk.sync_dir(str(self._versions))
        failpoint("output.after_version")
        self._swap(int(token.epoch))
        for old in self._published()[:-VERSIONS_KEPT]:
            self._disk.remove_tree(str(self._version(old)))

    def _version(self, epoch: int) -> Path:
        return self._versions / f"{epoch:020d}"

    def _write(self, draft: Path, base: Path | None, token: PendingToken, staged: Token) -> None:
        """Fill a version: rewritten buckets, and links to those that did not change."""
        present = _buckets(base) if base is not None else {}
        with closing(StagedRows(self._store, staged.files)) as changes:
            schema = changes.schema
            work = touched(present, changes.ranges(), staged.bytes)
            written: list[list[NewFile] | None] | None = None
            if not self._in_driver(work):
                written = self._attempted(draft, work, token, staged)
            if written is None:
                written = self._rewritten(draft, work, changes, int(token.epoch))
        new = {
            one.bucket: files for one, files in zip(work, written, strict=True) if files is not None
        }
        for bucket, old in present.items():
            if bucket not in new:
                name = old.path.rsplit("/", 1)[1]
                self._disk.link_new(str(self._versions / old.path), str(draft / name))
        first = next(all_buckets(present))
        if first not in new and first not in present:  # without a file there is no schema
            self._write_empty(draft / f"part-{first.label}-{int(token.epoch)}.parquet", schema)
        self._disk.sync_dir(str(draft))

    def _rewritten(
        self, draft: Path, work: Sequence[BucketWork], changes: StagedRows, epoch: int
    ) -> list[list[NewFile] | None]:
        """In this process, straight into the version."""

        def create(bucket: Bucket) -> tuple[str, DiskFile]:
            name = f"part-{bucket.label}-{epoch}.parquet"
            return name, DiskFile(self._disk, str(draft / name))

        rewriter = Rewriter(
            self._name,
            changes,
            create,
            bucket_bytes=self._limits.bucket_bytes,
            part_bytes=self._limits.part_bytes,
        )
        return [rewrite_one(rewriter, self._box(), one) for one in work]

    def _attempted(
        self, draft: Path, work: Sequence[BucketWork], token: PendingToken, staged: Token
    ) -> list[list[NewFile] | None] | None:
        """In tasks, into a directory of this try; what they answer moves into the version."""
        self._remove_attempts()
        attempts = f"{_ATTEMPTS}{int(token.epoch)}-{RandomIds().token()}"
        self._disk.make_dir(str(self._versions / attempts))
        place = StorageLocation(str(self._versions))
        written = self._in_tasks(work, token, staged, place, attempts)
        failpoint("output.after_attempts")
        for file in [file for files in written or () for file in files or ()]:
            self._disk.rename(str(self._versions / attempts / file.name), str(draft / file.name))
        self._disk.remove_tree(str(self._versions / attempts))
        return written

    def _remove_attempts(self) -> None:
        if self._versions.is_dir():
            for child in self._versions.iterdir():
                if child.name.startswith(_ATTEMPTS):
                    self._disk.remove_tree(str(child))

    def remove_stale_staging(self, keep: Collection[str]) -> None:
        """Remove staged rows of other checkpoints, and what tasks of a dead driver have written."""
        super().remove_stale_staging(keep)
        self._remove_attempts()

    def _write_empty(self, path: Path, schema: pa.Schema) -> None:
        with DiskFile(self._disk, str(path)) as file:
            pq.write_table(schema.empty_table(), cast("Any", file), compression="zstd")

    def _swap(self, epoch: int) -> None:
        fresh = self._link.with_name(f".{self._link.name}.link")
        with suppress(FileNotFoundError):
            self._disk.unlink(str(fresh))
        self._disk.symlink(f".{self._link.name}.versions/{epoch:020d}", str(fresh))
        self._disk.rename(str(fresh), str(self._link))
        self._disk.sync_dir(str(self._link.parent))

    # The output as a whole

    def inspect(self, after: int | None) -> OutputState:
        """The version that shows, and those that are kept."""
        self._owner = owner = self._record()
        current, kept = self._current(), self._published()
        return OutputState(
            where=str(self._link),
            owner=owner,
            epochs=() if current is None else (current,),
            empty=current is None and not kept,
            whole=owner is None or owner.building or self._whole(owner, current),
            retractable=any(epoch <= after for epoch in kept) if after is not None else not kept,
        )

    def _record(self) -> Owner | None:
        return read_owner(self._box(), OWNER) if self._versions.is_dir() else None

    def _box(self) -> Storage:
        """The versions as a storage, for the record among them."""
        if self._versions_storage is None or not self._versions.is_dir():
            self._versions_storage = open_storage(str(self._versions))
        return self._versions_storage

    def _whole(self, owner: Owner, current: int | None) -> bool:
        if owner.version == NOTHING:
            return True
        if current is None or current < owner.version or current not in self._published():
            return False
        return current > owner.version or len(self._files(current)) == owner.parts

    def _files(self, epoch: int) -> list[str]:
        return os.listdir(self._version(epoch))

    def holds(self, token: PendingToken) -> bool:
        """The version of that epoch is there, or so old that it was discarded."""
        kept = self._published()
        return bool(kept) and (int(token.epoch) in kept or int(token.epoch) < kept[0])

    def claim(self, owner: Owner) -> Owner:
        """Next to the versions: readers of the link do not see it."""
        self._owner = put_owner(self._box(), OWNER, owner, first=self._owner is None)
        return self._owner

    def extent(self) -> tuple[int, int]:
        """Files of the version that shows."""
        current = self._current()
        return (0, NOTHING) if current is None else (len(self._files(current)), current)

    def retract(self, after: int | None) -> None:
        """Point the link at the version of that epoch, or the one before it."""
        left = [epoch for epoch in self._published() if after is not None and epoch <= after]
        current = self._current()
        if left and current is not None and current > left[-1]:
            self._swap(left[-1])
        elif not left and current is not None:
            raise RefusedError(
                "the version to go back to is not kept any more",
                kind="version_gone",
                sink=self._name,
                path=str(self._link),
                epoch=after,
                current=current,
                remedy='rebuild the output: outputs={"sink": "adopt"}',
            )
        self._discard(keep=lambda epoch: after is not None and epoch <= after)

    def replace(self, token: PendingToken) -> None:
        """Make a version from scratch; readers see the old one until the link moves."""
        current = self._current()
        if current is not None and current >= int(token.epoch):
            self.clear()
        self._make(token, None)
        self._discard(keep=lambda epoch: epoch == int(token.epoch))

    def clear(self) -> None:
        """Remove the link, then the versions."""
        with suppress(FileNotFoundError):
            self._disk.unlink(str(self._link))
        if self._versions.is_dir():
            self._disk.sync_dir(str(self._link.parent))
            self._discard(keep=lambda _: False)

    def _discard(self, keep: Callable[[int], bool]) -> None:
        for epoch in self._published():
            if not keep(epoch):
                self._disk.remove_tree(str(self._version(epoch)))
                failpoint("output.after_first_delete")


def _buckets(version: Path) -> dict[Bucket, OldFile]:
    """The buckets of a version, below the directory of versions."""
    found = {}
    for file in os.scandir(version):
        parsed = parse_name(file.name)
        if parsed is not None:
            found[parsed[0]] = OldFile(f"{version.name}/{file.name}", file.stat().st_size)
    return found
