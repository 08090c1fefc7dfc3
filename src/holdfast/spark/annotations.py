"""Spark's classes for annotations in modules that may not import pyspark, not even in a function.

Read by type checkers: import it under `TYPE_CHECKING` alone.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

__all__ = ["DataFrame", "SparkSession", "StreamingQuery", "StructType"]
