"""Sources: where rows come from.

Each of these is in `holdfast.connectors`, behind the contract of `holdfast.connectors.base`. Other
packages add theirs by entry points of the group `holdfast.sources`: docs/guides/connectors.md.
"""

from typing import TYPE_CHECKING, Any

from holdfast.connectors.files.source import Files
from holdfast.connectors.generator import Generator
from holdfast.connectors.journal.source import JournalSource as Journal
from holdfast.connectors.kafka.source import KafkaSource as Kafka

__all__ = ["Files", "Generator", "Journal", "Kafka"]

if not TYPE_CHECKING:  # type checkers know the names above; others are imported from their package

    def __getattr__(name: str) -> Any:
        from holdfast.connectors.plugins import load_plugin

        return load_plugin(__name__, name, __all__)


def __dir__() -> list[str]:
    from holdfast.connectors.plugins import plugin_names

    return sorted({*__all__, *plugin_names(__name__)})
