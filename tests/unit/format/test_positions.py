"""Positions: typed, per partition, and ordered by laws."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import (
    CounterPosition,
    DeltaPosition,
    FilesPosition,
    JournalPosition,
    KafkaPosition,
    MysqlPosition,
    PostgresPosition,
)
from holdfast.errors import InvalidInputError
from holdfast.format.canonical import encode_value
from holdfast.format.position import Position, compare, lsn_number

OFFSETS = st.integers(0, 4)
SERVERS = [f"3e11fa47-71ca-11e1-9e33-c80aa942956{n}" for n in range(2)]


def _gtids(sets):
    """Spell sets of numbers as GTID sets, number by number or as intervals."""
    return MysqlPosition(
        gtids=[f"{server}:" + ":".join(map(str, sorted(n))) for server, n in sets.items() if n]
    )


KAFKA = st.builds(
    KafkaPosition,
    topics=st.dictionaries(
        st.sampled_from("ab"),
        st.dictionaries(st.sampled_from("01"), OFFSETS, max_size=2),
        max_size=2,
    ),
)
POSTGRES = st.builds(
    PostgresPosition,
    slots=st.dictionaries(
        st.sampled_from("st"), st.builds(lambda n: f"{n % 2:X}/{n:X}", OFFSETS), max_size=2
    ),
)
MYSQL = st.dictionaries(
    st.sampled_from(SERVERS), st.sets(st.integers(1, 5), max_size=5), max_size=2
).map(_gtids)
DELTA = st.builds(DeltaPosition, table=st.sampled_from("tu"), version=OFFSETS, files=OFFSETS)
JOURNAL = st.builds(
    JournalPosition, journal=st.sampled_from("jk"), segment=st.just(0), offset=OFFSETS,
    sequence=OFFSETS, chain=st.sampled_from(["a" * 64, "b" * 64]),
)  # fmt: skip
FILES = st.builds(FilesPosition, files=OFFSETS)
COUNTER = st.builds(
    CounterPosition, partitions=st.dictionaries(st.sampled_from("xyz"), OFFSETS, max_size=3)
)
KINDS = [KAFKA, POSTGRES, MYSQL, DELTA, JOURNAL, FILES, COUNTER]
PAIRS = st.one_of([st.tuples(kind, kind) for kind in KINDS])
TRIPLES = st.one_of([st.tuples(kind, kind, kind) for kind in KINDS])
MIRROR = {"equal": "equal", "before": "after", "after": "before", "diverged": "diverged"}


@given(st.one_of(KINDS))
def test_order_is_reflexive(position):
    """Every position equals itself."""
    assert compare(position, position) == "equal"


@given(PAIRS)
def test_order_is_antisymmetric(pair):
    """Seen from the other side, before is after, and the rest stays."""
    left, right = pair
    assert compare(right, left) == MIRROR[compare(left, right)]


@given(TRIPLES)
def test_order_is_transitive(triple):
    """What is reached by what is reached, is reached."""
    one, two, three = triple
    ahead = ("before", "equal")
    if compare(one, two) in ahead and compare(two, three) in ahead:
        assert compare(one, three) in ahead
    if compare(one, two) == "equal" and compare(two, three) == "equal":
        assert compare(one, three) == "equal"


@given(st.tuples(st.one_of(KINDS), st.one_of(KINDS)))
def test_connectors_do_not_mix(pair):
    """Positions of two connectors diverge, whatever they hold."""
    left, right = pair
    if type(left) is not type(right):
        assert compare(left, right) == "diverged"


@given(
    sets=st.tuples(
        *[
            st.dictionaries(
                st.sampled_from(SERVERS), st.sets(st.integers(1, 6), min_size=1), max_size=2
            )
        ]
        * 2
    )
)
def test_gtid_sets_follow_python_sets(sets):
    """The order of GTID sets is that of Python's sets, server by server."""
    left, right = sets
    contains = all(numbers <= right.get(server, set()) for server, numbers in left.items())
    contained = all(numbers <= left.get(server, set()) for server, numbers in right.items())
    expected = {(True, True): "equal", (True, False): "before", (False, True): "after"}
    assert compare(_gtids(left), _gtids(right)) == expected.get((contains, contained), "diverged")


def test_a_partition_that_was_added_later_is_progress():
    """A new partition moves a source on; the others stay where they are."""
    before = KafkaPosition(topics={"t": {"0": 5, "1": 7}})
    after = KafkaPosition(topics={"t": {"0": 5, "1": 7, "2": 0}})
    assert compare(before, after) == "before"
    assert compare(after, before) == "after"


def test_a_partition_that_vanished_is_divergence_when_others_moved_on():
    """Losing a partition is never progress."""
    before = KafkaPosition(topics={"t": {"0": 5, "1": 7}})
    assert compare(before, KafkaPosition(topics={"t": {"0": 6}})) == "diverged"


def test_one_partition_back_and_one_forward_is_divergence():
    """A source is before another position only if it is so in every partition."""
    left = CounterPosition(partitions={"a": 1, "b": 2})
    assert compare(left, CounterPosition(partitions={"a": 2, "b": 1})) == "diverged"


def test_lsns_compare_as_numbers_and_not_as_text():
    """`0/9` is before `0/10` and far before `1/0`."""
    spell = lambda lsn: PostgresPosition(slots={"s": lsn})  # noqa: E731
    assert compare(spell("0/9"), spell("0/10")) == "before"
    assert compare(spell("0/FFFFFFFF"), spell("1/0")) == "before"
    assert lsn_number("16/B374D848") == 0x16B374D848


def test_a_replaced_delta_table_diverges():
    """Another table id is another table, however high its version."""
    assert (
        compare(DeltaPosition(table="a", version=9), DeltaPosition(table="b", version=10))
        == "diverged"
    )


@given(st.one_of(KINDS))
def test_positions_survive_storage(position):
    """A position is read back as the same type and value, from canonical bytes."""
    data = encode_value(position)
    assert msgspec.json.decode(data, type=Position, strict=True) == position
    assert encode_value(msgspec.json.decode(data, type=Position)) == data


@pytest.mark.parametrize(
    "make",
    [
        lambda: KafkaPosition(topics={"t": {"x": 1}}),
        lambda: KafkaPosition(topics={"t": {"0": -1}}),
        lambda: KafkaPosition(topics={"t": {"0": 2**63}}),
        lambda: PostgresPosition(slots={"s": "0/x"}),
        lambda: PostgresPosition(slots={"s": "123456789/0"}),
        lambda: MysqlPosition(gtids=["x:1"]),
        lambda: MysqlPosition(gtids=[f"{SERVERS[0]}:5-3"]),
        lambda: MysqlPosition(gtids=[f"{SERVERS[0]}:0"]),
        lambda: MysqlPosition(gtids=[f"{SERVERS[0]}:1", f"{SERVERS[0]}:2"]),
        lambda: DeltaPosition(table="t", version=-1),
        lambda: DeltaPosition(table="t", version=1, files=-1),
        lambda: JournalPosition(journal="j", segment=-1, offset=0, sequence=0, chain="a" * 64),
        lambda: JournalPosition(journal="j", segment=0, offset=0, sequence=0, chain="A" * 64),
        lambda: FilesPosition(files=-1),
        lambda: CounterPosition(partitions={"a": -1}),
    ],
)
def test_impossible_positions_are_refused(make):
    """A position that no source can have is an error of the caller."""
    with pytest.raises(InvalidInputError) as caught:
        make()
    assert caught.value.kind == "invalid_position"
