"""The library's version, apart from the format's."""

__version__ = "0.1.0"
