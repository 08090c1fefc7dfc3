"""What verification finds of marks and headers, and how holds are released."""

import dataclasses
import time

import pytest
from click.testing import CliRunner

from holdfast.cli.commands.journal import journal as journal_app
from holdfast.errors import CorruptionError, InvalidInputError
from holdfast.journal import (
    JournalFiles,
    JournalReader,
    JournalSettings,
    JournalWriter,
    Query,
    verify_journal,
)
from holdfast.journal.format.frame import (
    HEADER_BYTES,
    FrameHeader,
    crc32c,
    hash_bytes,
    pack_header,
    pack_trailer,
    unpack_header,
)
from tests.helpers.journals import fill, open_writer, some

TRAILER_BYTES = 40


def kinds(root, **how):
    return {finding.kind for finding in verify_journal(root, **how).findings}


def test_every_flipped_bit_of_the_mark_is_found(root):
    """The mark has no checksum of its own, and still no bit of it can change unnoticed."""
    fill(root)
    mark = root / "durable.mark"
    data = mark.read_bytes()
    for at in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << at % 8
        mark.write_bytes(damaged)
        assert kinds(root) & {"mark_damaged", "durable_lost"}, at
    mark.write_bytes(data)
    assert verify_journal(root, deep=True).ok


@pytest.mark.parametrize("content", [b"", b"HFJMARK1", bytes(32), b"x" * 33, b"\xff" * 4096])
def test_a_mark_that_is_none_is_found_and_mended_by_the_next_writer(root, content):
    """Empty, short, long or foreign: a finding; readers go by the log, and a writer writes it again."""
    fill(root)
    (root / "durable.mark").write_bytes(content)
    assert kinds(root) == {"mark_damaged"}
    with JournalReader(root) as reader:
        assert len(reader.query(Query()).events()) == 40
    with JournalWriter(root):
        assert verify_journal(root).ok
    assert (root / "durable.mark").stat().st_size == 32


def frames_of(data):
    at, found = 128, []
    while at < len(data):
        size = unpack_header(data[at : at + HEADER_BYTES]).frame_bytes
        found.append(data[at : at + size])
        at += size
    return found


FIELDS = ("durable_sequence", "wall_us", "wall_min_us", "wall_max_us", "clock_first", "clock_max")


def edited(frame, field, *, chain=None):
    """The frame with another value in its header, and its CRC made right again."""
    header = unpack_header(frame[:HEADER_BYTES])
    value = getattr(header, field)
    new = (0 if value else 1) if field == "durable_sequence" else value + 1
    head = pack_header(FrameHeader(**{**header._asdict(), field: new}))
    body = frame[HEADER_BYTES:-TRAILER_BYTES]
    trailer, own = pack_trailer(head, crc32c(body))
    if chain is not None:  # the old chain hash stays, under a CRC that fits
        crc = crc32c(head + chain, crc32c(body))
        trailer = chain + crc.to_bytes(4, "little") + trailer[36:]
        own = chain
    return head + body + trailer, own


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("field", FIELDS)
def test_a_header_edited_under_its_old_chain_hash_is_found(root, field, number):
    """The chain hash covers the header: a right CRC is not enough, for verifying and for opening."""
    if field == "durable_sequence" and number == 0:
        number = 1
    with open_writer(root) as writer:
        for n in range(3):
            writer.append(some(2, start=2 * n))
    path = next((root / "segments").glob("*.seg"))
    data = path.read_bytes()
    frames = frames_of(data)
    old = hash_bytes(frames[number][:HEADER_BYTES])
    frames[number], _ = edited(frames[number], field, chain=old)
    path.write_bytes(data[:128] + b"".join(frames))
    assert kinds(root)
    (root / "index.ckpt").unlink()
    assert kinds(root)
    for opener in (JournalReader, JournalWriter):
        with pytest.raises(CorruptionError) as caught:
            opener(root)
        assert caught.value.facts["reason"] == "chain_hash"


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("field", FIELDS)
def test_a_header_edited_with_its_chain_hash_is_found_by_the_next_frame(root, field, number):
    """Each frame names the chain hash before it: only rewriting all that follows would do."""
    if field == "durable_sequence" and number == 0:
        number = 1
    with open_writer(root) as writer:
        for n in range(3):
            writer.append(some(2, start=2 * n))
    (root / "index.ckpt").unlink()
    path = next((root / "segments").glob("*.seg"))
    data = path.read_bytes()
    frames = frames_of(data)
    frames[number], _ = edited(frames[number], field)
    path.write_bytes(data[:128] + b"".join(frames))
    assert kinds(root)
    for opener in (JournalReader, JournalWriter):
        with pytest.raises(CorruptionError) as caught:
            opener(root)
        assert caught.value.facts["reason"] == "chain"


def test_a_hold_is_released_by_name(root):
    """The hold of a reader that is gone for good blocks truncation until it is released."""
    fill(root)
    runner = CliRunner()
    with JournalWriter(root, JournalSettings(segment_bytes=2000)) as writer:
        writer.holds.set("gone", writer.view().position(0))
        assert writer.truncate_before(30).held_by == "gone"
    refused = runner.invoke(journal_app, ["release", str(root), "gnoe"])
    assert refused.exit_code == 2
    assert "known: gone" in refused.output
    done = runner.invoke(journal_app, ["release", str(root), "gone", "--json"])
    assert done.output.strip() == '{"released":"gone","sequence":0}'
    with JournalWriter(root, JournalSettings(segment_bytes=2000)) as writer:
        assert writer.truncate_before(30).base_sequence > 0


def test_a_damaged_hold_does_not_stop_others_from_holding(root):
    """It stops truncation, and verification names it; other readers go on."""
    fill(root)
    with JournalWriter(root) as writer:
        at = writer.view().position(5)
        writer.holds.set("a", at)
        writer.holds.set("b", at)
        for name in ("a", "b"):
            (root / "holds" / f"{name}.hold").write_bytes(b"damage")
        writer.holds.set("c", at)
        with pytest.raises(CorruptionError):
            writer.truncate_before(5)
    found = {finding.path for finding in verify_journal(root).findings}
    assert found == {str(root / "holds" / f"{name}.hold") for name in ("a", "b")}


class Counting(JournalFiles):
    """Counts syncs of bytes."""

    syncs = 0

    def sync_data(self, fd, path):
        self.syncs += 1
        super().sync_data(fd, path)


def run(root, **settings):
    """Ten batches, five of them together; returns what can be seen of it."""
    files = Counting()
    with open_writer(root, files, **settings) as writer:
        for n in range(5):
            writer.append(some(5, start=5 * n))
        with writer._exclusive():
            tickets = [writer.submit(some(5, start=5 * n)) for n in range(5, 10)]
        for ticket in tickets:
            ticket.wait()
        acknowledged = files.syncs
        segments = len(writer.view().segments)
        merged = writer.compact(target_bytes=1 << 20)
        until = time.monotonic() + 2
        while not (root / "index.ckpt").exists() and time.monotonic() < until:
            if settings.get("checkpoint_bytes", 1 << 30) > 1_000:
                break
            time.sleep(0.01)
        early = (root / "index.ckpt").exists() if not merged else None
    return {"syncs": acknowledged, "segments": segments, "merged": merged, "early": early}


EFFECTS = {
    # setting: (one value, another value, what differs)
    "durability": ({"durability": "batch"}, {"durability": "interval", "interval_ms": 10**8}, "syncs"),
    "interval_ms": ({"durability": "interval", "interval_ms": 1}, {"durability": "interval", "interval_ms": 10**8}, "ticks"),
    "segment_bytes": ({"segment_bytes": 2_000}, {"segment_bytes": 10**6}, "segments"),
    "group_bytes_max": ({"group_bytes_max": 1}, {"group_bytes_max": 10**6}, "syncs"),
    "checkpoint_bytes": ({"checkpoint_bytes": 500}, {"checkpoint_bytes": 10**6}, "early"),
    "compact_bytes": ({"segment_bytes": 500, "compact_bytes": 1}, {"segment_bytes": 500}, "merged"),
}  # fmt: skip


def test_every_setting_of_the_journal_has_an_effect(tmp_path):
    """A knob that changes nothing that can be seen must not exist."""
    assert {*EFFECTS} == {field.name for field in dataclasses.fields(JournalSettings)}
    for name, (one, other, seen) in EFFECTS.items():
        if seen == "ticks":
            continue
        first = run(tmp_path / f"{name}-1", **one)
        second = run(tmp_path / f"{name}-2", **other)
        assert first[seen] != second[seen], name
    for name, interval, durable in (("fast", 1, True), ("slow", 10**8, False)):
        with open_writer(tmp_path / name, durability="interval", interval_ms=interval) as writer:
            assert writer.wait_durable(writer.append(some(1)).next_sequence, 2_000) is durable


@pytest.mark.parametrize(
    ("name", "value"),
    [("durability", "sometimes"), ("interval_ms", 0), ("interval_ms", "5"), ("segment_bytes", True),
     ("group_bytes_max", 1.5), ("checkpoint_bytes", None)],
)  # fmt: skip
def test_impossible_settings_of_the_journal_are_refused(name, value):
    """A value that can never work is named."""
    with pytest.raises(InvalidInputError) as caught:
        JournalSettings(**{name: value})
    assert caught.value.facts["setting"] == name
