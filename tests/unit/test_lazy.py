"""Packages that load their names when asked: every name of the list is there, and no other."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from holdfast._lazy import attach

PACKAGES = ["holdfast", "holdfast.checkpoint", "holdfast.state", "holdfast.storage"]
LINE = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def _listed(module):
    text = Path(module.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    listed = {name: where for where, name in LINE.findall(text)}
    assert len(listed) == len([line for line in text.splitlines() if line.strip()])
    return listed


@pytest.mark.parametrize("package", PACKAGES)
def test_every_listed_name_loads_from_where_type_checkers_see_it(package):
    """`dir`, `__all__` and the list agree, and each name is the one of its module."""
    module = importlib.import_module(package)
    listed = _listed(module)
    assert dir(module) == module.__all__ == sorted(listed)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    for name, where in listed.items():
        if where == package:
            assert getattr(module, name) is importlib.import_module(f"{package}.{name}")
        else:
            assert getattr(module, name) is getattr(importlib.import_module(where), name)
            assert name not in modules, "importing the module would hide the name"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_is_not_listed_is_an_attribute_error(package):
    """The error names the package and the name."""
    with pytest.raises(AttributeError, match=f"{package}.*no_such_name"):
        importlib.import_module(package).no_such_name  # noqa: B018


def test_a_name_that_has_moved_says_where_it_is():
    """The old place of a name answers with the new one, which is there."""
    module = importlib.import_module("holdfast")
    for name, place in module._MOVED.items():
        with pytest.raises(AttributeError, match=f"use {place}"):
            getattr(module, name)
        package, _, new = place.rpartition(".")
        assert getattr(importlib.import_module(package), new) is not None


def test_a_new_public_name_is_one_line(tmp_path, monkeypatch):
    """One line in the list makes a name public: for `dir`, for `import`, and only when asked."""
    package = tmp_path / "toy_names"
    package.mkdir()
    (package / "tools.py").write_text("def hammer():\n    return 'hit'\n")
    (package / "__init__.py").write_text(
        "from holdfast._lazy import attach\n"
        "__getattr__, __dir__, __all__ = attach(__name__, __file__)\n"
    )
    (package / "__init__.pyi").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert dir(importlib.import_module("toy_names")) == []
    with (package / "__init__.pyi").open("a") as names:
        names.write("from toy_names.tools import hammer as hammer\n")
    toy = importlib.reload(sys.modules["toy_names"])
    assert dir(toy) == toy.__all__ == ["hammer"]
    assert "toy_names.tools" not in sys.modules
    assert toy.hammer() == "hit"
    for name in ("toy_names", "toy_names.tools"):
        monkeypatch.delitem(sys.modules, name)


def test_the_list_of_names_is_read_by_the_path_that_the_loader_knows(monkeypatch):
    """Executors find the package in `./holdfast.zip`; another spelling of that is no file of a zip."""

    class Loader:
        def get_data(self, path):
            assert path == "./holdfast.zip/shipped/__init__.pyi"
            return b"from shipped.module import name as name\n"

    module = types.ModuleType("shipped")
    module.__spec__ = ModuleSpec("shipped", Loader())
    monkeypatch.setitem(sys.modules, "shipped", module)
    _, _, names = attach("shipped", "./holdfast.zip/shipped/__init__.py")
    assert names == ["name"]
