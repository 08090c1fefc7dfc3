"""Spark's files as an attacker would write them: small on disk, large in memory."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile

import pytest

from holdfast.errors import CorruptionError
from holdfast.guard.spark_files import lz4_blocks as blocks
from holdfast.guard.spark_files.metadata_logs import parse_rocks

_HEAD = struct.Struct("<8sBiiI")
_END = _HEAD.pack(blocks.MAGIC, 0x10, 0, 0, 0)


def _zeros(size):
    """An LZ4 block of so many zeros: one literal, one long match, and the last five literals."""
    length = size - 1 - 4 - 15 - 5
    match = b"\x1f\0" + b"\x01\0" + b"\xff" * (length // 255) + bytes([length % 255])
    return match + b"\x50" + bytes(5)


def _stream(blocks_of, declared=None):
    out = b""
    for size in blocks_of:
        packed = _zeros(size)
        out += _HEAD.pack(blocks.MAGIC, 0x20, len(packed), declared or size, 0) + packed
    return out + _END


@pytest.fixture
def peak():
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_honest_blocks_are_unpacked():
    """The bounds refuse no stream that fits."""
    assert blocks.plain(_stream([1_000, 2_000]), "x") == bytes(3_000)


def test_a_stream_of_blocks_is_bounded_before_it_is_unpacked(peak):
    """20 blocks of 31 MB each come from 2.5 MB: refused by their heads."""
    data = _stream([31 << 20] * 20)
    with pytest.raises(CorruptionError, match="too much"):
        blocks.plain(data, "x")
    assert peak() < 32 << 20


@pytest.mark.parametrize("declared", [100, 10_000_000, 0x7FFFFFFF])
def test_a_block_never_unpacks_to_more_than_it_declares(peak, monkeypatch, declared):
    """Neither a head that says too little nor one that says too much makes memory."""
    monkeypatch.setattr(blocks, "_fast", lambda: None)
    with pytest.raises(CorruptionError):
        blocks.plain(_stream([16 << 20], declared), "x")
    assert peak() < 8 << 20


def _archive(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def test_a_snapshot_that_unpacks_to_too_much_is_refused(peak, monkeypatch):
    """The sizes in the archive's directory are summed before a member is read."""
    monkeypatch.setattr("holdfast.guard.spark_files.metadata_logs.ZIP_BYTES_MAX", 16 << 20)
    data = _archive({"metadata": b"v1\n{}", "a": bytes(30 << 20)})
    assert len(data) < 1 << 20
    tracemalloc.reset_peak()
    with pytest.raises(CorruptionError, match="too much"):
        parse_rocks(data, "x.zip")
    assert peak() < 16 << 20


def test_a_snapshot_with_too_many_members_is_refused(monkeypatch):
    """So is a directory that is itself the bomb."""
    monkeypatch.setattr("holdfast.guard.spark_files.metadata_logs.ZIP_MEMBERS_MAX", 10)
    with pytest.raises(CorruptionError, match="too much"):
        parse_rocks(_archive({f"f{i}": b"" for i in range(11)}), "x.zip")


def test_a_member_that_lies_about_its_size_is_damage(peak):
    """A directory that says less than a member holds ends in a typed error."""
    data = bytearray(_archive({"metadata": bytes(30 << 20)}))
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 100)
    tracemalloc.reset_peak()
    with pytest.raises(CorruptionError):
        parse_rocks(bytes(data), "x.zip")
    assert peak() < 16 << 20
