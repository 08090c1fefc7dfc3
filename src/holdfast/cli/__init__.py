"""The command line: everything about a checkpoint, without a cluster.

Read first:
- `main`: the entry; it answers Ctrl-C while the rest loads.
- `app`: which commands there are, and how they are declared.
- `commands`: one file each: its value, how it is built, how it is shown, the command.
- `targets`: from what a user typed to a store and a checkpoint.
- `output`, `render`: a value as JSON, and as lines for people.
"""
