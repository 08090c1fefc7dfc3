"""What the driver does as a store grows: the real planner, index, draft, catalog and retention.

    python benchmarks/simulate_scale.py [--quick] [--out docs/internals/scale.json]

Tasks are fake: a run is an entry with a size, and no rows. Two parts:

1. One partition for a million epochs, every epoch: the compaction policy alone decides; what is
   measured are layers, and how often a byte is written.
2. A pipeline at some of those epochs (10, 100, … a million): its partitions get the layers that
   the first part found there, each at its own place in the cycle. Then epochs run, in all of which
   every partition that is busy writes a run, and compactions are planned and done at once. Measured
   are CPU, requests, bytes and objects of each epoch, and the memory of the driver.

`tools/draw_scale.py` draws the results and writes the tables of docs/internals/scale.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import random
import resource
import statistics
import subprocess
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

from counting_storage import CountingStorage
from fake_runs import FakeRuns, shape

from holdfast import Settings
from holdfast.checkpoint import CounterPosition, Store, open_store
from holdfast.clock import SystemClock
from holdfast.state import (
    CompactionPolicy,
    RunIndex,
    TraceKind,
    partition_range,
    plan_compaction,
    put_index,
)
from holdfast.state.compaction import choose_layers

EPOCHS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
SETTINGS = Settings(recovery_verify="shallow")
ROW_BYTES = 100
VNODES = 256
POLICY = CompactionPolicy()
# name, traces of 256 partitions each (or one of fewer), partitions, busy ones in an epoch
SHAPES = (
    ("64 partitions", 1, 64, 64),
    ("256 partitions", 1, 256, 256),
    ("4,096 partitions, 64 busy", 16, 256, 64),
    ("4,096 partitions, all busy", 16, 256, 4_096),
)
KEYS, CHANGES = 250_000, 250  # of one partition, and in one epoch
CHANGED_SHARE = 1e-5  # of all keys, in a second: each key changes about once a day


def distinct(changes: float, keys: float) -> float:
    """How many keys so many changes hit, of those that one partition has."""
    return keys * -math.expm1(-changes / keys)


class OnePartition:
    """The layers of one partition, and what the policy makes of them."""

    def __init__(self, keys: float = KEYS, changes: float = CHANGES) -> None:
        """Empty. changes: in one epoch."""
        self._keys, self._changes = keys, changes
        self.layers: list[tuple[int, int, float]] = []  # first epoch, last epoch, changes
        self.epoch = self.written = self.merged = self.merges = 0

    def step(self) -> None:
        """One epoch and the compactions that follow."""
        self.epoch += 1
        self.layers.append((self.epoch, self.epoch, self._changes))
        self.written += self._size(self._changes)
        while (span := choose_layers([self._size(c) for *_, c in self.layers], POLICY)) is not None:
            chosen = self.layers[span[0] : span[1]]
            changes = sum(c for _, _, c in chosen)
            self.layers[span[0] : span[1]] = [(chosen[0][0], chosen[-1][1], changes)]
            self.merged += self._size(changes)
            self.merges += 1

    def _size(self, changes: float) -> int:
        return size_of(changes, self._keys)

    def bytes(self) -> int:
        """Of all layers."""
        return sum(self._size(changes) for *_, changes in self.layers)


def size_of(changes: float, keys: float = KEYS) -> int:
    """Bytes of a run with the keys that so many changes hit."""
    return max(1, int(distinct(changes, keys) * ROW_BYTES))


def paper() -> list[dict[str, Any]]:
    """What the policy does to one partition of the large pipelines of the page."""
    rows = []
    for keys in (10**9, 10**12):
        for partitions in (256, 4_096):
            for seconds in (1, 10, 60):
                changes = keys * CHANGED_SHARE * seconds / partitions
                partition = OnePartition(keys / partitions, changes)
                for _ in range(min(100_000, int(3 / (CHANGED_SHARE * seconds)))):
                    partition.step()
                rows.append(
                    {
                        "keys": keys,
                        "partitions": partitions,
                        "seconds": seconds,
                        "changes": changes,
                        "epochs": partition.epoch,
                        "layers": len(partition.layers),
                        "bytes": partition.bytes(),
                        "amplification": 1 + partition.merged / partition.written,
                        "merges": partition.merges / partition.epoch,
                    }
                )
    return rows


def one_partition(epochs: tuple[int, ...]) -> tuple[list[dict[str, Any]], dict[int, Any]]:
    """The policy alone; returns points of the curve, and layers around each of the epochs."""
    partition, points, found = OnePartition(), [], {}
    begun = time.process_time()
    window: list[int] = []
    for _ in range(epochs[-1] + 1):
        partition.step()
        window.append(len(partition.layers))
        near = [epoch for epoch in epochs if epoch * 0.9 <= partition.epoch <= epoch]
        for epoch in near:
            kept = found.setdefault(epoch, [])
            sampled = len(kept) < 64 and partition.epoch * 7919 % 64 < 8
            if sampled or partition.epoch == epoch:
                kept.append([*partition.layers])
        if partition.epoch in epochs:
            points.append(
                {
                    "epoch": partition.epoch,
                    "layers": statistics.mean(window[-1000:]),
                    "layers_max": max(window),
                    "amplification": (partition.written + partition.merged) / partition.written,
                    "merges": partition.merges / partition.epoch,
                }
            )
    cpu = (time.process_time() - begun) / partition.epoch
    points[-1]["cpu_us"] = cpu * 1e6
    return points, found


class Simulation:
    """One pipeline, at one age."""

    def __init__(self, traces: int, partitions: int, busy: int, layers: list[Any]) -> None:
        """Fill a store as it would be at that age."""
        self.storage, self.busy = CountingStorage(), busy
        self.random, self.runs = random.Random(1), FakeRuns()
        self.store: Store = open_store(self.storage, "p", topology=shape(traces), settings=SETTINGS)
        self.indexes = {f"op{n}": RunIndex(partitions) for n in range(traces)}
        self.places = [(name, p) for name in self.indexes for p in range(partitions)]
        self.epoch = max(last for some in layers for _, last, _ in some)
        checkpoint = self.store.reserve()
        for name, place in self.places:
            vnodes = partition_range(place, partitions)
            for first, last, changes in self.random.choice(layers):
                run = self.runs.run(
                    checkpoint, name, place, vnodes, (first, last), size=size_of(changes),
                    generation=int(last > first),
                )  # fmt: skip
                self.storage.phantom(f"p/{run.path}", run.size)
                self.indexes[name].add(run)
        self._commit(checkpoint)
        for index in self.indexes.values():
            index.take_touched()

    def step(self) -> None:
        """One epoch: runs of the busy partitions, all compactions that are due, one commit."""
        self.epoch += 1
        checkpoint = self.store.reserve()
        chosen = self.places
        if self.busy < len(chosen):
            chosen = self.random.sample(chosen, self.busy)
        for name, place in chosen:
            index = self.indexes[name]
            vnodes = partition_range(place, index.partitions)
            run = self.runs.run(
                checkpoint, name, place, vnodes, (self.epoch, self.epoch), size=size_of(CHANGES)
            )
            self.storage.phantom(f"p/{run.path}", run.size)
            index.add(run)
        for name, index in self.indexes.items():
            for place in sorted(index.take_touched()):
                self._compact(checkpoint, name, index, place)
        self._commit(checkpoint)
        report = self.store.retain()
        assert report.error is None

    def _compact(self, checkpoint: Any, name: str, index: RunIndex, place: int) -> None:
        if index.depth(place) < POLICY.fanout:
            return
        plan = plan_compaction(index.of_partition(place), place, index.partitions, POLICY)
        if plan is None:
            return
        changes = sum(self._changes(run.size) for run in plan.runs)
        epochs = plan.epoch_low, plan.epoch_high
        run = self.runs.run(checkpoint, name, place, plan.vnodes, epochs, size=size_of(changes))
        run = replace(run, generation=plan.generation)
        self.storage.phantom(f"p/{run.path}", run.size)
        index.replace(run)

    def _changes(self, size: int) -> int:
        """How many changes a run of that size has seen, about."""
        part = min(size / (KEYS * ROW_BYTES), 0.999_999)
        return max(1, int(-KEYS * math.log1p(-part)))

    def _commit(self, checkpoint: Any) -> None:
        draft = self.store.draft(checkpoint=checkpoint)
        draft.set_source("in", CounterPosition(partitions={"0": self.epoch}))
        for name, index in self.indexes.items():
            put_index(draft, name, TraceKind.LATEST, index, counts="live")
        self.store.commit(draft)


def measure(spec: tuple[str, int, int, int], epoch: int, layers: list[Any], steps: int) -> Any:
    """One point of the curves."""
    name, traces, partitions, busy = spec
    gc.collect()
    tracemalloc.start()
    simulation = Simulation(traces, partitions, busy, layers)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    for _ in range(3):
        simulation.step()
    storage, cpu = simulation.storage, []
    before, put = storage.requests.copy(), storage.bytes_put
    for _ in range(steps):
        begun = time.process_time()
        simulation.step()
        cpu.append(time.process_time() - begun)
    requests = {kind: (storage.requests[kind] - before[kind]) / steps for kind in before}
    manifest = simulation.store.current
    assert manifest is not None
    result = {
        "shape": name,
        "partitions": traces * partitions,
        "busy": busy,
        "epoch": epoch,
        "runs": len(manifest.inventory) - len(manifest.segments),
        "segments": len(manifest.segments),
        "objects": storage.objects,
        "cpu_ms": statistics.median(cpu) * 1e3,
        "document_bytes": (storage.bytes_put - put) / steps,
        "manifest_bytes": simulation.store.list()[0].manifest_bytes,
        "requests": requests,
        "memory_mb": memory / 1e6,
        "steps": steps,
    }
    simulation.store.close()
    return result


def main() -> None:
    """Run both parts and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="up to 1,000 epochs, small shapes")
    parser.add_argument("--out", default=None, help="where results go, as JSON")
    args = parser.parse_args()
    epochs = EPOCHS[:3] if args.quick else EPOCHS
    shapes = SHAPES[:2] if args.quick else SHAPES
    curve, layers = one_partition(epochs)
    for point in curve:
        print(
            f"one partition, epoch {point['epoch']:>9,}: {point['layers']:5.1f} layers (at most "
            f"{point['layers_max']}), each byte is written {point['amplification']:.1f} times"
        )
    points = []
    for spec in shapes:
        for epoch in epochs:
            steps = max(8, min(100, 20_000 // spec[3])) // (4 if args.quick else 1)
            point = measure(spec, epoch, layers[epoch], steps)
            points.append(point)
            print(
                f"{spec[0]:>27}, epoch {epoch:>9,}: {point['runs']:>7,} runs, cpu "
                f"{point['cpu_ms']:7.1f} ms, {point['document_bytes'] / 1e3:8.1f} kB, "
                f"{point['memory_mb']:6.1f} MB, {point['requests']}",
                flush=True,
            )
    if args.out:
        results = {**where(), "one_partition": curve, "pipelines": points, "paper": paper()}
        Path(args.out).write_text(json.dumps(results, indent=1) + "\n")


def where() -> dict[str, Any]:
    """On what this was measured."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime(SystemClock().wall_us() / 1e6)),
        "commit": commit,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}",
        "policy": {"fanout": POLICY.fanout, "tier_bytes": POLICY.tier_bytes},
        "row_bytes": ROW_BYTES,
        "keys": KEYS,
        "changes": CHANGES,
        "changed_share": CHANGED_SHARE,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


if __name__ == "__main__":
    main()
