"""Packages that load their names when asked have every name that they promise."""

from __future__ import annotations

import ast
import pkgutil
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    "package",
    ["holdfast.checkpoint", "holdfast.pipeline", "holdfast.state", "holdfast.storage", "holdfast"],
)
def test_every_promised_name_is_there_and_is_what_type_checkers_see(package):
    """Each name of `__all__` loads, from the module that the import for type checkers names."""
    module = import_module(package)
    with open(module.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    seen = {}
    for node in tree.body:
        for each in node.body if isinstance(node, ast.If) else [node]:
            if not isinstance(each, ast.ImportFrom) or each.module == "holdfast._lazy":
                continue
            if (each.module or "").startswith("holdfast"):
                seen.update({alias.name: each.module for alias in each.names})
    assert set(seen) == set(module.__all__)
    where = module._WHERE
    assert {name: seen[name] for name in where} == where
    for name in where:
        assert getattr(module, name) is getattr(import_module(where[name]), name)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert modules.isdisjoint(where), "importing the module would hide the name"
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018
