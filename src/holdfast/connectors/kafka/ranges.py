"""Source: which offsets an epoch takes. Pure plans, no broker.

Invariants:
- Ranges of one plan do not overlap; behind a plan every partition stands at the end of its range.
- A limit is shared in proportion to what waits, so that no partition falls behind the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Partition = tuple[str, int]


@dataclass(frozen=True, order=True)
class OffsetRange:
    """Offsets of one partition: from `start` up to, not including, `stop`."""

    topic: str
    partition: int
    start: int
    stop: int

    @property
    def offsets(self) -> int:
        """How many offsets; transactions leave holes, so rows may be fewer."""
        return self.stop - self.start


def plan_ranges(
    at: Mapping[Partition, int], ends: Mapping[Partition, int], limit: int | None
) -> tuple[OffsetRange, ...]:
    """What is taken next, in order of topic and partition; empty when nothing is new."""
    waiting = {
        key: ends[key] - start for key, start in at.items() if key in ends and ends[key] > start
    }
    shares = shared(waiting, limit)
    return tuple(
        OffsetRange(*key, at[key], at[key] + count)
        for key, count in sorted(shares.items())
        if count
    )


def shared(waiting: Mapping[Partition, int], limit: int | None) -> dict[Partition, int]:
    """How much of each is taken, so that the sum is the limit, or everything."""
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(waiting)
    shares = {key: count * limit // total for key, count in waiting.items()}
    left = limit - sum(shares.values())
    for key in sorted(waiting, key=lambda key: (shares[key] - waiting[key], key)):
        if not left:
            break
        if shares[key] < waiting[key]:
            shares[key] += 1
            left -= 1
    return shares


def behind(at: Mapping[Partition, int], ranges: Sequence[OffsetRange]) -> dict[Partition, int]:
    """Where the partitions stand when these ranges were read."""
    return {**at, **{(one.topic, one.partition): one.stop for one in ranges}}


def pieces(ranges: Sequence[OffsetRange], count: int, least: int = 10_000) -> list[OffsetRange]:
    """Ranges cut so that about `count` tasks have something to do, in order."""
    total = sum(one.offsets for one in ranges)
    size = max(least, -(-total // max(1, count)))
    cut = []
    for one in ranges:
        start = one.start
        while start < one.stop:
            stop = min(one.stop, start + size)
            cut.append(OffsetRange(one.topic, one.partition, start, stop))
            start = stop
    return cut


def lost(
    at: Mapping[Partition, int], earliest: Mapping[Partition, int]
) -> dict[Partition, tuple[int, int]]:
    """By partition, the offsets that were not read and are gone: from, up to."""
    return {
        key: (start, earliest[key])
        for key, start in at.items()
        if key in earliest and earliest[key] > start
    }
