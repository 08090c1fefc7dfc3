"""The command line: everything about a checkpoint, without a cluster."""

from holdfast.cli.entry import command, main

__all__ = ["command", "main"]
