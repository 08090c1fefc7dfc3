"""Connectors: sources and sinks, one file or folder each.

Read first:
- `base`: the contracts of sources and sinks.
- `generator`: the smallest source; copy it for a new one.
- `function`: the smallest sink; copy it for a new one.
- `parquet`: a sink that publishes by one rename.
- `files`: a source with a log of what it has read.

The first line of a module says whether it is a source, a sink, or shared by several.
"""
