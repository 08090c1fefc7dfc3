"""Operators: one folder each, three phases that load only what they may, and no kind outside."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.source import nodes_of

SOURCE = ROOT / "src" / "holdfast"
OPERATORS = SOURCE / "operators"
MODULES = sorted(OPERATORS.rglob("*.py"))
KINDS = sorted(path.parent for path in OPERATORS.glob("*/declare.py"))


def _name(path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


def _loaded(names) -> set[str]:
    """The packages that a fresh interpreter has after importing some modules."""
    code = (
        f"import importlib, sys\nfor name in {list(names)!r}: importlib.import_module(name)\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    )
    return set(done.stdout.split())


def test_every_operator_is_one_folder_with_three_phases():
    """What is declared, analysed and executed of one operator stands in one place."""
    assert {path.name for path in KINDS} >= {
        "aggregate",
        "apply",
        "dedupe",
        "join",
        "setops",
        "topk",
        "window",
    }
    for path in KINDS:
        assert (path / "analyze.py").is_file(), path
        assert (path / "execute.py").is_file(), path


def test_declaring_a_pipeline_loads_neither_spark_nor_arrow():
    """`declare` modules, the contract of nodes, and all that they import are plain Python."""
    names = [_name(path / "declare.py") for path in KINDS]
    loaded = _loaded([*names, "holdfast.operators.declaration"])
    assert not loaded & {"pyspark", "py4j", "pyarrow", "numpy", "pandas"}


def test_what_runs_in_tasks_loads_no_spark():
    """`execute` modules, folds, and all that they import need Arrow and numpy alone."""
    phases = {"declare", "analyze"}
    names = [_name(path) for path in MODULES if path.stem not in phases]
    loaded = _loaded(name.removesuffix(".__init__") for name in names)
    assert loaded >= {"pyarrow", "numpy"}
    assert not loaded & {"pyspark", "py4j"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(OPERATORS)))
def test_only_analyze_imports_spark(path):
    """Everywhere else in an operator, not even a function imports pyspark."""
    for node in nodes_of(path):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        spark = [name for name in names if name.split(".")[0] == "pyspark"]
        assert not spark or path.stem == "analyze", f"{path} imports {spark}"


def test_nobody_else_asks_what_kind_an_operator_is():
    """Outside their folders there is no node's class, no fold's class and no kind in a condition."""
    kinds = "|".join(sorted(_stored_kinds()))
    rules = {
        r"isinstance\(.*Node\b": OPERATORS,
        r"isinstance\(.*Declaration\b": OPERATORS,
        r"(isinstance|type)\(.*Fold\b": OPERATORS / "aggregate",
        rf"""\.(kind|what) (==|!=|in) .*["']({kinds})["']""": OPERATORS,
    }
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in SOURCE.rglob("*.py")
        for rule, place in rules.items()
        if not path.is_relative_to(place)
        for match in re.finditer(rule, path.read_text(encoding="utf-8"))
    ]
    assert found == []


def _stored_kinds() -> set[str]:
    texts = [(path / "declare.py").read_text(encoding="utf-8") for path in KINDS]
    return {kind for text in texts for kind in re.findall(r'kind: ClassVar\[str\] = "(\w+)"', text)}


def test_stored_kinds_are_those_of_old_checkpoints():
    """Kinds are in the fingerprint of every stored pipeline."""
    assert _stored_kinds() == {
        "aggregate",
        "apply",
        "dedupe",
        "distinct",
        "join",
        "rows",
        "top",
        "upsert",
        "window",
    }
