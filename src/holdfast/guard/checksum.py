"""Checksums that lie beside Spark's files: Hadoop's on local disk, Spark's own for state.

Invariants:
- A sidecar that cannot be read is damage, never "no checksum".
- Hadoop's sidecars cover every byte of every file on local disk, and the guard checks what Spark
  itself does not: Spark reads its logs without them.
"""

from __future__ import annotations

import struct
import zlib

import msgspec

from holdfast.guard.logs import damaged

_HADOOP_MAGIC = b"crc\x00"
_CASTAGNOLI = 0x82F63B78
_SLOW_BYTES_MAX = 4 * 1024 * 1024


class _Creator(msgspec.Struct, forbid_unknown_fields=True):
    executorId: str  # noqa: N815 - Spark's name
    taskInfo: str  # noqa: N815 - Spark's name


class _SparkChecksum(msgspec.Struct, forbid_unknown_fields=True):
    algorithm: str
    value: int
    mainFileSize: int  # noqa: N815 - Spark's name
    timestampMs: int  # noqa: N815 - Spark's name
    creator: _Creator


def check_hadoop(data: bytes, sidecar: bytes, path: str, sidecar_path: str) -> None:
    """Compare a file with the checksums that Hadoop's local file system wrote beside it."""
    if len(sidecar) < 8 or sidecar[:4] != _HADOOP_MAGIC:
        raise damaged("checksum file is damaged", sidecar_path, covers=path)
    step = struct.unpack_from(">i", sidecar, 4)[0]
    count = -(-len(data) // step) if step > 0 else -1
    if step <= 0 or len(sidecar) != 8 + 4 * count:
        raise damaged("file and its checksum file differ in length", path, checksums=sidecar_path)
    expected = struct.unpack_from(f">{count}I", sidecar, 8)
    view = memoryview(data)
    for number, value in enumerate(expected):
        if zlib.crc32(view[number * step : (number + 1) * step]) != value:
            raise damaged(
                "file differs from the checksum beside it", path,
                checksums=sidecar_path, block=number,
            )  # fmt: skip


def check_spark(data: bytes, sidecar: bytes, path: str, sidecar_path: str) -> bool:
    """Compare a state file with Spark's own checksum; False when that is not possible here."""
    try:
        stated = msgspec.json.decode(sidecar, type=_SparkChecksum)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged("checksum file is damaged", sidecar_path, covers=path) from error
    if stated.algorithm != "CRC32C":
        raise damaged("checksum of an unknown kind", sidecar_path, reason=stated.algorithm[:20])
    if stated.mainFileSize != len(data):
        raise damaged(
            "state file has another size than its checksum file says", path,
            expected=stated.mainFileSize, actual=len(data),
        )  # fmt: skip
    actual = crc32c(data)
    if actual is None:
        return False
    if actual != stated.value & 0xFFFFFFFF:
        raise damaged("state file differs from its checksum", path, checksum=sidecar_path)
    return True


def crc32c(data: bytes) -> int | None:
    """CRC-32C, from a library where there is one; None for files too large without it."""
    try:
        import google_crc32c
    except ImportError:
        return _slow(data) if len(data) <= _SLOW_BYTES_MAX else None
    return int(google_crc32c.value(data))


def _slow(data: bytes) -> int:
    table = _table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table() -> list[int]:
    if not _TABLE:
        for number in range(256):
            value = number
            for _ in range(8):
                value = (value >> 1) ^ (_CASTAGNOLI if value & 1 else 0)
            _TABLE.append(value)
    return _TABLE


_TABLE: list[int] = []
