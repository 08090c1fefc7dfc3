"""Merging: the plan is bounded and pure, the execution whole or nothing, and nothing comes back."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import IncompatibleError, InvalidInputError
from holdfast.state import (
    BackgroundCompaction,
    CompactionPolicy,
    TraceReader,
    VnodeRange,
    expired_runs,
    live_runs,
    plan_compaction,
    plan_full_compaction,
    replace,
    run_compaction,
)
from holdfast.state.compaction import choose_layers
from holdfast.state.partition import run_slices
from holdfast.storage.local.storage import LocalStorage
from tests.helpers.effort import examples
from tests.helpers.state_world import EPOCH, World, micros


@examples(60)
@given(st.lists(st.integers(1, 50_000), min_size=1, max_size=400), st.integers(2, 6))
def test_the_number_of_runs_and_the_bytes_written_stay_logarithmic(batches, fanout):
    """Whatever sizes arrive, layers stay few and each byte is rewritten a few times only."""
    policy = CompactionPolicy(fanout=fanout, tier_bytes=100, runs_max=24)
    sizes, written = [], 0
    for size in batches:
        sizes.append(size)
        while span := choose_layers(sizes, policy):
            assert 0 <= span[0] < span[1] - 1 < len(sizes)
            merged = sum(sizes[span[0] : span[1]])
            written += merged
            sizes[span[0] : span[1]] = [merged]
        assert len(sizes) <= policy.runs_max
    tiers = np.log(max(2, sum(batches) / 100)) / np.log(fanout) + 2
    assert len(sizes) <= (fanout - 1) * (tiers + 1)
    assert written <= sum(batches) * fanout * (tiers + 1)


def test_planning_reads_nothing_and_is_repeatable():
    """A plan is a value: the same runs give the same plan, and it prints as one line."""
    world = World("bag", ["int64"], "int64", seed=1)
    for _ in range(6):
        world.step(world.make_rows(20), 1)
    policy = CompactionPolicy(fanout=3)
    world.storage = None
    first = plan_compaction(world.runs, 0, 1, policy)
    assert first == plan_compaction(list(reversed(world.runs)), 0, 1, policy)
    assert str(first).startswith("compact 6 runs of epochs 1..6")


def test_only_a_plan_that_takes_the_oldest_layer_is_a_snapshot():
    """A plan above a large old run is a delta; the plan that takes it along is a snapshot."""
    world = World("latest", ["int64"], "int64", seed=1)
    for _ in range(4):
        world.step(world.make_rows(20), 1)
    large = dataclasses.replace(world.runs[0], size=100 << 20)
    plan = plan_compaction([large, *world.runs[1:]], 0, 1, CompactionPolicy(fanout=3))
    assert (plan.bottom, len(plan.runs), plan.epoch_low) == (False, 3, 2)
    plan = plan_compaction(world.runs, 0, 1, CompactionPolicy(fanout=3))
    assert (plan.bottom, len(plan.runs), plan.epoch_low) == (True, 4, 1)


@pytest.mark.parametrize("settings", [{"fanout": 1}, {"runs_max": 1}, {"tier_bytes": 0}])
def test_policies_that_cannot_work_are_refused(settings):
    """Bad knobs are typed errors."""
    with pytest.raises(InvalidInputError):
        CompactionPolicy(**settings)


def grown(kind="latest", epochs=6, **more):
    world = World(kind, ["int64"], "int64", seed=2, **more)
    for _ in range(epochs):
        world.step(world.make_rows(60), 1)
    return world


def test_a_cancelled_merge_leaves_nothing():
    """Stopped at any window, a merge returns None and no object stays."""
    world = grown()
    plan = plan_full_compaction(world.runs, 0, 1)
    before = [entry.path for entry in world.storage.list("")]
    target = world.target(0, 1)
    merged = run_compaction(
        plan, world.storage, world.source, world.schema, target, stopped=lambda: True
    )
    assert merged is None
    assert [entry.path for entry in world.storage.list("")] == before
    world.check_whole()


def test_a_background_merge_is_invisible_until_it_is_adopted(tmp_path):
    """While a merge runs, epochs go on over the old runs; its result then replaces exactly those."""
    world = grown(storage=LocalStorage(tmp_path))
    plan = plan_full_compaction(world.runs, 0, 1)
    target, gate = world.target(0, 1), threading.Event()

    def work(stopped):
        gate.wait(10)
        return run_compaction(
            plan, world.storage, world.source, world.schema, target, stopped=stopped
        )

    merge = BackgroundCompaction(work)
    world.step(world.make_rows(30), 1)
    assert not merge.done
    gate.set()
    merged = merge.result()
    newest = world.runs[-1]
    world.adopt(merged)
    assert [run.path for run in world.runs] == [merged.path, newest.path]
    world.check_whole()


def test_a_background_merge_can_be_cancelled_and_its_error_is_raised():
    """cancel() ends it with None; a failure inside is raised by result()."""
    stopped_seen = BackgroundCompaction(_wait_for)
    stopped_seen.cancel()
    assert stopped_seen.result() is None

    def fails(_):
        raise InvalidInputError("no")

    with pytest.raises(InvalidInputError):
        BackgroundCompaction(fails).result()


def _wait_for(stopped):
    while not stopped():
        pass


def test_tombstones_stay_until_nothing_older_needs_them():
    """A merge above older runs keeps tombstones, or a deleted key would come back; below all it drops them."""
    world = World("latest", ["int64"], "int64", seed=4)
    world.step([([1], [1], False), ([2], [2], False)], 1)
    world.step([([1], [None], True)], 1)
    world.step([([3], [3], False)], 1)
    upper = dataclasses.replace(
        plan_full_compaction(world.runs, 0, 1),
        runs=tuple(world.runs[1:]),
        epoch_low=2,
        bottom=False,
    )
    target = world.target(0, 1)
    merged = run_compaction(upper, world.storage, world.source, world.schema, target)
    assert merged.rows == 2
    assert not merged.snapshot
    world.adopt(merged)
    world.check_whole()
    world.adopt(world.merge(0, 1, full=True))
    assert (len(world.runs), world.runs[0].rows, world.runs[0].snapshot) == (1, 2, True)
    world.check_whole()


def test_weights_that_cancel_leave_an_empty_trace():
    """A bag whose rows all cancel merges to nothing, and the next rows are read alone."""
    world = World("bag", ["int64"], "int64", seed=4)
    world.step([([1], [1], 2), ([2], [2], 1)], 1)
    world.step([([1], [1], -2), ([2], [2], -1)], 1)
    world.adopt(world.merge(0, 1, full=True))
    assert world.runs == []
    world.step([([1], [5], 1)], 1)
    world.check_whole()


def test_an_empty_merge_of_one_partition_still_hides_the_shared_runs():
    """After a rescale, a partition that merged to nothing does not see the shared runs again."""
    world = World("bag", ["int64"], "int64", seed=4)
    rows = [([k], [k], 1) for k in range(40)]
    world.step(rows, 1)
    world.step([(k, v, -n) for k, v, n in rows], 1)
    world.adopt(world.merge(0, 4, full=True))
    assert any(run.rows == 0 for run in world.runs)
    world.check_whole()
    for partition in (1, 2, 3):
        world.adopt(world.merge(partition, 4, full=True))
    assert world.runs == []


def test_merges_tidy_up_after_a_rescale():
    """When every new partition has compacted, the old wide runs are gone from the list."""
    world = grown(kind="latest")
    old = {run.path for run in world.runs}
    for partition in range(5):
        world.adopt(world.merge(partition, 5, full=True))
        world.check_whole()
    assert not old & {run.path for run in world.runs}
    assert len(world.runs) == 5
    assert all(plan_full_compaction(world.runs, p, 5) is None for p in range(5))


def test_two_winners_for_one_epoch_are_refused():
    """Listing both attempts of a task would count rows twice: it is an error that names both."""
    world = grown(kind="bag", epochs=1)
    twin = dataclasses.replace(world.runs[0], path=world.runs[0].path + "x")
    with pytest.raises(IncompatibleError) as caught:
        run_slices([*world.runs, twin])
    assert caught.value.kind == "ambiguous_runs"
    assert twin.path in str(caught.value)
    with pytest.raises(InvalidInputError):
        replace(world.runs, world.runs[0])


def test_a_late_merge_of_replaced_runs_changes_nothing():
    """A merge that finishes after a wider one has replaced its inputs is simply not listed."""
    world = grown(kind="bag")
    narrow = dataclasses.replace(
        plan_full_compaction(world.runs, 0, 1), runs=tuple(world.runs[1:3]), epoch_low=2, epoch_high=3,
        bottom=False,
    )  # fmt: skip
    late = run_compaction(narrow, world.storage, world.source, world.schema, world.target(0, 1))
    wide = plan_full_compaction(world.runs, 0, 1)
    world.adopt(run_compaction(wide, world.storage, world.source, world.schema, world.target(0, 1)))
    before = list(world.runs)
    world.adopt(late)
    assert world.runs == before
    world.check_whole()


def test_outdated_rows_leave_with_merges_and_never_come_back():
    """Rows behind the bound are absent at once, gone after a merge, and no older version returns."""
    seconds = [EPOCH.replace(second=s) for s in range(10)]
    world = World("latest", ["int64"], "int64", seed=1, timed=True)
    world.step([([1], [1, seconds[9]], False), ([2], [1, seconds[5]], False)], 1)
    world.step([([1], [2, seconds[1]], False)], 1)  # newer, but with an older event time
    world.bound = micros(seconds[4])
    world.check_whole()
    world.adopt(world.merge(0, 1))
    world.check_whole()
    world.adopt(world.merge(0, 1, full=True))
    assert world.runs[0].rows == 1
    world.check_whole()


def test_whole_runs_behind_the_bound_leave_unread():
    """Bag runs go whenever they are outdated; latest runs only with everything older."""
    seconds = [EPOCH.replace(second=s) for s in range(10)]
    for kind, expected in (("bag", [0, 2]), ("latest", [0])):
        world = World(kind, ["int64"], "int64", seed=1, timed=True)
        one = False if kind == "latest" else 1
        for second in (1, 8, 2):
            world.step([([second], [1, seconds[second]], one)], 1)
        world.step([([7], [1, None], one)], 1)  # no time: never outdated
        gone = expired_runs(world.runs, micros(seconds[5]))
        assert [world.runs.index(run) for run in gone] == expected
        world.bound = micros(seconds[5])
        world.runs = [run for run in world.runs if run not in gone]
        world.check_whole()


def test_an_outdated_merge_that_hides_a_shared_run_stays():
    """Dropping it would bring back a row of the shared run that it had cancelled."""
    seconds = [EPOCH.replace(second=s) for s in range(10)]
    world = World("bag", ["int64"], "int64", "low", seed=1, timed=True)  # all in vnode 0
    world.step([([1], [1, seconds[9]], 1), ([2], [1, seconds[1]], 1)], 1)
    world.step([([1], [1, seconds[9]], -1)], 1)
    merged = world.merge(0, 2, full=True)
    assert merged.time_max_us == micros(seconds[1])
    world.adopt(merged)
    world.bound = micros(seconds[5])
    gone = expired_runs(world.runs, world.bound)
    assert merged not in gone
    world.runs = [run for run in world.runs if run not in gone]
    world.check_whole()


def test_a_single_run_can_be_cleaned_of_outdated_rows():
    """Compaction of one tidy snapshot is planned only when asked for, and drops outdated rows."""
    seconds = [EPOCH.replace(second=s) for s in range(10)]
    world = World("latest", ["int64"], "int64", seed=1, timed=True)
    world.step([([s], [1, seconds[s]], False) for s in range(10)], 1)
    assert plan_full_compaction(world.runs, 0, 1) is None
    plan = plan_full_compaction(world.runs, 0, 1, always=True)
    world.bound = micros(seconds[4])
    merged = run_compaction(
        plan, world.storage, world.source, world.schema, world.target(0, 1),
        time_bound_us=world.bound,
    )  # fmt: skip
    world.adopt(merged)
    assert (world.runs, merged.rows) == ([merged], 6)
    world.check_whole()


def test_streaming_reads_stay_within_their_window():
    """A stream never holds more rows than its window allows, however large the trace."""
    world = World("bag", ["int64"], "int64", seed=9)
    world.options = dataclasses.replace(world.options, rows_max=1000)
    rows = [([k], [k], 1) for k in range(3000)]
    world.step(rows[:2000], 1)
    world.step(rows[1000:], 1)
    size = sum(run.size for run in world.runs)
    reader = TraceReader(
        runs=tuple(world.runs), source=world.source, schema=world.schema, window_bytes=size // 10
    )
    counts = [batch.num_rows for batch in reader.batches()]
    assert sum(counts) == 3000
    assert max(counts) <= 4000 // 10 + 1
    half = reader.table(VnodeRange(0, 128)).num_rows
    assert half + reader.table(VnodeRange(128, 256)).num_rows == 3000


def test_rows_of_other_partitions_are_refused():
    """A partition refuses probes and updates that were shuffled to it by mistake."""
    world = grown(epochs=1)
    table = world.table(world.make_rows(50))
    opened = world.open(0, 4)
    with pytest.raises(InvalidInputError, match="another partition"):
        opened.lookup(table)
    with pytest.raises(InvalidInputError, match="another partition"):
        opened.apply(table, world.storage, world.target(0, 4))
    with pytest.raises(InvalidInputError, match="target is another"):
        opened.apply(table, world.storage, world.target(1, 4))
    assert live_runs(world.runs) == world.runs
