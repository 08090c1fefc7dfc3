"""Verification finds every flipped bit, and every frame that was moved, dropped, doubled or edited."""

import random
import struct

import pytest

from holdfast.journal import JournalReader, Query, check_receipt, verify_journal
from holdfast.journal.format.frame import (
    HEADER_BYTES,
    FrameHeader,
    crc32c,
    hash_bytes,
    pack_header,
    pack_trailer,
    read_frame,
    unpack_header,
)
from tests.helpers.journals import ID, fill, open_writer, some


def frames_of(data):
    """(offset, bytes) of every frame in a segment."""
    found, at = [], 128
    while data[at : at + 4] == b"HFJ1":
        size = read_frame(memoryview(data), at).frame_bytes
        found.append(data[at : at + size])
        at += size
    return found, data[at:]


def flips(path, step=1):
    """Flip one bit of every byte, another one each time, and put it back."""
    data = path.read_bytes()
    for at in range(0, len(data), step):
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        path.write_bytes(broken)
        yield at
    path.write_bytes(data)


def test_every_flipped_bit_in_every_segment_is_found(root):
    """For every byte of every segment (sealed and last): one flipped bit is found by verify."""
    fill(root, batches=5, size=2, segment_bytes=700)
    segments = sorted((root / "segments").glob("*.seg"))
    assert len(segments) == 3
    assert verify_journal(root).ok
    for path in segments:
        for at in flips(path):
            report = verify_journal(root)
            assert not report.ok, (path.name, at)
            assert any(f.path == str(path) for f in report.findings), (path.name, at)
    assert verify_journal(root).ok


def test_every_flipped_bit_in_the_last_segment_is_found_without_the_checkpoint(root):
    """Even with checkpoint and mark lost, a damaged byte of the last segment is a finding."""
    fill(root, batches=2, size=2, segment_bytes=100_000)
    (root / "index.ckpt").unlink()
    (root / "durable.mark").unlink()
    for at in flips(next((root / "segments").glob("*.seg"))):
        assert not verify_journal(root).ok, at


@pytest.mark.parametrize("name", ["index.ckpt", "journal.meta"])
def test_every_flipped_bit_in_checkpoint_and_meta_is_found(root, name):
    """For every byte of the index checkpoint and of journal.meta: one flipped bit is found."""
    fill(root, batches=5, size=2, segment_bytes=700)
    for at in flips(root / name):
        report = verify_journal(root)
        assert any(f.path == str(root / name) for f in report.findings), at


def test_every_flipped_bit_in_a_lookup_index_is_found(root):
    """The derived index files are covered too, and a damaged one changes no answer."""
    fill(root, batches=4, size=2, segment_bytes=700)
    with JournalReader(root) as reader:
        wanted = reader.query(Query(entity="e1")).events()
    path = min((root / "segments").glob("*.idx"))
    for at in flips(path, step=3):
        assert [f.kind for f in verify_journal(root).findings] == ["index_damaged"], at
        if at % 30 == 0:
            with JournalReader(root) as reader:
                assert reader.query(Query(entity="e1")).events() == wanted


def test_an_event_hash_that_covers_only_the_payload_would_miss_these(root):
    """Reordered, dropped, duplicated and header-edited frames are found, in every place."""
    with open_writer(root) as writer:
        for _ in range(5):
            # Equal payloads: only order and headers tell the frames apart.
            writer.append(some(2) if writer.accepted == 0 else _again(writer))
    path = next((root / "segments").glob("*.seg"))
    data = path.read_bytes()
    frames, rest = frames_of(data)
    head = data[:128]
    edits = {
        "swap": [frames[1], frames[0], *frames[2:]],
        "swap_last": [*frames[:3], frames[4], frames[3]],
        "drop_first": frames[1:],
        "drop_middle": [*frames[:2], *frames[3:]],
        "drop_last": frames[:-1],
        "double": [frames[0], *frames],
        "double_last": [*frames, frames[-1]],
    }
    for name, edited in edits.items():
        path.write_bytes(head + b"".join(edited) + rest)
        assert not verify_journal(root).ok, name
    path.write_bytes(data)
    assert verify_journal(root).ok


def _again(writer):
    from holdfast.journal import Event

    return [Event(entity="same", kind="same", payload=b"same") for _ in range(2)]


FIELDS = ["count", "first_sequence", "durable_sequence", "wall_us", "wall_min_us", "wall_max_us",
          "clock_first", "clock_max", "previous_hash", "body_hash", "journal_id"]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_a_header_edited_with_its_crc_made_right_is_found(root, field):
    """An editor who recomputes CRC and chain hash of one frame is found by the next, or by receipt and checkpoint."""
    receipts = fill(root, batches=3, size=2, segment_bytes=100_000)
    path = next((root / "segments").glob("*.seg"))
    data = path.read_bytes()
    for number in range(3):
        frames, rest = frames_of(data)
        frame = frames[number]
        header = unpack_header(frame)
        value = getattr(header, field)
        new = (
            bytes(32)[: len(value)]
            if isinstance(value, bytes)
            else (0 if field == "durable_sequence" and value else value + 1)
        )
        if field == "durable_sequence" and number == 0:
            continue
        header = FrameHeader(**{**header._asdict(), field: new})
        head = pack_header(header)
        body = frame[HEADER_BYTES:-40]
        trailer, _ = pack_trailer(head, crc32c(body))
        frames[number] = head + body + trailer
        path.write_bytes(data[:128] + b"".join(frames) + rest)
        assert not verify_journal(root).ok, number
        with pytest.raises(Exception, match=r"damaged|not the one|does not reach"):
            check_receipt(root, receipts[number])
    path.write_bytes(data)


def test_a_rewritten_history_is_found_by_an_old_receipt(root):
    """Someone who rebuilds the whole chain, checkpoint included, is found by any receipt of before."""
    receipts = fill(root)
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with open_writer(root, segment_bytes=2000) as writer:
        for n in range(8):
            writer.append(some(5, start=5 * n + 1000))
    assert verify_journal(root, deep=True).ok
    for receipt in receipts:
        with pytest.raises(Exception, match=r"damaged"):
            check_receipt(root, receipt)


def test_one_finding_does_not_hide_others(root):
    """Two damaged segments give findings for both."""
    fill(root, batches=8, size=2, segment_bytes=700)
    paths = sorted((root / "segments").glob("*.seg"))[:2]
    for path in paths:
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)
    assert {f.path for f in verify_journal(root).findings} >= {str(p) for p in paths}


def test_deep_verification_finds_an_id_that_occurs_twice(root):
    """A log with a repeated id, forged with right hashes, passes the chain and fails deep."""
    with open_writer(root) as writer:
        writer.append(some(2))
        # Let the second append skip the look-up that would refuse it.
        writer._core.first_result = lambda batch: None
        writer.append(some(2))
    assert verify_journal(root).ok
    assert [f.kind for f in verify_journal(root, deep=True).findings] == ["id_twice"]


def test_random_bytes_in_place_of_a_segment_never_crash_verify(root):
    """Garbage of any length is findings, not an exception."""
    fill(root, batches=4, size=2, segment_bytes=700)
    path = min((root / "segments").glob("*.seg"))
    chance = random.Random(5)
    for size in (0, 1, 127, 128, 129, 300, 5000):
        path.write_bytes(chance.randbytes(size))
        assert not verify_journal(root, deep=True).ok


def test_genesis_and_hashes_are_what_the_specification_says():
    """The chain begins with BLAKE3 of a label and the id; a frame's hash is that of its header."""
    from blake3 import blake3

    from holdfast.journal.format.frame import genesis_hash

    assert genesis_hash(ID) == blake3(b"holdfast journal v1\0" + ID).digest()
    assert hash_bytes(b"abc") == blake3(b"abc").digest()
    assert struct.calcsize("<4sHHIIQQQqqqQQ32s32s16s") == HEADER_BYTES == 160
