"""The exact closure: which files belong to one committed batch, and nothing else.

Invariants:
- Computed from content, not from names alone: a snapshot's zip names its SST files, a changelog's
  head names the states before it, the commit names the state ids. What was read for that is what
  is saved, so a file that is replaced later cannot make a mixture.
- Complete or not at all: a file that should be there and is not is `MovedError`.
- An operator, store or provider that is not understood is refused.

Spec: spec/guard-v1.md, section 3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from holdfast.errors import IncompatibleError
from holdfast.guard.checkpoint_location import CheckpointLocation, LocationListing, moved
from holdfast.guard.spark_files import layout
from holdfast.guard.spark_files.changelog import read_changelog
from holdfast.guard.spark_files.metadata_logs import (
    CommitMetadata,
    Offsets,
    OperatorMetadata,
    damaged,
    log_offset,
    parse_commit,
    parse_offsets,
    parse_operator,
    parse_query_id,
    parse_rocks,
)

HDFS = "HDFSBackedStateStoreProvider"
ROCKSDB = "RocksDBStateStoreProvider"
_SCHEMA_FILE = re.compile(r".*/(state/[0-9]+/_stateSchema/[^/]+/[^/]+)")


@dataclass
class StoreClosure:
    """One state store of one partition: its files, newest state first."""

    operator: int
    partition: int
    store: str
    files: list[str] = field(default_factory=list)


@dataclass
class Closure:
    """What one committed batch consists of."""

    batch: int
    query: str
    offsets: Offsets
    commit: CommitMetadata
    files: list[str] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)
    operators: dict[int, OperatorMetadata] = field(default_factory=dict)
    stores: list[StoreClosure] = field(default_factory=list)

    @property
    def layout(self) -> str:
        """How state is kept: `stateless`, `hdfs`, `rocksdb-1` or `rocksdb-2`."""
        if not self.operators:
            return "stateless"
        if self.offsets.provider == HDFS:
            return "hdfs"
        return "rocksdb-2" if self.commit.stateUniqueIds else "rocksdb-1"


def last_committed(listing: LocationListing) -> int | None:
    """The newest batch that has both an offset and a commit."""
    commits, offsets = listing.batches("commit"), set(listing.batches("offset"))
    return next((batch for batch in reversed(commits) if batch in offsets), None)


def compute(live: CheckpointLocation, listing: LocationListing, batch: int) -> Closure:
    """The closure of one batch, or `MovedError` when the query has gone past it."""
    return _Computation(live, listing, batch).run()


class _Computation:
    """Collects paths; reads each document once."""

    def __init__(self, live: CheckpointLocation, listing: LocationListing, batch: int) -> None:
        self._live = live
        self._listing = listing
        self._batch = batch
        self._contents: dict[str, bytes] = {}
        self._files: dict[str, None] = {}

    def run(self) -> Closure:
        batch = self._batch
        query = parse_query_id(self._read("metadata"), "metadata")
        path = f"commits/{batch}"
        commit = parse_commit(self._read(path), path)
        path = f"offsets/{batch}"
        offsets = parse_offsets(self._read(path), path)
        if batch > 0:  # on a restart Spark reads where the last batch began
            self._take(f"offsets/{batch - 1}")
        closure = Closure(batch, query, offsets, commit)
        self._sources(offsets)
        self._state(closure)
        for path in [*self._files]:
            self._companions(path)
        closure.files = [*self._files]
        closure.contents = self._contents
        return closure

    # Files

    def _take(self, path: str) -> None:
        if path not in self._listing.entries:
            raise moved(path)
        self._files[path] = None

    def _read(self, path: str) -> bytes:
        self._take(path)
        if path not in self._contents:
            self._contents[path] = self._live.read(path)
        return self._contents[path]

    def _there(self, path: str) -> bool:
        return path in self._listing.entries

    def _companions(self, path: str) -> None:
        sidecar = layout.spark_sidecar(path)
        for name in (path, sidecar) if self._there(sidecar) else (path,):
            self._files[name] = None
            if self._there(layout.hadoop_sidecar(name)):
                self._files[layout.hadoop_sidecar(name)] = None

    # Sources

    def _sources(self, offsets: Offsets) -> None:
        for name, text in offsets.sources:
            logged = {path: m for path, m in self._listing.of("source") if m.source == name}
            last = log_offset(text)
            if last is not None:
                for path in log_closure(logged, last, f"sources/{name}"):
                    self._take(path)
            else:
                self._take_initial(logged)

    def _take_initial(self, logged: dict[str, layout.SparkPath]) -> None:
        """Other sources write one file, at the beginning (Kafka: first offsets, rate: the time)."""
        for path, meaning in logged.items():
            if meaning.batch != 0 or meaning.compact:
                raise IncompatibleError(
                    "a source keeps a log that the guard does not know",
                    kind="unknown_layout",
                    path=path,
                    remedy="only file sources may keep a log of their own; nothing was changed",
                )
            self._take(path)

    # State

    def _state(self, closure: Closure) -> None:
        numbers = {m.operator for _, m in self._listing.meanings.items() if m.operator is not None}
        if numbers and closure.offsets.provider not in (HDFS, ROCKSDB):
            raise IncompatibleError(
                "the state store provider is not known",
                kind="unknown_provider",
                provider=closure.offsets.provider or "none",
                known=f"{HDFS},{ROCKSDB}",
                remedy="the guard saves state of Spark's own providers; nothing was changed",
            )
        for number in sorted(numbers):
            operator = self._operator(number)
            closure.operators[number] = operator
            for info in operator.stateStoreInfo:
                for named in info.stateSchemaFilePaths:
                    self._take_schema(named)
                for partition in range(info.numPartitions):
                    closure.stores.append(self._store(closure, number, partition, info.storeName))

    def _operator(self, number: int) -> OperatorMetadata:
        found = [
            (meaning.batch if meaning.batch is not None else -1, path)
            for path, meaning in self._listing.of("operator")
            if meaning.operator == number and (meaning.batch or 0) <= self._batch
        ]
        if not found:
            raise moved(f"state/{number}/_metadata")
        path = max(found)[1]
        return parse_operator(self._read(path), path)

    def _take_schema(self, named: str) -> None:
        match = _SCHEMA_FILE.fullmatch(named)
        if match is None:
            raise damaged("operator metadata names a schema in an unknown place", named)
        self._take(match.group(1))

    def _store(self, closure: Closure, operator: int, partition: int, store: str) -> StoreClosure:
        folder = layout.store_dir(operator, partition, store)
        if self._there(f"{folder}/_metadata/schema"):
            self._take(f"{folder}/_metadata/schema")
        found = StoreClosure(operator, partition, store)
        version = self._batch + 1
        if closure.offsets.provider == HDFS:
            self._hdfs(folder, version, found)
        else:
            uid = self._uid(closure, operator, partition, folder)
            self._rocks(folder, version, uid, found)
        return found

    def _hdfs(self, folder: str, version: int, found: StoreClosure) -> None:
        """Deltas back to the newest snapshot, or to the beginning."""
        while version > 0:
            whole, delta = f"{folder}/{version}.snapshot", f"{folder}/{version}.delta"
            path = whole if self._there(whole) else delta
            self._take(path)
            found.files.append(path)
            if path == whole:
                return
            version -= 1

    def _uid(self, closure: Closure, operator: int, partition: int, folder: str) -> str | None:
        """Which of a partition's ids is this store's: the one that its files carry."""
        partitions = (closure.commit.stateUniqueIds or {}).get(str(operator))
        if not partitions:
            return None
        if partition >= len(partitions):
            raise damaged("the commit names too few partitions", f"commits/{self._batch}")
        for uid in partitions[partition]:
            name = f"{folder}/{self._batch + 1}_{uid}"
            if self._there(f"{name}.zip") or self._there(f"{name}.changelog"):
                return uid
        raise moved(f"{folder}/{self._batch + 1}_*")

    def _rocks(self, folder: str, version: int, uid: str | None, found: StoreClosure) -> None:
        """Changelogs back to the newest snapshot with its SST files, or to the beginning."""
        ancestors: dict[int, str] = {}
        while version > 0:
            name = f"{folder}/{version}" + (f"_{uid}" if uid else "")
            if self._there(f"{name}.zip"):
                found.files.append(f"{name}.zip")
                self._snapshot(folder, f"{name}.zip", found)
                return
            path = f"{name}.changelog"
            found.files.append(path)
            if uid is None or version - 1 in ancestors:
                self._take(path)  # a newer changelog has named what this one builds on
            else:
                changes = read_changelog(self._read(path), path)
                if changes is not None:
                    ancestors.update({a.version: a.checkpointUniqueId for a in changes.lineage})
            version -= 1
            if uid is not None and version > 0:
                uid = ancestors.get(version) or self._uid_of(folder, version)

    def _uid_of(self, folder: str, version: int) -> str:
        """Without a readable lineage, the older commits know the ids."""
        path = f"commits/{version - 1}"
        if not self._there(path):
            raise moved(path)
        meaning = layout.classify(f"{folder}/1.zip")
        ids = parse_commit(self._live.read(path), path).stateUniqueIds or {}
        if meaning is not None and meaning.partition is not None:
            for uid in ids.get(str(meaning.operator), [])[meaning.partition]:
                name = f"{folder}/{version}_{uid}"
                if self._there(f"{name}.zip") or self._there(f"{name}.changelog"):
                    return uid
        raise moved(f"{folder}/{version}_*")

    def _snapshot(self, folder: str, path: str, found: StoreClosure) -> None:
        snapshot = parse_rocks(self._read(path), path)
        parts = [(f"{folder}/SSTs/{f.dfsSstFileName}", f.sizeBytes) for f in snapshot.sstFiles]
        parts += [(f"{folder}/logs/{f.dfsLogFileName}", f.sizeBytes) for f in snapshot.logFiles]
        for part, size in parts:
            self._take(part)
            found.files.append(part)
            if self._listing.entries[part].size != size:
                raise damaged(
                    "file of a snapshot has another size than the snapshot says",
                    part,
                    expected=size,
                    actual=self._listing.entries[part].size,
                )


def log_closure(logged: dict[str, layout.SparkPath], last: int, folder: str) -> list[str]:
    """Entries of a compacted log up to `last`: the newest compaction and what follows it."""
    compacted = [m.batch for m in logged.values() if m.compact and (m.batch or 0) <= last]
    begin = max((batch for batch in compacted if batch is not None), default=-1)
    wanted = [f"{folder}/{begin}.compact"] if begin >= 0 else []
    wanted += [f"{folder}/{number}" for number in range(begin + 1, last + 1)]
    for path in wanted:
        if path not in logged:
            raise moved(path)
    return wanted
