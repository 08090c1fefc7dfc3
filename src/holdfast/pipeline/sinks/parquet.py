"""Parquet files, one directory for each published epoch.

Layout: `<path>/hf_epoch=<n>/part-....parquet`; staged files lie in `<path>/_staging/`, which Spark
and other readers of Parquet directories skip. A plain `spark.read.parquet(path)` sees published
epochs only; where rows can be taken back, the column `_weight` says +1 or -1.

Invariants:
- On local disk an epoch appears whole, by one rename of its directory. On an object store its files
  appear one by one, by server-side copies; each exactly once.
- Publishing again finds what is there and adds what is missing, nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from holdfast.checkpoint import PendingToken
from holdfast.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from holdfast.format.records import Replay
from holdfast.pipeline.sinks.api import SinkWriter, parse_token
from holdfast.pipeline.sinks.upsert import LocalUpsertWriter, RemoteUpsertWriter
from holdfast.pipeline.stage import Place
from holdfast.storage import Storage, open_storage
from holdfast.storage.open import OBJECT_SCHEMES

_STAGING = "_staging"
_EPOCH = re.compile(r"hf_epoch=(\d+)/")


class Parquet:
    """Parquet files in a directory or below an object-store prefix.

    mode: "changelog" grows by one subdirectory an epoch, with `_weight` where rows can be taken
    back; "upsert" holds the rows as they are now (see `sinks.upsert` for what that costs).
    """

    what = "parquet"

    def __init__(
        self,
        path: str,
        *,
        mode: Literal["changelog", "upsert"] = "changelog",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Refuse what can never work."""
        if mode not in ("changelog", "upsert"):
            raise InvalidInputError(
                "unknown mode of a Parquet sink", kind="unknown_mode", mode=mode,
                remedy="use changelog or upsert",
            )  # fmt: skip
        self.path, self.mode = str(path), mode
        self.storage_options = dict(storage_options or {})
        remote = self.path.split("://", 1)[0] in OBJECT_SCHEMES
        self.replay: Replay = "none" if remote and mode == "upsert" else "retracts"

    @property
    def params(self) -> Mapping[str, str]:
        """Where it writes may change between runs: the path is not part of the fingerprint."""
        return {} if self.mode == "changelog" else {"mode": self.mode}

    def open(self, name: str, pipeline: str, store: Place, spark: Any) -> SinkWriter:
        """Begin to write."""
        del spark
        if self.mode == "changelog":
            return ParquetWriter(name, self)
        if self.path.split("://", 1)[0] in OBJECT_SCHEMES:
            return RemoteUpsertWriter(name, pipeline, store, self.path, self.storage_options)
        local = Path(self.path.removeprefix("file://")).expanduser().absolute()
        return LocalUpsertWriter(name, pipeline, store, local)


class ParquetWriter:
    """A Parquet sink while the pipeline runs."""

    def __init__(self, name: str, sink: Parquet) -> None:
        """Open the directory."""
        self._name = name
        self._storage: Storage = open_storage(sink.path, options=sink.storage_options or None)
        self._place = Place(self._storage.url, sink.storage_options)

    def staging(self, checkpoint: str) -> tuple[Place, str]:
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

    def _publish_local(
        self, directory: str, files: list[str], final: str, token: PendingToken
    ) -> None:
        source = str(self._storage.local_path(directory))
        if os.path.isdir(final) and not os.path.isdir(source):
            return  # published before
        wanted = {file.rsplit("/", 1)[1] for file in files}
        try:
            present = set(os.listdir(source))
            if wanted - present:
                raise self._lost(token, min(wanted - present))
            for extra in present - wanted:  # a try that lost
                os.unlink(f"{source}/{extra}")
            self._storage.barrier(files)
            os.rename(source, final)
        except FileNotFoundError as error:
            raise self._lost(token, directory) from error
        except OSError as error:
            raise StorageError(
                "the epoch cannot be published", kind="publish_failed", sink=self._name,
                epoch=token.epoch, reason=str(error)[:200], retryable=True,
            ) from error  # fmt: skip
        self._sync(os.path.dirname(final))

    def _sync(self, directory: str) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

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
            "staged rows of an epoch are gone", kind="staging_lost", sink=self._name,
            epoch=token.epoch, path=path,
            remedy="bring the _staging directory back; it must not be emptied by others",
        )  # fmt: skip

    def tidy(self, keep: Collection[str]) -> None:
        """Remove staged files of other checkpoints."""
        wanted = set(keep)
        stale = [
            entry.path
            for entry in self._storage.list(_STAGING)
            if entry.path.split("/")[1] not in wanted
        ]
        self._storage.delete_many(stale)
        local = self._storage.local_path(_STAGING)
        if local is not None and local.is_dir():
            for child in local.iterdir():
                if child.name not in wanted and child.is_dir() and not any(child.iterdir()):
                    child.rmdir()

    def retract(self, after: int | None) -> None:
        """Delete the directories of epochs that are not part of the history any more."""
        published = {
            int(found.group(1))
            for entry in self._storage.list("")
            if (found := _EPOCH.match(entry.path)) is not None
        }
        if after is None and published:
            raise RefusedError(
                "the output has published epochs, but the store has no checkpoint",
                kind="output_not_empty", sink=self._name, path=self._storage.url,
                epochs=len(published),
                remedy="give the store that wrote them, or choose an empty output directory",
            )  # fmt: skip
        for epoch in sorted(e for e in published if after is not None and e > after):
            name = f"hf_epoch={epoch}"
            self._storage.delete_many([entry.path for entry in self._storage.list(name)])
            local = self._storage.local_path(name)
            if local is not None and local.is_dir():
                local.rmdir()
