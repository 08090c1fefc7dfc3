"""Heartbeats: one row of weight zero for each partition, for operators that also work by time.

A task learns from its rows which partition it is. A partition without rows would not know, and the
windows and timers that wait there would never fire. Weight zero means nothing to any operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.operators.columns import HASH, WEIGHT
from holdfast.state.partition import first_hash_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def with_heartbeats(spark: SparkSession, frame: DataFrame, partitions: int) -> DataFrame:
    """The same rows, and a heartbeat for every partition; `frame` has a hash and a weight."""
    first = first_hash_sql("id", partitions)
    heartbeats = spark.range(0, partitions, 1, 1).selectExpr(
        f"{first} AS {HASH}", f"0L AS {WEIGHT}"
    )
    return frame.unionByName(heartbeats, allowMissingColumns=True)
