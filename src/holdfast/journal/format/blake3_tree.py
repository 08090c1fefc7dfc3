"""BLAKE3's own tree, opened up: chunk hashes, parents, and proofs for chosen chunks.

A body hash in a frame header is plain BLAKE3, computed by the `blake3` package at full speed.
BLAKE3 is a Merkle tree over chunks of 1,024 bytes, so proving a few chunks needs no second hash:
only the inner nodes, which the package does not show. This module computes them, vectorised over
chunks, when a proof is asked for. Never on the path of an append.

Invariants:
- `root_hash(data)` equals `blake3(data).digest()` for every input; the tests compare them.
- A proof verifies only if every chunk in it has its place and content in the hashed data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.journal.format.frame import BadFrameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CHUNK_BYTES = 1024
_BLOCK_BYTES = 64
_START, _END, _PARENT, _ROOT = 1, 2, 4, 8
_IV = np.array(
    [
        0x6A09E667,
        0xBB67AE85,
        0x3C6EF372,
        0xA54FF53A,
        0x510E527F,
        0x9B05688C,
        0x1F83D9AB,
        0x5BE0CD19,
    ],
    dtype=np.uint32,
)
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
            (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))  # fmt: skip
Array = np.ndarray[Any, Any]


def _rotate(word: Array, bits: int) -> Array:
    return (word >> np.uint32(bits)) | (word << np.uint32(32 - bits))


def _compress(chain: Array, words: Array, counter: Array, length: int, flags: int) -> Array:
    """The compression function over lanes: chain (8, n), words (16, n), counter (n)."""
    lanes = words.shape[1]
    state: list[Array] = [chain[i] for i in range(8)]
    state += [np.full(lanes, _IV[i], dtype=np.uint32) for i in range(4)]
    state += [
        (counter & np.uint64(0xFFFFFFFF)).astype(np.uint32),
        (counter >> np.uint64(32)).astype(np.uint32),
        np.full(lanes, length, dtype=np.uint32),
        np.full(lanes, flags, dtype=np.uint32),
    ]
    message = [words[i] for i in range(16)]
    with np.errstate(over="ignore"):
        for _ in range(7):
            for number, (a, b, c, d) in enumerate(_COLUMNS):
                state[a] = state[a] + state[b] + message[2 * number]
                state[d] = _rotate(state[d] ^ state[a], 16)
                state[c] = state[c] + state[d]
                state[b] = _rotate(state[b] ^ state[c], 12)
                state[a] = state[a] + state[b] + message[2 * number + 1]
                state[d] = _rotate(state[d] ^ state[a], 8)
                state[c] = state[c] + state[d]
                state[b] = _rotate(state[b] ^ state[c], 7)
            message = [message[i] for i in _PERMUTATION]
    return np.stack([state[i] ^ state[i + 8] for i in range(8)])


def _lanes(count: int) -> Array:
    return np.repeat(_IV[:, None], count, axis=1)


def _hash_chunks(data: bytes, numbers: Array, *, root: bool) -> Array:
    """Chaining values (n, 8) of equally long chunks that lie one after another in `data`."""
    count = len(numbers)
    wide = len(data) // count if count else 0
    blocks = max(-(-wide // _BLOCK_BYTES), 1)
    padded = np.zeros((count, blocks * _BLOCK_BYTES), dtype=np.uint8)
    padded[:, :wide] = np.frombuffer(data, dtype=np.uint8).reshape(count, wide)
    words = padded.view("<u4").reshape(count, blocks, 16)
    chain = _lanes(count)
    for block in range(blocks):
        last = block == blocks - 1
        flags = (_START if block == 0 else 0) | (_END if last else 0)
        flags |= _ROOT if last and root else 0
        length = wide - block * _BLOCK_BYTES if last else _BLOCK_BYTES
        chain = _compress(chain, words[:, block].T.astype(np.uint32), numbers, length, flags)
    return chain.T


def _merge(left: Array, right: Array, *, root: bool) -> Array:
    """Parents (n, 8) of pairs of chaining values."""
    words = np.concatenate([left, right], axis=1).T
    count = words.shape[1]
    flags = _PARENT | (_ROOT if root else 0)
    return _compress(_lanes(count), words, np.zeros(count, np.uint64), _BLOCK_BYTES, flags).T


def chunk_count(size: int) -> int:
    """How many chunks so many bytes make; nothing is one empty chunk."""
    return max(-(-size // CHUNK_BYTES), 1)


def _leaves(data: memoryview) -> Array:
    count = chunk_count(len(data))
    whole = len(data) // CHUNK_BYTES
    parts = []
    if whole:
        numbers = np.arange(whole, dtype=np.uint64)
        parts.append(_hash_chunks(bytes(data[: whole * CHUNK_BYTES]), numbers, root=count == 1))
    if whole < count:
        rest = bytes(data[whole * CHUNK_BYTES :])
        parts.append(_hash_chunks(rest, np.array([whole], np.uint64), root=count == 1))
    return np.concatenate(parts)


def _levels(leaves: Array) -> list[Array]:
    levels = [leaves]
    while len(levels[-1]) > 1:
        level = levels[-1]
        pairs = len(level) // 2
        parents = _merge(level[0 : 2 * pairs : 2], level[1 : 2 * pairs : 2], root=len(level) == 2)
        levels.append(np.concatenate([parents, level[2 * pairs :]]))
    return levels


def _digest(value: Array) -> bytes:
    return value.astype("<u4").tobytes()


def root_hash(data: memoryview) -> bytes:
    """BLAKE3 of the data, the slow way."""
    return _digest(_levels(_leaves(data))[-1][0])


def prove_chunks(data: memoryview, wanted: Iterable[int]) -> list[bytes]:
    """The hashes that lead from the wanted chunks to the root, level by level."""
    known = sorted(set(wanted))
    hashes = []
    for level in _levels(_leaves(data))[:-1]:
        for number in known:
            sibling = number ^ 1
            if sibling < len(level) and sibling not in known:
                hashes.append(_digest(level[sibling]))
        known = sorted({number // 2 for number in known})
    return hashes


def check_chunks(size: int, chunks: Mapping[int, bytes], hashes: Sequence[bytes]) -> bytes:
    """The root that these chunks and hashes lead to; the caller compares it.

    Raises:
        BadFrameError: The proof has the wrong shape.
    """
    count = chunk_count(size)
    for number, data in chunks.items():
        if not 0 <= number < count:
            raise BadFrameError("proof", "a chunk lies outside the body")
        if len(data) != min(CHUNK_BYTES, size - number * CHUNK_BYTES):
            raise BadFrameError("proof", "a chunk has the wrong length")
    if not chunks or any(len(one) != 32 for one in hashes):
        raise BadFrameError("proof", "the proof has no chunks, or broken hashes")
    left = list(hashes)
    nodes: dict[int, Array] = {}
    for whole in (True, False):
        some = [n for n in sorted(chunks) if (len(chunks[n]) == CHUNK_BYTES) is whole]
        if some:
            data = b"".join(chunks[number] for number in some)
            found = _hash_chunks(data, np.array(some, np.uint64), root=count == 1)
            nodes.update(zip(some, found, strict=True))
    while count > 1:
        nodes = _climb(nodes, left, count)
        count = -(-count // 2)
    if left:
        raise BadFrameError("proof", "the proof has hashes left over")
    return _digest(nodes[0])


def _climb(nodes: Mapping[int, Array], left: list[bytes], count: int) -> dict[int, Array]:
    full = dict(nodes)
    for number in sorted(nodes):
        sibling = number ^ 1
        if sibling < count and sibling not in nodes:
            if not left:
                raise BadFrameError("proof", "the proof lacks hashes")
            full[sibling] = np.frombuffer(left.pop(0), "<u4").astype(np.uint32)
    pairs = sorted({number // 2 for number in full if number | 1 < count})
    parents: dict[int, Array] = {}
    if pairs:
        left_side = np.stack([full[2 * number] for number in pairs])
        right_side = np.stack([full[2 * number + 1] for number in pairs])
        merged = _merge(left_side, right_side, root=count == 2)
        parents.update(zip(pairs, merged, strict=True))
    if count % 2 and count - 1 in full:
        parents[count // 2] = full[count - 1]
    return parents
