"""Connectors: sources and sinks, one file or folder each."""
