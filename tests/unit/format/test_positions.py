"""Positions: typed, per partition, and ordered by laws."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint import (
    CounterPosition,
    DeltaPosition,
    FilesPosition,
    IcebergPosition,
    JournalPosition,
    KafkaPosition,
    MysqlPosition,
    OpenPosition,
    PostgresPosition,
    PostgresSnapshot,
    TableProgress,
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


TOPIC_IDS = ["A" * 22, "B" * 22]
KAFKA = st.builds(
    lambda topics, ids: KafkaPosition(
        topics=topics, topic_ids={topic: name for topic, name in ids.items() if topic in topics}
    ),
    st.dictionaries(
        st.sampled_from("ab"),
        st.dictionaries(st.sampled_from("01"), OFFSETS, max_size=2),
        max_size=2,
    ),
    st.dictionaries(st.sampled_from("ab"), st.sampled_from(TOPIC_IDS), max_size=2),
)
SLOTS = st.dictionaries(
    st.sampled_from("st"), st.builds(lambda n: f"{n % 2:X}/{n:X}", OFFSETS), max_size=2
)
TABLES = st.dictionaries(
    st.sampled_from("pq"),
    st.builds(
        TableProgress, rows=st.integers(0, 2), done=st.booleans(),
        after=st.sampled_from([[], ["1"]]),
    ),
    max_size=2,
)  # fmt: skip
POSTGRES = st.builds(PostgresPosition, slots=SLOTS) | st.builds(
    PostgresPosition, slots=SLOTS, phase=st.just("snapshot"), tables=TABLES,
    snapshot=st.builds(PostgresSnapshot, xmin=st.just(3), xmax=st.integers(3, 4)),
)  # fmt: skip
MYSQL = st.dictionaries(
    st.sampled_from(SERVERS), st.sets(st.integers(1, 5), max_size=5), max_size=2
).map(_gtids)
PHASES = st.sampled_from(["follow", "snapshot"])
DELTA = st.builds(
    DeltaPosition, table=st.sampled_from("tu"), version=OFFSETS, files=OFFSETS, phase=PHASES
)
ICEBERG = st.builds(
    IcebergPosition, table=st.just("t"), snapshot=st.integers(0, 1), sequence=st.integers(0, 2),
    files=st.integers(0, 1), phase=PHASES,
)  # fmt: skip
OPEN = st.builds(
    OpenPosition, kind=st.sampled_from("ab"), order=st.sampled_from(["number", "text", "fixed", "none"]),
    offsets=st.dictionaries(
        st.sampled_from("pq"), st.sampled_from(["0", "00", "1", "9", "10"]), max_size=2
    ),
    meta=st.dictionaries(st.just("m"), st.sampled_from("xy"), max_size=1),
)  # fmt: skip
JOURNAL = st.builds(
    JournalPosition, journal=st.sampled_from("jk"), segment=st.just(0), offset=OFFSETS,
    sequence=OFFSETS, chain=st.sampled_from(["a" * 64, "b" * 64]),
)  # fmt: skip
FILES = st.builds(FilesPosition, files=OFFSETS)
COUNTER = st.builds(
    CounterPosition, partitions=st.dictionaries(st.sampled_from("xyz"), OFFSETS, max_size=3)
)
KINDS = [KAFKA, POSTGRES, MYSQL, DELTA, ICEBERG, JOURNAL, FILES, COUNTER, OPEN]
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
    if "unordered" in (compare(left, right), compare(right, left)):
        assert left.order == right.order == "none"
        assert {compare(left, right), compare(right, left)} <= {"unordered", "diverged"}
        return
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
        lambda: KafkaPosition(topics={"t": {}}, topic_ids={"u": "A" * 22}),
        lambda: KafkaPosition(topics={"t": {}}, topic_ids={"t": "A" * 21}),
        lambda: PostgresPosition(slots={}, phase="snapshot"),
        lambda: PostgresPosition(slots={}, snapshot=PostgresSnapshot(xmin=1, xmax=1)),
        lambda: PostgresPosition(slots={}, tables={"t": TableProgress()}),
        lambda: PostgresSnapshot(xmin=2, xmax=1),
        lambda: PostgresSnapshot(xmin=0, xmax=1),
        lambda: PostgresSnapshot(xmin=1, xmax=9, xip=[3, 2]),
        lambda: PostgresSnapshot(xmin=1, xmax=9, xip=[9]),
        lambda: TableProgress(rows=-1),
        lambda: IcebergPosition(table="t", snapshot=-1, sequence=0),
        lambda: OpenPosition(kind="a/b", offsets={}, order="text"),
        lambda: OpenPosition(kind="a", offsets={"p": "x1"}, order="number"),
        lambda: OpenPosition(kind="a", offsets={"p": "-1"}, order="number"),
        lambda: OpenPosition(kind="a", offsets={"p": "x" * 5_000}, order="text"),
        lambda: OpenPosition(kind="a", offsets={}, order="text", meta={"m": "x" * 5_000}),
    ],
)
def test_impossible_positions_are_refused(make):
    """A position that no source can have is an error of the caller."""
    with pytest.raises(InvalidInputError) as caught:
        make()
    assert caught.value.kind == "invalid_position"


def test_a_topic_that_was_made_again_diverges():
    """Offsets of another topic of the same name mean other records, however high they are."""
    spell = lambda offset, ids: KafkaPosition(topics={"t": {"0": offset}}, topic_ids=ids)  # noqa: E731
    first, second = ({"t": name} for name in TOPIC_IDS)
    assert compare(spell(5, first), spell(9, second)) == "diverged"
    assert compare(spell(5, first), spell(9, first)) == "before"
    assert compare(spell(5, {}), spell(5, first)) == "before"  # the id was learned
    assert compare(spell(5, first), spell(9, {})) == "diverged"  # and is not forgotten


def test_a_postgres_snapshot_comes_before_its_stream():
    """Rows of a snapshot are progress until it is done; another snapshot is another start."""
    seen = PostgresSnapshot(xmin=5, xmax=9, xip=[6])

    def reading(rows, *, done=False, snapshot=seen):
        tables = {"t": TableProgress(rows=rows, done=done)}
        return PostgresPosition(
            slots={"s": "0/5"}, phase="snapshot", snapshot=snapshot, tables=tables
        )

    stream = PostgresPosition(slots={"s": "0/5"})
    assert compare(reading(1), reading(2)) == "before"
    assert compare(reading(2), reading(2, done=True)) == "before"
    assert compare(reading(2, done=True), reading(3)) == "diverged"
    assert compare(reading(2, done=True), stream) == "before"
    assert compare(stream, reading(9)) == "after"
    other = reading(9, snapshot=PostgresSnapshot(xmin=6, xmax=9))
    assert compare(reading(1), other) == "diverged"


@pytest.mark.parametrize("kind", [DeltaPosition, IcebergPosition])
def test_following_a_table_comes_after_its_snapshot(kind):
    """A snapshot is read file by file, then changes follow; a newer snapshot is another start."""

    def at(version, files, phase):
        if kind is DeltaPosition:
            return DeltaPosition(table="t", version=version, files=files, phase=phase)
        return IcebergPosition(
            table="t", snapshot=version + 7, sequence=version, files=files, phase=phase
        )

    assert compare(at(3, 1, "snapshot"), at(3, 2, "snapshot")) == "before"
    assert compare(at(3, 9, "snapshot"), at(3, 0, "follow")) == "before"
    assert compare(at(3, 9, "snapshot"), at(4, 0, "follow")) == "before"
    assert compare(at(3, 1, "snapshot"), at(4, 1, "snapshot")) == "diverged"
    assert compare(at(3, 0, "follow"), at(4, 0, "snapshot")) == "diverged"


def test_an_iceberg_snapshot_that_was_replaced_diverges():
    """One sequence number with two snapshots are two histories."""
    left, right = (IcebergPosition(table="t", snapshot=n, sequence=4) for n in (1, 2))
    assert compare(left, right) == "diverged"


@pytest.mark.parametrize(
    ("order", "left", "right", "expected"),
    [
        ("number", "9", "10", "before"), ("number", "000123", "124", "before"),
        ("number", "007", "7", "equal"), ("text", "9", "10", "after"),
        ("text", "a", "b", "before"), ("fixed", "0009", "0010", "before"),
        ("fixed", "9", "10", "diverged"), ("none", "x", "x", "equal"), ("none", "x", "y", "unordered"),
    ],
)  # fmt: skip
def test_open_offsets_compare_as_their_order_says(order, left, right, expected):
    """A third party says how its offsets compare; Holdfast holds it to that."""
    one, two = (
        OpenPosition(kind="acme", offsets={"p": offset}, order=order, meta={"at": offset})
        for offset in (left, right)
    )
    assert compare(one, two) == expected


def test_open_positions_without_an_order_still_lose_no_partition():
    """Unordered is for offsets that moved; a name that vanished is divergence, a new one is not."""
    spell = lambda **offsets: OpenPosition(kind="a", offsets=offsets, order="none")  # noqa: E731
    assert compare(spell(p="1", q="1"), spell(p="2")) == "diverged"
    assert compare(spell(p="1"), spell(p="2", q="1")) == "unordered"
    assert compare(spell(p="1"), spell(p="1", q="1")) == "before"
    other = OpenPosition(kind="b", offsets={"p": "2"}, order="none")
    assert compare(spell(p="1"), other) == "diverged"
