"""Spark's compressed state files, read without a JVM.

Spark writes changelogs, deltas and HDFS snapshots through `LZ4BlockOutputStream`: blocks with a
21-byte head (magic, token, compressed and plain length, checksum) and an empty block at the end.

Invariants:
- Nothing is guessed: another codec is `None`, damage is an error, lengths are checked.
- What a stream unpacks to is bounded, and known from its heads before anything is unpacked.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.guard.spark_files.metadata_logs import damaged

MAGIC = b"LZ4Block"
_HEAD = struct.Struct("<8sBiiI")
_RAW, _LZ4 = 0x10, 0x20
_BLOCK_BYTES_MAX = 32 * 1024 * 1024
_RATIO_MAX = 256  # of LZ4 itself: a byte of length stands for at most 255
PLAIN_BYTES_MAX = 512 * 1024 * 1024


def is_lz4(data: bytes) -> bool:
    """Whether these bytes begin like Spark's default codec writes them."""
    return data.startswith(MAGIC)


def plain(data: bytes, path: str, *, bytes_max: int = PLAIN_BYTES_MAX) -> bytes:
    """The whole content of an LZ4 block stream; how much it is, is known before it is unpacked."""
    total = sum(size for _, _, _, size in _heads(data, path))
    if total > bytes_max:
        raise damaged("compressed stream unpacks to too much", path, bytes=total, limit=bytes_max)
    return b"".join(_blocks(data, path))


def _heads(data: bytes, path: str) -> Iterator[tuple[int, int, int, int]]:
    """Place of each block's bytes, its token, packed and plain length; all lengths checked."""
    at = 0
    while at + _HEAD.size <= len(data):
        magic, token, packed, size, _checksum = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if magic != MAGIC or not 0 <= packed <= len(data) - at or not 0 <= size <= _BLOCK_BYTES_MAX:
            raise damaged("compressed block is damaged", path)
        if size == 0 and packed == 0:
            if at != len(data):
                raise damaged("bytes follow the end of the compressed stream", path)
            return
        if size > packed * _RATIO_MAX:
            raise damaged("compressed block has another length", path, expected=size)
        yield at, token, packed, size
        at += packed
    raise damaged("compressed stream is cut off", path)


def _blocks(data: bytes, path: str) -> Iterator[bytes]:
    for at, token, packed, size in _heads(data, path):
        chunk = data[at : at + packed]
        method = token & 0xF0
        if method == _RAW and packed == size:
            yield chunk
        elif method == _LZ4:
            yield _decompress(chunk, size, path)
        else:
            raise damaged("compressed block has an unknown method", path)


def _decompress(chunk: bytes, size: int, path: str) -> bytes:
    fast = _fast()
    try:
        out = fast(chunk, size) if fast is not None else _slow(chunk, size)
    except (IndexError, ValueError, OSError) as error:
        raise damaged("compressed block is damaged", path) from error
    if len(out) != size:
        raise damaged("compressed block has another length", path, expected=size, actual=len(out))
    return out


def _fast() -> Callable[[bytes, int], bytes] | None:
    """Arrow's decompressor where Arrow is loaded anyway."""
    arrow: Any = sys.modules.get("pyarrow")
    if arrow is None:
        return None
    return lambda chunk, size: bytes(
        arrow.decompress(chunk, decompressed_size=size, codec="lz4_raw", asbytes=True)
    )


def _slow(chunk: bytes, size: int = _BLOCK_BYTES_MAX) -> bytes:
    """LZ4 block format in plain Python: enough for headers and small state."""
    out = bytearray()
    at, end = 0, len(chunk)
    while at < end:
        token = chunk[at]
        at += 1
        length, at = _length(chunk, at, token >> 4)
        out += chunk[at : at + length]
        at += length
        if at >= end:
            break
        offset = chunk[at] | chunk[at + 1] << 8
        at += 2
        length, at = _length(chunk, at, token & 15)
        length += 4
        if len(out) + length > size:
            raise ValueError("more than the block may hold")
        start = len(out) - offset
        if offset == 0 or start < 0:
            raise ValueError("match before the beginning")
        if offset >= length:
            out += out[start : start + length]
        else:
            pattern = bytes(out[start:])
            out += (pattern * (length // offset + 1))[:length]
    return bytes(out)


def _length(chunk: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while True:
            byte = chunk[at]
            at += 1
            length += byte
            if byte != 255:
                break
    return length, at
