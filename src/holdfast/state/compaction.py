"""Compaction: which runs become one, and carrying that out while epochs run.

Runs are in tiers by size, each tier `fanout` times the one before. When a tier has `fanout`
layers, they become one layer of the next. So a trace of n bytes that grows by batches of b bytes
has about fanout * log(n / b) layers at most, and each byte is written about log(n / b) times,
with the logarithm to base `fanout`.

Invariants:
- A plan takes neighbouring layers only, so that the order of epochs is kept.
- Planning reads no file and changes nothing. The same runs give the same plan.
- A compaction reads immutable runs and writes one new run, and disturbs no reader of the old ones.
- The new run is used once it is in a run list, next to or instead of what it replaces: `replace`.
- A cancelled or failed compaction leaves nothing: neither in the store nor in the list.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import InvalidInputError
from holdfast.state.merge_iterator import Combine, combined
from holdfast.state.partition import (
    RunSlice,
    hides_any,
    layers,
    live_runs,
    partition_range,
    run_slices,
)
from holdfast.state.run_writer import RunWriter, RunWriterOptions
from holdfast.state.schema import TraceKind
from holdfast.state.trace import views_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.state.run_info import RunInfo, RunTarget, VnodeRange
    from holdfast.state.run_reader import RunSource
    from holdfast.state.schema import TraceSchema
    from holdfast.storage.base import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """When runs are compacted.

    A larger `fanout` writes less and leaves more runs to look into; a smaller one the reverse.
    `runs_max` bounds the layers of a partition whatever their sizes. Runs below `tier_bytes`
    are all of the lowest tier, so that tiny runs do not make tiers of their own.
    """

    fanout: int = 4
    runs_max: int = 24
    tier_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        """Refuse what can never work."""
        if self.fanout < 2 or self.runs_max < 2 or self.tier_bytes < 1:
            raise InvalidInputError(
                "the compaction policy is not usable",
                kind="invalid_merge_policy",
                fanout=self.fanout,
                runs_max=self.runs_max,
                tier_bytes=self.tier_bytes,
                remedy="fanout >= 2, runs_max >= 2, tier_bytes >= 1",
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
    runs = tuple({run_slice.run.path: run_slice.run for run_slice in chosen}.values())
    return CompactionPlan(
        runs=runs,
        vnodes=within,
        epoch_low=min(run.epoch_low for run in runs),
        epoch_high=max(run.epoch_high for run in runs),
        generation=1 + max(run.generation for run in runs),
        bottom=span[0] == 0,
        bytes_estimate=_bytes(chosen),
    )


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


class BackgroundCompaction:
    """One compaction in a thread of its own."""

    def __init__(self, work: Callable[[Callable[[], bool]], RunInfo | None]) -> None:
        """Start; `work` gets a function that says whether it should stop."""
        self._stop = threading.Event()
        self._result: RunInfo | None = None
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

    def result(self) -> RunInfo | None:
        """Wait; the compacted run, or None if it was cancelled. Its error is raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result
