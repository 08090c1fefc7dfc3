"""Names of a package that are loaded when first asked for.

A package lists its public names in `__init__.pyi`, one line each. Type checkers read that file, and
so does the package itself. A command that reads a store does not pay for what writes one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_LINE = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def attach(
    package: str, file: str, moved: dict[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """What a package needs to load its names lazily.

    Args:
        package: the package's `__name__`.
        file: the package's `__file__`; its list of names lies next to it, in `__init__.pyi`.
        moved: names that are somewhere else, with the place that the error tells.

    Returns:
        `__getattr__`, `__dir__` and `__all__` of the package.

    Raises:
        AttributeError: from `__getattr__`, when the list does not have the name.
    """
    stub = _read(package, f"{file.rpartition('.')[0]}.pyi")
    modules = {name: module for module, name in _LINE.findall(stub)}
    names = sorted(modules)

    def load(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            remedy = f"; use {moved[name]}" if moved and name in moved else ""
            message = f"module {package!r} has no attribute {name!r}{remedy}"
            raise AttributeError(message)
        if module == package:
            value: Any = import_module(f"{package}.{name}")
        else:
            value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: names, names


def _read(package: str, path: str) -> str:
    """A file of a package, which may lie in a zip: executors get it like that.

    The path is not normalised: a loader knows `./name.zip/...` by that text alone.
    """
    spec = sys.modules[package].__spec__
    loader: Any = spec.loader if spec is not None else None
    data: bytes = loader.get_data(path)
    return data.decode()
