"""Appending: atomic batches, named durability, idempotence, one writer."""

import os
import threading
import uuid

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    FencedError,
    InvalidInputError,
    StorageError,
)
from holdfast.journal import (
    Durability,
    Event,
    JournalReader,
    JournalSettings,
    JournalWriter,
    Query,
    verify_journal,
)
from holdfast.testing.journal import FaultyFiles
from tests.helpers.journals import fill, open_writer, some


def test_what_was_appended_is_read_back_with_all_its_fields(root):
    """Every field of an event survives the way through the log."""
    event = Event(
        entity="order-1", scope="eu", kind="placed", payload=b"\x00\xff", id=uuid.UUID(int=7),
        correlation=uuid.UUID(int=8), causation=uuid.UUID(int=9), wall_us=-5, clock=41,
    )  # fmt: skip
    with open_writer(root) as writer:
        receipt = writer.append([event])
        found = writer.view().get(receipt.first_sequence)
    assert (found.entity, found.scope, found.kind, found.payload) == (
        "order-1",
        "eu",
        "placed",
        b"\x00\xff",
    )
    assert (found.id, found.correlation, found.causation) == (
        event.id,
        event.correlation,
        event.causation,
    )
    assert (found.wall_us, found.clock, found.sequence) == (-5, 41, 0)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (pa.array([b"a", b"", None]), [b"a", b"", b""]),
        (pa.array(["1", '{"a":2}', None]), ["1", '{"a":2}', "null"]),
        (pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": None, "b": "z"}]), None),
        (pa.array([b"a", b"bb", b"ccc"]).cast(pa.large_binary()), [b"a", b"bb", b"ccc"]),
    ],
)
def test_payloads_may_be_bytes_json_or_typed_columns(root, payload, expected):
    """A payload comes back with its type, nulls in typed columns included."""
    batch = pa.record_batch({"entity": ["a", "b", "a"], "kind": ["k"] * 3, "payload": payload})
    with open_writer(root) as writer:
        writer.append(batch)
        found = next(writer.view().scan())
    assert found.column("payload").to_pylist() == (expected or payload.to_pylist())


@pytest.mark.parametrize("encode", [False, True])
@pytest.mark.parametrize(
    "texts", [["a"] * 40, ["a", "b"] * 20, [f"t{i}" for i in range(40)], ["", "é"] * 20, [""] * 40, ["ab", "", "aba", "b"] * 10]
)  # fmt: skip
def test_text_columns_survive_whatever_layout_is_chosen(root, texts, encode):
    """One text for all, few texts, all different, plain or dictionary-encoded, sliced: all the same."""
    column = pa.array(["zz", *texts])
    column = (column.dictionary_encode() if encode else column)[1:]
    batch = pa.record_batch({"entity": column, "kind": column, "scope": column})
    with open_writer(root) as writer:
        writer.append(batch)
        found = next(writer.view().scan())
        assert found.column("entity").to_pylist() == texts
        assert len(writer.view().query(Query(kind=texts[0]))) == texts.count(texts[0])


BAD = [
    ([], "batch"),
    ([Event(entity="a", kind="k", payload=3)], "payload"),
    ([Event(entity="a", kind="k", payload="{")], "payload"),
    ([Event(entity="\ud800", kind="k")], "entity"),
    ([Event(entity=None, kind="k")], "entity"),
    ([Event(entity="a", kind="k", id="x")], "id"),
    ([Event(entity="a", kind="k", clock=-1)], "clock"),
    ([Event(entity="a", kind="k", wall_us=1), Event(entity="a", kind="k")], "wall_us"),
    (some(2) + some(1), "id"),
    (pa.record_batch({"entity": ["a"]}), "kind"),
    (pa.record_batch({"entity": ["a"], "kind": ["k"], "other": [1]}), "other"),
    (pa.record_batch({"entity": ["a", None], "kind": ["k", "k"]}), "entity"),
    (pa.record_batch({"entity": ["a"], "kind": [1.5], "id": [b"short"]}), "id"),
    (
        pa.record_batch(
            {"entity": ["a"], "kind": ["k"], "clock": pa.array([1 << 63], pa.uint64())}
        ),
        "clock",
    ),
    (pa.record_batch({"entity": ["a"], "kind": ["k"], "payload": [[1]]}), "payload"),
    (pa.record_batch({"entity": [b"\xff"], "kind": ["k"]}), "entity"),
]


@pytest.mark.parametrize(("batch", "column"), BAD)
def test_a_bad_batch_is_refused_by_column_and_leaves_nothing(root, batch, column):
    """Bad input is an InvalidInputError that names the column; the log does not change."""
    with open_writer(root) as writer:
        with pytest.raises(InvalidInputError) as caught:
            writer.append(batch)
        assert caught.value.facts["column"] == column
        assert writer.accepted == 0


@pytest.mark.parametrize("durability", list(Durability))
def test_positions_can_be_waited_for(root, durability):
    """Accepted, durable and visible are reached in every mode, and visible never leads."""
    with open_writer(root, durability=durability, interval_ms=5) as writer:
        receipt = writer.append(some(3))
        assert writer.wait_accepted(3, 1000)
        assert writer.visible <= writer.durable <= writer.accepted
        assert writer.wait_durable(receipt.next_sequence, 5000)
        assert writer.wait_visible(receipt.next_sequence, 5000)
        assert len(writer.view()) == 3
        assert not writer.wait_durable(99, 10)


def test_interval_durability_shows_nothing_before_its_sync(root):
    """With interval durability an accepted event stays invisible until an fsync."""
    with open_writer(root, durability=Durability.INTERVAL, interval_ms=60_000) as writer:
        writer.append(some(3))
        assert (writer.accepted, writer.visible, len(writer.view())) == (3, 0, 0)
        with JournalReader(root) as reader:
            assert reader.view().visible == 0
        assert writer.flush() == 3
        with JournalReader(root) as reader:
            assert reader.view().visible == 3


def test_a_refreshed_reader_shows_nothing_before_its_sync(root):
    """A reader that was open before stays behind the durable mark when it refreshes."""
    with open_writer(root, durability=Durability.INTERVAL, interval_ms=60_000) as writer:
        with JournalReader(root) as reader:
            writer.append(some(3))
            writer.append(some(3, start=3))
            assert reader.refresh() == 0
            assert len(reader.query(Query())) == 0
            writer.flush()
            assert reader.refresh() == 6


def test_every_fsync_that_durability_names_is_made(root):
    """Per batch: one fdatasync each; interval: none until asked."""
    for durability, expected in ((Durability.BATCH, 4), (Durability.INTERVAL, 1)):
        files = FaultyFiles()
        with open_writer(
            root / durability, files, durability=durability, interval_ms=60_000
        ) as writer:
            for n in range(4):
                writer.append(some(1, start=n))
            writer.flush()
            assert files.calls.count("fdatasync") == expected


def test_group_commit_shares_fsyncs_between_threads(root):
    """Sixteen producers: every event once, in each producer's order, with fewer fsyncs than appends."""
    files = FaultyFiles()
    with open_writer(root, files, durability=Durability.GROUP, segment_bytes=20_000) as writer:

        def produce(who):
            for n in range(25):
                writer.append([Event(entity=f"p{who}", kind="k", payload=b"%d" % n)])

        threads = [threading.Thread(target=produce, args=(who,)) for who in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        syncs = files.calls.count("fdatasync")
        for who in range(16):
            events = writer.view().query(Query(entity=f"p{who}")).events()
            assert [int(event.payload) for event in events] == list(range(25))
    assert syncs < 400
    assert verify_journal(root, deep=True).ok


def test_submitted_batches_are_committed_in_order(root):
    """Tickets give receipts whose sequences follow the order of submission."""
    with open_writer(root, durability=Durability.GROUP) as writer:
        tickets = [writer.submit(some(2, start=2 * n)) for n in range(30)]
        firsts = [ticket.wait(10_000).first_sequence for ticket in tickets]
    assert firsts == list(range(0, 60, 2))


def test_closing_commits_what_was_submitted(root):
    """Close waits for submitted batches; nothing is dropped on the way out."""
    with open_writer(root, durability=Durability.GROUP) as writer:
        tickets = [writer.submit(some(2, start=2 * n)) for n in range(10)]
    assert all(ticket.done and ticket.receipt() for ticket in tickets)
    with JournalReader(root) as reader:
        assert len(reader.view()) == 20


def test_idempotent_append_returns_the_first_result(root):
    """The same batch again gives the first receipt, now, after a roll and after a reopen."""
    with open_writer(root, segment_bytes=1500) as writer:
        first = writer.append(some(4))
        again = writer.append(some(4))
        assert again.duplicate
        assert (again.first_sequence, again.chain_after) == (
            first.first_sequence,
            first.chain_after,
        )
        for n in range(1, 8):
            writer.append(some(4, start=4 * n))
        assert writer.append(some(4)).chain_after == first.chain_after
        end = writer.accepted
    with open_writer(root) as writer:
        assert writer.append(some(4)).chain_after == first.chain_after
        assert writer.append(some(4, start=28)).first_sequence == 28
        assert writer.accepted == end


def test_an_id_used_for_something_else_is_a_conflict(root):
    """Overlap, other order, other content and other grouping of known ids are refused whole."""
    with open_writer(root) as writer:
        writer.append(some(4))
        other = [Event(entity="x", kind="y", id=uuid.UUID(int=1))]
        for batch in (some(2, start=3), some(4)[::-1], other, some(2), some(5)):
            with pytest.raises(ConflictError) as caught:
                writer.append(batch)
            assert caught.value.kind == "id_reused"
        assert writer.accepted == 4


def test_equal_batches_in_one_group_are_appended_once(root):
    """Two producers that submit the same ids at once get one append and one duplicate."""
    with open_writer(root, durability=Durability.GROUP) as writer:
        with writer._exclusive():
            # Nobody can commit here, so that all of them are in the queue together.
            tickets = [writer.submit(some(3)) for _ in range(6)]
        receipts = [ticket.wait(10_000) for ticket in tickets]
        assert [r.first_sequence for r in receipts] == [0] * 6
        assert sum(not r.duplicate for r in receipts) == 1
        assert writer.accepted == 3


def test_two_writers_on_one_directory_never_share(root):
    """A second writer is refused, and told who has the journal."""
    with open_writer(root) as writer:
        writer.append(some(1))
        with pytest.raises(ConflictError) as caught:
            open_writer(root)
        assert caught.value.kind == "journal_locked"
        assert f"pid={os.getpid()}" in str(caught.value)
        writer.append(some(1, start=1))
    open_writer(root).close()


def test_a_writer_whose_lock_was_taken_away_is_fenced(root):
    """A zombie that lost its lock file stops before it writes."""
    with open_writer(root) as writer:
        writer.append(some(1))
        (root / "writer.lock").unlink()
        with open_writer(root) as successor:
            with pytest.raises(FencedError):
                writer.append(some(1, start=1))
            assert successor.append(some(1, start=1)).first_sequence == 1
    assert verify_journal(root).ok


def test_a_failed_fsync_poisons_the_writer_and_reopening_decides(root):
    """After a failed fsync nothing is retried; the batch is unknown until the journal is reopened."""
    files = FaultyFiles()
    writer = open_writer(root, files, durability=Durability.BATCH)
    writer.append(some(2))
    files.k, files.mode = len(files.calls) + 1, "before"
    with pytest.raises(CommitUnknownError):
        writer.append(some(2, start=2))
    assert files.calls[-1] == "fdatasync"
    seen = len(files.calls)
    with pytest.raises(StorageError, match="reopened"):
        writer.append(some(2, start=4))
    with pytest.raises(CommitUnknownError):
        writer.wait_durable(4, 100)
    writer.close()
    assert "fdatasync" not in files.calls[seen:]
    with open_writer(root) as writer:
        assert writer.append(some(2, start=2)).first_sequence == 2
        assert writer.accepted == 4


def test_reopening_writes_the_uncertain_tail_again_before_it_syncs(root):
    """What a failed fsync left in the page cache is written anew, not just synced."""
    files = FaultyFiles()
    writer = open_writer(root, files, durability=Durability.BATCH)
    writer.append(some(2))
    files.k = len(files.calls) + 1
    with pytest.raises(CommitUnknownError):
        writer.append(some(2, start=2))
    writer.close()
    again = FaultyFiles()
    open_writer(root, again).close()
    assert again.calls[1:3] == ["write", "fsync"]


def test_a_full_disk_is_reported_undone_and_survived(root):
    """ENOSPC in a write, whole or torn: nothing is appended, and the next append works."""
    for mode in ("no_space", "torn"):
        files = FaultyFiles()
        with open_writer(root / mode, files) as writer:
            writer.append(some(2))
            files.k, files.mode = len(files.calls), mode
            with pytest.raises(StorageError) as caught:
                writer.append(some(2, start=2))
            assert caught.value.kind == "no_space"
            assert caught.value.retryable
            assert caught.value.took_effect is False
            assert writer.append(some(2, start=2)).first_sequence == 2
        assert verify_journal(root / mode).ok


def test_short_writes_are_completed(root):
    """A write that the kernel cuts short is continued, not lost."""
    files = FaultyFiles()
    with open_writer(root, files) as writer:
        files.k, files.mode = len(files.calls), "short"
        writer.append(some(5))
        assert files.fired
    assert verify_journal(root).ok


def test_generated_ids_are_uuid7_of_the_clock(root):
    """Events without an id get UUIDv7s that carry the clock's milliseconds."""
    with open_writer(root) as writer:
        writer.append([Event(entity="a", kind="k") for _ in range(50)])
        ids = [event.id for batch in [writer.view().query(Query())] for event in batch.events()]
    assert len(set(ids)) == 50
    assert {one.version for one in ids} == {7}
    assert {one.int >> 80 for one in ids} == {1_700_000_000_000}
    assert {one.variant for one in ids} == {uuid.RFC_4122}


def test_the_logical_clock_goes_on_from_the_largest_seen(root):
    """A Lamport clock: given clocks push it forward, also across a reopen."""
    with open_writer(root) as writer:
        writer.append([Event(entity="a", kind="k")])
        writer.append([Event(entity="a", kind="k", clock=100)])
        writer.append([Event(entity="a", kind="k"), Event(entity="a", kind="k")])
    with open_writer(root) as writer:
        writer.append([Event(entity="a", kind="k")])
        assert [e.clock for e in writer.view().query(Query()).events()] == [1, 100, 101, 102, 103]


@pytest.mark.parametrize(
    "name", ["interval_ms", "segment_bytes", "group_bytes_max", "checkpoint_bytes", "compact_bytes"]
)
def test_settings_are_checked(name):
    """A knob that cannot work is refused by name."""
    with pytest.raises(InvalidInputError) as caught:
        JournalSettings(**{name: 0})
    assert caught.value.facts["setting"] == name


def test_group_bytes_max_bounds_a_group(root):
    """With a tiny bound every batch is a group of its own."""
    for bound, fewer in ((1, False), (1 << 20, True)):
        files = FaultyFiles()
        with open_writer(root / str(bound), files, group_bytes_max=bound) as writer:
            with writer._exclusive():
                tickets = [writer.submit(some(1, start=n)) for n in range(12)]
            for ticket in tickets:
                ticket.wait(10_000)
            assert (files.calls.count("fdatasync") < 12) is fewer


def test_checkpoint_bytes_says_how_often_the_index_is_saved(root):
    """A small value writes index checkpoints while appending, a large one only on close."""
    for bound, there in ((100, True), (1 << 30, False)):
        with open_writer(root / str(bound), checkpoint_bytes=bound) as writer:
            for n in range(5):
                writer.append(some(2, start=2 * n))
            deadline = threading.Event()
            for _ in range(200):
                if (root / str(bound) / "index.ckpt").exists():
                    break
                deadline.wait(0.01 if there else 0.0005)
            assert (root / str(bound) / "index.ckpt").exists() is there


def test_a_writer_is_not_usable_after_fork(root):
    """A forked child must not write through its parent's lock."""
    writer = open_writer(root)
    writer.append(some(1))
    writer._core.lock.pid += 1
    with pytest.raises(FencedError):
        writer.append(some(1, start=1))
    writer._core.lock.pid -= 1
    writer.close()


def test_vectorised_and_single_event_paths_store_the_same(root):
    """The Arrow path and the event path give equal events."""
    events = some(6, wall_us=5, clock=3)
    columns = {
        "id": pa.array([e.id.bytes for e in events], pa.binary(16)),
        "correlation": pa.array([e.correlation.bytes for e in events], pa.binary(16)),
        "causation": pa.array([e.causation.bytes if e.causation else None for e in events], pa.binary(16)),
        "entity": [e.entity for e in events], "scope": [e.scope for e in events],
        "kind": [e.kind for e in events], "payload": [e.payload for e in events],
        "wall_time": pa.array(np.full(6, 5), pa.timestamp("us", "UTC")), "clock": [3] * 6,
    }  # fmt: skip
    found = []
    for name, batch in (("a", events), ("b", pa.record_batch(columns))):
        with open_writer(root / name) as writer:
            writer.append(batch)
            found.append(writer.view().query(Query()).events())
    assert found[0] == found[1]


def test_a_journal_that_must_exist_is_not_created(root):
    """create=False on an empty place is NotFoundError and makes no directory."""
    with pytest.raises(KeyError):
        JournalWriter(root, create=False)
    assert not root.exists()


def test_segments_are_rolled_by_size(root):
    """Several segments, each named by its first sequence, all verified."""
    receipts = fill(root)
    names = sorted(p.name for p in (root / "segments").glob("*.seg"))
    assert len(names) > 2
    firsts = {f"{r.first_sequence:020d}.seg" for r in receipts}
    assert set(names) <= firsts | {f"{receipts[-1].next_sequence:020d}.seg"}
    assert verify_journal(root, deep=True).ok
