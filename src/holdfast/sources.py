"""Sources: where rows come from.

Each is in `holdfast.connectors`, behind the contract of `holdfast.connectors.base`. To write one,
copy tests/helpers/toy_source.py: "Add a source" in CONTRIBUTING.md.
"""

from holdfast.connectors.files.source import Files
from holdfast.connectors.generator import Generator
from holdfast.connectors.journal.source import JournalSource as Journal

__all__ = ["Files", "Generator", "Journal"]
