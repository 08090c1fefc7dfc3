"""Sources: where rows come from."""

from holdfast.connectors.files.source import Files
from holdfast.connectors.generator import Generator
from holdfast.connectors.journal.source import JournalSource as Journal

__all__ = ["Files", "Generator", "Journal"]
