"""Holdfast: stateful, incremental data pipelines on Spark that never lose or double-count a row.

Importing this package starts fast and never imports pyspark. Its names are in `__init__.pyi`.
"""

from holdfast._lazy import attach
from holdfast.version import __version__ as __version__

_MOVED = {
    "session": "holdfast.session_window",
    **{
        name: f"holdfast.checkpoint.{name}"
        for name in (
            "CounterPosition",
            "Manifest",
            "Part",
            "Store",
            "StoreReader",
            "open_store",
            "read_store",
            "recovery_plan",
            "topology",
            "verify_store",
        )
    },
}

__getattr__, __dir__, __all__ = attach(__name__, __file__, _MOVED)
