"""Checkpoints: commit protocol, catalog, fence, verification, recovery, retention."""

from holdfast._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
