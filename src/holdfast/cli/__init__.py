"""The command line: everything about a checkpoint, without a cluster. `main.py` is the entry."""
