"""Decoders fed with anything: the right answer or a typed error, within bounds."""

import struct
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.journal import (
    Event,
    EventProof,
    JournalSplit,
    Position,
    Receipt,
    SeededEventIds,
    check_event,
)
from holdfast.journal.batch import prepare
from holdfast.journal.format.blob import (
    CHECKPOINT_MAGIC,
    META_MAGIC,
    IndexCheckpoint,
    JournalMeta,
    pack_blob,
    unpack_blob,
)
from holdfast.journal.format.columns import BodyReader
from holdfast.journal.format.frame import (
    BadFrameError,
    FrameHeader,
    crc32c,
    hash_bytes,
    pack_header,
    pack_trailer,
    read_frame,
)
from holdfast.journal.format.index import build_index, mix_keys, pack_index, unpack_index
from holdfast.journal.format.segment import unpack_segment_header, unpack_trailer
from holdfast.journal.frame_scan import FrameScan, judge_tail, scan_frames
from tests.helpers.effort import examples

profile = examples(150)
ID = bytes(16)


def frame_of(batch, first=0, previous=bytes(32)):
    header = FrameHeader(
        int(batch.kind),
        batch.count,
        first,
        0,
        len(batch.body),
        5,
        5,
        5,
        1,
        batch.count,
        previous,
        batch.body_hash,
        ID,
    )
    head = pack_header(header)
    trailer, chain = pack_trailer(head, batch.crc)
    return head + batch.body + trailer, header, chain


def sample(kind):
    payload = {"bytes": b"abc", "json": '{"a":1}', "columns": {"a": 1, "b": "x"}}[kind]
    events = [
        Event(
            entity=f"e{i % 3}",
            kind="k",
            scope=f"s{i}",
            payload=payload,
            correlation=uuid.UUID(int=i),
        )
        for i in range(6)
    ]
    return prepare(events, SeededEventIds(1), 5)


SAMPLES = [sample(kind) for kind in ("bytes", "json", "columns")]
edits = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=6)


def edited(data, changes):
    data = bytearray(data)
    for at, value in changes:
        data[at % len(data)] = value
    return bytes(data)


@profile
@given(st.binary(max_size=400))
def test_random_bytes_are_never_a_frame_and_never_crash(data):
    """Random bytes raise the one error of each decoder."""
    for decode in (
        lambda: read_frame(memoryview(data)),
        lambda: unpack_segment_header(data),
        lambda: unpack_trailer(data[-128:], len(data)),
        lambda: unpack_blob(data, CHECKPOINT_MAGIC, IndexCheckpoint),
        lambda: unpack_index(memoryview(data), ID, 0, 1, bytes(32)),
    ):
        try:
            decode()
        except BadFrameError:
            continue
        raise AssertionError("random bytes were accepted")


@profile
@given(st.sampled_from(SAMPLES), edits)
def test_an_edited_frame_is_refused_or_unchanged(batch, changes):
    """Whatever bytes change, CRC and hashes notice."""
    data, _, _ = frame_of(batch)
    broken = edited(data, changes)
    try:
        frame = read_frame(memoryview(broken))
    except BadFrameError:
        assert broken != data
        return
    assert broken == data
    assert bytes(frame.body) == batch.body


@profile
@given(st.sampled_from(SAMPLES), edits)
def test_a_forged_body_with_right_hashes_is_safe_to_decode(batch, changes):
    """A body edited by someone who also makes the hashes right gives valid Arrow or a typed error."""
    body = edited(batch.body, changes)
    header = FrameHeader(
        int(batch.kind),
        batch.count,
        0,
        0,
        len(body),
        5,
        5,
        5,
        1,
        6,
        bytes(32),
        hash_bytes(body),
        ID,
    )
    head = pack_header(header)
    trailer, _ = pack_trailer(head, crc32c(body))
    frame = read_frame(memoryview(head + body + trailer))
    try:
        found = BodyReader(frame.body, frame.header).batch()
    except BadFrameError:
        return
    found.validate(full=True)
    assert found.num_rows == batch.count
    assert found.nbytes < 100_000
    found.to_pylist()


@profile
@given(
    st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 255)), max_size=3),
    st.integers(0, 9000),
    st.integers(0, 20),
)
def test_a_walk_over_damaged_frames_yields_a_true_prefix(batches, changes, cut, durable):
    """Frames come out unchanged and in order, up to the damage; what was acknowledged is never cut."""
    data, previous, first, wanted = b"", bytes(32), 0, []
    for batch in batches:
        frame, header, previous = frame_of(batch, first, previous)
        wanted.append((len(data), frame, header.next_sequence))
        data += frame
        first += batch.count
    broken = edited(data, changes) if changes else data
    broken = broken[: len(broken) - cut % len(broken)] if cut % 3 == 0 else broken
    walk = FrameScan(ID, 0, 0, bytes(32))
    found = list(scan_frames(lambda at, size: broken[at : at + size], walk, len(broken)))
    for (offset, frame), (at, raw, _) in zip(found, wanted, strict=False):
        assert (offset, broken[offset : offset + frame.frame_bytes]) == (at, raw)
    if walk.problem is not None:
        verdict = judge_tail(walk, durable, memoryview(broken)[walk.offset :])
        if walk.sequence < durable:
            assert not verdict.cut
    else:
        assert walk.offset == len(broken)


@profile
@given(edits)
def test_an_edited_checkpoint_or_meta_is_refused_or_unchanged(changes):
    """The envelope's CRC covers every byte."""
    for value, magic in (
        (IndexCheckpoint(ID, 0, [], 0, 128, 0, bytes(32), 0, b""), CHECKPOINT_MAGIC),
        (JournalMeta(ID, 5, 0, bytes(32)), META_MAGIC),
    ):
        data = pack_blob(magic, value)
        broken = edited(data, changes)
        try:
            assert unpack_blob(broken, magic, type(value)) == value
            assert broken == data
        except BadFrameError:
            assert broken != data


@profile
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=20),
    st.integers(0, 3),
    st.integers(0, 5),
)
def test_a_lookup_index_finds_what_a_dictionary_finds(rows, wanted, entity):
    """Ids and texts of any batches: the index gives exactly the frames of a plain dictionary."""
    bodies, frames, ids = [], {}, {}
    for number, (a, b) in enumerate(rows):
        events = [
            Event(entity=f"e{a}", kind="k", id=uuid.UUID(int=100 * number + 1)),
            Event(entity=f"e{b}", kind="k", id=uuid.UUID(int=100 * number + 2)),
        ]
        batch = prepare(events, SeededEventIds(1), 5)
        data, header, _ = frame_of(batch, 2 * number)
        bodies.append(BodyReader(memoryview(batch.body), header))
        for value in {a, b}:
            frames.setdefault(value, []).append(number)
        ids[100 * number + 1], ids[100 * number + 2] = 2 * number, 2 * number + 1
    packed = pack_index(build_index(0, bodies), ID, 2 * len(rows), bytes(32))
    index = unpack_index(memoryview(packed), ID, 0, 2 * len(rows), bytes(32))
    assert index.texts["entity"].find(f"e{entity}").tolist() == frames.get(entity, [])
    keys = np.frombuffer(b"".join(uuid.UUID(int=n).bytes for n in (*ids, 7)), ">u8").reshape(-1, 2)
    which, sequences = index.find_ids(mix_keys(keys))
    assert dict(zip(which.tolist(), sequences.tolist(), strict=True)) == dict(
        enumerate(ids.values())
    )


@profile
@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda b: b.decode("latin-1")))
def test_texts_that_are_no_values_are_typed_errors(text):
    """Positions, receipts, slices and proofs read from any text: a value or a HoldfastError."""
    for kind in (Position, Receipt, JournalSplit, EventProof):
        try:
            kind.from_json(text)
        except HoldfastError:
            continue
        raise AssertionError("nonsense was accepted")


@profile
@given(
    st.binary(max_size=200),
    st.dictionaries(st.integers(-1, 5), st.binary(max_size=80), max_size=3),
    st.lists(st.binary(max_size=40), max_size=3),
)
def test_nonsense_proofs_are_typed_errors(header, chunks, hashes):
    """Any header, chunks and hashes: a HoldfastError, bounded work."""
    proof = EventProof(sequence=0, header=header, chunks=chunks, hashes=hashes)
    try:
        check_event(proof, hash_bytes(header).hex())
    except HoldfastError:
        return
    raise AssertionError("nonsense was accepted")


def test_a_length_that_asks_for_too_much_is_refused_before_it_is_read():
    """A header that claims a body of 2^62 bytes is refused by its length alone."""
    data = bytearray(frame_of(SAMPLES[0])[0])
    struct.pack_into("<Q", data, 32, 1 << 62)
    with pytest.raises(BadFrameError) as caught:
        read_frame(memoryview(bytes(data)))
    assert caught.value.reason == "header"


def test_a_frame_with_another_sequence_or_journal_is_refused_though_its_hashes_are_right():
    """Order and journal are checked on their own, not only through the chain."""
    data, _, _ = frame_of(SAMPLES[0], first=6)
    for walk, reason in (
        (FrameScan(ID, 0, 0, bytes(32)), "order"),
        (FrameScan(bytes([1]) * 16, 0, 6, bytes(32)), "foreign"),
        (FrameScan(ID, 0, 6, bytes([1]) * 32), "chain"),
    ):
        assert list(scan_frames(lambda at, size: data[at : at + size], walk, len(data))) == []
        assert walk.problem.reason == reason


def test_arrow_streams_inside_a_body_are_validated():
    """A typed payload that is no Arrow stream is a typed error."""
    from holdfast.journal.format.columns import decode_columns

    for data in (b"", b"nonsense" * 20, bytes(64)):
        try:
            decode_columns(pa.py_buffer(data), 1)
        except BadFrameError:
            continue
        raise AssertionError("nonsense was accepted")
