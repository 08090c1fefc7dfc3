"""Live rows and keys, counted as epochs go by, are those that a look at the whole state finds."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.state.live_counts import Asked, _known
from tests.helpers.effort import examples
from tests.helpers.state_world import EPOCH as ZERO
from tests.helpers.state_world import HASH, World, micros, partition_table, vnodes_of


class Counted(World):
    """A world that adds up what its tasks report."""

    def begin(self):
        self.rows = self.live_keys = 0

    def epoch_of(self, rows, partitions, bound):
        """One epoch, after which rows before `bound` are forgotten."""
        self.epoch += 1
        table = self.table(rows)
        where = partition_table(partitions)[vnodes_of(table[HASH].to_numpy().view(np.uint64))]
        for partition in range(partitions):
            mine = np.flatnonzero(where == partition)
            part = table.take(pa.array(mine))
            with self.open(partition, partitions) as opened:
                if self.random.random() < 0.7:
                    self.check_lookup(opened, part, [rows[i] for i in mine])
                info = None
                if part.num_rows:
                    target = self.target(partition, partitions)
                    info = opened.apply(part, self.storage, target, options=self.options)
                change = opened.change(bound)
            if info is not None:
                self.runs.append(info)
            self.rows, self.live_keys = self.rows + change.rows, self.live_keys + change.keys
        for key, value, marker in rows:
            self.learn(tuple_of(key), tuple_of(value), marker, value)
        self.bound = bound if bound is not None else self.bound
        self.save()

    def check_counts(self):
        seen = self.visible()
        if self.kind == "latest":
            assert (self.rows, self.live_keys) == (len(seen), len(seen))
            return
        by_key = {}
        for (key, _), weight in seen.items():
            by_key[key] = by_key.get(key, 0) + weight
        assert self.rows == sum(seen.values())
        assert self.live_keys == sum(1 for weight in by_key.values() if weight)


def tuple_of(value):
    from tests.helpers.state_world import canon

    return canon(value)


@pytest.mark.parametrize("mode", ["full", "cut", "low"])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("kind", ["latest", "bag"])
@examples(15)
@given(st.data())
def test_counts_follow_the_state(kind, timed, mode, data):
    """Updates, deletes, retractions, rescales, merges and a moving bound: never one row off."""
    seed = data.draw(st.integers(0, 2**16))
    world = Counted(kind, ["int64", "string"], "int64", mode=mode, seed=seed, timed=timed)
    world.begin()
    low = 0
    for _ in range(data.draw(st.integers(1, 6))):
        bound = None
        if timed and data.draw(st.booleans()):
            low += data.draw(st.integers(0, 4))
            bound = micros(ZERO) + low * 1_000_000
        count = data.draw(st.sampled_from([0, 1, 8, 30]))
        partitions = data.draw(st.sampled_from([1, 3]))
        world.epoch_of(world.make_rows(count), partitions, bound or world.bound)
        world.check_counts()
        if data.draw(st.booleans()):
            full = data.draw(st.booleans())
            for partition in range(partitions):
                world.adopt(world.merge(partition, partitions, full=full))
            world.check_counts()


def test_what_was_looked_up_is_used_only_where_it_covers_the_keys():
    """A key with the hash of another one, or one that nobody asked for, is looked up itself."""
    asked = Asked(np.array([1, 5, 9], np.uint64), [pa.array(["a", "b", "c"])], np.array([1, 0, 1]))
    ask = lambda hashes, keys: _known(asked, np.array(hashes, np.uint64), [pa.array(keys)])  # noqa: E731
    assert ask([1, 5, 9], ["a", "b", "c"]) == 2
    assert ask([5, 9], ["b", "c"]) == 1
    assert ask([9, 11], ["c", "d"]) is None
    assert ask([5], ["x"]) is None
