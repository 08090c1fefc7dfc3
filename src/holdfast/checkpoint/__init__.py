"""Checkpoints: the store, and how it commits, recovers, collects and copies.

Read first:
- `store`: what a writer can do. `reader`: what everybody can do.
- `draft`: a checkpoint that is being put together.
- `commit`: the protocol, the catalog, and the fence.
- `recovery`: from evidence to a plan to an open store.
- `gc`: what may be deleted, and when.
"""

from holdfast._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
