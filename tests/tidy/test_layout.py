"""The rooms of the tests: packages, folders that mirror the source, and names that lead to tests."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys

from tests.helpers.paths import PACKAGE, ROOT, TESTS
from tests.helpers.source import tree_of

ROOMS = {
    "compat", "crash", "docs", "helpers", "integration", "operators", "property", "tidy", "typing",
    "unit",
}  # fmt: skip


def _folders():
    return {path.parent for path in TESTS.rglob("*.py")}


def test_every_folder_of_tests_is_a_package():
    """So that two files may have one name, and helpers are imported from one place."""
    assert [str(d) for d in sorted(_folders()) if not (d / "__init__.py").exists()] == []
    assert {d.relative_to(TESTS).parts[0] for d in _folders() if d != TESTS} <= ROOMS


def test_the_unit_tests_mirror_the_source():
    """Every folder of the unit tests is a package of the source."""
    unit = TESTS / "unit"
    folders = {d.relative_to(unit) for d in _folders() if d.is_relative_to(unit)}
    assert [str(d) for d in sorted(folders) if not (PACKAGE / d / "__init__.py").exists()] == []


def test_no_test_changes_the_path_of_imports():
    """Helpers are a package; nothing needs `sys.path`, and child processes get an environment."""
    change = "sys" + ".path.insert"
    found = [
        str(path) for path in TESTS.rglob("*.py") if change in path.read_text(encoding="utf-8")
    ]
    assert found == []


def test_every_mutation_names_an_existing_test():
    """The file is there, and so is the function."""
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "tools" / "mutate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutate"] = module
    spec.loader.exec_module(module)
    known: dict[str, set[str]] = {}
    missing = []
    for test in sorted({mutation.test for mutation in module.mutations()}):
        file, *names = test.split("::")
        if not (ROOT / file).is_file():
            missing.append(test)
            continue
        if file not in known:
            tree = tree_of(ROOT / file)
            known[file] = {
                node.name
                for node in ast.walk(tree)
                if isinstance(node, (ast.FunctionDef, ast.ClassDef))
            }
        for name in names:
            machine = name in ("TestCase", "runTest")
            if not machine and re.sub(r"\[.*", "", name) not in known[file]:
                missing.append(test)
    assert missing == []


def test_every_test_file_that_a_page_names_exists():
    """Pages name tests by path, and the paths are there."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("spec/*.md")]
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        if page.name != "CHANGELOG.md"
        for name in re.findall(r"`(tests/[\w/.]+)`", page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert missing == []
