"""spec/journal-v1.md: its worked bytes are the real ones, and can be read with nothing but its tables."""

import re
import struct
import uuid

import msgspec
import pytest
from blake3 import blake3
from google_crc32c import value as crc32c

from holdfast.journal import Event
from tests.helpers.journals import ID, open_writer
from tests.helpers.paths import ROOT

SPEC = (ROOT / "spec" / "journal-v1.md").read_text()


def worked(name):
    block = re.search(rf"<!-- {name} -->\n```hex\n(.*?)```", SPEC, re.DOTALL)[1]
    return bytes.fromhex("".join(line[6:] for line in block.splitlines()))


@pytest.fixture
def example(tmp_path):
    root = tmp_path / "log"
    with open_writer(root) as writer:
        event = Event(
            entity="order-1",
            scope="eu",
            kind="placed",
            payload='{"n":1}',
            id=uuid.UUID(int=7),
            wall_us=5,
        )
        writer.append([event])
    return root


@pytest.mark.parametrize(
    ("name", "path"),
    [("segment", "segments/00000000000000000000.seg"), ("meta", "journal.meta"), ("checkpoint", "index.ckpt"), ("mark", "durable.mark")],
)  # fmt: skip
def test_the_worked_bytes_are_the_real_ones(example, name, path):
    """The journal of the example is, byte for byte, what the specification shows."""
    assert (example / path).read_bytes() == worked(name)


def test_the_worked_segment_can_be_read_by_the_tables_alone():
    """Offsets and hashes of the specification, without the journal's code."""
    data = worked("segment")
    assert data[:8] == b"HFJSEG1\n"
    assert data[12:28] == ID
    assert struct.unpack_from("<I", data, 124)[0] == crc32c(data[:124])
    frame = data[128:]
    body_bytes = struct.unpack_from("<Q", frame, 32)[0]
    header, body, trailer = frame[:160], frame[160 : 160 + body_bytes], frame[160 + body_bytes :]
    assert header[80:112] == blake3(b"holdfast journal v1\0" + ID).digest() == data[36:68]
    assert header[112:144] == blake3(body).digest()
    assert trailer[:32] == blake3(header).digest()
    assert struct.unpack_from("<I", trailer, 32)[0] == crc32c(body + header + trailer[:32])
    assert trailer[36:] == b"1JFH"
    lengths, at, buffers = struct.unpack_from("<16I", body), 64, []
    for length in lengths:
        buffers.append(body[at : at + length])
        at += length + -length % 8
    assert at == len(body)
    assert (buffers[0], buffers[3]) == (uuid.UUID(int=7).bytes, struct.pack("<q", 5))
    assert (buffers[7], buffers[10], buffers[13], buffers[15]) == (
        b"order-1",
        b"eu",
        b"placed",
        b'{"n":1}',
    )


def test_the_worked_checkpoint_can_be_read_by_the_tables_alone():
    """Envelope, CRC and MessagePack of the specification, without the journal's code."""
    data = worked("checkpoint")
    magic, version, length, crc = struct.unpack_from("<8sIQI", data)
    assert (magic, version, length) == (b"HFJIDXC1", 1, len(data) - 24)
    assert crc == crc32c(data[:20] + data[24:])
    body = msgspec.msgpack.decode(data[24:])
    assert (body["journal_id"], body["next_sequence"], body["sealed"]) == (ID, 1, [])
    assert body["chain_hash"] == worked("segment")[-40:-8]
    assert len(body["directory"]) == 32
