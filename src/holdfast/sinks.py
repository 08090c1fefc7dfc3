"""Sinks: where rows go, in two phases.

Each of these is in `holdfast.connectors`, behind the contract of `holdfast.connectors.base`. Other
packages add theirs by entry points of the group `holdfast.sinks`: docs/guides/connectors.md.
"""

from typing import TYPE_CHECKING, Any

from holdfast.connectors.function import Function
from holdfast.connectors.journal.sink import JournalSink as Journal
from holdfast.connectors.kafka.sink import KafkaSink as Kafka
from holdfast.connectors.parquet.sink import Parquet

__all__ = ["Function", "Journal", "Kafka", "Parquet"]

if not TYPE_CHECKING:  # type checkers know the names above; others are imported from their package

    def __getattr__(name: str) -> Any:
        from holdfast.connectors.plugins import load_plugin

        return load_plugin(__name__, name, __all__)


def __dir__() -> list[str]:
    from holdfast.connectors.plugins import plugin_names

    return sorted({*__all__, *plugin_names(__name__)})
