"""Arrow's kernels, loaded by their first use.

`pyarrow.compute` builds hundreds of functions when it is imported, longer than many a command
takes that needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Kernels:
    """`pyarrow.compute`, as if it had been imported."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module("pyarrow.compute"), name)
        self.__dict__[name] = value
        return value


pc: Any = _Kernels()
