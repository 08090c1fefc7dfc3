"""Offset ranges: what an epoch takes, against sums done by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.kafka.ranges import OffsetRange, behind, lost, pieces, plan_ranges, shared
from tests.helpers.effort import examples

KEYS = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3))


@examples(100)
@given(
    st.dictionaries(KEYS, st.tuples(st.integers(0, 10**6), st.integers(0, 10**5))),
    st.none() | st.integers(1, 10**5),
)
def test_plans_take_the_limit_or_everything_and_read_each_offset_once(parts, limit):
    """Until nothing is left, every offset is in exactly one range, and no plan exceeds the limit."""
    at = {key: start for key, (start, _) in parts.items()}
    ends = {key: start + count for key, (start, count) in parts.items()}
    seen, rounds = dict.fromkeys(parts, 0), 0
    while ranges := plan_ranges(at, ends, limit):
        taken = sum(one.offsets for one in ranges)
        left = sum(ends[key] - at[key] for key in at)
        assert taken == left if limit is None else taken == min(limit, left)
        for one in ranges:
            assert one.start == at[one.topic, one.partition]
            seen[one.topic, one.partition] += one.offsets
        at, rounds = behind(at, ranges), rounds + 1
        if rounds > 20:
            return
    assert at == ends
    assert seen == {key: count for key, (_, count) in parts.items()}


def test_a_limit_is_shared_in_proportion_to_what_waits():
    """A partition with nine tenths of the backlog gets nine tenths of the epoch."""
    assert shared({("a", 0): 900, ("a", 1): 100}, 100) == {("a", 0): 90, ("a", 1): 10}


@examples(100)
@given(st.integers(0, 1000), st.integers(0, 10**6), st.integers(1, 9))
def test_pieces_cover_a_range_without_overlap_and_in_order(start, count, tasks):
    """Cut ranges put together are the range."""
    whole = OffsetRange("a", 0, start, start + count)
    cut = pieces([whole], tasks, least=1)
    assert sum(one.offsets for one in cut) == count
    assert [one.start for one in cut[1:]] == [one.stop for one in cut[:-1]]
    assert not cut or (cut[0].start, cut[-1].stop) == (whole.start, whole.stop)


def test_what_aged_out_unread_is_named_by_partition():
    """Only partitions whose first offset lies behind the position have lost something."""
    at = {("a", 0): 5, ("a", 1): 5, ("a", 2): 5}
    assert lost(at, {("a", 0): 5, ("a", 1): 9}) == {("a", 1): (5, 9)}
