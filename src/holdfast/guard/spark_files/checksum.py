"""Checksums that lie next to Spark's files: Hadoop's on local disk, Spark's own for state.

Invariants:
- A sidecar that cannot be read is damage, never "no checksum".
- Hadoop's sidecars cover every byte of every file on local disk, and the guard checks what Spark
  itself does not: Spark reads its logs without them.
"""

from __future__ import annotations

import struct
import zlib

import msgspec

from holdfast.guard.spark_files.metadata_logs import damaged

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


class HadoopCheck:
    """Compares a file, piece by piece, with the checksums that Hadoop wrote next to it."""

    def __init__(self, sidecar: bytes, size: int, path: str, sidecar_path: str) -> None:
        """Read the sidecar of a file of that size."""
        self._path = path
        self._sidecar_path = sidecar_path
        if len(sidecar) < 8 or sidecar[:4] != _HADOOP_MAGIC:
            raise damaged("checksum file is damaged", sidecar_path, covers=path)
        self._step = struct.unpack_from(">i", sidecar, 4)[0]
        count = -(-size // self._step) if self._step > 0 else -1
        if self._step <= 0 or len(sidecar) != 8 + 4 * count:
            raise damaged(
                "file and its checksum file differ in length", path, checksums=sidecar_path
            )
        self._expected = struct.unpack_from(f">{count}I", sidecar, 8)
        self._number = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """The next piece of the file, of any length."""
        if self._rest:
            data = self._rest + data
        view, whole = memoryview(data), len(data) - len(data) % self._step
        for at in range(0, whole, self._step):
            self._compare(view[at : at + self._step])
        self._rest = data[whole:]

    def finish(self) -> None:
        """The file has ended."""
        if self._rest:
            self._compare(memoryview(self._rest))
        if self._number != len(self._expected):
            raise damaged("file ended early", self._path, checksums=self._sidecar_path)

    def _compare(self, piece: memoryview) -> None:
        number = self._number
        if number >= len(self._expected) or zlib.crc32(piece) != self._expected[number]:
            raise damaged(
                "file differs from the checksum next to it",
                self._path,
                checksums=self._sidecar_path,
                block=number,
            )
        self._number += 1


def check_hadoop(data: bytes, sidecar: bytes, path: str, sidecar_path: str) -> None:
    """Compare a whole file with the checksums that Hadoop's local file system left."""
    check = HadoopCheck(sidecar, len(data), path, sidecar_path)
    check.feed(data)
    check.finish()


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
            "state file has another size than its checksum file says",
            path,
            expected=stated.mainFileSize,
            actual=len(data),
        )
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
