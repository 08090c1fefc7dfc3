"""Connectors: sources and sinks, one file or folder each; and the public way to write your own.

The names of this package are what a connector needs, of Holdfast or not; they are promised to stay
(docs/guides/connectors.md). `holdfast.testing.connectors` tries a connector against its contract.

Read first:
- `base`: the contracts of sources and sinks. `bad_rows`: rows that a source could not read.
- `generator`: the smallest source.
- `function`: the smallest sink.
- `parquet`: a sink that publishes by one rename.
- `files`: a source with a log of what it has read.

The first line of a module says whether it is a source, a sink, or shared by several.
"""

from holdfast._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
