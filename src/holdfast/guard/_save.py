"""Saving: one savepoint of a query is one checkpoint, committed by the core's protocol.

Invariants:
- Few, large files: new small files go into one blob, each large one into a blob of its own.
- Files that the savepoint before holds are shared with it, by content. A blob of which less than
  half is still needed is written again, so that old savepoints do not keep the store from
  shrinking.
- A savepoint is of one batch of one query: another query id is refused, and so is a checkpoint
  that lies behind the last savepoint.

Spec: spec/guard-v1.md, section 4.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any

from holdfast.checkpoint import Draft, Store, open_store
from holdfast.checkpoint.artifact import ArtifactWriter
from holdfast.checkpoint.pins import check_pin
from holdfast.clock import Clock, SystemClock
from holdfast.errors import CorruptionError, InternalError, NotFoundError, RefusedError
from holdfast.format import paths
from holdfast.format.canonical import NO_DIGEST, sha256_hex
from holdfast.format.manifest import FileEntry, Manifest
from holdfast.format.position import CounterPosition
from holdfast.guard.capture import Captured, capture, digests
from holdfast.guard.checkpoint_location import CheckpointLocation, derived_name, moved
from holdfast.guard.index import (
    BATCHES,
    FILES,
    INDEX,
    INDEX_FORMAT,
    Index,
    OperatorFacts,
    SourceFacts,
    StoredFile,
    StoreFacts,
    guard_topology,
    index_bytes,
    read_index,
)
from holdfast.guard.locations import check_save
from holdfast.guard.spark_files.checksum import HadoopCheck
from holdfast.guard.spark_files.layout import hadoop_sidecar
from holdfast.guard.spark_files.metadata_logs import parse_query_id
from holdfast.ids import IdSource, check_name
from holdfast.settings import Settings
from holdfast.storage.base import Storage
from holdfast.storage.open import open_storage

DEFAULTS = Settings(recovery_verify="shallow", retain=10)
_CHUNK_BYTES = 8 * 1024 * 1024
_log = logging.getLogger("holdfast.guard")


@dataclass(frozen=True)
class Savepoint:
    """What a save did.

    files, bytes: all of the savepoint. new_files, new_bytes: Spark's files that were copied.
    stored_bytes: what the store grew by. reused: nothing had changed, the last one stands for it.
    """

    checkpoint: str
    name: str
    query: str
    batch: int
    label: str
    pinned: bool
    files: int
    bytes: int
    new_files: int
    new_bytes: int
    stored_bytes: int
    tries: int
    reused: bool
    millis: int


def save(
    checkpoint_location: str | PathLike[str],
    store: str | PathLike[str] | Storage,
    label: str | None = None,
    *,
    name: str | None = None,
    sink: str | PathLike[str] | None = None,
    note: str = "",
    spark_version: str = "",
    settings: Settings | None = None,
    collect: bool = False,
    options: dict[str, Any] | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Savepoint:
    """Save the last committed batch of a query, running or stopped.

    label: also pin it, so that it is never collected. name: of the query inside the store; derived
    from the location when it is not given. sink: output directory of a file sink, whose
    `_spark_metadata` then belongs to the savepoint. collect: drop older savepoints that are neither
    pinned nor among the newest `settings.retain`.
    """
    clock = clock or SystemClock()
    known_as = check_name(name or derived_name(checkpoint_location), "pipeline")
    if label is not None:
        check_pin(label, note)
    check_save(checkpoint_location, store, sink)
    began = clock.monotonic_ms()
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(CheckpointLocation.open(checkpoint_location, options=options))
        sink_location = (
            stack.enter_context(CheckpointLocation.open(sink, options=options)) if sink else None
        )
        query = parse_query_id(live.read("metadata"), "metadata")
        first = None
        if not _exists(store, known_as, options):  # what cannot be saved must not make a store
            first = capture(live, {}, clock=clock, sink=sink_location)
            stack.callback(first.close)
        held = stack.enter_context(
            open_store(
                store,
                known_as,
                topology=guard_topology(query),
                settings=settings or DEFAULTS,
                options=options,
                clock=clock,
                ids=ids,
                spark=spark_version,
            )
        )
        before = read_index(held.reader, held.current) if held.current else None
        captured = first
        if captured is None:
            captured = capture(
                live, before.by_path() if before else {}, clock=clock, sink=sink_location
            )
            stack.callback(captured.close)
        _check_forward(before, captured)
        done = _Saving(held, live, sink_location, before, captured, label).run()
        if label is not None:
            held.pin(label, done.checkpoint, note=note)
        if collect:
            swept = held.retain()
            if swept.error is not None:  # the savepoint stands; the next save tries again
                _log.warning("old savepoints were not collected: %s", swept.error)
    millis = clock.monotonic_ms() - began
    return Savepoint(**{**done.facts, "tries": captured.tries, "millis": millis})


def _exists(
    store: str | PathLike[str] | Storage, name: str, options: dict[str, Any] | None
) -> bool:
    """Whether the store knows the query already; looking makes nothing."""
    if not isinstance(store, (str, PathLike)):
        return store.exists(f"{name}/{paths.HEADER}")
    try:
        storage = open_storage(store, create=False, options=options)
    except NotFoundError:
        return False
    try:
        return storage.exists(f"{name}/{paths.HEADER}")
    finally:
        storage.close()


def _check_forward(before: Index | None, captured: Captured) -> None:
    if before is not None and captured.closure.batch < before.batch:
        raise RefusedError(
            "the live checkpoint lies behind its last savepoint",
            kind="behind_savepoint",
            batch=captured.closure.batch,
            savepoint=before.batch,
            remedy="if it was rolled back on purpose, do it with `holdfast guard restore`, "
            "or save under another name",
        )


@dataclass(frozen=True)
class _Done:
    checkpoint: str
    facts: dict[str, Any]


class _Saving:
    """Writes blobs and index of one savepoint."""

    def __init__(
        self,
        store: Store,
        live: CheckpointLocation,
        sink: CheckpointLocation | None,
        before: Index | None,
        captured: Captured,
        label: str | None,
    ) -> None:
        self._store = store
        self._live = live
        self._sink = sink
        self._before = before
        self._captured = captured
        self._label = label
        self._placed: dict[str, tuple[str, int]] = {}
        self._entries: dict[str, FileEntry] = {}
        self._digests = digests(captured)
        self._sizes: dict[str, int] = {}
        self._copied: list[int] = []

    def run(self) -> _Done:
        parent = self._store.current
        if parent is not None and self._before is not None:
            self._inherit(parent, self._before)
            if self._unchanged():
                return self._reuse(parent)
        label = self._label or f"batch-{self._captured.closure.batch}"
        with self._store.draft(label=label) as draft:
            self._write(draft)
            index = self._index()
            self._describe(draft, index)
            summary = self._store.commit(draft)
        return self._result(summary.checkpoint, index, summary.bytes_new, reused=False)

    # What is known already

    def _inherit(self, parent: Manifest, before: Index) -> None:
        """Where content lies that the savepoint before holds; wasteful blobs are left behind."""
        entries = {entry.path: entry for entry in parent.files}
        wanted = {file.sha256 for file in self._captured.known.values()}
        wanted |= set(self._digests.values())
        # A large file is hashed while it is copied; until then it is expected to be unchanged.
        wanted |= {file.sha256 for file in before.files if file.path in self._captured.large}
        for number, files in before.of_blob().items():
            path = before.blobs[number]
            needed = sum({f.sha256: f.size for f in files if f.sha256 in wanted}.values())
            if needed * 2 < entries[path].size:
                continue
            self._entries[path] = entries[path]
            for file in files:
                self._placed.setdefault(file.sha256, (path, file.offset))

    def _unchanged(self) -> bool:
        """Whether the savepoint before is of this very batch.

        The query id, the offsets (which carry the time of the batch) and the commit tell. State of
        one batch can be stored in two ways, before and after Spark's maintenance: both are whole.
        """
        before, captured = self._before, self._captured
        batch = captured.closure.batch
        if before is None or before.batch != batch or bool(before.sink) != bool(self._sink):
            return False
        then = {file.path: file.sha256 for file in before.files}
        now = {path: file.sha256 for path, file in captured.known.items()} | self._digests
        deciding = ("metadata", f"offsets/{batch}", f"commits/{batch}")
        return all(then.get(path) == now.get(path) for path in deciding)

    def _reuse(self, parent: Manifest) -> _Done:
        return self._result(parent.checkpoint, self._known(), 0, reused=True)

    def _known(self) -> Index:
        if self._before is None:
            raise InternalError("there is no savepoint before this one")
        return self._before

    # Writing

    def _write(self, draft: Draft) -> None:
        pack: ArtifactWriter | None = None
        path = draft.blob_path(FILES, 0)
        for digest, data in self._packed():
            if pack is None:
                pack = draft.create(path)
            self._placed[digest] = (path, pack.size)
            pack.write(data)
        if pack is not None:
            pack.close()
            self._add(path, pack, 0)
        for number, name in enumerate(self._captured.large, start=1):
            self._write_large(draft, name, number)

    def _packed(self) -> Iterator[tuple[str, bytes]]:
        """New small content, and what has to leave wasteful blobs; each content once."""
        seen: set[str] = set()
        for name, data in self._captured.small.items():
            digest = self._digests[name]
            if digest not in self._placed and digest not in seen:
                seen.add(digest)
                self._copied.append(len(data))
                yield digest, data
        for file in self._captured.known.values():
            if file.sha256 not in self._placed and file.sha256 not in seen:
                seen.add(file.sha256)
                yield file.sha256, self._stored(file)

    def _stored(self, file: StoredFile) -> bytes:
        before, directory = self._known(), self._store.reader.directory
        path = directory.at(before.blobs[file.blob])
        data = self._store.storage.get_range(path, file.offset, file.size)
        if sha256_hex(data) != file.sha256:
            raise CorruptionError(
                "file of the savepoint before has other content",
                kind="digest_differs",
                path=path,
                file=file.path,
                expected=file.sha256,
                actual=sha256_hex(data),
                remedy="run `holdfast guard verify`; save under another name to begin from scratch",
            )
        return data

    def _write_large(self, draft: Draft, name: str, number: int) -> None:
        size = self._captured.entries[name].size
        path = draft.blob_path(FILES, number)
        check = self._hadoop_check(name, size)
        with draft.create(path) as writer:
            for chunk in self._large_chunks(name, size):
                writer.write(chunk)
                if check is not None:
                    check.feed(chunk)
        if writer.size != size:
            raise moved(name)
        if check is not None:
            check.finish()
        self._digests[name] = writer.sha256
        if writer.sha256 in self._placed:
            self._store.storage.delete(self._store.reader.directory.at(path))
            return
        self._copied.append(size)
        self._placed[writer.sha256] = (path, 0)
        self._add(path, writer, number)

    def _hadoop_check(self, name: str, size: int) -> HadoopCheck | None:
        """Damage is never saved: a new large file must agree with a new checksum next to it."""
        sidecar = hadoop_sidecar(name)
        content = self._captured.small.get(sidecar)
        return None if content is None else HadoopCheck(content, size, name, sidecar)

    def _large_chunks(self, name: str, size: int) -> Iterator[bytes]:
        handle = self._captured.large[name]
        if handle is None:
            side = self._sink if self._sink and name.startswith("_") else self._live
            yield from side.chunks(name, size)
            return
        while chunk := handle.read(_CHUNK_BYTES):
            yield chunk

    def _add(self, path: str, writer: ArtifactWriter, number: int) -> None:
        self._entries[path] = FileEntry(
            path=path,
            size=writer.size,
            sha256=writer.sha256,
            kind="blob",
            operator=FILES,
            partition=number,
        )

    # Describing

    def _index(self) -> Index:
        captured, closure = self._captured, self._captured.closure
        known = {path: file.sha256 for path, file in captured.known.items()}
        placed = {
            path: self._placed[known.get(path) or self._digests[path]] for path in captured.entries
        }
        blobs = sorted({path for path, _ in placed.values()})
        numbers = {path: number for number, path in enumerate(blobs)}
        self._entries = {path: self._entries[path] for path in blobs}
        files = [
            StoredFile(
                path,
                entry.size,
                known.get(path) or self._digests[path],
                numbers[placed[path][0]],
                placed[path][1],
                entry.modified_us or 0,
            )
            for path, entry in sorted(captured.entries.items())
        ]
        conf = closure.offsets.metadata.conf
        return Index(
            format=INDEX_FORMAT,
            sha256=NO_DIGEST,
            query=closure.query,
            batch=closure.batch,
            location=self._live.location,
            layout=closure.layout,
            watermark_ms=closure.offsets.metadata.batchWatermarkMs,
            next_watermark_ms=closure.commit.nextBatchWatermarkMs,
            timestamp_ms=closure.offsets.metadata.batchTimestampMs,
            shuffle_partitions=conf.get("spark.sql.shuffle.partitions", ""),
            codec=conf.get("spark.sql.streaming.stateStore.compression.codec", ""),
            sink=self._sink.location if self._sink else "",
            sources=[SourceFacts(name=n, offset=o) for n, o in closure.offsets.sources],
            operators=_operators(captured),
            blobs=blobs,
            files=files,
        )

    def _describe(self, draft: Draft, index: Index) -> None:
        draft.set_source(BATCHES, CounterPosition(partitions={"batch": index.batch}))
        draft.set_operator(FILES, trace="opaque", files=self._entries.values())
        draft.put_small(INDEX, index_bytes(index))
        draft.set_properties(
            {
                "batch": str(index.batch),
                "query": index.query,
                "layout": index.layout,
                "next_watermark_ms": str(index.next_watermark_ms),
            }
        )

    def _result(self, checkpoint: str, index: Index, stored: int, *, reused: bool) -> _Done:
        return _Done(
            checkpoint,
            {
                "checkpoint": checkpoint,
                "name": self._store.reader.directory.pipeline,
                "query": index.query,
                "batch": index.batch,
                "label": self._label or f"batch-{index.batch}",
                "pinned": self._label is not None,
                "files": len(index.files),
                "bytes": sum(file.size for file in index.files),
                "new_files": len(self._copied),
                "new_bytes": sum(self._copied),
                "stored_bytes": stored,
                "reused": reused,
            },
        )


def _operators(captured: Captured) -> list[OperatorFacts]:
    closure = captured.closure
    found = []
    for number, operator in sorted(closure.operators.items()):
        stores = [store for store in closure.stores if store.operator == number]
        paths = {path for store in stores for path in store.files}
        found.append(
            OperatorFacts(
                operator=number,
                name=operator.operatorInfo.operatorName,
                partitions=max((i.numPartitions for i in operator.stateStoreInfo), default=0),
                bytes=sum(captured.entries[path].size for path in paths),
                stores=[
                    StoreFacts(partition=s.partition, store=s.store, files=s.files) for s in stores
                ],
            )
        )
    return found
