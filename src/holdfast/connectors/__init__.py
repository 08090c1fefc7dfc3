"""Connectors: sources and sinks, one file or folder each.

Read first:
- `base`: the contracts of sources and sinks.
- `generator`: the smallest source.
- `function`: the smallest sink.
- `parquet`: a sink that publishes by one rename.
- `files`: a source with a log of what it has read.

The first line of a module says whether it is a source, a sink, or shared by several. To write one,
copy tests/helpers/toy_source.py or toy_sink.py: CONTRIBUTING.md has the list of files.
"""
