"""Holdfast: stateful, incremental data pipelines on Spark that never lose or double-count a row.

Importing this package starts fast and never imports pyspark. Its names are in `__init__.pyi`.
"""

from holdfast._lazy import attach
from holdfast.version import __version__ as __version__

__getattr__, __dir__, __all__ = attach(__name__, __file__)
