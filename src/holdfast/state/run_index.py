"""The live runs of one trace, kept up to date change by change.

The pure functions (`live_runs`, `runs_by_partition`, `layers`, `expired_runs`) say what is right;
they walk every run. An index gives the same answers and does work for what changed only: a run of
an epoch touches the partitions that it lies in, a compaction one partition, a time bound the runs
that it passes.

Invariants:
- `runs` is what `live_runs` gives for all that was added, once nothing more can be left out.
- For each partition, `of_partition` is what `runs_by_partition` gives, and `layers` has the layers
  of its slices.
- `changes` is the difference between the runs now and those at the last `mark`.
- A run that is refused (`ambiguous_runs`, `run_listed`) leaves the index as it was.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.errors import InvalidInputError
from holdfast.state.partition import (
    RunSlice,
    layers,
    partition_of,
    partition_range,
    run_age,
    run_slices,
)
from holdfast.state.schema import TraceKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.state.run_info import RunInfo, VnodeRange


@dataclass(frozen=True, slots=True)
class RunChanges:
    """What came into a trace and what left it."""

    added: tuple[RunInfo, ...]
    removed: tuple[RunInfo, ...]


class _Partition:
    """The runs that one partition reads something of, oldest first, and how it reads them."""

    __slots__ = ("layers", "newest", "runs", "within")

    def __init__(self, within: VnodeRange, runs: Iterable[RunInfo] = ()) -> None:
        self.within = within
        self.runs = {run.path: run for run in runs}
        self.newest = max((run.epoch_high for run in self.runs.values()), default=-1)
        self.layers: list[list[RunSlice]] = layers(run_slices(self.runs.values(), within))

    def append(self, run: RunInfo) -> None:
        """One more run, newer than all others."""
        inside = run.vnodes.intersect(self.within)
        if inside is None:
            return
        self.runs[run.path] = run
        self.newest = run.epoch_high
        self.layers.append([RunSlice(run, inside)])

    def changed(self, *, more: Iterable[RunInfo] = (), less: Iterable[str] = ()) -> _Partition:
        """The same partition with other runs; raises where two runs contradict each other."""
        gone = set(less)
        runs = [run for path, run in self.runs.items() if path not in gone]
        for run in more:
            insort(runs, run, key=run_age)
        return _Partition(self.within, runs)

    def visible(self) -> set[str]:
        """Paths of the runs of which something is read."""
        return {run_slice.run.path for layer in self.layers for run_slice in layer}


class RunIndex:
    """The live runs of one trace, by partition. Not safe for several threads.

    Example:
        >>> from holdfast.state import RunIndex
        >>> index = RunIndex(partitions=8)
        >>> len(index), index.depth(3), index.deepest(1)
        (0, 0, [])
    """

    def __init__(self, partitions: int, runs: Iterable[RunInfo] = ()) -> None:
        """Begin with the runs that a checkpoint lists; what of them is dead has left since."""
        listed = sorted(runs, key=run_age)
        self.partitions = partitions
        places: list[list[RunInfo]] = [[] for _ in range(partitions)]
        self._parts: list[_Partition] = []
        for run in listed:
            for place in self._places(run):
                places[place].append(run)
        for place, some in enumerate(places):
            self._parts.append(_Partition(partition_range(place, partitions), some))
        self._runs = {run.path: run for run in listed}
        self._seen: dict[str, int] = dict.fromkeys(self._runs, 0)
        for part in self._parts:
            for path in part.visible():
                self._seen[path] += 1
        self._by_depth: defaultdict[int, set[int]] = defaultdict(set)
        for place, part in enumerate(self._parts):
            self._by_depth[len(part.layers)].add(place)
        self._empty = {path for path, run in self._runs.items() if not run.rows}
        self._added: dict[str, RunInfo] = {}
        self._removed: dict[str, RunInfo] = {}
        self._times = _Times(self)
        self._touched = set(range(partitions))
        self._sweep(set(range(partitions)), set(self._runs))

    # What is there

    def __len__(self) -> int:
        """How many runs live."""
        return len(self._runs)

    def __contains__(self, path: object) -> bool:
        """Whether a run of that path lives."""
        return path in self._runs

    def __getitem__(self, path: str) -> RunInfo:
        """A live run by its path."""
        return self._runs[path]

    def __iter__(self) -> Iterator[RunInfo]:
        """All live runs, in no order."""
        return iter(self._runs.values())

    def runs(self) -> list[RunInfo]:
        """All live runs, oldest first. Walks all of them."""
        return sorted(self._runs.values(), key=run_age)

    def of_partition(self, partition: int) -> list[RunInfo]:
        """The runs that a partition reads something of, oldest first."""
        return [*self._parts[partition].runs.values()]

    def layers(self, partition: int) -> Sequence[Sequence[RunSlice]]:
        """What a partition reads, in groups with disjoint epochs, oldest first."""
        return self._parts[partition].layers

    def depth(self, partition: int) -> int:
        """How many layers a partition reads."""
        return len(self._parts[partition].layers)

    def deepest(self, layers_min: int) -> list[tuple[int, int]]:
        """Partitions with so many layers or more, as (layers, partition), the most layers first."""
        counts = [c for c, places in self._by_depth.items() if c >= layers_min and places]
        return [(c, p) for c in sorted(counts, reverse=True) for p in sorted(self._by_depth[c])]

    def take_touched(self) -> set[int]:
        """Partitions that read other runs than when this was asked last; at first, all of them.

        Where nothing was touched, a compaction that was not due is not due now.
        """
        touched, self._touched = self._touched, set()
        return touched

    # What changes

    def add(self, run: RunInfo) -> None:
        """A run that an epoch or a compaction has written; what it replaces leaves."""
        places = self._places(run)
        parts = [self._parts[place] for place in places]
        if all(run.epoch_low > part.newest for part in parts):
            if not run.rows:
                return  # it would hide nothing
            for place, part in zip(places, parts, strict=True):
                self._by_depth[len(part.layers)].discard(place)
                part.append(run)
                self._by_depth[len(part.layers)].add(place)
                self._touched.add(place)
            self._come(run, len(places))
            return
        changed = {place: self._parts[place].changed(more=[run]) for place in places}
        self._come(run, 0)
        self._times.look_again(path for place in places for path in self._parts[place].runs)
        self._put(changed)
        self._sweep(set(places), {p for place in places for p in self._parts[place].runs})

    def replace(self, compacted: RunInfo) -> None:
        """A compaction has ended: its run comes, and what it replaces everywhere leaves."""
        if compacted.path in self._runs:
            raise InvalidInputError(
                "the run is listed already", kind="run_listed", path=compacted.path
            )
        self.add(compacted)

    def expire(self, bound_us: int, *, time_is_key: bool = False) -> list[RunInfo]:
        """Let runs leave whose rows are all behind the time bound, as `expired_runs` says."""
        expired = self._times.expired(bound_us, time_is_key=time_is_key)
        self._drop({run.path for run in expired})
        return expired

    def changes(self) -> RunChanges:
        """What changed since the last `mark`, oldest first."""
        added, removed = (
            tuple(sorted(runs.values(), key=run_age)) for runs in (self._added, self._removed)
        )
        return RunChanges(added, removed)

    def mark(self) -> None:
        """The runs are as a checkpoint has them: `changes` begins again."""
        self._added, self._removed = {}, {}

    # How it is kept

    def hides_any(self, run: RunInfo) -> bool:
        """Whether leaving this run out would bring rows of another one back."""
        return any(
            other is not run and run.covers(other) and run.vnodes.intersect(other.vnodes)
            for place in self._places(run)
            for other in self._parts[place].runs.values()
        )

    def _places(self, run: RunInfo) -> range:
        first = partition_of(run.vnodes.low, self.partitions)
        return range(first, partition_of(run.vnodes.high - 1, self.partitions) + 1)

    def _come(self, run: RunInfo, seen: int) -> None:
        self._runs[run.path] = run
        self._seen[run.path] = seen
        self._added[run.path] = run
        if not run.rows:
            self._empty.add(run.path)
        self._times.add(run)

    def _put(self, changed: dict[int, _Partition]) -> None:
        for place, part in changed.items():
            before = self._parts[place]
            for path in before.visible():
                self._seen[path] -= 1
            for path in part.visible():
                self._seen[path] += 1
            self._parts[place] = part
            self._touched.add(place)
            self._by_depth[len(before.layers)].discard(place)
            self._by_depth[len(part.layers)].add(place)

    def _sweep(self, places: set[int], paths: set[str]) -> None:
        """Of these runs, those that nobody reads leave; then those that only hid them."""
        self._drop({path for path in paths if path in self._runs and not self._seen[path]})
        while self._empty:
            near = {p for place in places for p in self._parts[place].runs} & self._empty
            idle = {path for path in near if not self.hides_any(self._runs[path])}
            if not idle:
                return
            places |= {place for path in idle for place in self._places(self._runs[path])}
            self._drop(idle)

    def _drop(self, paths: set[str]) -> None:
        """These leave; none of them hides a row of one that stays."""
        by_place: defaultdict[int, list[str]] = defaultdict(list)
        for path in paths:
            for place in self._places(self._runs[path]):
                by_place[place].append(path)
        self._put({p: self._parts[p].changed(less=gone) for p, gone in by_place.items()})
        for path in paths:
            run = self._runs.pop(path)
            del self._seen[path]
            self._empty.discard(path)
            if self._added.pop(path, None) is None:
                self._removed[path] = run
        if paths and self._empty:
            self._sweep(set(by_place), set())


class _Times:
    """Which runs lie behind a time bound, without asking every run each time."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._bound: int | None = None
        self._begin()

    def _begin(self) -> None:
        """Nothing is behind any bound yet."""
        runs = [*self._index]
        self._by_time = [(r.time_max_us, r.path) for r in runs if r.time_max_us is not None]
        self._by_epoch = [(run.epoch_low, run.path) for run in runs]
        self._hiding: set[str] = set()  # behind the bound, but they hide others
        self._ready: set[str] = set()  # behind the bound, and could go
        self._by_last: list[tuple[int, str]] = []  # the ready ones by their last epoch
        heapify(self._by_time)
        heapify(self._by_epoch)

    def add(self, run: RunInfo) -> None:
        """A run has come."""
        if run.time_max_us is not None:
            heappush(self._by_time, (run.time_max_us, run.path))
        heappush(self._by_epoch, (run.epoch_low, run.path))

    def look_again(self, paths: Iterable[str]) -> None:
        """These may hide something now."""
        for path in paths:
            if path in self._ready:
                self._ready.discard(path)
                self._keep(path)

    def _keep(self, path: str) -> None:
        self._hiding.add(path)
        heappush(self._by_epoch, (self._index[path].epoch_low, path))

    def expired(self, bound_us: int, *, time_is_key: bool) -> list[RunInfo]:
        """What `expired_runs` would give, oldest first."""
        index = self._index
        if self._bound is not None and bound_us < self._bound:
            self._begin()
        self._bound = bound_us
        behind = {path for path in self._hiding if path in index}
        while self._by_time and self._by_time[0][0] < bound_us:
            path = heappop(self._by_time)[1]
            if path in index:
                behind.add(path)
        self._hiding = set()
        for path in behind:
            run = index[path]
            if index.hides_any(run):
                self._hiding.add(path)
            else:
                self._ready.add(path)
                heappush(self._by_last, (run.epoch_high, path))
        if not self._ready:
            return []
        return sorted(self._take(time_is_key=time_is_key), key=run_age)

    def _take(self, *, time_is_key: bool) -> list[RunInfo]:
        """Of those that could go, the ones that may: of a latest trace the oldest only."""
        index, heap = self._index, self._by_epoch
        while heap and (heap[0][1] not in index or heap[0][1] in self._ready):
            heappop(heap)
        anyway = time_is_key or any(run.trace == TraceKind.BAG for run in islice(index, 1))
        taken = []
        while self._by_last and (anyway or not heap or self._by_last[0][0] < heap[0][0]):
            path = heappop(self._by_last)[1]
            if path in self._ready:
                self._ready.discard(path)
                if path in index:
                    taken.append(index[path])
        return taken
