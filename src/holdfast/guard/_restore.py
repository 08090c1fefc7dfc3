"""Restoring a savepoint: into a new location, or over the old one, which is kept aside.

Invariants:
- A target that overlaps a checkpoint or a store is refused before anything is made.
- Nothing is replaced before every file was read back, checked by digest, and is durable. What has
  the target's name is whole at every moment.
- What is restored is exactly the closure of one batch: `sources/` and a file sink's log end where
  that batch ended, so the batches after it have the same boundaries as before.
- The old checkpoint and the old sink log are renamed, never deleted.
- What cannot be undone is said in the report.

Spec: spec/guard-v1.md, section 6.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from holdfast.checkpoint import open_store
from holdfast.checkpoint.reference import Ref
from holdfast.clock import Clock
from holdfast.errors import InternalError, InvalidInputError, RefusedError
from holdfast.format.manifest import Manifest
from holdfast.guard._save import DEFAULTS
from holdfast.guard.atomic_directory import Built, building, check_free, fill
from holdfast.guard.checkpoint_location import (
    CheckpointLocation,
    LocationListing,
    MovedError,
    derived_name,
    normal,
)
from holdfast.guard.closure import compute, log_closure
from holdfast.guard.index import Index, StoredFile, guard_topology
from holdfast.guard.locations import check_restore
from holdfast.guard.savepoints import Savepoints
from holdfast.guard.spark_files import layout
from holdfast.ids import IdSource, RandomIds
from holdfast.storage.base import Storage
from holdfast.storage.open import open_storage

_SCHEMA_PATH = re.compile(r'"([^"\\]*)/(state/[0-9]+/_stateSchema/[^"\\]*)"')
_HADOOP_STEP = 512


@dataclass
class Restored:
    """What a restore did, and what it could not do."""

    checkpoint: str
    batch: int
    query: str
    location: str
    files: int
    bytes: int
    aside: str = ""
    sink: str = ""
    sink_aside: str = ""
    abandoned: int = 0
    relocated: list[str] = field(default_factory=list)
    cannot_undo: list[str] = field(default_factory=list)


def restore(
    checkpoint_location: str | PathLike[str],
    store: str | PathLike[str] | Storage,
    to: Ref = "latest",
    *,
    into: str | PathLike[str] | None = None,
    name: str | None = None,
    sink: str | PathLike[str] | None = None,
    options: dict[str, Any] | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Restored:
    """Bring a savepoint back. Stop the query first.

    to: `latest`, a label, a batch number, a checkpoint id or a time. into: a new location; without
    it the old one is replaced and kept aside, and newer savepoints are marked as abandoned. sink:
    output directory of a file sink, whose `_spark_metadata` is set back to the same batch.
    """
    ids = ids or RandomIds()
    target = normal(into if into is not None else checkpoint_location)
    check_restore(checkpoint_location, store, target, sink)
    savepoints = Savepoints.open(store, location=checkpoint_location, name=name, options=options)
    manifest = savepoints.find(to)
    index = savepoints.index(manifest)
    in_place = into is None or target == normal(checkpoint_location)
    done = Restored(manifest.checkpoint, index.batch, index.query, target, 0, 0)
    content = _Content(savepoints, index, target)
    log = _SinkPlan.make(savepoints, index, sink, options)
    with contextlib.ExitStack() as stack:
        if log is not None:
            log.build(stack, ids)
        if in_place:
            done.abandoned = _replace(
                content,
                done,
                ids,
                lambda: _abandon(store, savepoints, manifest, index, options, clock, ids),
            )
        else:
            _place(content, done, ids, options)
        if log is not None:
            log.swap(done)
    done.cannot_undo = _cannot_undo(index, done, in_place=in_place, trimmed=log is not None)
    return done


def clone(
    checkpoint_location: str | PathLike[str],
    store: str | PathLike[str] | Storage,
    into: str | PathLike[str],
    to: Ref = "latest",
    *,
    same_id: bool = False,
    name: str | None = None,
    options: dict[str, Any] | None = None,
    ids: IdSource | None = None,
) -> Restored:
    """A copy of a savepoint for another query, under a new query id unless `same_id` is set.

    With the same id, sinks that deduplicate by query id and batch (Delta, Iceberg) take the copy
    for the original.
    """
    ids = ids or RandomIds()
    target = normal(into)
    check_restore(checkpoint_location, store, target)
    if target == normal(checkpoint_location):
        raise InvalidInputError(
            "a clone needs a location of its own",
            kind="same_location",
            location=target,
            remedy="use `guard restore` to bring back the original",
        )
    savepoints = Savepoints.open(store, location=checkpoint_location, name=name, options=options)
    manifest = savepoints.find(to)
    index = savepoints.index(manifest)
    query = index.query if same_id else str(ids.writer_id())
    done = Restored(manifest.checkpoint, index.batch, query, target, 0, 0)
    _place(_Content(savepoints, index, target, query=query), done, ids, options)
    if same_id:
        done.cannot_undo.append(
            "the clone has the original's query id: never let both write to one Delta or Iceberg "
            "table, which would take the batches of one for those of the other"
        )
    return done


# Content


class _Content:
    """Files of a savepoint as they must look at the target."""

    def __init__(
        self, savepoints: Savepoints, index: Index, target: str, query: str | None = None
    ) -> None:
        self._savepoints = savepoints
        self.index = index
        self._target = target
        self._query = query

    def paths(self) -> list[str]:
        """Checkpoint files; those of a sink are not among them."""
        wanted = (file.path for file in self.index.files)
        return [path for path in wanted if not path.startswith(f"{layout.SINK_LOG}/")]

    def write_to(self, storage: Storage, done: Restored) -> None:
        """Write every file, adapted where it names the location or the query id."""
        adapted: dict[str, bytes] = {}
        for path in self.paths():
            meaning = layout.classify(path)
            if meaning is not None and meaning.kind in ("metadata", "operator"):
                self._adapt(path, meaning, adapted)
        done.relocated = sorted(path for path in adapted if not path.endswith(".crc"))
        for file, chunks in self._in_order():
            with storage.create(file.path) as writer:
                for chunk in [adapted[file.path]] if file.path in adapted else chunks:
                    writer.write(chunk)
                    done.bytes += len(chunk)
            done.files += 1

    def _in_order(self) -> Iterator[tuple[StoredFile, Iterable[bytes]]]:
        """All files but a sink's; those by which Spark knows a checkpoint come last."""
        late = []
        for file, chunks in self._savepoints.chunked(self.index):
            if file.path.startswith(f"{layout.SINK_LOG}/"):
                continue
            if file.path == "metadata" or file.path.startswith(("offsets/", "commits/")):
                late.append((file, [*chunks]))
            else:
                yield file, chunks
        yield from late

    def _adapt(self, path: str, meaning: layout.SparkPath, adapted: dict[str, bytes]) -> None:
        files = self.index.by_path()
        data = self._savepoints.read(self.index, files[path])
        new = self._adapted(meaning, data)
        if new == data:
            return
        adapted[path] = new
        sidecar = layout.hadoop_sidecar(path)
        if sidecar in files:
            adapted[sidecar] = hadoop_checksums(new)

    def _adapted(self, meaning: layout.SparkPath, data: bytes) -> bytes:
        if meaning.kind == "metadata" and self._query not in (None, self.index.query):
            return data.replace(self.index.query.encode(), str(self._query).encode())
        if meaning.kind == "operator":
            return _SCHEMA_PATH.sub(self._move, data.decode()).encode()
        return data

    def _move(self, match: re.Match[str]) -> str:
        """Spark stores absolute paths of state schemas; they must follow the checkpoint."""
        prefix, rest = match.groups()
        if normal(prefix) == self._target:
            return match.group(0)
        if "://" in self._target:
            scheme = prefix.partition("://")[0] if "://" in prefix else ""
            moved = self._target
            if scheme:
                moved = f"{scheme}://{self._target.partition('://')[2]}"
            return f'"{moved}/{rest}"'
        return f'"file:{self._target}/{rest}"'


def hadoop_checksums(data: bytes) -> bytes:
    """The sidecar that Hadoop's local file system would write for these bytes."""
    sums = [zlib.crc32(data[at : at + _HADOOP_STEP]) for at in range(0, len(data), _HADOOP_STEP)]
    return b"crc\x00" + struct.pack(f">i{len(sums)}I", _HADOOP_STEP, *sums)


# Writing


def _place(
    content: _Content, done: Restored, ids: IdSource, options: dict[str, Any] | None
) -> None:
    """Bring the files into a new location, as a whole or not at all."""
    target = done.location
    if "://" not in target:
        check_free(target)
        with building(target, ids.token()) as built:
            _write(content, built.path, done, None)
            built.move()
        return
    storage = open_storage(target, create=True, options=options)
    try:
        fill(storage, target, content.paths(), lambda: _write(content, target, done, options))
    finally:
        storage.close()


def _write(content: _Content, place: str, done: Restored, options: dict[str, Any] | None) -> None:
    """Write everything, make it durable, and look at it with the eyes of the next save."""
    storage = open_storage(place, create=True, options=options)
    try:
        content.write_to(storage, done)
        storage.barrier(content.paths())
    finally:
        storage.close()
    with CheckpointLocation.open(place, options=options) as live:
        wanted = set(content.paths())
        try:
            closure = compute(live, live.list(), content.index.batch)
        except MovedError as error:
            raise InternalError(
                "the restored checkpoint is not complete",
                location=place,
                path=error.facts.get("path"),
            ) from error
        if set(closure.files) != wanted:
            odd = sorted(wanted.symmetric_difference(closure.files))
            raise InternalError("the restored checkpoint is not exact", path=odd[0])


def _replace(content: _Content, done: Restored, ids: IdSource, abandon: Any) -> int:
    """Build next to the old one, then trade places."""
    target = done.location
    if "://" in target:
        raise RefusedError(
            "an object store cannot rename: the old checkpoint could not be kept aside",
            kind="no_rename",
            location=target,
            remedy="restore into a new location and start the query from there",
        )
    seen = _state_of(target)
    with building(target, ids.token()) as built:
        _write(content, built.path, done, None)
        if _state_of(target) != seen:
            raise RefusedError(
                "the checkpoint changed meanwhile: its query is still running",
                kind="query_running",
                location=target,
                remedy="stop the query and restore again; nothing was replaced",
            )
        abandoned = int(abandon())
        done.aside = built.swap()
    return abandoned


def _state_of(target: str) -> LocationListing | None:
    if not os.path.isdir(target):
        return None
    with CheckpointLocation.open(target) as live:
        return live.list()


def _abandon(
    store: str | PathLike[str] | Storage,
    savepoints: Savepoints,
    manifest: Manifest,
    index: Index,
    options: dict[str, Any] | None,
    clock: Clock | None,
    ids: IdSource,
) -> int:
    """From now on the last savepoint is the restored one; newer ones stay, marked."""
    with open_store(
        store,
        savepoints.reader.directory.pipeline,
        topology=guard_topology(index.query),
        settings=DEFAULTS,
        resume=manifest.checkpoint,
        options=options,
        clock=clock,
        ids=ids,
    ) as held:
        return len(held.recovery.abandon)


# The file sink's log


@dataclass
class _SinkPlan:
    """How `_spark_metadata` gets back to the batch: from the savepoint, or by trimming."""

    location: str
    files: list[tuple[str, bytes]]
    built: Built | None = None

    @classmethod
    def make(
        cls,
        savepoints: Savepoints,
        index: Index,
        sink: str | PathLike[str] | None,
        options: dict[str, Any] | None,
    ) -> _SinkPlan | None:
        """Decide before anything is touched."""
        if sink is None:
            return None
        target = normal(sink)
        if "://" in target:
            raise RefusedError(
                "the sink's log lies in an object store, which cannot rename",
                kind="no_rename",
                location=target,
                remedy="copy the log by hand",
            )
        saved = [
            (file.path, savepoints.read(index, file))
            for file in index.files
            if file.path.startswith(f"{layout.SINK_LOG}/")
        ]
        if saved:
            return cls(target, saved)
        with CheckpointLocation.open(target, options=options) as live:
            listing = live.list()
            try:
                kept = log_closure(dict(listing.of("sink")), index.batch, layout.SINK_LOG)
            except MovedError as error:
                raise RefusedError(
                    "the sink's log cannot be trimmed to that batch: it was compacted since",
                    kind="sink_compacted",
                    path=error.facts.get("path"),
                    remedy="save with sink=… so that the log belongs to the savepoint",
                ) from error
            files = [(path, live.read(path)) for path in kept]
            files += [
                (sidecar, live.read(sidecar))
                for path in kept
                if (sidecar := layout.hadoop_sidecar(path)) in listing.entries
            ]
        return cls(target, files)

    def build(self, stack: contextlib.ExitStack, ids: IdSource) -> None:
        """Write the new log next to the old one."""
        log = f"{self.location}/{layout.SINK_LOG}"
        self.built = stack.enter_context(building(log, ids.token()))
        storage = open_storage(self.built.path, create=True)
        try:
            names = []
            for path, data in self.files:
                name = path.removeprefix(f"{layout.SINK_LOG}/")
                with storage.create(name) as writer:
                    writer.write(data)
                names.append(name)
            storage.barrier(names)
        finally:
            storage.close()

    def swap(self, done: Restored) -> None:
        """Put the old log aside and the new one in its place."""
        if self.built is None:
            raise InternalError("the sink's log was not built")
        done.sink_aside = self.built.swap()
        done.sink = self.location


def _cannot_undo(index: Index, done: Restored, *, in_place: bool, trimmed: bool) -> list[str]:
    published = (
        f"whatever a sink has published after batch {index.batch} stays published: batches from "
        f"{index.batch + 1} on run again, and only a sink that deduplicates by batch id (Delta, "
        "Iceberg, an idempotent foreachBatch) takes them once"
    )
    said = [published]
    if trimmed:
        said.append(
            "data files that later batches wrote stay on disk; readers that follow "
            "_spark_metadata no longer see them, others still do"
        )
    else:
        said.append(
            "a file sink's _spark_metadata was not touched: batches that it lists are skipped "
            "when they run again (give sink=… to set it back too)"
        )
    said.append(
        "input that its source no longer has (expired Kafka offsets, deleted files) is not "
        "brought back"
    )
    if not in_place:
        said.append(f"the original checkpoint was not touched; this one lies at {done.location}")
    return said


def pipeline_of(location: str | PathLike[str], name: str | None) -> str:
    """The name under which a location is saved."""
    return name or derived_name(location)
