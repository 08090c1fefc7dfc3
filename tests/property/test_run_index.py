"""The run index against the pure functions that it saves from walking every run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import IncompatibleError, InvalidInputError
from holdfast.state import (
    CompactionPolicy,
    RunIndex,
    RunInfo,
    VnodeRange,
    expired_runs,
    live_runs,
    partition_range,
    plan_compaction,
    plan_full_compaction,
)
from holdfast.state.partition import layers, run_slices, runs_by_partition
from tests.helpers.effort import examples

POLICY = CompactionPolicy(fanout=2, runs_max=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("epoch"), st.integers(0, 2**30), st.integers(0, 3)),
        st.tuples(st.just("epoch"), st.integers(0, 2**30), st.integers(0, 3)),
        st.tuples(st.just("epoch"), st.integers(0, 2**30), st.integers(0, 3)),
        st.tuples(st.just("wide"), st.integers(0, 8), st.integers(0, 8)),
        st.tuples(st.just("compact"), st.integers(0, 15), st.booleans()),
        st.tuples(st.just("empty"), st.integers(0, 15), st.booleans()),
        st.tuples(st.just("later"), st.integers(0, 15), st.booleans()),
        st.tuples(st.just("finish"), st.integers(0, 15), st.booleans()),
        st.tuples(st.just("rescale"), st.integers(1, 9), st.just(0)),
        st.tuples(st.just("expire"), st.integers(-2, 4), st.booleans()),
        st.tuples(st.just("mark"), st.just(0), st.just(0)),
        st.tuples(st.just("clash"), st.integers(0, 15), st.just(0)),
    ),
    min_size=4,
    max_size=40,
)


def settled(runs):
    """`live_runs` until nothing more can be left out."""
    while len(fewer := live_runs(runs)) < len(runs):
        runs = fewer
    return fewer


class Both:
    """An index and a plain list, taken through the same steps."""

    def __init__(self, trace, partitions):
        self.trace, self.partitions = trace, partitions
        self.index, self.runs, self.marked = RunIndex(partitions), [], []
        self.epoch, self.names, self.bound, self.waiting = 0, 0, 0, []
        self.seen = [None] * partitions

    def run(self, vnodes, low, high, *, generation=0, rows=1, time=None, snapshot=False):
        self.names += 1
        return RunInfo(
            path=f"run-{self.names:05d}", size=10, sha256="ab" * 32, trace=self.trace,
            snapshot=snapshot, operator="op", partition=0, rows=rows, hash_min=vnodes.hash_low,
            hash_max=vnodes.hash_low, vnodes=vnodes, epoch_low=low, epoch_high=high,
            generation=generation, time_min_us=time, time_max_us=time, base="b",
        )  # fmt: skip

    def add(self, run, *, replace=False):
        (self.index.replace if replace else self.index.add)(run)
        self.runs = settled([*self.runs, run])

    def act(self, name, first, second):
        getattr(self, name)(first, second)
        self.check()

    def new_epoch(self, bits, time):
        self.epoch += 1
        for partition in range(self.partitions):
            if bits >> partition & 1:
                when = None if time == 3 else self.bound + time * (1 + partition % 2)
                vnodes = partition_range(partition, self.partitions)
                self.add(self.run(vnodes, self.epoch, self.epoch, time=when))

    def wide(self, first, second):
        """One task of an epoch speaks for several partitions."""
        low, high = sorted((first % self.partitions, second % self.partitions))
        self.epoch += 1
        vnodes = VnodeRange(
            partition_range(low, self.partitions).low, partition_range(high, self.partitions).high
        )
        self.add(self.run(vnodes, self.epoch, self.epoch))

    def plan(self, partition, full):
        partition %= self.partitions
        runs = runs_by_partition(self.runs, self.partitions)[partition]
        if full:
            return plan_full_compaction(runs, partition, self.partitions, always=True)
        return plan_compaction(runs, partition, self.partitions, POLICY)

    def compacted(self, plan, rows):
        times = [run.time_max_us for run in plan.runs]
        time = None if None in times else max(times)
        return self.run(
            plan.vnodes, plan.epoch_low, plan.epoch_high, generation=plan.generation, rows=rows,
            time=time, snapshot=plan.bottom,
        )  # fmt: skip

    def compact(self, partition, full, rows=1):
        plan = self.plan(partition, full)
        if plan is not None:
            self.add(self.compacted(plan, rows), replace=True)

    def empty(self, partition, full):
        self.compact(partition, full, rows=0)

    def later(self, partition, full):
        plan = self.plan(partition, full)
        if plan is not None and not self.waiting:
            self.waiting.append(self.compacted(plan, 1))

    def finish(self, _first, _second):
        for run in self.waiting:
            try:
                self.add(run, replace=True)
            except IncompatibleError:
                with pytest.raises(IncompatibleError):
                    live_runs([*self.runs, run])
        self.waiting = []

    def rescale(self, partitions, _):
        self.partitions = partitions
        self.index = RunIndex(partitions, self.runs)
        self.marked, self.seen = self.runs, [None] * partitions

    def expire(self, step, time_is_key):
        self.bound += step
        expected = expired_runs(self.runs, self.bound, time_is_key=time_is_key)
        assert {r.path for r in self.index.expire(self.bound, time_is_key=time_is_key)} == {
            r.path for r in expected
        }
        self.runs = settled([run for run in self.runs if run not in expected])

    def mark(self, _first, _second):
        self.index.mark()
        self.marked = self.runs

    def clash(self, which, _):
        """A run that contradicts another one is refused, and nothing changes."""
        if self.runs:
            run = self.runs[which % len(self.runs)]
            with pytest.raises(InvalidInputError):
                self.index.replace(run)
            wide = self.run(run.vnodes, run.epoch_low, run.epoch_high, generation=run.generation)
            with pytest.raises(IncompatibleError):
                live_runs([*self.runs, wide])
            with pytest.raises(IncompatibleError):
                self.index.add(wide)

    def check(self):
        index, runs = self.index, self.runs
        assert index.runs() == runs
        assert len(index) == len(runs)
        depths, touched = [], index.take_touched()
        assert index.take_touched() == set()
        for partition, some in enumerate(runs_by_partition(runs, self.partitions)):
            assert index.of_partition(partition) == some
            expected = layers(run_slices(some, partition_range(partition, self.partitions)))
            assert [*index.layers(partition)] == expected
            assert index.depth(partition) == len(expected)
            depths.append((len(expected), partition))
            other = some != self.seen[partition]
            self.seen[partition] = some
            assert not other or partition in touched
        for least in (0, 2, 4):
            due = sorted((d for d in depths if d[0] >= least), key=lambda d: (-d[0], d[1]))
            assert index.deepest(least) == due
        changes, before = index.changes(), {run.path for run in self.marked}
        now = {run.path for run in runs}
        assert {run.path for run in changes.added} == now - before
        assert {run.path for run in changes.removed} == before - now


@examples(150)
@given(st.sampled_from(["latest", "bag"]), st.integers(1, 6), STEPS)
def test_an_index_answers_as_the_pure_functions_do(trace, partitions, steps):
    """Epochs, compactions that end late, runs without rows, rescales, time bounds, refusals."""
    both = Both(trace, partitions)
    for name, first, second in steps:
        both.act("new_epoch" if name == "epoch" else name, first, second)


def test_a_run_that_hid_another_goes_when_it_does_not_any_more():
    """An outdated compaction stays while the run that it replaced is read elsewhere, no longer."""
    both = Both("bag", 2)
    both.add(both.run(VnodeRange(0, 256), 1, 1))
    both.add(both.run(VnodeRange(0, 128), 1, 1, generation=1, time=5))
    both.act("expire", 10, False)
    assert len(both.runs) == 2
    both.add(both.run(VnodeRange(128, 256), 1, 1, generation=1))
    both.act("expire", 1, False)
    assert [run.vnodes.low for run in both.runs] == [128]


def test_work_follows_what_changed(monkeypatch):
    """A run of an epoch, and a compaction, look at the partitions that they lie in only."""
    touched = []
    both = Both("latest", 64)
    for _ in range(6):
        both.new_epoch(2**64 - 1, 3)
    real = RunIndex.hides_any
    monkeypatch.setattr(RunIndex, "hides_any", lambda s, r: touched.append("hides") or real(s, r))
    monkeypatch.setattr(
        "holdfast.state.run_index.run_slices",
        lambda runs, within: touched.append(within) or run_slices(runs, within),
    )
    both.index.add(both.run(VnodeRange(0, 4), 7, 7))
    assert touched == []
    both.compact(3, full=True)
    assert set(touched) == {partition_range(3, 64)}
    assert len(touched) <= 2
    both.index.expire(10**9)
    assert len(touched) <= 2
