"""Records of Spark's state files: changelogs, deltas and HDFS snapshots.

A stream of (key, value) with big-endian lengths; -1 as the value's length is a delete, -1 as the
key's length is the end. A changelog of RocksDB may begin with a version (`v2` to `v4`); from `v3`
on the lineage follows: version and id of every state since the last snapshot. In `v2` and `v4` each
record begins with its type, and keys carry a column family.

Spec: spec/guard-v1.md, section 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from holdfast.guard.spark_files.lz4_blocks import is_lz4, plain
from holdfast.guard.spark_files.metadata_logs import damaged

_INT = struct.Struct(">i")
_SHORT = struct.Struct(">H")
PUT, DELETE, MERGE = 0x01, 0x10, 0x11
_VERSIONS = {"v2": (True, False), "v3": (False, True), "v4": (True, True)}


class Ancestor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One state that a changelog builds on."""

    version: int
    checkpointUniqueId: str  # noqa: N815 - Spark's name


@dataclass(frozen=True)
class Changelog:
    """What a changelog says before its records."""

    version: str
    lineage: tuple[Ancestor, ...]
    body: bytes
    typed: bool


def read_changelog(data: bytes, path: str) -> Changelog | None:
    """A changelog's head and body; None when it is compressed in a way that cannot be read here."""
    if not is_lz4(data):
        return None
    content = plain(data, path)
    if len(content) < 4 or content[:2] != b"\x00\x02" or content[2:3] != b"v":
        return Changelog("v1", (), content, typed=False)
    version = content[2:4].decode("ascii", "replace")
    if version not in _VERSIONS:
        raise damaged("changelog has an unknown version", path, version=version)
    typed, with_lineage = _VERSIONS[version]
    at = 4
    lineage: tuple[Ancestor, ...] = ()
    if with_lineage:
        size = _SHORT.unpack_from(content, at)[0] if len(content) >= at + 2 else 1 << 30
        at += 2
        if size > len(content) - at:
            raise damaged("lineage of the changelog is cut off", path)
        try:
            found = msgspec.json.decode(content[at : at + size], type=list[Ancestor])
        except msgspec.MsgspecError as error:
            raise damaged("lineage of the changelog cannot be decoded", path) from error
        lineage, at = tuple(found), at + size
    return Changelog(version, lineage, content[at:], typed=typed)


def read_records(data: bytes, path: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Records of a delta or an HDFS snapshot."""
    return untyped_records(plain(data, path), path)


def untyped_records(body: bytes, path: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Key and value, None for a delete."""
    at = 0
    while True:
        key, at = _field(body, at, path)
        if key is None:
            return
        value, at = _field(body, at, path)
        yield key, value


def typed_records(body: bytes, path: str) -> Iterator[tuple[int, bytes, bytes]]:
    """Type, key and value of a changelog with column families."""
    at = 0
    while at < len(body):
        kind = body[at]
        at += 1
        if kind not in (PUT, DELETE, MERGE):
            return  # the end, written as a record of its own
        key, at = _field(body, at, path)
        value, at = _field(body, at, path)
        yield kind, key or b"", value or b""


def _field(body: bytes, at: int, path: str) -> tuple[bytes | None, int]:
    if at + 4 > len(body):
        raise damaged("state file is cut off", path)
    size = _INT.unpack_from(body, at)[0]
    at += 4
    if size == -1:
        return None, at
    if not 0 <= size <= len(body) - at:
        raise damaged("record of the state file is damaged", path)
    return body[at : at + size], at + size
