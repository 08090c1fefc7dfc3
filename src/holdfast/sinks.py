"""Sinks: where rows go, in two phases."""

from holdfast.connectors.function import Function
from holdfast.connectors.journal.sink import JournalSink as Journal
from holdfast.connectors.parquet.sink import Parquet

__all__ = ["Function", "Journal", "Parquet"]
