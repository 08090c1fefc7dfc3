"""Queries, followers with cursors, positions and slices: what a source is built from."""

import subprocess
import sys
import uuid

import pyarrow as pa
import pytest

from holdfast.errors import CorruptionError, IncompatibleError, InvalidInputError, NotFoundError
from holdfast.journal import (
    Event,
    JournalReader,
    JournalSplit,
    Position,
    Query,
    plan_end,
    plan_splits,
    read_split,
)
from tests.helpers.journals import fill, open_writer, some


def test_queries_agree_with_a_list(root):
    """Every filter, alone and with others, gives what a list comprehension gives."""
    fill(root)
    everything = [(n, e) for n, e in enumerate(some(40))]
    with JournalReader(root) as reader:
        for query, rule in [
            (Query(entity="e3"), lambda n, e: e.entity == "e3"),
            (Query(scope="s1", kind="k2"), lambda n, e: e.scope == "s1" and e.kind == "k2"),
            (Query(correlation=uuid.UUID(int=1002)), lambda n, e: e.correlation.int == 1002),
            (Query(from_sequence=11, to_sequence=17), lambda n, e: 11 <= n < 17),
            (Query(ids=(uuid.UUID(int=5), uuid.UUID(int=40), uuid.UUID(int=999))), lambda n, e: e.id.int in (5, 40)),
            (Query(entity="nobody"), lambda n, e: False),
            (Query(from_wall_us=1_700_000_000_000_000), lambda n, e: True),
            (Query(from_wall_us=1_700_000_000_000_001), lambda n, e: False),
            (Query(to_wall_us=1_700_000_000_000_000), lambda n, e: False),
        ]:  # fmt: skip
            found = [event.sequence for event in reader.query(query).events()]
            assert found == [n for n, e in everything if rule(n, e)]
        assert [e.sequence for e in reader.query(Query(entity="e1", limit=3)).events()] == [
            1,
            6,
            11,
        ]
        assert len(reader.query(Query(limit=0))) == 0
        assert reader.query(Query(entity="nobody")).to_table().num_rows == 0


def test_causation_is_walked_back_to_the_first_cause(root):
    """The walk follows ids over segments and ends at the event without a cause, or at a loop."""
    fill(root)
    with open_writer(root) as writer:
        chain = writer.view().causes(uuid.UUID(int=30))
        assert [event.id.int for event in chain] == list(range(30, 0, -1))
        writer.append(
            [Event(entity="l", kind="k", id=uuid.UUID(int=900), causation=uuid.UUID(int=901))]
        )
        writer.append(
            [Event(entity="l", kind="k", id=uuid.UUID(int=901), causation=uuid.UUID(int=900))]
        )
        assert len(writer.view().causes(uuid.UUID(int=900))) == 2
        with pytest.raises(NotFoundError):
            writer.view().causes(uuid.UUID(int=12345))


def test_a_cursor_goes_on_where_it_was_committed(root):
    """Batches behind a committed cursor are never seen again, the others are seen after a restart."""
    fill(root, batches=4, size=3)
    seen = []
    for _ in range(3):
        with JournalReader(root) as reader:
            cursor = reader.cursor("billing")
            for batch, position in cursor.follow(timeout_ms=0):
                seen.append(batch.column("sequence").to_pylist())
                if len(seen) % 2 == 0:
                    cursor.commit(position)
                    break
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    with JournalReader(root) as reader:
        assert list(reader.cursor("billing").follow(timeout_ms=0)) == []
        assert reader.cursor("other").position() is None
    path = root / "cursors" / "billing.cursor"
    path.write_bytes(path.read_bytes()[:-1])
    with JournalReader(root) as reader, pytest.raises(CorruptionError):
        reader.cursor("billing").position()


def test_cursor_names_cannot_leave_the_directory(root):
    """A name with separators is refused."""
    fill(root, batches=1)
    with JournalReader(root) as reader:
        for name in ("../x", "a/b", "", ".hidden"):
            with pytest.raises(InvalidInputError):
                reader.cursor(name)


def test_following_sees_batches_as_they_come(root):
    """A follower gets every batch once, in order, over rolls."""
    with open_writer(root, segment_bytes=1200) as writer, JournalReader(root) as reader:
        stream = reader.follow(timeout_ms=200, poll_ms=1)
        for n in range(10):
            writer.append(some(2, start=2 * n))
            batch, position = next(stream)
            assert batch.column("sequence").to_pylist() == [2 * n, 2 * n + 1]
            assert position.sequence == 2 * n + 2
        assert list(stream) == []


def test_slices_cover_exactly_what_lies_between_two_positions(root):
    """Any cut between batches: slices give those events once, in order, as Arrow with plain text."""
    fill(root)
    with JournalReader(root) as reader:
        view = reader.view()
        for start, end in ((0, 40), (5, 35), (10, 10), (20, 25)):
            for size in (1, 900, 1 << 20):
                slices = plan_splits(
                    root, view, view.position(start), view.position(end), split_bytes=size
                )
                batches = [
                    b for one in slices for b in read_split(JournalSplit.from_json(one.to_json()))
                ]
                found = [s for b in batches for s in b.column("sequence").to_pylist()]
                assert found == list(range(start, end))
                assert all(b.schema.field("entity").type == pa.string() for b in batches)
                if size == 1:
                    assert len(slices) == (end - start) // 5
        with pytest.raises(InvalidInputError):
            view.position(3)


def test_an_epoch_is_bounded_in_whole_batches(root):
    """plan_end takes whole batches up to the bound, and always at least one."""
    fill(root)
    with JournalReader(root) as reader:
        view = reader.view()
        start = view.position(10)
        assert plan_end(view, start).sequence == 40
        assert plan_end(view, start, events_max=12).sequence == 20
        assert plan_end(view, start, events_max=1).sequence == 15
        assert plan_end(view, view.position(), events_max=1).sequence == 40


def test_a_slice_is_read_in_another_process_from_the_files_alone(root):
    """A worker needs the slice's text and the segment file, nothing else."""
    fill(root)
    with JournalReader(root) as reader:
        view = reader.view()
        one = plan_splits(root, view, view.position(5), view.position(15))[0]
    for path in (root / "index.ckpt", root / "journal.meta", *(root / "segments").glob("*.idx")):
        path.unlink()
    code = "import sys; from holdfast.journal import *; print(sum(b.num_rows for b in read_split(JournalSplit.from_json(sys.argv[1]))), 'pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, one.to_json()], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(one.last_sequence - one.first_sequence + 1), "False"]


def test_slices_planned_before_a_compaction_stay_readable(root):
    """Compaction moves frames; they are found again by sequence and chain."""
    fill(root, segment_bytes=900)
    with JournalReader(root) as reader:
        view = reader.view()
        slices = plan_splits(root, view, view.position(0), view.position())
        position = view.position(15)
    assert len(slices) > 3
    with open_writer(root) as writer:
        assert writer.compact()
        assert writer.view().check_position(position).sequence == 15
    found = [s for one in slices for b in read_split(one) for s in b.column("sequence").to_pylist()]
    assert found == list(range(40))


def rebuilt(root, count=8):
    """Another history in the same place, with the same journal id."""
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with open_writer(root, segment_bytes=2000) as writer:
        for n in range(count):
            writer.append(some(5, start=5 * n + 1000))


def test_a_replaced_log_is_noticed_by_the_chain_hash(root):
    """Same id, same sequences, other events: position and slice are refused."""
    fill(root)
    with JournalReader(root) as reader:
        position = reader.view().position(20)
        one = plan_splits(root, reader.view(), reader.view().position(0), position)[0]
    rebuilt(root)
    with JournalReader(root) as reader:
        with pytest.raises(IncompatibleError) as caught:
            reader.view().check_position(position)
        assert caught.value.kind == "journal_replaced"
        other = Position.from_json(position.to_json().replace(position.journal_id, "f" * 32))
        with pytest.raises(IncompatibleError):
            reader.view().check_position(other)
        with pytest.raises(IncompatibleError):
            next(reader.follow(position, timeout_ms=0))
    with pytest.raises(IncompatibleError):
        list(read_split(one))


def test_a_shortened_or_truncated_log_is_noticed(root):
    """A position past the end, or before the base, is refused with its own kind."""
    fill(root)
    with JournalReader(root) as reader:
        early, late = reader.view().position(5), reader.view().position()
        one = plan_splits(root, reader.view(), early, late)[0]
    with open_writer(root) as writer:
        writer.truncate_before(20)
        with pytest.raises(NotFoundError) as caught:
            writer.view().check_position(early)
        assert caught.value.kind == "position_truncated"
    with pytest.raises(NotFoundError):
        list(read_split(one))
    rebuilt(root, count=3)
    with JournalReader(root) as reader:
        with pytest.raises(IncompatibleError) as caught:
            reader.view().check_position(late)
        assert caught.value.kind == "journal_shortened"


def test_damage_inside_a_slice_is_found_in_the_worker(root):
    """A flipped bit in a frame is a CorruptionError with file and offset, not other data."""
    fill(root)
    with JournalReader(root) as reader:
        view = reader.view()
        one = plan_splits(root, view, view.position(0), view.position(), split_bytes=1)[1]
    path = min((root / "segments").glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[one.offset + 200] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        list(read_split(one))
    assert (caught.value.facts["path"], caught.value.facts["offset"]) == (path, one.offset)


def test_payloads_of_different_types_do_not_make_one_table(root):
    """A mixed answer says so instead of guessing; bytes and JSON go together as bytes."""
    with open_writer(root) as writer:
        writer.append([Event(entity="a", kind="k", payload=b"1")])
        writer.append([Event(entity="a", kind="k", payload="1")])
        assert writer.view().query(Query()).to_table().column("payload").to_pylist() == [b"1", b"1"]
        writer.append([Event(entity="a", kind="k", payload={"x": 1})])
        with pytest.raises(InvalidInputError):
            writer.view().query(Query()).to_table()
        assert len(writer.view().query(Query()).events()) == 3
