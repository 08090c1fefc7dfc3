"""Runs that nobody wrote rows into: for measuring what the driver does, without tasks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from holdfast.checkpoint import CounterPosition, Part, Store, topology
from holdfast.format import paths
from holdfast.format.topology import Topology
from holdfast.ids import CheckpointId
from holdfast.state import RunIndex, RunInfo, TraceKind, VnodeRange, partition_range, put_index

CONTENT = b"rows"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
LAYERS = 20  # of a partition, about what the compaction policy leaves


def shape(traces: int) -> Topology:
    """A pipeline with so many operators."""
    source = Part(name="in", kind="source", what="counter")
    operators = [
        Part(name=f"op{n}", kind="operator", what="x", inputs=["in"]) for n in range(traces)
    ]
    return topology(source, *operators)


class FakeRuns:
    """Makes the facts of runs."""

    def __init__(self, seed: int = 1) -> None:
        """The same seed makes the same runs."""
        self._random = random.Random(seed)

    def run(
        self,
        checkpoint: CheckpointId,
        trace: str,
        partition: int,
        vnodes: VnodeRange,
        epochs: tuple[int, int],
        *,
        size: int = len(CONTENT),
        generation: int = 0,
    ) -> RunInfo:
        """One run under a name that nobody else uses."""
        attempt = f"{self._random.getrandbits(64):016x}"
        return RunInfo(
            path=paths.run(checkpoint, trace, partition, attempt, snapshot=False),
            size=size, sha256=DIGEST, trace=TraceKind.LATEST, snapshot=False, operator=trace,
            partition=partition, rows=1, hash_min=vnodes.hash_low, hash_max=vnodes.hash_high,
            vnodes=vnodes, epoch_low=epochs[0], epoch_high=epochs[1], generation=generation,
            base=checkpoint,
        )  # fmt: skip


class FakePipeline:
    """A store whose traces have so many runs, and epochs that change a few of them."""

    def __init__(
        self,
        store: Store,
        write: Callable[[Iterable[RunInfo]], None],
        indexes: dict[str, RunIndex],
    ) -> None:
        """Continue. write: makes the files of runs."""
        self.store, self._write, self.indexes = store, write, indexes
        self._runs, self._random = FakeRuns(int(store.epoch_next)), random.Random(2)
        self.partitions = next(iter(indexes.values())).partitions
        self.epoch = 2 * LAYERS + int(store.epoch_next)

    @classmethod
    def filled(
        cls, store: Store, write: Callable[[Iterable[RunInfo]], None], files: int
    ) -> FakePipeline:
        """Fill a new store with so many runs."""
        partitions = max(1, min(256, files // LAYERS))
        names = [f"op{n}" for n in range(traces_of(files))]
        per_trace = -(-files // (partitions * len(names)))
        pipeline = cls(store, write, {name: RunIndex(partitions) for name in names})
        checkpoint = store.reserve()
        for number in range(files):
            place, epoch = number % partitions, 1 + number // partitions % per_trace
            index = pipeline.indexes[name := names[number // partitions // per_trace]]
            vnodes = partition_range(place, partitions)
            index.add(pipeline._runs.run(checkpoint, name, place, vnodes, (epoch, epoch)))
        write(run for index in pipeline.indexes.values() for run in index)
        pipeline.commit(checkpoint)
        return pipeline

    def change(self, *, added: int = 4, compactions: int = 2, wide: int = 4) -> CheckpointId:
        """One epoch: so many runs come, and compactions replace some neighbours each."""
        checkpoint, index = self.store.reserve(), self._random.choice([*self.indexes.values()])
        trace = next(iter(index)).operator
        self.epoch += 1
        new = []
        places = self._random.sample(range(self.partitions), min(self.partitions, added))
        for place in places:
            vnodes = partition_range(place, self.partitions)
            new.append(self._runs.run(checkpoint, trace, place, vnodes, (self.epoch, self.epoch)))
            index.add(new[-1])
        for _ in range(compactions):
            place = self._random.randrange(self.partitions)
            layers = index.layers(place)
            if len(layers) < wide:
                continue
            start = self._random.randrange(len(layers) - wide + 1)
            old = [s.run for layer in layers[start : start + wide] for s in layer]
            epochs = min(r.epoch_low for r in old), max(r.epoch_high for r in old)
            vnodes = partition_range(place, self.partitions)
            run = self._runs.run(checkpoint, trace, place, vnodes, epochs)
            new.append(replace(run, generation=1 + max(r.generation for r in old)))
            index.replace(new[-1])
        self._write(new)
        return checkpoint

    def commit(self, checkpoint: CheckpointId) -> None:
        """Draft and commit what has changed."""
        draft = self.store.draft(checkpoint=checkpoint)
        draft.set_source("in", CounterPosition(partitions={"0": self.epoch}))
        for name, index in self.indexes.items():
            put_index(draft, name, TraceKind.LATEST, index, counts="live")
        self.store.commit(draft)


def traces_of(files: int) -> int:
    """How many traces of 256 partitions have so many runs."""
    return max(1, -(-files // (256 * LAYERS)))
