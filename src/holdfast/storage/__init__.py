"""Storage: the only I/O. Local disk, memory and object stores behind one small protocol."""

from holdfast._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
