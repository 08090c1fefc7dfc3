"""Which buckets an epoch touches, and who rewrites them: pure decisions.

Invariant: every slot that a staged row may have lies in exactly one of the buckets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.connectors.parquet_upsert.slots import Bucket, all_buckets

GROUP_BYTES = 64 << 20
_GROUPS_MIN = 16


class OldFile(msgspec.Struct, frozen=True):
    """Where a bucket lies now, below the output."""

    path: str
    size: int


class BucketWork(msgspec.Struct, frozen=True):
    """One bucket that an epoch may touch. size: bytes to read, as they are stored."""

    depth: int
    index: int
    old: OldFile | None
    size: int

    @property
    def bucket(self) -> Bucket:
        """Which bucket it is."""
        return Bucket(self.depth, self.index)


def touched(
    present: Mapping[Bucket, OldFile], ranges: Sequence[tuple[int, int]], staged_bytes: int
) -> list[BucketWork]:
    """The buckets in which staged rows may lie, in the order of their slots.

    ranges: from which slot to which one a row group has rows. staged_bytes: of all of them.
    """
    joined = _joined(ranges)
    lasts = [last for _, last in joined]
    work = []
    for bucket in all_buckets(present):
        place = bisect_left(lasts, bucket.first)
        if place < len(joined) and joined[place][0] < bucket.end:
            old = present.get(bucket)
            size = (old.size if old is not None else 0) + (staged_bytes >> bucket.depth)
            work.append(BucketWork(bucket.depth, bucket.index, old, size))
    return work


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def grouped(work: Sequence[BucketWork]) -> list[list[BucketWork]]:
    """Neighbours for one task each: so that it reads staged rows that lie together."""
    total = sum(one.size for one in work)
    count = min(len(work), max(_GROUPS_MIN, -(-total // GROUP_BYTES)))
    groups: list[list[BucketWork]] = [[] for _ in range(count)]
    before = 0
    for one in work:
        groups[min(count - 1, before * count // max(1, total))].append(one)
        before += one.size
    return [group for group in groups if group]
