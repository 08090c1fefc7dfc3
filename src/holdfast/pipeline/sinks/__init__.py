"""Sinks: where rows go, in two phases."""

from holdfast.pipeline.sinks.function import Function
from holdfast.pipeline.sinks.journal import Journal
from holdfast.pipeline.sinks.parquet import Parquet

__all__ = ["Function", "Journal", "Parquet"]
