"""Rows of a task beyond its budget: through a file without a name, in order of vnodes."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InternalError, InvalidInputError, StorageError
from holdfast.operators.columns import HASH, WEIGHT
from holdfast.runtime import spool as spools
from holdfast.runtime.spool import Spool
from holdfast.state.run_info import ALL_VNODES, VnodeRange
from tests.helpers.effort import examples

HEAVY = (3 << 56) | 7


def batch(hashes: list[int], start: int = 0, weight: int = 1) -> pa.RecordBatch:
    return pa.record_batch(
        {
            HASH: pa.array(np.array(hashes, np.uint64).view(np.int64)),
            "n": pa.array(range(start, start + len(hashes))),
            WEIGHT: pa.array([weight] * len(hashes), pa.int64()),
        }
    )


HASHES = st.one_of(
    st.just(HEAVY), st.integers(0, 2**64 - 1), st.integers(0, 5).map(lambda n: n << 40)
)


@given(
    st.lists(st.lists(HASHES, min_size=1, max_size=30), min_size=1, max_size=6),
    st.sampled_from([1, 60, 300, 2_000]),
    st.booleans(),
)
@examples(60)
def test_pieces_have_every_row_once_and_keep_the_order_of_a_key(batches, budget, whole) -> None:
    """Ranges cover all vnodes and ascend; steps of a piece do not mix keys that fit."""
    expected: dict[int, list[int]] = {}
    number = 0
    with Spool(budget) as spool:
        for hashes in batches:
            spool.add(batch(hashes, number))
            for value in hashes:
                expected.setdefault(value, []).append(number)
                number += 1
        end = 0
        found: dict[int, list[int]] = {}
        for piece in spool.pieces(ALL_VNODES, budget, whole=whole):
            assert piece.vnodes.low == end
            end = piece.vnodes.high
            calls: dict[int, int] = {}
            for rows in piece.steps:
                values = rows.column(HASH).to_numpy().view(np.uint64).tolist()
                for value, n in zip(values, rows.column("n").to_pylist(), strict=True):
                    assert piece.vnodes.low <= value >> 56 < piece.vnodes.high
                    found.setdefault(value, []).append(n)
                for value in set(values):
                    calls[value] = calls.get(value, 0) + 1
            assert not whole or set(calls.values()) <= {1}
    assert end == 256
    assert found == expected


def test_rows_that_add_come_before_rows_that_retract_where_a_key_is_cut() -> None:
    """A retraction never meets a state without its row."""
    with Spool(1) as spool:
        spool.add(batch([HEAVY] * 10, weight=-1))
        spool.add(batch([HEAVY] * 10))
        (piece,) = [p for p in spool.pieces(ALL_VNODES, 100, whole=False) if p.several]
        weights = [w for rows in piece.steps for w in rows.column(WEIGHT).to_pylist()]
    assert weights == [1] * 10 + [-1] * 10


def test_what_fits_is_neither_copied_nor_written() -> None:
    """The usual epoch: one batch in, the same batch out."""
    rows = batch([1, 2, 3])
    with Spool(1 << 20) as spool:
        spool.add(rows)
        (piece,) = spool.pieces(ALL_VNODES, 1 << 20, whole=False)
        (out,) = piece.steps
        assert not spool.spilled
    assert out.column("n").buffers()[1].address == rows.column("n").buffers()[1].address


def test_the_file_has_no_name_while_it_is_used(tmp_path) -> None:
    """So a kill leaves nothing, and nothing has to be removed."""
    with Spool(1, [str(tmp_path)]) as spool:
        spool.add(batch([1, 2, 3]))
        assert spool.spilled
        assert os.listdir(tmp_path) == []
        open_here = [
            os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if _there(n)
        ]
        assert any(str(tmp_path) in name for name in open_here)
    open_here = [
        os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if _there(n)
    ]
    assert not any(str(tmp_path) in name for name in open_here)


def _there(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")


def test_a_key_that_cannot_be_gathered_is_named(monkeypatch) -> None:
    """The heaviest one, not just any of its vnode."""
    monkeypatch.setattr(spools, "GATHERED_BYTES_MAX", 1)
    with Spool(1) as spool:
        spool.add(batch([HEAVY + 1, *[HEAVY] * 20], start=5))
        with pytest.raises(InvalidInputError) as caught:
            list(spool.pieces(ALL_VNODES, 10, whole=True))
    assert caught.value.kind == "key_too_large"
    assert (caught.value.facts["rows"], caught.value.facts["sample_key"]) == (20, "n=6")


def test_rows_of_another_partition_are_never_left_out() -> None:
    """They are a defect of the shuffle."""
    with Spool(1) as spool:
        spool.add(batch([1, 200 << 56]))
        with pytest.raises(InternalError):
            list(spool.pieces(VnodeRange(0, 128), 1, whole=False))


def test_a_full_disk_is_named(tmp_path) -> None:
    """With the remedy, and it can be tried again."""
    with Spool(1, [str(tmp_path / "gone")]) as spool, pytest.raises(StorageError) as caught:
        spool.add(batch([1]))
    assert (caught.value.kind, caught.value.retryable) == ("spill_failed", True)
