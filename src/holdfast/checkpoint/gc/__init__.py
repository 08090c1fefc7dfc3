"""What may be deleted: retention, reachability, the collector, and what each checkpoint costs.

Read first:
- `retention`: which checkpoints stay.
- `reachability`: which files nobody names.
- `collector`: catalog first, files second.
"""
