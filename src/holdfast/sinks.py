"""Sinks: where rows go, in two phases.

Each is in `holdfast.connectors`, behind the contract of `holdfast.connectors.base`. To write one,
copy tests/helpers/toy_sink.py: "Add a sink" in CONTRIBUTING.md.
"""

from holdfast.connectors.function import Function
from holdfast.connectors.journal.sink import JournalSink as Journal
from holdfast.connectors.parquet.sink import Parquet

__all__ = ["Function", "Journal", "Parquet"]
