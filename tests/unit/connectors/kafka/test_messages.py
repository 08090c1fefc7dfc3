"""Staged rows as messages: the last message of a key is its state."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.kafka.messages import messages, passes
from tests.helpers.effort import examples

BEFORE, AFTER = st.dictionaries(st.integers(0, 5), st.integers(0, 3)), st.dictionaries(
    st.integers(0, 5), st.integers(0, 3)
)  # fmt: skip


def batches(before, after, rng):
    """The changes from one table to another, in batches as tasks might stage them."""
    rows = [(k, v, -1) for k, v in before.items() if after.get(k) != v]
    rows += [(k, v, 1) for k, v in after.items() if before.get(k) != v]
    rng.shuffle(rows)
    cut = rng.randint(0, len(rows))
    for part in (rows[:cut], rows[cut:]):
        columns = list(zip(*part, strict=True)) or [(), (), ()]
        yield pa.record_batch(
            {"k": pa.array(columns[0], pa.int64()), "v": pa.array(columns[1], pa.int64()),
             "_weight": pa.array(columns[2], pa.int64())}
        )  # fmt: skip


def sent(parts, mode):
    found = []
    for which in passes(mode, retracts=True):
        for rows in parts:
            for batch in messages(rows, mode, ["k"], which):
                found += zip(batch.keys, batch.values, strict=True)
    return found


@examples(200)
@given(BEFORE, AFTER, st.randoms(use_true_random=False))
def test_upserts_turn_one_table_into_the_other_wherever_rows_were_staged(before, after, rng):
    """Applied in order, keys without value are deleted: the table is the new one."""
    table = {str(k).encode(): v for k, v in before.items()}
    for key, value in sent([*batches(before, after, rng)], "upsert"):
        if value is None:
            table.pop(key, None)
        else:
            table[key] = json.loads(value)["v"]
    assert table == {str(k).encode(): v for k, v in after.items()}


@examples(200)
@given(BEFORE, AFTER, st.randoms(use_true_random=False))
def test_envelopes_turn_one_table_into_the_other_and_never_contradict_it(before, after, rng):
    """A consumer that checks every image before finds it as it stands."""
    table = dict(before)
    for key, value in sent([*batches(before, after, rng)], "debezium"):
        envelope = json.loads(value)
        old, new = envelope["before"], envelope["after"]
        assert (old is None, new is None) == {
            "c": (True, False), "u": (False, False), "d": (False, True),
        }[envelope["op"]]  # fmt: skip
        if old is not None:
            assert key == str(old["k"]).encode()
            assert table.pop(old["k"]) == old["v"]
        if new is not None:
            assert new["k"] not in table
            table[new["k"]] = new["v"]
    assert table == after


def test_changelogs_keep_every_row_and_its_weight():
    """No row is left out, and a key of several columns is an object."""
    rows = pa.record_batch({"a": ["x", None], "b": [1, 2], "_weight": [2, -1]})
    (batch,) = messages(rows, "changelog", ["a", "b"], "all")
    assert batch.keys == [b'{"a":"x","b":1}', b'{"a":null,"b":2}']
    assert [json.loads(v)["_weight"] for v in batch.values] == [2, -1]
    (plain,) = messages(rows, "changelog", [], "all")
    assert plain.keys == [None, None]
