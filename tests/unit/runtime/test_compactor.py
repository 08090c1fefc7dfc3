"""Which partitions are merged, and when an epoch waits for that. Without Spark."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pyarrow as pa
import pytest

from holdfast.ids import CheckpointId, Epoch, SeededIds
from holdfast.runtime import compaction_work as merging
from holdfast.runtime import compactor
from holdfast.runtime.compaction_work import CompactionRunner
from holdfast.runtime.compactor import Compactor
from holdfast.runtime.task import source_of
from holdfast.state import (
    CompactionPolicy,
    LatestPartition,
    RunIndex,
    RunTarget,
    TraceSchema,
    partition_range,
    vnodes_of,
)
from holdfast.state.partition import layers, run_slices, runs_by_partition
from holdfast.storage.open import StorageLocation, storage_of

SCHEMA = TraceSchema.latest(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]))
POLICY = CompactionPolicy(fanout=3, runs_max=4)
PARENT = CheckpointId("0198c0de-0000-7000-8000-000000000000")
HASHES = np.arange(0, 1 << 63, 1 << 53, dtype=np.uint64) * np.uint64(2)  # four in each vnode
numbers = itertools.count()


class Trace:
    """A trace of some partitions, and a merger beside it."""

    def __init__(self, partitions: int, policy: CompactionPolicy = POLICY) -> None:
        self.place, self.partitions = StorageLocation(f"memory://merger{next(numbers)}"), partitions
        self.ids = SeededIds(1)
        self.runs = {"t": RunIndex(partitions)}
        self.compactor = Compactor(
            CompactionRunner(self.place, "p"),
            partitions,
            self.ids,
            lambda: self.ids.checkpoint_id(0),
            policy,
        )

    def write(self, epoch: int, tasks: int | None = None) -> None:
        """Every key once more, by so many tasks; by all partitions if nothing is said."""
        tasks = tasks or self.partitions
        for partition in range(tasks):
            mine = self._mine(partition, tasks)
            rows = pa.RecordBatch.from_arrays(
                [pa.array(HASHES[mine].view(np.int64)), pa.array(mine),
                 pa.array(np.full(len(mine), epoch)), pa.array(np.zeros(len(mine), np.bool_))],
                names=["__hf_hash", "k", "n", "__hf_deleted"],
            )  # fmt: skip
            target = RunTarget(
                checkpoint=self.ids.checkpoint_id(0), operator="t", partition=partition,
                partitions=tasks, attempt=self.ids.token(), epoch=Epoch(epoch),
                base=PARENT, pipeline="p",
            )  # fmt: skip
            run = self._open(partition, tasks).apply(rows, storage_of(self.place), target)
            self.runs["t"].add(run)

    def _mine(self, partition: int, tasks: int) -> np.ndarray:
        within = partition_range(partition, tasks)
        vnodes = vnodes_of(HASHES)
        return np.flatnonzero((vnodes >= within.low) & (vnodes < within.high))

    def _open(self, partition: int, tasks: int) -> LatestPartition:
        source = source_of(self.place, "p")
        return LatestPartition.open(
            self.runs["t"].runs(), source, SCHEMA, partition=partition, partitions=tasks
        )

    def values(self, partition: int) -> set[int]:
        mine = self._mine(partition, self.partitions)
        probe = pa.RecordBatch.from_arrays(
            [pa.array(HASHES[mine].view(np.int64)), pa.array(mine)], names=["__hf_hash", "k"]
        )
        answer = self._open(partition, self.partitions).lookup(probe)
        assert answer.found.all()
        return set(answer.values.column(0).to_pylist())

    def counts(self) -> list[int]:
        return [
            len(layers(run_slices(self.runs["t"].runs(), partition_range(n, self.partitions))))
            for n in range(self.partitions)
        ]

    def start(self) -> None:
        self.compactor.start(self.runs, {"t": SCHEMA}, PARENT, {})

    def catch_up(self, stop=lambda: False) -> None:
        self.compactor.catch_up(self.runs, {"t": SCHEMA}, PARENT, {}, stop)


def overdue(partitions: int, epochs: int = 7) -> Trace:
    """A trace that nobody has merged for some epochs."""
    trace = Trace(partitions)
    for epoch in range(epochs):
        trace.write(epoch)
    assert trace.counts() == [epochs] * partitions
    trace.compactor.look(trace.runs)
    assert trace.compactor.overdue == partitions
    return trace


def test_every_partition_that_is_overdue_is_caught_up_before_the_next_epoch():
    """However many partitions have too many layers, none has afterwards."""
    trace = overdue(5)
    trace.catch_up()
    trace.compactor.stop()
    assert max(trace.counts()) <= POLICY.runs_max
    assert trace.compactor.overdue == 0
    assert [trace.values(n) for n in range(5)] == [{6}] * 5


def test_beginning_a_merge_waits_for_none():
    """Not even where merges are overdue: the epoch that is computed is committed first."""
    trace = overdue(2)
    trace.start()
    assert trace.counts() == [7, 7]
    trace.compactor.stop()


def test_who_stops_does_not_wait_for_merges():
    """Asked before each merge; what one has done counts."""
    trace = overdue(5)
    trace.catch_up(stop=lambda: True)
    assert trace.compactor.compactions == 0
    assert trace.compactor.overdue == 5


def test_a_merge_that_failed_is_tried_again_some_epochs_later(monkeypatch, caplog):
    """One failure costs some epochs, a series of them more and more; nothing hangs or is lost."""
    real, failing = merging.run_compaction, True

    def unlucky(*args, **options):
        if failing:
            raise OSError("no room")
        return real(*args, **options)

    monkeypatch.setattr(merging, "run_compaction", unlucky)
    trace = overdue(1)
    tries = []
    for epoch in range(7, 20):
        before = trace.compactor._failures
        trace.compactor.look(trace.runs)
        trace.catch_up()
        trace.write(epoch)
        tries.append(trace.compactor._failures - before)
    assert tries == [1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert "no room" in caplog.text
    assert isinstance(trace.compactor.error, OSError)
    failing = False
    for epoch in range(20, 30):
        trace.compactor.look(trace.runs)
        trace.catch_up()
        trace.write(epoch)
    assert max(trace.counts()) <= POLICY.runs_max + 1
    assert trace.values(0) == {29}


def test_an_interrupt_while_waiting_leaves_no_merge_behind(monkeypatch):
    """Ctrl-C comes while a merge is waited for: whoever closes still finds it, and ends it."""
    trace = overdue(1)
    trace.start()
    (lane,) = trace.compactor._lanes.values()
    running = lane.running
    with monkeypatch.context() as patch:
        patch.setattr(running, "result", lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            trace.catch_up()
    trace.compactor.stop()
    assert running.done


def test_what_is_due_but_not_overdue_is_not_waited_for():
    """A merge begins, and its runs are listed when somebody collects them."""
    trace = Trace(2)
    for epoch in range(POLICY.fanout):
        trace.write(epoch)
    trace.start()
    assert trace.counts() == [POLICY.fanout] * 2
    while not trace.compactor._lanes["short"].running.done:
        pass
    trace.compactor.collect(trace.runs)
    assert trace.counts() == [1, 1]
    assert len(trace.runs["t"]) == 1  # small runs of two partitions become one


def test_nothing_is_begun_where_nothing_is_due():
    """Few layers are left as they are, and so is an empty trace."""
    trace = Trace(2)
    trace.start()
    trace.write(0)
    trace.start()
    assert trace.compactor._lanes == {}
    assert trace.compactor.overdue == 0


@pytest.mark.parametrize(("before", "after"), [(1, 7), (7, 2), (3, 200), (200, 3), (5, 5)])
def test_runs_by_partition_are_those_that_a_partition_reads(before, after):
    """After any rescale, each partition gets the runs that share a vnode with it, and no other."""
    trace = Trace(before)
    trace.write(0)
    found = runs_by_partition(trace.runs["t"].runs(), after)
    assert found == [
        [run for run in trace.runs["t"].runs() if run.vnodes.intersect(partition_range(n, after))]
        for n in range(after)
    ]


def test_small_runs_do_not_wait_for_large_ones(monkeypatch):
    """While a long compaction runs, newer layers are compacted; both end up in the list, in order."""
    gate, real = threading.Event(), merging.run_compaction

    def slow(plan, *args, **options):
        if plan.epoch_low == 0:
            gate.wait(30)
        return real(plan, *args, **options)

    monkeypatch.setattr(merging, "run_compaction", slow)
    trace = Trace(2)
    for epoch in range(POLICY.fanout):
        trace.write(epoch)
    with monkeypatch.context() as patch:
        patch.setattr(compactor, "LONG_BYTES", 1)
        trace.start()
    for epoch in range(POLICY.fanout, 2 * POLICY.fanout):
        trace.write(epoch, tasks=1)
    trace.start()
    assert [*trace.compactor._lanes] == ["long", "short"]
    trace.start()  # nothing is planned twice
    while not trace.compactor._lanes["short"].running.done:
        pass
    trace.compactor.collect(trace.runs)
    assert trace.counts() == [POLICY.fanout + 1] * 2
    gate.set()
    while not trace.compactor._lanes["long"].running.done:
        pass
    trace.compactor.collect(trace.runs)
    assert trace.counts() == [2, 2]
    assert [trace.values(n) for n in range(2)] == [{2 * POLICY.fanout - 1}] * 2


def test_what_was_written_before_a_compaction_is_cancelled_is_removed(monkeypatch):
    """Nobody would list it: of two units the first has ended when the second is told to stop."""
    real, begun = merging.run_compaction, threading.Event()

    def second_waits(plan, *args, stopped, **options):
        if plan.vnodes.low:
            begun.set()
            while not stopped():
                pass
        return real(plan, *args, stopped=stopped, **options)

    monkeypatch.setattr(merging, "run_compaction", second_waits)
    trace = Trace(2, CompactionPolicy(fanout=3, runs_max=4, run_bytes=1))
    for epoch in range(POLICY.fanout):
        trace.write(epoch)
    before = {entry.path for entry in storage_of(trace.place).list("")}
    trace.start()
    assert begun.wait(30)
    assert {entry.path for entry in storage_of(trace.place).list("")} > before
    trace.compactor.stop()
    assert {entry.path for entry in storage_of(trace.place).list("")} == before
    assert trace.compactor.error is None


def test_a_unit_that_fails_does_not_take_the_others_with_it(monkeypatch):
    """What was compacted is listed; what failed is tried again."""
    real = merging.run_compaction

    def unlucky(plan, *args, **options):
        if not plan.vnodes.low:
            raise OSError("no room")
        return real(plan, *args, **options)

    trace = Trace(2, CompactionPolicy(fanout=3, runs_max=4, run_bytes=1))
    for epoch in range(7):
        trace.write(epoch)
    trace.compactor.look(trace.runs)
    with monkeypatch.context() as patch:
        patch.setattr(merging, "run_compaction", unlucky)
        trace.catch_up()
    assert trace.counts() == [7, 1]
    assert trace.compactor.overdue == 1
    for _ in range(3):  # it rests, and is tried again
        trace.catch_up()
    assert trace.counts() == [1, 1]
    trace.compactor.stop()
    assert [trace.values(n) for n in range(2)] == [{6}] * 2
