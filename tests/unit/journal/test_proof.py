"""Receipts and event proofs hold without the journal's index, and nothing forged holds."""

import random
from itertools import pairwise

import pyarrow as pa
import pytest
from blake3 import blake3

from holdfast.errors import CorruptionError, InvalidInputError, NotFoundError
from holdfast.journal import (
    EventProof,
    JournalReader,
    Receipt,
    check_event,
    check_receipt,
    prove_event,
)
from holdfast.journal.format.blake3_tree import (
    CHUNK_BYTES,
    check_chunks,
    chunk_count,
    prove_chunks,
    root_hash,
)
from holdfast.journal.format.frame import BadFrameError
from tests.helpers.journals import fill, open_writer, some

SIZES = [0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 2049, 3073, 7 * 1024, 8 * 1024 + 1, 40_000]


@pytest.mark.parametrize("size", SIZES)
def test_the_opened_tree_is_blake3(size):
    """The numpy tree gives the hash of the blake3 package, and proofs lead to it."""
    data = random.Random(size).randbytes(size)
    wanted = blake3(data).digest()
    assert root_hash(memoryview(data)) == wanted
    chance = random.Random(size)
    for _ in range(3):
        some_chunks = chance.sample(
            range(chunk_count(size)), min(chunk_count(size), chance.randint(1, 4))
        )
        hashes = prove_chunks(memoryview(data), some_chunks)
        chunks = {n: data[n * CHUNK_BYTES : (n + 1) * CHUNK_BYTES] for n in some_chunks}
        assert check_chunks(size, chunks, hashes) == wanted


def test_a_proof_of_the_wrong_shape_is_refused():
    """Missing, extra or broken hashes and chunks never pass."""
    data = random.Random(1).randbytes(5000)
    hashes = prove_chunks(memoryview(data), [1])
    chunks = {1: data[1024:2048]}
    for bad_chunks, bad_hashes in (
        (chunks, hashes[:-1]),
        (chunks, [*hashes, bytes(32)]),
        (chunks, [hashes[0][:31], *hashes[1:]]),
        ({}, hashes),
        ({9: data[:1024]}, hashes),
        ({1: data[1024:2047]}, hashes),
    ):
        with pytest.raises(BadFrameError):
            check_chunks(5000, bad_chunks, bad_hashes)
    for chunk, moved in (({1: data[:1024]}, hashes), ({2: data[1024:2048]}, hashes)):
        assert check_chunks(5000, chunk, moved) != blake3(data).digest()


@pytest.fixture
def receipts(root):
    found = fill(root)
    with open_writer(root) as writer:
        texts = pa.array([f"customer-{i}" for i in range(400)])
        found.append(
            writer.append(
                pa.record_batch(
                    {"entity": texts, "kind": texts, "payload": texts.cast(pa.binary())}
                )
            )
        )
        found.append(
            writer.append(
                pa.record_batch(
                    {
                        "entity": texts,
                        "kind": texts,
                        "payload": pa.array([{"a": i} for i in range(400)]),
                    }
                )
            )
        )
        found.append(
            writer.append(
                pa.record_batch(
                    {"entity": ["a", "b"], "kind": ["k", "k"], "payload": ["1", '"two"']}
                )
            )
        )
    return found


def test_every_event_can_be_proved_against_the_receipt_of_its_batch(root, receipts):
    """A proof, sent as text, gives back the event that the journal holds."""
    with JournalReader(root) as reader:
        view = reader.view()
        for receipt in receipts:
            for sequence in {
                receipt.first_sequence,
                receipt.last_sequence,
                (receipt.first_sequence + receipt.last_sequence) // 2,
            }:
                proof = EventProof.from_json(prove_event(view, sequence).to_json())
                assert check_event(proof, receipt.chain_after) == view.get(sequence)


def test_a_proof_is_much_smaller_than_its_batch(root, receipts):
    """One event of a large batch is proved with some chunks, not with the batch."""
    with open_writer(root) as writer:
        texts = pa.array([f"customer-{i}" for i in range(20_000)])
        receipt = writer.append(
            pa.record_batch(
                {"entity": texts, "kind": ["k"] * 20_000, "payload": texts.cast(pa.binary())}
            )
        )
        proof = prove_event(writer.view(), receipt.first_sequence + 777)
    assert sum(map(len, proof.chunks.values())) + 32 * len(proof.hashes) < 16_000


def test_no_changed_bit_of_a_proof_passes(root, receipts):
    """Flip any byte of header, chunks or hashes, or name another event: refused, or the same event."""
    with JournalReader(root) as reader:
        proof = prove_event(reader.view(), 42)
        wanted = reader.view().get(42)
    receipt = receipts[8]
    assert check_event(proof, receipt.chain_after) == wanted

    def changed(data, at):
        data = bytearray(data)
        data[at] ^= 1
        return bytes(data)

    variants = [
        EventProof(
            sequence=42, header=changed(proof.header, at), chunks=proof.chunks, hashes=proof.hashes
        )
        for at in range(0, 160, 7)
    ]
    for number, chunk in proof.chunks.items():
        variants += [
            EventProof(
                sequence=42,
                header=proof.header,
                chunks={**proof.chunks, number: changed(chunk, at)},
                hashes=proof.hashes,
            )
            for at in range(0, len(chunk), 499)
        ]
        without = {k: v for k, v in proof.chunks.items() if k != number}
        variants.append(
            EventProof(sequence=42, header=proof.header, chunks=without, hashes=proof.hashes)
        )
    for number in range(len(proof.hashes)):
        hashes = [changed(h, 3) if n == number else h for n, h in enumerate(proof.hashes)]
        variants.append(
            EventProof(sequence=42, header=proof.header, chunks=proof.chunks, hashes=hashes)
        )
    for variant in variants:
        with pytest.raises(CorruptionError):
            check_event(variant, receipt.chain_after)
    with pytest.raises(CorruptionError):
        check_event(proof, receipts[0].chain_after)
    with pytest.raises(InvalidInputError):
        EventProof.from_json("{}")


def test_a_receipt_is_checked_with_segments_alone(root, receipts):
    """No checkpoint, no look-up index, no meta file: the receipt still finds its frame."""
    for path in (
        root / "index.ckpt",
        root / "durable.mark",
        root / "journal.meta",
        *(root / "segments").glob("*.idx"),
    ):
        path.unlink()
    for receipt in receipts:
        again = Receipt.from_json(receipt.to_json())
        assert check_receipt(root, again).chain_hash.hex() == receipt.chain_after


def test_a_forged_receipt_is_refused(receipts):
    """A receipt whose fields do not follow from its header does not load."""
    text = receipts[0].to_json()
    for old, new in (
        ('"count":5', '"count":6'),
        (receipts[0].chain_after, "0" * 64),
        (receipts[0].chain_before, "1" * 64),
    ):
        with pytest.raises(CorruptionError):
            Receipt.from_json(text.replace(old, new))
    with pytest.raises(InvalidInputError):
        Receipt.from_json("[]")


def test_receipts_link_to_a_chain(receipts):
    """The chain hash after one append is the one before the next."""
    for one, following in pairwise(receipts):
        assert one.chain_after == following.chain_before


def test_a_receipt_of_what_is_gone_says_so(root, receipts):
    """Truncated away, or past a shortened end: NotFoundError, not damage."""
    with open_writer(root) as writer:
        writer.truncate_before(30)
    with pytest.raises(NotFoundError):
        check_receipt(root, receipts[0])
    with open_writer(root.parent / "short") as writer:
        writer.append(some(1))
    with pytest.raises(NotFoundError):
        check_receipt(root.parent / "short", receipts[3])
