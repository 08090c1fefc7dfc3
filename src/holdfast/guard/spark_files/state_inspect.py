"""State inside a savepoint, read without a JVM: keys counted, two savepoints compared.

Keys and values stay the bytes that Spark wrote (UnsafeRow); their meaning needs the query's schema.

Invariants:
- What cannot be read here says so and why: a codec that is not LZ4, RocksDB without `rocksdict`, a
  store larger than allowed. A count is exact or absent.
"""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.guard.index import Index, OperatorFacts, StoredFile, StoreFacts
from holdfast.guard.savepoints import Savepoints
from holdfast.guard.spark_files import layout
from holdfast.guard.spark_files.changelog import (
    DELETE,
    MERGE,
    read_changelog,
    read_records,
    typed_records,
    untyped_records,
)
from holdfast.guard.spark_files.lz4_blocks import is_lz4
from holdfast.guard.spark_files.metadata_logs import parse_rocks

STATE_BYTES_MAX = 512 * 1024 * 1024
MERGED = b"\x00merged"


class UnreadableError(InvalidInputError):
    """This state cannot be read without a JVM, and why."""

    kind_default = "state_unreadable"


@dataclass
class StoreCount:
    """Keys of one store over all partitions; None where they cannot be counted."""

    operator: int
    name: str
    store: str
    partitions: int
    bytes: int
    keys: int | None = None
    reason: str = ""


@dataclass
class StoreDiff:
    """What changed in one store between two savepoints."""

    operator: int
    store: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    same: int = 0
    reason: str = ""
    examples: list[tuple[str, str]] = field(default_factory=list)


def counts(
    savepoints: Savepoints, index: Index, *, bytes_max: int = STATE_BYTES_MAX
) -> list[StoreCount]:
    """Keys by operator and store."""
    found = []
    for operator in index.operators:
        for store, parts in _by_store(operator).items():
            size = sum(_sizes(index, part) for part in parts)
            count = StoreCount(operator.operator, operator.name, store, len(parts), size)
            try:
                if size > bytes_max:
                    raise UnreadableError(f"state is larger than {bytes_max} bytes")
                count.keys = sum(len(read_store_state(savepoints, index, part)) for part in parts)
            except HoldfastError as error:
                count.reason = error.what
            found.append(count)
    return found


def diff(
    savepoints: Savepoints, older: Index, newer: Index, *, bytes_max: int = STATE_BYTES_MAX
) -> list[StoreDiff]:
    """What changed from one savepoint to another, store by store."""
    found = []
    then = {o.operator: _by_store(o) for o in older.operators}
    now = {o.operator: _by_store(o) for o in newer.operators}
    for operator in sorted(then.keys() | now.keys()):
        left, right = then.get(operator, {}), now.get(operator, {})
        for store in sorted(left.keys() | right.keys()):
            change = StoreDiff(operator, store)
            try:
                before = _whole(savepoints, older, left.get(store, []), bytes_max)
                after = _whole(savepoints, newer, right.get(store, []), bytes_max)
                _compare(change, before, after)
            except HoldfastError as error:
                change.reason = error.what
            found.append(change)
    return found


def _compare(change: StoreDiff, before: dict[bytes, bytes], after: dict[bytes, bytes]) -> None:
    change.added = len(after.keys() - before.keys())
    change.removed = len(before.keys() - after.keys())
    for key in before.keys() & after.keys():
        if before[key] == after[key]:
            change.same += 1
        else:
            change.changed += 1
            if len(change.examples) < 5:
                change.examples.append((key.hex(), after[key].hex()))


def _whole(
    savepoints: Savepoints, index: Index, parts: list[StoreFacts], bytes_max: int
) -> dict[bytes, bytes]:
    if sum(_sizes(index, part) for part in parts) > bytes_max:
        raise UnreadableError(f"state is larger than {bytes_max} bytes")
    state: dict[bytes, bytes] = {}
    for part in parts:
        state.update(read_store_state(savepoints, index, part))
    return state


def _by_store(operator: OperatorFacts) -> dict[str, list[StoreFacts]]:
    found: dict[str, list[StoreFacts]] = {}
    for store in operator.stores:
        found.setdefault(store.store, []).append(store)
    return found


def _sizes(index: Index, part: StoreFacts) -> int:
    files = index.by_path()
    return sum(files[path].size for path in part.files)


def read_store_state(savepoints: Savepoints, index: Index, part: StoreFacts) -> dict[bytes, bytes]:
    """One partition of one store, as bytes by key."""
    files = index.by_path()

    def read(path: str) -> bytes:
        return savepoints.read(index, files[path])

    changes = [path for path in part.files if not path.endswith((".zip", ".sst", ".log"))]
    state: dict[bytes, bytes] = {}
    archive = next((path for path in part.files if path.endswith(".zip")), None)
    if archive is not None:
        state = _rocksdb(read, archive, part, files)
    for path in reversed(changes):
        _apply(state, path, read(path))
    return state


def _apply(state: dict[bytes, bytes], path: str, data: bytes) -> None:
    if not is_lz4(data):
        raise UnreadableError("state is compressed with a codec that is not read here (only lz4)")
    if path.endswith(".changelog"):
        changes = read_changelog(data, path)
        if changes is None:
            raise UnreadableError("changelog is compressed with a codec that is not read here")
        if changes.typed:
            _apply_typed(state, changes.body, path)
            return
        records: Iterator[tuple[bytes, bytes | None]] = untyped_records(changes.body, path)
    else:
        records = read_records(data, path)
    for key, value in records:
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value


def _apply_typed(state: dict[bytes, bytes], body: bytes, path: str) -> None:
    for kind, key, value in typed_records(body, path):
        if kind == DELETE:
            state.pop(key, None)
        elif kind == MERGE:
            state[key] = state.get(key, b"") + MERGED + value
        else:
            state[key] = value


def _rocksdb(
    read: Callable[[str], bytes], archive: str, part: StoreFacts, files: dict[str, StoredFile]
) -> dict[bytes, bytes]:
    """Open a copy of a snapshot with `rocksdict`."""
    del files
    try:
        import rocksdict
    except ImportError as error:
        raise UnreadableError(
            "RocksDB state needs the package rocksdict",
            remedy="pip install 'holdfast-spark[guard]'",
        ) from error
    data = read(archive)
    snapshot = parse_rocks(data, archive)  # what the archive unpacks to is checked there
    folder = layout.store_dir_of(archive)
    with tempfile.TemporaryDirectory(prefix="holdfast-guard-") as place:
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            for name in zipped.namelist():
                if name != "metadata":
                    _put(place, name, zipped.read(name))
        for sst in snapshot.sstFiles:
            _put(place, sst.localFileName, read(f"{folder}/SSTs/{sst.dfsSstFileName}"))
        for log in snapshot.logFiles:
            _put(place, log.localFileName, read(f"{folder}/logs/{log.dfsLogFileName}"))
        return _open(rocksdict, place, part)


def _put(place: str, name: str, data: bytes) -> None:
    if "/" in name or name.startswith("."):
        raise UnreadableError("snapshot names a file outside of its directory")
    with open(os.path.join(place, name), "wb") as file:
        file.write(data)


def _open(rocksdict: Any, place: str, part: StoreFacts) -> dict[bytes, bytes]:
    try:
        opened = rocksdict.Rdict(
            place,
            rocksdict.Options(raw_mode=True),
            access_type=rocksdict.AccessType.read_only(),
        )
        try:
            return dict(opened.items())
        finally:
            opened.close()
    except Exception as error:
        raise UnreadableError(
            "RocksDB cannot open this snapshot here",
            store=part.store,
            reason=str(error)[:200],
        ) from error
