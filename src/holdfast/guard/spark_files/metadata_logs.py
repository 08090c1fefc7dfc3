"""Spark's small documents: metadata, offsets, commits, operator metadata, a snapshot's file list.

Invariants:
- Decoding is strict: an unknown version is refused by name, an unknown field or a value of another
  type is damage. A flipped bit in a field's name would otherwise turn the field into its default.

Spec: spec/guard-v1.md, section 2.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from holdfast.errors import CorruptionError, IncompatibleError
from holdfast.ids import UUID_PATTERN

ZIP_BYTES_MAX = 256 * 1024 * 1024
ZIP_MEMBERS_MAX = 100_000
T = TypeVar("T")
NO_OFFSET = "-"
_DOCUMENT_BYTES_MAX = 256 * 1024 * 1024


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _QueryId(_Strict, frozen=True):
    id: str


class OffsetMetadata(_Strict, frozen=True):
    """Second line of `offsets/N`."""

    batchWatermarkMs: int  # noqa: N815 - Spark's name
    batchTimestampMs: int  # noqa: N815 - Spark's name
    conf: dict[str, str]
    sourceMetadataInfo: dict[str, dict[str, Any]] = {}  # noqa: N815 - Spark's name


class CommitMetadata(_Strict, frozen=True):
    """Second line of `commits/N`."""

    nextBatchWatermarkMs: int  # noqa: N815 - Spark's name
    stateUniqueIds: dict[str, list[list[str]]] | None = None  # noqa: N815 - Spark's name


class LogFile(_Strict, frozen=True):
    """One line of a file source's log."""

    path: str
    timestamp: int
    batchId: int  # noqa: N815 - Spark's name


class _OperatorInfo(_Strict, frozen=True):
    operatorId: int  # noqa: N815 - Spark's name
    operatorName: str  # noqa: N815 - Spark's name


class StoreInfo(_Strict, frozen=True):
    """One state store of an operator."""

    storeName: str  # noqa: N815 - Spark's name
    numColsPrefixKey: int  # noqa: N815 - Spark's name
    numPartitions: int  # noqa: N815 - Spark's name
    stateSchemaFilePaths: list[str] = []  # noqa: N815 - Spark's name


class OperatorMetadata(_Strict, frozen=True):
    """What Spark says about one stateful operator."""

    operatorInfo: _OperatorInfo  # noqa: N815 - Spark's name
    stateStoreInfo: list[StoreInfo]  # noqa: N815 - Spark's name
    operatorPropertiesJson: str = ""  # noqa: N815 - Spark's name


class SstFile(_Strict, frozen=True):
    """One immutable file of a RocksDB snapshot."""

    localFileName: str  # noqa: N815 - Spark's name
    dfsSstFileName: str  # noqa: N815 - Spark's name
    sizeBytes: int  # noqa: N815 - Spark's name


class WalFile(_Strict, frozen=True):
    """One log file of a RocksDB snapshot."""

    localFileName: str  # noqa: N815 - Spark's name
    dfsLogFileName: str  # noqa: N815 - Spark's name
    sizeBytes: int  # noqa: N815 - Spark's name


class RocksSnapshot(_Strict, frozen=True):
    """`metadata` inside a RocksDB snapshot's zip."""

    sstFiles: list[SstFile]  # noqa: N815 - Spark's name
    numKeys: int  # noqa: N815 - Spark's name
    logFiles: list[WalFile] = []  # noqa: N815 - Spark's name
    numInternalKeys: int = 0  # noqa: N815 - Spark's name
    columnFamilyMapping: dict[str, int] = {}  # noqa: N815 - Spark's name
    columnFamilyTypeMap: dict[str, bool] = {}  # noqa: N815 - Spark's name
    maxColumnFamilyId: int = 0  # noqa: N815 - Spark's name


@dataclass(frozen=True)
class Offsets:
    """One entry of the offset log: by source, the text that Spark would read."""

    metadata: OffsetMetadata
    sources: tuple[tuple[str, str], ...]

    @property
    def provider(self) -> str:
        """Class name of the state store provider, without its package."""
        key = "spark.sql.streaming.stateStore.providerClass"
        return self.metadata.conf.get(key, "").rpartition(".")[2]


def parse_query_id(data: bytes, path: str) -> str:
    """The query id in `metadata`."""
    query = _json(data, _QueryId, path).id
    if not UUID_PATTERN.fullmatch(query):
        raise damaged("query id is not a UUID", path, reason=query[:60])
    return query


def parse_offsets(data: bytes, path: str) -> Offsets:
    """One entry of the offset log."""
    version, lines = _lines(data, path, "v1", "v2")
    if not lines:
        raise damaged("offset log entry is cut off", path)
    metadata = _json(lines[0].encode(), OffsetMetadata, path)
    if metadata.batchWatermarkMs < 0 or metadata.batchTimestampMs < 0:
        raise damaged("watermark or time is negative", path)
    sources = []
    for number, line in enumerate(lines[1:]):
        name, text = str(number), line
        if version == "v2":
            name, colon, text = line.partition(":")
            if not colon or not name:
                raise damaged("offset without the name of its source", path)
        if text != NO_OFFSET:
            _json(text.encode(), object, path)
        sources.append((name, text))
    return Offsets(metadata, tuple(sources))


def log_offset(text: str) -> int | None:
    """The last entry of a file source's log that an offset includes; None for other sources."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return None
    if isinstance(value, dict) and set(value) == {"logOffset"}:
        last = value["logOffset"]
        return last if isinstance(last, int) else None
    return None


def parse_commit(data: bytes, path: str) -> CommitMetadata:
    """One entry of the commit log."""
    version, lines = _lines(data, path, "v1", "v2")
    if len(lines) != 1:
        raise damaged("commit log entry has another number of lines", path)
    commit = _json(lines[0].encode(), CommitMetadata, path)
    if version == "v1" and commit.stateUniqueIds is not None:
        raise damaged("commit log entry of version 1 names state ids", path)
    for partitions in (commit.stateUniqueIds or {}).values():
        for ids in partitions:
            if not all(UUID_PATTERN.fullmatch(uid) for uid in ids):
                raise damaged("state id is not a UUID", path)
    return commit


def parse_source_log(data: bytes, path: str) -> list[LogFile]:
    """One entry of a file source's log."""
    _, lines = _lines(data, path, "v1")
    return [_json(line.encode(), LogFile, path) for line in lines if line]


def parse_operator(data: bytes, path: str) -> OperatorMetadata:
    """Metadata of a stateful operator."""
    _, lines = _lines(data, path, "v1", "v2")
    if len(lines) != 1:
        raise damaged("operator metadata has another number of lines", path)
    return _json(lines[0].encode(), OperatorMetadata, path)


def parse_rocks(data: bytes, path: str) -> RocksSnapshot:
    """The list of files inside a RocksDB snapshot's zip; every member's CRC is checked."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            check_members(archive, path)
            bad = archive.testzip()
            if bad is not None:
                raise damaged("member of the snapshot has other content", path, reason=bad)
            content = archive.read("metadata")
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError, NotImplementedError) as error:
        raise damaged("snapshot cannot be opened", path, reason=str(error)[:200]) from error
    _, lines = _lines(content, path, "v1", "v2")
    return _json("\n".join(lines).encode(), RocksSnapshot, path)


def check_members(archive: zipfile.ZipFile, path: str) -> None:
    """Refuse an archive that unpacks to more than a snapshot's small files can be."""
    members = archive.infolist()
    total = sum(member.file_size for member in members)
    if total > ZIP_BYTES_MAX or len(members) > ZIP_MEMBERS_MAX:
        raise damaged(
            "snapshot unpacks to too much",
            path,
            members=len(members),
            bytes=total,
            limit=ZIP_BYTES_MAX,
        )


def _lines(data: bytes, path: str, *versions: str) -> tuple[str, list[str]]:
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise damaged("document is not UTF-8", path) from error
    version = lines[0]
    if version in versions:
        return version, lines[1:]
    if version[:1] == "v" and version[1:].isdecimal():
        raise IncompatibleError(
            "Spark wrote this document in a version that the guard does not know",
            kind="unknown_spark_format",
            path=path,
            version=version,
            known=",".join(versions),
            remedy="use a Spark version that is supported; nothing was changed",
        )
    raise damaged("document does not begin with a version", path, reason=repr(version[:20]))


def _json(data: bytes, kind: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged("document cannot be decoded", path, reason=str(error)[:200]) from error


def damaged(what: str, path: str, **facts: object) -> CorruptionError:
    """A file of Spark's that does not say what it must."""
    return CorruptionError(
        what,
        kind="spark_file_damaged",
        path=path,
        remedy="restore the checkpoint from a savepoint with `holdfast guard restore`",
        **facts,
    )
