"""Sources: where rows come from."""

from holdfast.pipeline.sources.files import Files
from holdfast.pipeline.sources.generator import Generator

__all__ = ["Files", "Generator"]
