"""Names of a package that are loaded when first asked for.

Who reads a store does not pay for what writes one, and the command line starts in time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def lazy_name(package: str, where: Mapping[str, str], name: str) -> Any:
    """A name of a package from the module that `where` gives, kept there for the next time."""
    if name not in where:
        message = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(where[name]), name)
    setattr(sys.modules[package], name, value)
    return value
