"""Sources: where rows come from."""

from holdfast.pipeline.sources.files import Files
from holdfast.pipeline.sources.generator import Generator
from holdfast.pipeline.sources.journal import Journal

__all__ = ["Files", "Generator", "Journal"]
