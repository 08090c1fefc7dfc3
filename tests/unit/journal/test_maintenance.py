"""Holds, truncation and compaction: what goes, what stays, and that the chain still holds."""

import pytest

from holdfast.errors import CorruptionError, IncompatibleError, InvalidInputError, NotFoundError
from holdfast.journal import JournalReader, Position, Query, check_receipt, verify_journal
from holdfast.testing.journal import FaultyFiles
from tests.helpers.journals import fill, open_writer, some
from tests.unit.journal.test_open import answers


def test_truncation_never_goes_past_the_oldest_hold(root):
    """Stored holds and given ones both limit it; the report names the one that did."""
    fill(root)
    with open_writer(root) as writer:
        view = writer.view()
        writer.holds.set("pipeline-a", view.position(15))
        plan = writer.truncate_before(40, holds={"pipeline-b": view.position(25)}, dry_run=True)
        assert (plan.held_by, plan.base_sequence <= 15) == ("pipeline-a", True)
        assert writer.view().base_sequence == 0
        plan = writer.truncate_before(40, holds={"pipeline-b": view.position(5)})
        assert (plan.held_by, plan.base_sequence <= 5) == ("pipeline-b", True)
        writer.holds.set("pipeline-a", view.position(30))
        plan = writer.truncate_before(40)
        assert plan.held_by == "pipeline-a"
        assert 15 < plan.base_sequence <= 30
        assert writer.holds.all()["pipeline-a"].sequence == 30
        writer.holds.release("pipeline-a")
        assert writer.holds.all() == {}
        with pytest.raises(NotFoundError):
            writer.holds.release("pipeline-a")
        assert writer.truncate_before(40).held_by is None
    assert verify_journal(root, deep=True).ok


def test_a_hold_that_cannot_be_read_or_lies_elsewhere_stops_truncation(root):
    """A damaged hold, or one of another history, is an error; nothing is removed."""
    fill(root)
    names = sorted(p.name for p in (root / "segments").iterdir())
    with open_writer(root) as writer:
        position = writer.view().position(15)
        forged = Position.from_json(position.to_json().replace(position.chain_hash, "0" * 64))
        with pytest.raises(IncompatibleError):
            writer.truncate_before(40, holds={"x": forged})
        with pytest.raises(InvalidInputError):
            writer.truncate_before(41)
        writer.holds.set("x", position)
        path = root / "holds" / "x.hold"
        path.write_bytes(path.read_bytes()[:-2])
        with pytest.raises(CorruptionError):
            writer.truncate_before(40)
        with pytest.raises(InvalidInputError):
            writer.holds.set("../x", position)
    assert sorted(p.name for p in (root / "segments").iterdir()) == names


def test_what_is_left_after_truncation_still_verifies_and_answers(root):
    """Sequences, receipts, ids and chain of the retained part are unchanged, also after replay."""
    receipts = fill(root)
    with open_writer(root) as writer:
        base = writer.truncate_before(22).base_sequence
        assert 0 < base <= 22
    assert verify_journal(root, deep=True).ok
    wanted, _ = answers(root)
    (root / "index.ckpt").unlink()
    assert answers(root)[0] == wanted
    for receipt in receipts:
        if receipt.first_sequence >= base:
            check_receipt(root, receipt)
    with open_writer(root) as writer:
        assert writer.append(some(5, start=35)).duplicate
        assert writer.append(some(5, start=0)).first_sequence == 40
        with pytest.raises(NotFoundError):
            writer.view().get(0)


def test_compaction_changes_no_frame_and_no_answer(root):
    """Small sealed segments become one: fewer files, same bytes of frames, same answers, same receipts."""
    receipts = fill(root, segment_bytes=900)
    wanted, _ = answers(root)
    before = len(list((root / "segments").glob("*.seg")))
    with open_writer(root) as writer:
        merged = writer.compact()
        assert merged
        assert writer.compact() == []
        assert writer.append(some(5, start=0)).duplicate
    assert len(list((root / "segments").glob("*.seg"))) < before
    assert answers(root)[0] == wanted
    (root / "index.ckpt").unlink()
    assert answers(root)[0] == wanted
    for receipt in receipts:
        check_receipt(root, receipt)
    assert verify_journal(root, deep=True).ok


def test_compact_bytes_and_segment_bytes_say_what_is_merged(root):
    """Nothing is merged that is not small, or that would not fit."""
    fill(root, segment_bytes=900)
    with open_writer(root, compact_bytes=10) as writer:
        assert writer.compact() == []
    with open_writer(root, segment_bytes=1000) as writer:
        assert writer.compact() == []


def test_compaction_of_a_damaged_segment_is_refused(root):
    """Damage is not copied into a new segment with a fresh footer."""
    fill(root, segment_bytes=900)
    path = min((root / "segments").glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with open_writer(root) as writer, pytest.raises(CorruptionError):
        writer.compact()
    assert path.read_bytes() == bytes(data)


def test_an_index_that_cannot_be_written_fails_no_append(root):
    """Derived data: its failure is noted, answers come from the frames, and reopening makes it."""
    files = FaultyFiles()
    with open_writer(root, files, segment_bytes=900) as writer:
        writer.append(some(5))
        writer.append(some(5, start=5))
        real = files.replace
        files.replace = lambda path, parts: (
            (_ for _ in ()).throw(CorruptionError("no"))
            if path.suffix == ".idx"
            else real(path, parts)
        )
        for n in range(2, 8):
            writer.append(some(5, start=5 * n))
        for _ in range(500):
            if writer.index_failures:
                break
            writer._stop.wait(0.01)
        assert writer.index_failures
        assert len(writer.view().query(Query(entity="e1"))) == 8
    open_writer(root).close()
    names = {p.name for p in (root / "segments").iterdir()}
    sealed = sorted(n for n in names if n.endswith(".seg"))[:-1]
    assert all(n.replace(".seg", ".idx") in names for n in sealed)


def test_unknown_files_are_left_alone(root):
    """Only names that the journal could have written are ever removed."""
    fill(root)
    strange = [root / "segments" / "notes.txt", root / "segments" / "5.seg", root / "holds.bak"]
    for path in strange:
        path.write_bytes(b"mine")
    own = root / "segments" / "00000000000000000099.seg.tmp"
    own.write_bytes(b"left over")
    with open_writer(root) as writer:
        writer.compact()
        writer.truncate_before(40)
    assert all(path.read_bytes() == b"mine" for path in strange)
    assert not own.exists()
    with JournalReader(root) as reader:
        assert reader.report.leftovers == ()
