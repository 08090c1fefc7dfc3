"""Which runs speak for which vnodes: partitions, rescale, and what compactions replaced.

A set of runs is read the same way however many partitions there are: a partition is a range of
vnodes, and its view of a run is a slice of it. Changing the number of partitions therefore
rewrites nothing.

Invariants:
- The partitions 0..n-1 of any n in 1..256 cover every vnode exactly once, in order.
- `partition_of` is the one rule from vnode to partition; its SQL forms stand next to it.
- For each vnode, the slices that `run_slices` returns have disjoint epochs, oldest first.
- A run that a wider compaction replaced is never read for the vnodes of that compaction, even while
  it is still listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from holdfast.errors import IncompatibleError, InvalidInputError
from holdfast.ids import VNODE_BITS, VNODE_COUNT
from holdfast.state.run_info import ALL_VNODES, HASH_BITS, RunInfo, VnodeRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def partition_range(partition: int, partitions: int) -> VnodeRange:
    """The vnodes of one partition of so many."""
    _check_partitions(partitions)
    if not 0 <= partition < partitions:
        raise InvalidInputError(
            "no such partition", kind="invalid_partition", partition=partition, of=partitions
        )
    return VnodeRange(
        partition * VNODE_COUNT // partitions, (partition + 1) * VNODE_COUNT // partitions
    )


def partition_table(partitions: int) -> np.ndarray:
    """The partition of each of the 256 vnodes, for shuffling."""
    _check_partitions(partitions)
    table: np.ndarray = partition_of(np.arange(VNODE_COUNT), partitions).astype(np.int32)
    return table


@overload
def partition_of(vnode: int, partitions: int) -> int: ...
@overload
def partition_of(vnode: np.ndarray, partitions: int) -> np.ndarray: ...
def partition_of(vnode: Any, partitions: int) -> Any:
    """The partition that a vnode belongs to: the one whose `partition_range` holds it.

    Args:
        vnode: one vnode, or an array of them.
        partitions: how many partitions there are.

    Returns:
        The number of the partition; an array for an array.

    Example:
        >>> [partition_of(vnode, 3) for vnode in (0, 84, 85, 255)]
        [0, 0, 1, 2]
    """
    return ((vnode + 1) * partitions - 1) // VNODE_COUNT


def partition_sql(hash_column: str, partitions: int) -> str:
    """`partition_of` as Spark SQL, for the vnode of a column of hashes."""
    vnode = f"shiftrightunsigned({hash_column}, {HASH_BITS - VNODE_BITS})"
    return f"cast((({vnode} + 1) * {partitions} - 1) div {VNODE_COUNT} AS int)"


def first_hash_sql(partition: str, partitions: int) -> str:
    """The smallest hash of a partition's first vnode as Spark SQL, for a column of partitions."""
    return f"shiftleft({partition} * {VNODE_COUNT} div {partitions}, {HASH_BITS - VNODE_BITS})"


def vnode_of(value: int) -> int:
    """The vnode of one hash, signed or not: its top eight bits."""
    return (value % (1 << HASH_BITS)) >> (HASH_BITS - VNODE_BITS)


def vnodes_of(hashes: np.ndarray) -> np.ndarray:
    """The vnode of each hash: its top eight bits."""
    return (hashes.view(np.uint64) >> np.uint64(HASH_BITS - VNODE_BITS)).astype(np.int32)


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= VNODE_COUNT:
        raise InvalidInputError(
            "the number of partitions is out of range",
            kind="invalid_partitions",
            partitions=partitions,
            limit=VNODE_COUNT,
            remedy=f"use 1 to {VNODE_COUNT} partitions",
        )


@dataclass(frozen=True, slots=True)
class RunSlice:
    """The part of a run that is read for some vnodes."""

    run: RunInfo
    vnodes: VnodeRange

    @property
    def bytes_estimate(self) -> int:
        """About how many bytes of the run lie inside; hashes are spread evenly."""
        return max(1, self.run.size * len(self.vnodes) // len(self.run.vnodes))


def run_age(run: RunInfo) -> tuple[int, int, VnodeRange]:
    """Sorts runs from old to new."""
    return run.epoch_low, -run.epoch_high, run.vnodes


def run_slices(runs: Iterable[RunInfo], within: VnodeRange = ALL_VNODES) -> list[RunSlice]:
    """What has to be read for these vnodes, oldest first."""
    low, high = within.low, within.high
    inside = [run for run in runs if run.vnodes.low < high and low < run.vnodes.high]
    inside.sort(key=run_age)
    neighbours = _near(inside)
    slices: list[RunSlice] = []
    for run in inside:
        pieces = [piece] if (piece := run.vnodes.intersect(within)) else []
        for other in neighbours[run.vnodes]:
            if other is run or not other.overlaps(run):
                continue
            if other.covers(run):
                pieces = [rest for piece in pieces for rest in piece.subtract(other.vnodes)]
            elif not run.covers(other):
                raise _ambiguous(run, other)
        slices += [RunSlice(run, piece) for piece in pieces]
    return slices


def _near(runs: Iterable[RunInfo]) -> dict[VnodeRange, list[RunInfo]]:
    """By range of vnodes, the runs that share some. There are many runs, but few ranges."""
    by_range: dict[VnodeRange, list[RunInfo]] = {}
    for run in runs:
        by_range.setdefault(run.vnodes, []).append(run)
    return {
        vnodes: [
            run
            for other, some in by_range.items()
            if other.low < vnodes.high and vnodes.low < other.high
            for run in some
        ]
        for vnodes in by_range
    }


def runs_by_partition(runs: Iterable[RunInfo], partitions: int) -> list[list[RunInfo]]:
    """The runs that each partition reads something of."""
    table = partition_table(partitions).tolist()
    by_partition: list[list[RunInfo]] = [[] for _ in range(partitions)]
    for run in runs:
        for partition in range(table[run.vnodes.low], table[run.vnodes.high - 1] + 1):
            by_partition[partition].append(run)
    return by_partition


def _ambiguous(run: RunInfo, other: RunInfo) -> IncompatibleError:
    return IncompatibleError(
        "two runs both speak for the same epoch and vnodes",
        kind="ambiguous_runs",
        first=run.path,
        second=other.path,
        epochs=f"{run.epoch_low}..{run.epoch_high} and {other.epoch_low}..{other.epoch_high}",
        remedy="list the runs of winning task attempts only",
    )


def live_runs(runs: Sequence[RunInfo]) -> list[RunInfo]:
    """The runs that still matter for at least one vnode, oldest first, each once.

    A run without rows matters only as long as it replaces another that is still read elsewhere.
    """
    by_path: dict[str, RunInfo] = {}
    for run_slice in run_slices(runs):
        by_path.setdefault(run_slice.run.path, run_slice.run)
    live = list(by_path.values())
    return [run for run in live if run.rows or hides_any(run, live)]


def hides_any(run: RunInfo, others: Iterable[RunInfo]) -> bool:
    """Whether leaving this run out of the list would bring rows of another one back."""
    return any(run.covers(other) and run.vnodes.intersect(other.vnodes) for other in others)


def layers(slices: Sequence[RunSlice]) -> list[list[RunSlice]]:
    """Run slices in groups with disjoint epochs, oldest first: a compaction cuts between them."""
    groups: list[list[RunSlice]] = []
    reach = -1
    for run_slice in sorted(slices, key=lambda s: (s.run.epoch_low, s.run.epoch_high)):
        if groups and run_slice.run.epoch_low <= reach:
            groups[-1].append(run_slice)
        else:
            groups.append([run_slice])
        reach = max(reach, run_slice.run.epoch_high)
    return groups
