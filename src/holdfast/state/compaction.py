"""Compaction: which runs become one, and carrying that out while epochs run.

Runs are in tiers by size, each tier `fanout` times the one before. When a tier has `fanout`
layers, they become one layer of the next. So a trace of n bytes that grows by batches of b bytes
has about fanout * log(n / b) layers at most, and each byte is written about log(n / b) times,
with the logarithm to base `fanout`.

A whole trace is planned at once (`plan_trace`): which layers become one follows from their bytes
over all vnodes, and how many runs they become follows from their bytes, too. Small layers become
one run for all vnodes, large ones a run for each partition at most. So partitions stay in step, a
run of a small epoch is never rewritten once for each partition, and the number of files follows
the bytes of the state and not the number of partitions.

Invariants:
- A plan takes neighbouring layers only, so that the order of epochs is kept.
- Two compactions that run at a time share no epoch of a trace, or no vnode.
- Planning reads no file and changes nothing. The same runs give the same plan.
- A compaction reads immutable runs and writes one new run, and disturbs no reader of the old ones.
- The new run is used once it is in a run list, next to or instead of what it replaces: `replace`.
- A cancelled or failed compaction leaves nothing: neither in the store nor in the list.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import numpy as np

from holdfast.errors import InvalidInputError
from holdfast.ids import VNODE_COUNT
from holdfast.state.merge_iterator import Combine, combined
from holdfast.state.partition import (
    RunSlice,
    hides_any,
    layers,
    live_runs,
    partition_of,
    partition_range,
    run_slices,
)
from holdfast.state.run_info import ALL_VNODES, RunInfo, VnodeRange
from holdfast.state.run_writer import RunWriter, RunWriterOptions
from holdfast.state.schema import TraceKind
from holdfast.state.trace import views_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.state.run_info import RunTarget
    from holdfast.state.run_reader import RunSource
    from holdfast.state.schema import TraceSchema
    from holdfast.storage.base import Storage

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """When runs are compacted.

    A larger `fanout` writes less and leaves more runs to look into; a smaller one the reverse.
    `runs_max` bounds the layers of a partition whatever their sizes. Runs below `tier_bytes`
    are all of the lowest tier, so that tiny runs do not make tiers of their own. Up to `run_bytes`
    become one run for all partitions; a larger one makes fewer files, and more for each to read.
    """

    fanout: int = 4
    runs_max: int = 24
    tier_bytes: int = 1 << 20
    run_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        """Refuse what can never work."""
        if self.fanout < 2 or self.runs_max < 2 or min(self.tier_bytes, self.run_bytes) < 1:
            raise InvalidInputError(
                "the compaction policy is not usable",
                kind="invalid_merge_policy",
                fanout=self.fanout,
                runs_max=self.runs_max,
                tier_bytes=self.tier_bytes,
                run_bytes=self.run_bytes,
                remedy="fanout >= 2, runs_max >= 2, tier_bytes >= 1, run_bytes >= 1",
            )


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """These runs, sliced to these vnodes, become one. `bottom`: nothing older remains."""

    runs: tuple[RunInfo, ...]
    vnodes: VnodeRange
    epoch_low: int
    epoch_high: int
    generation: int
    bottom: bool
    bytes_estimate: int

    def __str__(self) -> str:
        """One line for people."""
        kind = "snapshot" if self.bottom else "delta"
        return (
            f"compact {len(self.runs)} runs of epochs {self.epoch_low}..{self.epoch_high}, vnodes "
            f"{self.vnodes.low}..{self.vnodes.high}, about {self.bytes_estimate} bytes, "
            f"into one {kind}"
        )


def plan_compaction(
    runs: Sequence[RunInfo], partition: int, partitions: int, policy: CompactionPolicy
) -> CompactionPlan | None:
    """The next compaction of one partition, or None when its runs are in good order."""
    within = partition_range(partition, partitions)
    all_layers = layers(run_slices(runs, within))
    sizes = [_bytes(layer) for layer in all_layers]
    span = choose_layers(sizes, policy)
    return None if span is None else _plan(all_layers, span, within)


def plan_trace(
    runs: Iterable[RunInfo],
    counts: Sequence[int],
    policy: CompactionPolicy,
    busy: Sequence[CompactionPlan] = (),
) -> list[CompactionPlan]:
    """The next compaction of a whole trace, in units that can be done one by one or together.

    Args:
        runs: all runs of the trace.
        counts: the numbers of ranges that vnodes may be cut into, ascending; the last one is the
            number of partitions.
        policy: when runs are compacted, and into how many.
        busy: compactions of this trace that run now; only layers newer than theirs are taken.

    Returns:
        Plans for ranges of vnodes that do not overlap; none when all is in good order.
    """
    all_layers = trace_layers(runs)
    first = max(
        (n + 1 for n, layer in enumerate(all_layers) if any(_meets(layer, plan) for plan in busy)),
        default=0,
    )
    free = all_layers[first:]
    span = _choose_span(free, policy)
    if span is None:
        return []
    chosen = [run_slice for layer in free[span[0] : span[1]] for run_slice in layer]
    older = _depths([s for layer in all_layers[: first + span[0]] for s in layer])
    return [
        _unit(inside, within, bottom=not older[within.low : within.high].any())
        for within, inside in _ranges(chosen, counts, policy, _depths(chosen))
    ]


def trace_layers(runs: Iterable[RunInfo]) -> list[list[RunSlice]]:
    """The layers of a whole trace: `layers` of `run_slices`, at a cost that follows the runs.

    Runs cover each other only where they share an epoch. Where all runs of some epochs are of the
    same ones, as one epoch or one compaction wrote them, none of them covers another.
    """
    groups: list[list[RunInfo]] = []
    reach = -1
    for run in sorted(runs, key=lambda run: (run.epoch_low, run.epoch_high)):
        if groups and run.epoch_low <= reach:
            groups[-1].append(run)
        else:
            groups.append([run])
        reach = max(reach, run.epoch_high)
    found: list[list[RunSlice]] = []
    for group in groups:
        if len({(run.epoch_low, run.epoch_high, run.generation) for run in group}) == 1:
            found.append([RunSlice(run, run.vnodes) for run in group])
        else:
            found += layers(run_slices(group))
    return found


def _meets(layer: Sequence[RunSlice], plan: CompactionPlan) -> bool:
    low, high = plan.epoch_low, plan.epoch_high
    return any(s.run.epoch_low <= high and low <= s.run.epoch_high for s in layer)


def _choose_span(
    all_layers: Sequence[Sequence[RunSlice]], policy: CompactionPolicy
) -> tuple[int, int] | None:
    """Which layers of a trace to compact: those that some partition reads as many come first.

    Layers of a trace are one layer in every partition, but for those whose compaction ended in some
    partitions only, or was planned when there was another number of partitions.
    """
    uneven = [1 if _even(layer) else int(_depths(layer).max()) for layer in all_layers]
    for number, depth in reversed([*enumerate(uneven)]):
        if depth >= policy.fanout:
            return number, number + 1
    span = choose_layers([_bytes(layer) for layer in all_layers], policy)
    if span is None and sum(uneven) > policy.runs_max:
        number = uneven.index(max(uneven))
        return number, number + 1
    return span


def _even(layer: Sequence[RunSlice]) -> bool:
    first = layer[0].run
    same = (first.epoch_low, first.epoch_high)
    return all((s.run.epoch_low, s.run.epoch_high) == same for s in layer)


def _depths(slices: Sequence[RunSlice]) -> np.ndarray:
    """For each vnode, how many of the slices have it."""
    depths = np.zeros(VNODE_COUNT, np.int64)
    for run_slice in slices:
        depths[run_slice.vnodes.low : run_slice.vnodes.high] += 1
    return depths


def _ranges(
    slices: Sequence[RunSlice],
    counts: Sequence[int],
    policy: CompactionPolicy,
    depths: np.ndarray,
    within: VnodeRange = ALL_VNODES,
) -> Iterator[tuple[VnodeRange, list[RunSlice]]]:
    """Ranges of about `run_bytes` in which there is something to compact, and what."""
    if depths[within.low : within.high].max() < 2:
        return
    low, high = within.low, within.high
    inside = [s for s in slices if s.vnodes.low < high and low < s.vnodes.high]
    if len(counts) == 1 or sum(_bytes_inside(s, within) for s in inside) <= policy.run_bytes:
        yield within, inside
        return
    each = counts[1] // counts[0]
    first = partition_of(low, counts[0]) * each
    for number in range(first, first + each):
        part = partition_range(number, counts[1])
        yield from _ranges(inside, counts[1:], policy, depths, part)


def _bytes_inside(run_slice: RunSlice, within: VnodeRange) -> int:
    run, vnodes = run_slice.run, run_slice.vnodes
    common = min(vnodes.high, within.high) - max(vnodes.low, within.low)
    return max(1, run.size * common // len(run.vnodes))


def _unit(chosen: Sequence[RunSlice], within: VnodeRange, *, bottom: bool) -> CompactionPlan:
    runs = tuple({run_slice.run.path: run_slice.run for run_slice in chosen}.values())
    return CompactionPlan(
        runs=runs,
        vnodes=within,
        epoch_low=min(run.epoch_low for run in runs),
        epoch_high=max(run.epoch_high for run in runs),
        generation=1 + max(run.generation for run in runs),
        bottom=bottom,
        bytes_estimate=sum(_bytes_inside(s, within) for s in chosen),
    )


def plan_full_compaction(
    runs: Sequence[RunInfo], partition: int, partitions: int, *, always: bool = False
) -> CompactionPlan | None:
    """Everything of one partition into one run: after a rescale, or before a long rest.

    None when it is one run already; `always` plans even then, to drop outdated rows.
    """
    within = partition_range(partition, partitions)
    all_layers = layers(run_slices(runs, within))
    compacted = (
        len(all_layers) == 1 and len(all_layers[0]) == 1 and all_layers[0][0].run.vnodes == within
    )
    if not all_layers or (compacted and all_layers[0][0].run.snapshot and not always):
        return None
    return _plan(all_layers, (0, len(all_layers)), within)


def choose_layers(sizes: Sequence[int], policy: CompactionPolicy) -> tuple[int, int] | None:
    """Which layers to compact (from, to before), given their sizes, oldest first."""
    count = len(sizes)
    tiers = [_tier(size, policy) for size in sizes]
    # A small layer below a larger, newer one counts as large: order forbids passing it.
    for i in range(count - 2, -1, -1):
        tiers[i] = max(tiers[i], tiers[i + 1])
    stop = count
    while stop > 0:
        start = stop
        while start > 0 and tiers[start - 1] == tiers[stop - 1]:
            start -= 1
        if stop - start >= policy.fanout:
            return _cascade(sizes, tiers, start, stop, policy), stop
        stop = start
    if count > policy.runs_max:
        return policy.runs_max - 1, count
    return None


def _cascade(
    sizes: Sequence[int], tiers: Sequence[int], start: int, stop: int, policy: CompactionPolicy
) -> int:
    """Take older tiers along when the compacted run would fill them at once: one pass, not two."""
    while start > 0:
        tier = _tier(sum(sizes[start:stop]), policy)
        first = start
        while first > 0 and tiers[first - 1] <= tier:
            first -= 1
        if start - first < policy.fanout - 1:
            break
        start = first
    return start


def _tier(size: int, policy: CompactionPolicy) -> int:
    return max(0, math.floor(math.log(size / policy.tier_bytes, policy.fanout)) + 1)


def _bytes(layer: Sequence[RunSlice]) -> int:
    return sum(run_slice.bytes_estimate for run_slice in layer)


def _plan(
    all_layers: list[list[RunSlice]], span: tuple[int, int], within: VnodeRange
) -> CompactionPlan:
    chosen = [run_slice for layer in all_layers[span[0] : span[1]] for run_slice in layer]
    return _unit(chosen, within, bottom=span[0] == 0)


def expired_runs(
    runs: Sequence[RunInfo], time_bound_us: int, *, time_is_key: bool = False
) -> list[RunInfo]:
    """Runs that can leave the list unread, since every row is behind the time bound.

    A bag run may go whenever all its rows are outdated. A latest run may only go together with
    everything older, or an older row of the same key would come back, unless the time is a part of
    the key. A compaction that still hides a shared run stays in any case.
    """
    outdated = [run for run in runs if _outdated(run, time_bound_us) and not hides_any(run, runs)]
    if time_is_key or all(run.trace == TraceKind.BAG for run in outdated):
        return outdated
    kept_from = min((run.epoch_low for run in runs if run not in outdated), default=None)
    return [run for run in outdated if kept_from is None or run.epoch_high < kept_from]


def _outdated(run: RunInfo, bound: int) -> bool:
    return run.time_max_us is not None and run.time_max_us < bound


def run_compaction(
    plan: CompactionPlan,
    storage: Storage,
    source: RunSource,
    schema: TraceSchema,
    target: RunTarget,
    *,
    time_bound_us: int | None = None,
    options: RunWriterOptions | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> RunInfo | None:
    """Compact as planned; None when it was stopped. `target` names the file and the partition."""
    views = views_of(run_slices(plan.runs, plan.vnodes), source, schema, keep=False)
    how = Combine(bottom=plan.bottom, time_bound_us=time_bound_us)
    with RunWriter(
        storage,
        schema,
        target,
        plan.vnodes,
        epochs=(plan.epoch_low, plan.epoch_high),
        generation=plan.generation,
        snapshot=plan.bottom,
        options=options,
    ) as writer:
        for rows in combined(views, schema, how, stopped):
            writer.write(rows)
        if stopped():
            writer.abort()
            return None
        return writer.close()


def replace(runs: Sequence[RunInfo], compacted: RunInfo) -> list[RunInfo]:
    """The run list after a compaction, whatever was added meanwhile; oldest first."""
    if any(run.path == compacted.path for run in runs):
        raise InvalidInputError("the run is listed already", kind="run_listed", path=compacted.path)
    return live_runs([*runs, compacted])


class BackgroundCompaction(Generic[_T]):
    """Compactions in a thread of their own."""

    def __init__(self, work: Callable[[Callable[[], bool]], _T]) -> None:
        """Start; `work` gets a function that says whether it should stop."""
        self._stop = threading.Event()
        self._result: _T | None = None
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, name="holdfast-compaction", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work(self._stop.is_set)
        except BaseException as error:  # noqa: BLE001  # raised again in `result`, to who asks
            self._error = error

    @property
    def done(self) -> bool:
        """Whether it has ended in any way."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Ask it to stop; it leaves nothing behind."""
        self._stop.set()

    def result(self) -> _T:
        """Wait; what the work came to. Its error is raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return cast("_T", self._result)
