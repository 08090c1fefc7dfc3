"""Beacons: one row of weight zero for each partition, for operators that also work by time.

A task learns from its rows which partition it is. A partition without rows would not know, and the
windows and timers that wait there would never fire. Weight zero means nothing to any operator.
"""

from __future__ import annotations

from typing import Any

from holdfast.pipeline.operators.work import HASH, WEIGHT
from holdfast.state.partition import partition_range


def with_beacons(spark: Any, frame: Any, partitions: int) -> Any:
    """The same rows, and a beacon for every partition; `frame` has a hash and a weight."""
    rows = []
    for number in range(partitions):
        low = partition_range(number, partitions).hash_low
        rows.append((low - (1 << 64) if low >> 63 else low, 0))
    beacons = spark.createDataFrame(rows, f"{HASH} long, {WEIGHT} long").coalesce(1)
    return frame.unionByName(beacons, allowMissingColumns=True)
