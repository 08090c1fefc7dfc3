"""Sink: Parquet files, one directory for each published epoch.

Layout: `<path>/hf_epoch=<n>/part-....parquet`; staged files lie in `<path>/_staging/`, which Spark
and other readers of Parquet directories skip. A plain `spark.read.parquet(path)` sees published
epochs only; in a changelog, the column `_weight` says +1 or -1.

Invariants:
- On local disk an epoch appears whole, by one rename of its directory; what was staged became
  durable with its checkpoint. On an object store its files appear one by one, by server-side
  copies; each exactly once.
- Publishing again finds what is there and adds what is missing, nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.arguments import value_map, whole_number
from holdfast.checkpoint import PendingToken
from holdfast.connectors.base import (
    OutputState,
    OutputWriter,
    Sink,
    SinkWriter,
    parse_token,
    put_owner,
    read_owner,
)
from holdfast.connectors.locations import Location, local_path
from holdfast.connectors.parquet.folding import GRACE_MS, TARGET_BYTES, Folder, plan_folds
from holdfast.connectors.parquet_upsert.local import LocalUpsertWriter
from holdfast.connectors.parquet_upsert.remote import RemoteUpsertWriter
from holdfast.connectors.parquet_upsert.rewrite import BUCKET_BYTES
from holdfast.connectors.parquet_upsert.writer import DRIVER_BYTES, Limits
from holdfast.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from holdfast.failpoints import failpoint
from holdfast.format.canonical import seal
from holdfast.format.documents import SMALL_BYTES_MAX, Replay
from holdfast.format.owner import NOTHING, OWNER, Owner
from holdfast.storage import Storage, open_storage
from holdfast.storage.local.disk import current_disk
from holdfast.storage.open import OBJECT_SCHEMES, StorageLocation, location_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STAGING = "_staging"
_EPOCH = re.compile(r"hf_epoch=(\d+)/")
_FOLDS_MAX = 1_000  # older ones are known by not being listed


class Parquet(Sink):
    """Parquet files in a directory or below an object-store prefix.

    mode: "changelog" grows by one subdirectory an epoch, with `_weight` where rows can be
    retracted; "upsert" holds the rows as they are now (see `sinks.upsert` for what that costs).
    compact_after: fold a changelog on local disk whenever so many directories lie behind the oldest
    checkpoint; None: only on request (`Pipeline.compact_output`). compact_bytes: files of this size
    are not rewritten again. compact_grace_ms: how long the files from before a fold are kept for
    readers that hold the output's real path. driver_bytes: an upsert or a compaction that reads
    more is done by tasks of a Spark job, which costs some 200 ms; 0: always. bucket_bytes: a file
    of an upsert output that grows beyond it is split: large files make few, small ones make an
    epoch cheaper that touches few rows of a large output.
    """

    kind = "parquet"

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        mode: Literal["changelog", "upsert"] = "changelog",
        storage_options: Mapping[str, Any] | None = None,
        compact_after: int | None = None,
        compact_bytes: int = TARGET_BYTES,
        compact_grace_ms: int = GRACE_MS,
        driver_bytes: int = DRIVER_BYTES,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """Refuse what can never work."""
        if mode not in ("changelog", "upsert"):
            raise InvalidInputError(
                "unknown mode of a Parquet sink",
                kind="unknown_mode",
                mode=mode,
                remedy="use changelog or upsert",
            )
        self.path, self.mode = location_text(path), mode
        self.by_slot = mode == "upsert"
        self.storage_options = value_map(storage_options, "storage_options")
        self.compact_after, self.compact_bytes = compact_after, compact_bytes
        self.compact_grace_ms = compact_grace_ms
        whole_number(compact_bytes, "compact_bytes", least=1, kind="invalid_limit")
        whole_number(driver_bytes, "driver_bytes", least=0, kind="invalid_limit")
        whole_number(bucket_bytes, "bucket_bytes", least=1, kind="invalid_limit")
        self.limits = Limits(driver_bytes, bucket_bytes)
        whole_number(compact_grace_ms, "compact_grace_ms", least=0, kind="invalid_limit")
        if compact_after is not None:
            whole_number(compact_after, "compact_after", least=2, kind="cannot_compact")
            self._check_compaction(compact_after)
        self.replay: Replay = "retracts"

    def _check_compaction(self, compact_after: int) -> None:
        remote = self.path.split("://", 1)[0] in OBJECT_SCHEMES
        if remote or self.mode != "changelog":
            raise InvalidInputError(
                "this output cannot be compacted like that",
                kind="cannot_compact",
                path=self.path,
                compact_after=compact_after,
                remedy="compact a changelog on a local disk, after two epochs or more: an object "
                "store cannot replace many objects at once, and an upsert output does not grow",
            )

    @property
    def params(self) -> Mapping[str, str]:
        """Where it writes may change between runs: the path is not part of the fingerprint."""
        return {} if self.mode == "changelog" else {"mode": self.mode}

    def locations(self) -> list[Location]:
        """The directory or prefix."""
        return [Location(self.path, "writes")]

    def open(
        self, name: str, pipeline: str, store: StorageLocation, spark: SparkSession
    ) -> SinkWriter:
        """Begin to write."""
        if self.mode == "changelog":
            return ParquetWriter(name, self, spark)
        if self.path.split("://", 1)[0] in OBJECT_SCHEMES:
            return RemoteUpsertWriter(
                name,
                pipeline,
                store,
                self.path,
                self.storage_options,
                spark=spark,
                limits=self.limits,
            )
        path = Path(local_path(self.path))
        return LocalUpsertWriter(name, pipeline, store, path, spark=spark, limits=self.limits)


class ParquetWriter(OutputWriter):
    """A Parquet sink while the pipeline runs."""

    def __init__(self, name: str, sink: Parquet, spark: SparkSession | None = None) -> None:
        """Open the directory."""
        self._name, self._disk = name, current_disk()
        if sink.compact_after is not None:
            Folder(Path(local_path(sink.path))).begin()
        self._storage: Storage = open_storage(sink.path, options=sink.storage_options or None)
        self._place = StorageLocation(self._storage.url, sink.storage_options)
        self._epochs: set[int] | None = None
        self._owner: Owner | None = None
        self._sink, self.compacts = sink, sink.compact_after is not None
        local = self._storage.local_path(OWNER)
        self._folder = (
            None
            if local is None
            else Folder(
                local.parent,
                grace_ms=sink.compact_grace_ms,
                spark=spark,
                driver_bytes=sink.limits.driver_bytes,
            )
        )

    def staging(self, checkpoint: str) -> tuple[StorageLocation, str]:
        """Below `_staging`, by checkpoint."""
        return self._place, f"{_STAGING}/{checkpoint}"

    def commit(self, token: PendingToken) -> None:
        """Make the staged directory the epoch's directory."""
        staged = parse_token(token)
        if not staged.files:
            return
        final = f"hf_epoch={token.epoch}"
        local = self._storage.local_path(final)
        if local is not None:
            self._publish_local(staged.directory, staged.files, str(local), token)
        else:
            self._publish_remote(staged.files, final, token)
        if self._epochs is not None:
            self._epochs.add(int(token.epoch))

    def _publish_local(
        self, directory: str, files: list[str], final: str, token: PendingToken
    ) -> None:
        source = str(self._storage.local_path(directory))
        wanted = {file.rsplit("/", 1)[1] for file in files}
        if os.path.isdir(final) and (not os.path.isdir(source) or wanted <= set(os.listdir(final))):
            return  # published before, and maybe folded since
        try:
            present = set(os.listdir(source))
            if wanted - present:
                raise self._lost(token, min(wanted - present))
            for extra in present - wanted:  # a try that lost
                self._disk.unlink(f"{source}/{extra}")
            self._disk.rename(source, final)
        except FileNotFoundError as error:
            raise self._lost(token, directory) from error
        except OSError as error:
            raise StorageError(
                "the epoch cannot be published",
                kind="publish_failed",
                sink=self._name,
                epoch=token.epoch,
                reason=str(error)[:200],
                retryable=True,
            ) from error
        self._disk.sync_dir(os.path.dirname(final))

    def _publish_remote(self, files: list[str], final: str, token: PendingToken) -> None:
        for file in files:
            target = f"{final}/{file.rsplit('/', 1)[1]}"
            try:
                self._storage.copy_new(file, target)  # type: ignore[attr-defined]
            except AlreadyExistsError:
                continue
            except NotFoundError as error:
                if not self._storage.exists(target):
                    raise self._lost(token, file) from error
        self._storage.delete_many(files)

    def _lost(self, token: PendingToken, path: str) -> NotFoundError:
        return NotFoundError(
            "staged rows of an epoch are gone",
            kind="staging_lost",
            sink=self._name,
            epoch=token.epoch,
            path=path,
            remedy="bring the _staging directory back; it must not be emptied by others",
        )

    def remove_stale_staging(self, keep: Collection[str]) -> None:
        """Remove staged files of other checkpoints."""
        wanted = set(keep)
        stale = [
            entry.path
            for entry in self._storage.list(_STAGING)
            if entry.path.split("/")[1] not in wanted
        ]
        self._storage.delete_many(stale)
        if self._folder is not None:
            self._folder.clean()
        local = self._storage.local_path(_STAGING)
        if local is not None and local.is_dir():
            for child in local.iterdir():
                if child.name not in wanted and child.is_dir() and not any(child.iterdir()):
                    self._disk.remove_dir(str(child))

    # The output as a whole

    def _published(self) -> set[int]:
        """Epochs that have a directory."""
        if self._epochs is None:
            self._epochs = {
                int(match.group(1))
                for entry in self._storage.list("")
                if (match := _EPOCH.match(entry.path)) is not None
            }
        return self._epochs

    def inspect(self, after: int | None) -> OutputState:
        """The epochs that are there."""
        self._epochs = None
        self._owner = owner = read_owner(self._storage, OWNER)
        epochs = tuple(sorted(self._published()))
        counted = sum(1 for epoch in epochs if owner is not None and epoch <= owner.epoch)
        crossed = after is not None and inside_fold(self.folds(), after)
        strange = self._strange()
        return OutputState(
            where=self._storage.url,
            owner=owner,
            epochs=epochs,
            empty=not epochs and not strange,
            strange=strange,
            retractable=not crossed,
            whole=owner is None or owner.building or counted >= owner.parts,
        )

    def _strange(self) -> bool:
        """Whether readers of the directory see anything but epochs."""
        return any(
            entry.path[0] not in "._" and not _EPOCH.match(entry.path)
            for entry in self._storage.list("")
        )

    def holds(self, token: PendingToken) -> bool:
        """Names of files carry random text: they are there, or this is another output."""
        wanted = {file.rsplit("/", 1)[1] for file in parse_token(token).files}
        there = {e.path.rsplit("/", 1)[1] for e in self._storage.list(f"hf_epoch={token.epoch}")}
        return wanted <= there

    def claim(self, owner: Owner) -> Owner:
        """Next to the epochs, under a name that readers skip."""
        self._owner = put_owner(self._storage, OWNER, owner, first=self._owner is None)
        return self._owner

    def extent(self) -> tuple[int, int]:
        """Epoch directories."""
        return len(self._published()), NOTHING

    def folds(self) -> list[tuple[int, int]]:
        """As the owner record has them."""
        return list(self._owner.folds) if self._owner is not None else []

    def retract(self, after: int | None) -> None:
        """Delete the directories of epochs that are not part of the history any more."""
        if after is None and self._published():
            raise RefusedError(
                "the output has published epochs, but the store has no checkpoint",
                kind="output_not_empty",
                sink=self._name,
                path=self._storage.url,
                remedy="give the store that wrote them, or choose an empty output directory",
            )
        self._remove([e for e in self._published() if after is not None and e > after])

    def _remove(self, epochs: Collection[int]) -> None:
        for epoch in sorted(epochs, reverse=True):
            name = f"hf_epoch={epoch}"
            self._storage.delete_many([entry.path for entry in self._storage.list(name)])
            local = self._storage.local_path(name)
            if local is not None and local.is_dir():
                self._disk.remove_dir(str(local))
            self._published().discard(epoch)
            failpoint("output.after_first_delete")
        if self._owner is not None:
            folds = [fold for fold in self._owner.folds if fold[1] in self._published()]
            self._owner = msgspec.structs.replace(self._owner, folds=folds)

    def replace(self, token: PendingToken) -> None:
        """Remove the old epochs, then publish: readers see nothing in between, never both."""
        self._remove([epoch for epoch in self._published() if epoch != int(token.epoch)])
        self.commit(token)

    # Folding

    def compaction_due(self, limit: int) -> bool:
        """Whether the policy asks for a fold; asks no disk."""
        every = self._sink.compact_after
        if every is None or self._owner is None or self._owner.building:
            return False
        last = self._owner.folds[-1][1] if self._owner.folds else -1
        return sum(1 for epoch in self._published() if last < epoch <= limit) >= every

    def compact(self, limit: int, *, requested: bool) -> Owner | None:
        """Fold epochs up to a limit; returns the new owner record, None with nothing to do."""
        every = None if requested else self._sink.compact_after
        owner, folder = self._owner, self._folder
        if owner is None or folder is None or owner.building:
            return None
        target = self._sink.compact_bytes
        there = folder.directories(sorted(self._published()), owner)
        groups = plan_folds(there, limit, every=every, target_bytes=target)
        if not groups:
            return None
        gone = {entry.last for group in groups for entry in group}
        folds = [fold for fold in owner.folds if fold[1] not in gone]
        folds += [(min(e.first for e in group), group[-1].last) for group in groups]
        kept = {entry.last for entry in there} - gone | {group[-1].last for group in groups}
        parts = sum(1 for last in kept if last <= owner.epoch)
        made, _ = seal(
            msgspec.structs.replace(
                owner, parts=parts, folds=sorted(folds, key=itemgetter(1))[-_FOLDS_MAX:]
            ),
            bytes_max=SMALL_BYTES_MAX,
        )
        folder.fold(groups, made, target)
        self._owner, self._epochs = made, None
        return made

    def clear(self) -> None:
        """Remove every epoch."""
        self._remove([*self._published()])


def inside_fold(folds: Sequence[tuple[int, int]], after: int) -> bool:
    """Whether a folded directory holds epochs on both sides of this one."""
    if len(folds) == _FOLDS_MAX and after < folds[0][0]:
        return True
    return any(first <= after < last for first, last in folds)
