"""Sink: Parquet files that hold the rows as they are now; changes are applied, not appended.

Rows lie in buckets by a hash of the row; an epoch rewrites the buckets that it touches. The driver
does that in the commit thread, while the next epoch runs; the cost follows the touched buckets.

On local disk `<path>` is a link to `<parent>/.<name>.versions/<epoch>/`, whose files are hard links
to those of the version before where a bucket did not change. The link is swapped in one rename: a
reader sees one published epoch, whole. On an object store each bucket is one object that is
replaced at once, one after the other: a reader may see some buckets an epoch ahead of others.

Invariants:
- A version is complete and durable before the link points to it.
- Applying an epoch again, also in another process, changes nothing.
- A row that is retracted must be there: otherwise somebody else changed the output, which is an
  error, never a guess.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.checkpoint import PendingToken
from holdfast.connectors.base import (
    OutputState,
    OutputWriter,
    parse_token,
    put_owner,
    read_owner,
    remove_staging,
    staging_root,
)
from holdfast.connectors.locations import versions_of
from holdfast.connectors.parquet_upsert.slots import BITS, DEPTH, Bucket, slots_of
from holdfast.connectors.staging import SLOT, STAGED_WEIGHT
from holdfast.errors import CorruptionError, NotFoundError, RefusedError
from holdfast.failpoints import failpoint
from holdfast.format.owner import NOTHING, OWNER, Owner
from holdfast.state.arrow.batches import group_rows
from holdfast.state.arrow.row_equality import normalise, row_codes
from holdfast.storage import Storage, open_storage
from holdfast.storage.local.disk import current_disk
from holdfast.storage.local.writer import DiskFile
from holdfast.storage.open import StorageLocation, storage_of

BUCKETS = 16
VERSIONS_KEPT = 10
_PART = re.compile(r"part-\d\d\.parquet")


def bucket_of(rows: pa.Table) -> np.ndarray:
    """The bucket of each row: the same for equal rows, today and in every later version."""
    tops = [bucket.index for bucket in Bucket(0, 0).split(DEPTH)]
    buckets: np.ndarray = np.array(tops, np.int64)[slots_of(rows) >> (BITS - DEPTH)]
    return buckets


def _one(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def apply_changes(old: pa.Table, changes: pa.Table, weights: np.ndarray, sink: str) -> pa.Table:
    """The rows of a bucket after some changes; both tables have the same columns."""
    rows = pa.concat_tables([old, changes]).combine_chunks()
    if not rows.num_rows:
        return rows
    columns = [normalise(_one(column)) for column in rows.columns]
    groups = group_rows(row_codes(columns), [])
    counts = groups.sums(np.concatenate([np.ones(old.num_rows, np.int64), weights]))
    if (counts < 0).any():
        first = int(groups.first()[np.flatnonzero(counts < 0)[0]])
        raise CorruptionError(
            "a row that is retracted is not in the output",
            kind="output_differs",
            sink=sink,
            row=str(rows.slice(first, 1).to_pylist()[0])[:200],
            remedy="nobody else may write there; let the sink start from scratch in an empty place",
        )
    return rows.take(pa.array(np.repeat(groups.first(), counts)))


class UpsertWriter(OutputWriter):
    """What both places share: staged files in, buckets of rows out."""

    def __init__(self, name: str, pipeline: str, store: StorageLocation) -> None:
        """Rows are staged next to the pipelines of the store."""
        self._name = name
        self._store_place, self._store = store, storage_of(store)
        self._root = staging_root(pipeline, name)
        self._owner: Owner | None = None

    needs_every_epoch = True
    """A change that is left out makes every later one wrong: nothing can be set aside."""

    def staging(self, checkpoint: str) -> tuple[StorageLocation, str]:
        """Below the root of the store, next to the pipelines."""
        return self._store_place, f"{self._root}/{checkpoint}"

    def remove_stale_staging(self, keep: Collection[str]) -> None:
        """Remove staged rows of other checkpoints."""
        remove_staging(self._store, self._root, keep)

    def _changes(self, token: PendingToken) -> tuple[pa.Table, np.ndarray] | None:
        """What an epoch changes: rows and their weights."""
        staged = parse_token(token)
        if not staged.files:
            return None
        tables = [pq.read_table(pa.BufferReader(self._store.get(file))) for file in staged.files]
        rows = pa.concat_tables(tables)
        if SLOT in rows.schema.names:
            rows = rows.drop_columns([SLOT])
        if STAGED_WEIGHT not in rows.schema.names:
            return rows, np.ones(rows.num_rows, np.int64)
        weights: np.ndarray = rows.column(STAGED_WEIGHT).to_numpy()
        return rows.drop_columns([STAGED_WEIGHT]), weights


class LocalUpsertWriter(UpsertWriter):
    """On local disk: a directory for each version, and a link to the newest."""

    def __init__(self, name: str, pipeline: str, store: StorageLocation, path: Path) -> None:
        """Refuse a place that is somebody else's."""
        super().__init__(name, pipeline, store)
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
        changed = self._changes(token)
        if changed is None:
            return
        target = self._versions / f"{int(token.epoch):020d}"
        draft = self._versions / f"draft-{int(token.epoch)}"
        self._disk.remove_tree(str(draft))
        self._disk.remove_tree(str(target))  # was never linked: the link is older
        self._disk.make_dirs(str(draft))
        self._write(draft, base, *changed, token)
        self._disk.rename(str(draft), str(target))
        self._disk.sync_dir(str(self._versions))
        failpoint("output.after_version")
        self._swap(int(token.epoch))
        for old in self._published()[:-VERSIONS_KEPT]:
            self._disk.remove_tree(str(self._version(old)))

    def _version(self, epoch: int) -> Path:
        return self._versions / f"{epoch:020d}"

    def _write(
        self,
        draft: Path,
        base: Path | None,
        rows: pa.Table,
        weights: np.ndarray,
        token: PendingToken,
    ) -> None:
        buckets = bucket_of(rows)
        before = {int(file.name.split("-")[1]): file for file in base.iterdir()} if base else {}
        for bucket in range(BUCKETS):
            mine = np.flatnonzero(buckets == bucket)
            old = before.get(bucket)
            if not len(mine):
                if old is not None:
                    self._disk.link_new(str(old), str(draft / old.name))
                elif bucket == 0:  # a directory without a file has no schema
                    self._write_file(
                        draft / f"part-00-{int(token.epoch)}.parquet", rows.slice(0, 0)
                    )
                continue
            kept = pq.read_table(old) if old is not None else rows.slice(0, 0)
            after = apply_changes(kept, rows.take(pa.array(mine)), weights[mine], self._name)
            if after.num_rows or bucket == 0:
                self._write_file(draft / f"part-{bucket:02d}-{int(token.epoch)}.parquet", after)
        self._disk.sync_dir(str(draft))

    def _write_file(self, path: Path, table: pa.Table) -> None:
        with DiskFile(self._disk, str(path)) as file:
            pq.write_table(
                table.replace_schema_metadata(None), cast("Any", file), compression="zstd"
            )

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


class RemoteUpsertWriter(UpsertWriter):
    """On an object store: one object for each bucket, replaced when it changes."""

    def __init__(
        self,
        name: str,
        pipeline: str,
        store: StorageLocation,
        path: str,
        options: Mapping[str, Any],
    ) -> None:
        """Open the prefix."""
        super().__init__(name, pipeline, store)
        self._storage: Storage = open_storage(path, options=dict(options) or None)
        self._newest: dict[str, int] | None = None

    def commit(self, token: PendingToken) -> None:
        """Replace the buckets that this epoch touches; each remembers its newest epoch."""
        changed = self._changes(token)
        if changed is None:
            return
        rows, weights = changed
        buckets = bucket_of(rows)
        for bucket in np.unique(buckets).tolist():
            mine = np.flatnonzero(buckets == bucket)
            path = f"part-{bucket:02d}.parquet"
            old, epoch = self._read(path, rows)
            if epoch is not None and epoch >= int(token.epoch):
                continue
            after = apply_changes(old, rows.take(pa.array(mine)), weights[mine], self._name)
            self._put(bucket, after, int(token.epoch))

    def _read(self, path: str, like: pa.Table) -> tuple[pa.Table, int | None]:
        try:
            data = self._storage.get(path)
        except NotFoundError:
            return like.slice(0, 0), None
        table = pq.read_table(pa.BufferReader(data))
        text = (table.schema.metadata or {}).get(b"holdfast.epoch")
        return table.replace_schema_metadata(None), int(text) if text else None

    # The output as a whole

    def _marks(self) -> dict[str, int]:
        """By object, the newest epoch that it holds."""
        marks = {}
        for entry in self._storage.list(""):
            if _PART.fullmatch(entry.path):
                schema = pq.read_schema(pa.BufferReader(self._storage.get(entry.path)))
                marks[entry.path] = int((schema.metadata or {}).get(b"holdfast.epoch", b"-1"))
        return marks

    def inspect(self, after: int | None) -> OutputState:
        """The objects; those that were replaced are gone, so it goes back only to where it is."""
        self._owner = owner = read_owner(self._storage, OWNER)
        marks = self._marks()
        newest = max(marks.values(), default=NOTHING)
        missing = owner is not None and newest == owner.version and len(marks) < owner.parts
        older = owner is not None and newest < owner.version
        others = any(
            entry.path[0] not in "._" for entry in self._storage.list("") if entry.path not in marks
        )
        return OutputState(
            where=self._storage.url,
            owner=owner,
            epochs=(newest,) if marks else (),
            empty=not marks and not others,
            strange=others,
            whole=owner is None or owner.building or not (missing or older),
            retractable=newest <= (NOTHING if after is None else after),
        )

    def holds(self, token: PendingToken) -> bool:
        """Some object is at least that new."""
        return max(self._marks().values(), default=NOTHING) >= int(token.epoch)

    def claim(self, owner: Owner) -> Owner:
        """Next to the objects, under a name that readers skip."""
        self._owner = put_owner(self._storage, OWNER, owner, first=self._owner is None)
        return self._owner

    def extent(self) -> tuple[int, int]:
        """Objects, and the epoch of the newest."""
        if self._newest is None:
            self._newest = self._marks()
        return len(self._newest), max(self._newest.values(), default=NOTHING)

    def retract(self, after: int | None) -> None:
        """Nothing to do: `look` allows it only where the output is not ahead."""

    def replace(self, token: PendingToken) -> None:
        """Write the objects from scratch, then remove those that are left of before."""
        changed = self._changes(token)
        if changed is None:
            return
        rows, weights = changed
        buckets = bucket_of(rows)
        written = set()
        for bucket in np.unique(buckets).tolist():
            mine = np.flatnonzero(buckets == bucket)
            after = apply_changes(
                rows.slice(0, 0), rows.take(pa.array(mine)), weights[mine], self._name
            )
            written.add(self._put(bucket, after, int(token.epoch)))
            failpoint("output.after_version")
        for path in [path for path in self._marks() if path not in written]:
            self._storage.delete(path)
        self._newest = None

    def clear(self) -> None:
        """Remove every object."""
        self._storage.delete_many([*self._marks()])
        self._newest = None

    def _put(self, bucket: int, rows: pa.Table, epoch: int) -> str:
        path = f"part-{bucket:02d}.parquet"
        marked = rows.replace_schema_metadata({"holdfast.epoch": str(epoch)})
        sink = pa.BufferOutputStream()
        pq.write_table(marked, sink, compression="zstd")
        self._storage.put(path, sink.getvalue().to_pybytes())
        if self._newest is not None:
            self._newest[path] = epoch
        return path
