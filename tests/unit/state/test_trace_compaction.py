"""A whole trace is planned at once: few files, no pile-ups, nothing written over and over."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from holdfast.runtime.task_counts import task_counts
from holdfast.state import CompactionPolicy, RunIndex, RunInfo, VnodeRange, plan_trace
from holdfast.state.compaction import trace_layers
from holdfast.state.partition import layers, partition_range, run_slices
from tests.helpers.effort import SOAK

POLICY = CompactionPolicy()
SEEDS = range(400 if SOAK else 6)


def run(vnodes: VnodeRange, epochs: tuple[int, int], size: int, generation: int = 0) -> RunInfo:
    low, high = epochs
    return RunInfo(
        path=f"{vnodes.low}-{vnodes.high}-{low}-{high}-{generation}",
        size=size,
        sha256="0" * 64,
        trace="latest",
        snapshot=False,
        operator="t",
        partition=0,
        rows=1,
        hash_min=vnodes.hash_low,
        hash_max=vnodes.hash_high,
        vnodes=vnodes,
        epoch_low=low,
        epoch_high=high,
        generation=generation,
    )


class World:
    """Epochs of many sizes, and compactions that end when they like."""

    def __init__(self, partitions: int, policy: CompactionPolicy = POLICY) -> None:
        self.partitions, self.policy = partitions, policy
        self.counts = task_counts(partitions)
        self.index = RunIndex(partitions)
        self.epoch = self.came = self.written = 0
        self.busy = []

    def step(self, tasks: int, size: int) -> None:
        for number in range(tasks):
            vnodes = partition_range(number, tasks)
            self.index.add(run(vnodes, (self.epoch, self.epoch), max(1, size // tasks)))
        self.came += size
        self.epoch += 1

    def plan(self) -> list:
        plans = plan_trace(self.index, self.counts, self.policy, self.busy)
        for one, other in pairwise(sorted(plans, key=lambda plan: plan.vnodes)):
            assert one.vnodes.high <= other.vnodes.low
        self.busy += plans
        return plans

    def end(self, plan) -> None:
        self.busy.remove(plan)
        self.written += plan.bytes_estimate
        epochs = plan.epoch_low, plan.epoch_high
        self.index.replace(run(plan.vnodes, epochs, plan.bytes_estimate, plan.generation))

    def depth(self) -> int:
        return max(self.index.depth(n) for n in range(self.partitions))


@pytest.mark.parametrize("partitions", [2, 6, 7, 64, 256])
def test_layers_stay_few_and_each_byte_is_written_a_few_times(partitions):
    """200 epochs, small ones by one task and large ones by all, in any order."""
    world, chosen = World(partitions), random.Random(partitions)
    for _ in range(200):
        large = chosen.random() < 0.2
        world.step(partitions if large else 1, 40_000_000 if large else 500_000)
        while plans := world.plan():
            for plan in plans:
                world.end(plan)
        assert world.depth() <= POLICY.runs_max
    assert world.depth() <= 3 * POLICY.fanout
    assert world.written <= 6 * world.came
    assert len(world.index) <= 3 * POLICY.fanout * max(partitions, 2) // 2 + 20


@pytest.mark.parametrize("partitions", [2, 64, 256])
def test_small_epochs_are_never_rewritten_once_for_each_partition(partitions):
    """A large state does not make a small epoch dear: small runs become one run for all."""
    world = World(partitions)
    world.step(partitions, 4_000_000_000)
    for _ in range(4):
        world.step(1, 100_000)
    (plan,) = world.plan()
    assert plan.vnodes == VnodeRange(0, 256)
    assert [len(r.vnodes) for r in plan.runs] == [256] * 4
    assert not plan.bottom


def test_units_follow_the_bytes():
    """What is small becomes one run, what is large many, and never more than partitions."""
    for size, expected in [(8 << 20, 1), (16 << 20, 2), (32 << 20, 4), (4 << 30, 64)]:
        world = World(64)
        for _ in range(4):
            world.step(64, size)
        plans = world.plan()
        assert len(plans) == expected
        assert all(plan.bottom for plan in plans)


@pytest.mark.parametrize("seed", SEEDS)
def test_compactions_that_end_in_any_order_agree(seed):
    """Units end late, in any order, some never; other counts come; every slice stays unambiguous."""
    chosen = random.Random(seed)
    world = World(chosen.choice([3, 4, 12, 64]), CompactionPolicy(fanout=3, runs_max=8))
    for _ in range(60):
        world.step(chosen.choice(world.counts), chosen.choice([1_000, 3_000_000, 200_000_000]))
        world.plan()
        chosen.shuffle(world.busy)
        for plan in world.busy[: chosen.randrange(8)]:
            world.end(plan)
        if chosen.random() < 0.1:  # a restart, with another number of partitions
            partitions = chosen.choice([1, 2, 3, 7, 64])
            runs, world.busy = world.index.runs(), []
            world.partitions, world.counts = partitions, task_counts(partitions)
            world.index = RunIndex(partitions, runs)
        for vnode in (0, 85, 128, 255):
            slices = run_slices(world.index, VnodeRange(vnode, vnode + 1))
            covered = [e for s in slices for e in range(s.run.epoch_low, s.run.epoch_high + 1)]
            assert covered == [*range(world.epoch)]
        assert _as_sets(trace_layers(world.index)) == _as_sets(layers(run_slices(world.index)))
    while plans := world.busy + world.plan():
        for plan in {id(plan): plan for plan in plans}.values():
            world.end(plan)
    assert world.depth() <= 8


def _as_sets(found) -> list[set]:
    return [set(layer) for layer in found]


def test_what_runs_now_is_left_alone():
    """Newer layers only, so that a long compaction holds nobody up and nothing is done twice."""
    world = World(2)
    for _ in range(4):
        world.step(2, 1 << 30)
    assert len(world.plan()) == 2
    assert world.plan() == []
    for _ in range(4):
        world.step(1, 1_000)
    (plan,) = world.plan()
    assert (plan.epoch_low, plan.epoch_high) == (4, 7)
    assert not plan.bottom


def test_what_ended_in_some_partitions_only_is_done_in_the_others():
    """A task failed: its partition still has the old layers, and they are one group of the trace."""
    world = World(2)
    for _ in range(4):
        world.step(2, 1 << 30)
    first, second = world.plan()
    world.end(first)
    world.busy = []
    assert [plan.vnodes for plan in world.plan()] == [second.vnodes]


def test_a_partition_that_has_one_run_is_not_rewritten():
    """Only ranges with several layers are."""
    world = World(2)
    left, right = partition_range(0, 2), partition_range(1, 2)
    world.index.add(run(right, (0, 0), 1 << 28))
    for epoch in range(1, 5):
        world.index.add(run(left, (epoch, epoch), 1 << 28))
    assert {plan.vnodes for plan in world.plan()} <= {left}
    assert len(layers(run_slices(world.index, right))) == 1
