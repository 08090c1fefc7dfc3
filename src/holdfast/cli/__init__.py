"""The command line: everything about a checkpoint, without a cluster."""

from holdfast.cli.entry import main

__all__ = ["main"]
