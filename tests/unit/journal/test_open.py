"""Opening: checkpoint and tail or replay, torn tails, damage, symlinks; always the same answers."""

import os
import shutil
import struct

import msgspec
import pytest

from holdfast.errors import CorruptionError, IncompatibleError, NotFoundError, RefusedError
from holdfast.journal import (
    JournalReader,
    OpenPath,
    Query,
    verify_journal,
)
from holdfast.journal.format.blob import CHECKPOINT_MAGIC, IndexCheckpoint, pack_blob, unpack_blob
from tests.helpers.journals import fill, open_writer, some


def last_segment(root):
    return max((root / "segments").glob("*.seg"))


def answers(root):
    """Everything that a reader can be asked, as plain bytes."""
    with JournalReader(root) as reader:
        view = reader.view()
        queries = [Query()]
        queries += [Query(entity=f"e{i}") for i in range(6)]
        queries += [Query(scope="s1"), Query(kind="k2"), Query(from_sequence=7, to_sequence=21)]
        queries += [Query(correlation=e.correlation) for e in some(4)]
        queries += [Query(ids=tuple(e.id for e in some(40)[::7])), Query(entity="e1", kind="k0")]
        found = []
        for query in queries:
            table = view.query(query).to_table()
            found.append(table.combine_chunks().to_pydict())
        found.append([view.causes(n) for n in range(view.base_sequence, view.visible, 9)])
        found.append(view.position().to_json())
        found.append(view.find([e.id for e in some(50)]))
        return repr(found).encode(), reader.report


def no_change(root):
    pass


def remove(root):
    (root / "index.ckpt").unlink()


def garble(root):
    path = root / "index.ckpt"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


def future(root):
    path = root / "index.ckpt"
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(data)


def edit(root, **changes):
    path = root / "index.ckpt"
    old = unpack_blob(path.read_bytes(), CHECKPOINT_MAGIC, IndexCheckpoint)
    fields = {name: getattr(old, name) for name in old.__struct_fields__}
    path.write_bytes(pack_blob(CHECKPOINT_MAGIC, IndexCheckpoint(**{**fields, **changes})))


def ahead(root):
    edit(root, tail_offset=10_000_000)


def inconsistent(root):
    edit(root, next_sequence=3)


def other_chain(root):
    edit(root, chain_hash=bytes(32))


def wrong_sequence(root):
    edit(root, next_sequence=1_000)


def broken_chain(root):
    """Sizes and sequences are right, but two summaries do not continue each other's hash chain."""
    data = (root / "index.ckpt").read_bytes()
    sealed = list(unpack_blob(data, CHECKPOINT_MAGIC, IndexCheckpoint).sealed)
    sealed[0] = msgspec.structs.replace(sealed[0], chain_hash=bytes(32))
    edit(root, sealed=sealed)


def short(root):
    path = root / "index.ckpt"
    path.write_bytes(path.read_bytes()[:-9])


def empty(root):
    (root / "index.ckpt").write_bytes(b"")


def not_messagepack(root):
    body = b"\xc1\xc1"
    import google_crc32c

    head = struct.pack("<8sIQ", CHECKPOINT_MAGIC, 1, len(body))
    crc = google_crc32c.extend(google_crc32c.value(head), body)
    (root / "index.ckpt").write_bytes(head + struct.pack("<I", crc) + body)


def stale(root):
    """An older checkpoint: the tail that it does not know is read."""
    shutil.copy(root.parent / "older.ckpt", root / "index.ckpt")


PATHS = [
    (no_change, OpenPath.CHECKPOINT, "used"),
    (stale, OpenPath.CHECKPOINT, "used"),
    (remove, OpenPath.REPLAY, "missing"),
    (garble, OpenPath.REPLAY, "invalid"),
    (short, OpenPath.REPLAY, "invalid"),
    (empty, OpenPath.REPLAY, "invalid"),
    (not_messagepack, OpenPath.REPLAY, "invalid"),
    (inconsistent, OpenPath.REPLAY, "invalid"),
    (other_chain, OpenPath.REPLAY, "invalid"),
    (broken_chain, OpenPath.REPLAY, "invalid"),
    (wrong_sequence, OpenPath.REPLAY, "invalid"),
    (ahead, OpenPath.REPLAY, "ahead"),
    (future, OpenPath.REPLAY, "future"),
]


@pytest.fixture
def filled(root):
    fill(root)
    shutil.copy(root / "index.ckpt", root.parent / "older.ckpt")
    with open_writer(root, segment_bytes=2000) as writer:
        for n in range(8, 11):
            writer.append(some(5, start=5 * n))
    return root


@pytest.mark.parametrize(("damage", "path", "reason"), PATHS, ids=[p[0].__name__ for p in PATHS])
def test_every_open_path_gives_byte_identical_answers(filled, damage, path, reason):
    """Checkpoint and tail, missing, invalid, ahead, from the future: the same answers, and the report says why."""
    wanted, _ = answers(filled)
    damage(filled)
    found, report = answers(filled)
    assert (report.path, report.reason) == (path, reason)
    assert found == wanted
    with open_writer(filled) as writer:
        assert (writer.report.path, writer.report.reason) == (path, reason)
        assert writer.append(some(1, start=99)).first_sequence == 55


def test_a_checkpoint_from_the_future_is_kept_and_never_overwritten(filled):
    """A newer version's checkpoint survives reading, appending, checkpointing and closing."""
    future(filled)
    before = (filled / "index.ckpt").read_bytes()
    with open_writer(filled) as writer:
        assert writer.report.checkpoint_kept
        writer.append(some(1, start=99))
        assert writer.checkpoint() is False
    assert (filled / "index.ckpt").read_bytes() == before


def test_an_index_checkpoint_past_the_end_of_a_truncated_log_restores_nothing(filled):
    """After the log was cut short, no event that is gone comes back from the checkpoint."""
    path = last_segment(filled)
    os.truncate(path, path.stat().st_size - 10)
    with pytest.raises(CorruptionError):
        JournalReader(filled)
    (filled / "durable.mark").unlink()
    with JournalReader(filled) as reader:
        assert reader.report.reason == "ahead"
        assert reader.report.next_sequence == 50
        assert reader.view().visible <= 50
        assert all(event.sequence < 50 for event in reader.query(Query()).events())
    finding = [f.kind for f in verify_journal(filled).findings]
    assert "checkpoint_ahead" in finding


def test_opening_with_a_checkpoint_reads_no_old_frames(filled):
    """The checkpoint path reads only frames behind the watermark."""
    assert answers(filled)[1].frames_read == 0
    stale(filled)
    assert 0 < answers(filled)[1].frames_read <= 4
    remove(filled)
    assert answers(filled)[1].frames_read == 11


def test_the_checkpoint_does_not_grow_with_sealed_events(root):
    """Incremental: a journal of ten times the events in as many segments saves no more bytes."""
    sizes = []
    for name, size in (("a", 20), ("b", 200)):
        fill(root / name, batches=6, size=size, segment_bytes=1)
        sizes.append((root / name / "index.ckpt").stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 100


@pytest.mark.parametrize("cut", [1, 30, 39, 40, 41, 100, 199, 200])
def test_a_torn_tail_is_cut_and_reported(root, cut):
    """Bytes of an unfinished, never acknowledged frame go; the report says how many."""
    with open_writer(root) as writer:
        writer.append(some(3))
        keep = (root / "index.ckpt").exists()
        end = writer._core.tail.end_offset
        mark = (root / "durable.mark").read_bytes()
        writer.append(some(3, start=3))
        full = last_segment(root).read_bytes()
    assert not keep
    (root / "index.ckpt").unlink()
    (root / "durable.mark").write_bytes(mark)
    last_segment(root).write_bytes(full[:-cut])
    with JournalReader(root) as reader:
        assert reader.view().visible == 3
        assert reader.report.torn_bytes == len(full) - cut - end
    assert last_segment(root).stat().st_size == len(full) - cut
    assert [f.kind for f in verify_journal(root).findings] == ["torn_tail"]
    with open_writer(root) as writer:
        assert writer.report.torn_bytes == len(full) - cut - end
        assert writer.append(some(3, start=3)).first_sequence == 3
    assert verify_journal(root, deep=True).ok


def test_zeros_behind_the_last_frame_are_a_torn_tail(root):
    """A power cut may leave length without content: zeros are cut."""
    with open_writer(root) as writer:
        writer.append(some(3))
    with last_segment(root).open("ab") as file:
        file.write(bytes(4096))
    with open_writer(root) as writer:
        assert writer.report.torn_bytes == 4096
        assert writer.accepted == 3


def test_damage_below_the_acknowledged_end_is_never_cut(root):
    """A bit flipped in an acknowledged frame of the last segment is corruption with file and offset, not a torn tail."""
    with open_writer(root) as writer:
        for n in range(4):
            writer.append(some(3, start=3 * n))
        offsets = list(writer._core.tail.directory().offsets)
    path = last_segment(root)
    data = bytearray(path.read_bytes())
    for evidence in ("checkpoint", "mark", "frames"):
        for number in range(4 if evidence != "frames" else 2):
            broken = bytearray(data)
            broken[offsets[number] + 170] ^= 4
            path.write_bytes(broken)
            if evidence in ("mark", "frames"):
                (root / "index.ckpt").unlink(missing_ok=True)
            if evidence == "frames":
                (root / "durable.mark").unlink(missing_ok=True)
            if evidence == "checkpoint" and number < 3:
                continue
            for opening in (JournalReader, open_writer):
                with pytest.raises(CorruptionError) as caught:
                    opening(root)
                assert caught.value.facts["path"] == path
                assert caught.value.facts["offset"] == offsets[number]
            assert path.read_bytes() == bytes(broken)


def test_damage_in_an_earlier_segment_is_corruption_with_file_and_offset(filled):
    """Replay refuses damage outside the last segment and names where it is."""
    remove(filled)
    path = min((filled / "segments").glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        open_writer(filled)
    assert caught.value.facts["path"] == path
    assert caught.value.facts["offset"] == 128


def test_damage_behind_a_checkpoint_is_found_when_it_is_read(filled):
    """The checkpoint path does not read old frames, but a query of a damaged one fails, typed."""
    path = min((filled / "segments").glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with JournalReader(filled) as reader, pytest.raises(CorruptionError):
        reader.query(Query())


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_missing_segment_is_an_error_never_a_gap(filled, which):
    """A lost first, middle or last segment is not papered over."""
    remove(filled)
    paths = sorted((filled / "segments").glob("*.seg"))
    paths[which].unlink()
    if which == -1:
        with JournalReader(filled) as reader:
            assert "shorter" in reader.report.detail
        assert "durable_lost" in [f.kind for f in verify_journal(filled).findings]
    else:
        with pytest.raises(CorruptionError) as caught:
            JournalReader(filled)
        assert caught.value.kind == "segment_missing"
        assert "segment_missing" in [f.kind for f in verify_journal(filled).findings]


def test_losing_all_segments_is_an_error_never_a_fresh_start(filled):
    """An emptied segments directory is refused, with and without the checkpoint."""
    for path in (filled / "segments").iterdir():
        path.unlink()
    with pytest.raises(CorruptionError):
        open_writer(filled)
    remove(filled)
    with pytest.raises(CorruptionError):
        open_writer(filled)


def test_a_missing_or_damaged_meta_file_is_an_error_never_a_fresh_start(filled):
    """Segments without journal.meta, or with a broken one, are refused and left alone."""
    data = (filled / "journal.meta").read_bytes()
    (filled / "journal.meta").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptionError):
        open_writer(filled)
    (filled / "journal.meta").write_bytes(data[:8] + b"\x09" + data[9:])
    with pytest.raises(IncompatibleError):
        open_writer(filled)
    (filled / "journal.meta").unlink()
    with pytest.raises(CorruptionError):
        open_writer(filled)
    with pytest.raises(NotFoundError):
        JournalReader(filled / "nothing")


@pytest.mark.parametrize("name", ["index.ckpt", "segment", "journal.meta", "writer.lock"])
def test_symlinks_are_refused(filled, name):
    """No file of the journal is followed through a link, for reading or for writing."""
    path = last_segment(filled) if name == "segment" else filled / name
    target = filled.parent / "elsewhere"
    path.rename(target)
    before = target.read_bytes()
    path.symlink_to(target)
    if name == "index.ckpt":
        with JournalReader(filled) as reader:
            assert (reader.report.reason, "symlink" in reader.report.detail) == ("invalid", True)
        writer = open_writer(filled)
        writer.append(some(1, start=99))
        with pytest.raises(RefusedError):
            writer.close()
    else:
        with pytest.raises(RefusedError) as caught:
            open_writer(filled)
        assert caught.value.kind == "symlink"
    assert target.read_bytes() == before


def test_a_reader_never_writes(filled):
    """Opening, querying and verifying leave every file and every time as it was, torn tail included."""
    with last_segment(filled).open("ab") as file:
        file.write(b"HFJ1 unfinished")
    next((filled / "segments").glob("*.idx")).unlink()

    def state():
        return {
            p: (p.stat().st_mtime_ns, p.read_bytes())
            for p in sorted(filled.rglob("*"))
            if p.is_file()
        }

    before = state()
    answers(filled)
    verify_journal(filled, deep=True)
    assert state() == before


def test_a_reader_sees_what_a_live_writer_appends(root):
    """Refreshing shows new batches, across rolls, compaction and truncation."""
    with open_writer(root, segment_bytes=1500) as writer:
        writer.append(some(3))
        with JournalReader(root) as reader:
            for n in range(1, 12):
                writer.append(some(3, start=3 * n))
                assert reader.refresh() == 3 * n + 3
                assert len(reader.query(Query())) == 3 * n + 3
            writer.compact()
            writer.truncate_before(20)
            base = writer.view().base_sequence
            assert base > 0
            assert [e.sequence for e in reader.query(Query()).events()] == list(range(base, 36))


def test_after_a_power_cut_a_reader_hides_what_may_not_be_durable(root):
    """Without mark and checkpoint only what later frames call durable is shown, until a writer opens."""
    with open_writer(root) as writer:
        for n in range(3):
            writer.append(some(2, start=2 * n))
    (root / "index.ckpt").unlink()
    (root / "durable.mark").unlink()
    with JournalReader(root) as reader:
        assert reader.view().visible == 4
    open_writer(root).close()
    with JournalReader(root) as reader:
        assert reader.view().visible == 6
