"""Built-in connectors use what third parties have; what they use besides is listed with a reason."""

from __future__ import annotations

import ast
import re
from importlib import import_module

import holdfast.checkpoint
import holdfast.connectors
import holdfast.journal
import holdfast.state
import holdfast.storage
from tests.helpers.paths import ROOT

CONNECTORS = ROOT / "src" / "holdfast" / "connectors"
CONTRACT = {"__init__", "bad_rows", "base", "locations", "plugins", "staging"}
"""Files that make the public names, or serve the runtime."""

PUBLIC = (
    holdfast.connectors, holdfast.checkpoint, holdfast.journal, holdfast.state, holdfast.storage,
)  # fmt: skip

# By module, why connectors that ship may use it: a third party does without, and loses nothing.
PRIVATE = {
    "holdfast.checkpoint.artifact": "writes a file with its digest in one pass; hashlib does",
    "holdfast.failpoints": "crash tests of this repository",
    "holdfast.format.canonical": "digests of Holdfast's own documents",
    "holdfast.format.documents": "the size of a small document",
    "holdfast.format.position": "how far a file was read; a position of one's own is open",
    "holdfast.ids": "random names of files; uuid does",
    "holdfast.journal.format.layout": "the journal's own files",
    "holdfast.operators.analyze": "the Arrow schema of a sink that hashes rows itself",
    "holdfast.spark.arrow_types": "the size of rows in memory; a cut by rows does without",
    "holdfast.spark.background": "tasks of outputs that are rewritten while the pipeline runs",
    "holdfast.spark.classic": "fast paths through private names of Spark, which only ship with tests",
    "holdfast.spark.errors": "tells Spark's errors from a user's",
    "holdfast.spark.session": "refuses a session that is too old",
    "holdfast.state.arrow.batches": "hashes and groups rows of upsert outputs",
    "holdfast.state.arrow.numpy_views": "hashes and groups rows of upsert outputs",
    "holdfast.state.arrow.row_equality": "hashes and groups rows of upsert outputs",
    "holdfast.storage.local.disk": "system calls that power-cut tests see",
    "holdfast.storage.local.errors": "system calls that power-cut tests see",
    "holdfast.storage.local.writer": "system calls that power-cut tests see",
}


def _public() -> set[int]:
    values = [getattr(package, name) for package in PUBLIC for name in dir(package)]
    return {id(value) for value in values}


def _imports() -> list[tuple[str, str, str]]:
    found = []
    for path in sorted(CONNECTORS.rglob("*.py")):
        if path.parent == CONNECTORS and path.stem in CONTRACT:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast"):
                found += [(path.name, str(node.module), alias.name) for alias in node.names]
    return found


def test_connectors_that_ship_use_public_names():
    """Everything else is listed above, with a reason, and is still used."""
    public, used, strangers = _public(), set(), []
    for file, module, name in _imports():
        if module.startswith("holdfast.connectors.") and not _contract(module):
            continue  # parts of one connector
        if id(getattr(import_module(module), name)) in public:
            continue
        if module in PRIVATE:
            used.add(module)
        else:
            strangers.append(f"{file}: {module}.{name}")
    assert strangers == []
    assert used == set(PRIVATE)


def _contract(module: str) -> bool:
    return module.rsplit(".", 1)[-1] in CONTRACT - {"staging"}


def test_connectors_of_the_examples_import_nothing_but_the_public_package():
    """They show what a third party needs."""
    files = [*(ROOT / "examples" / "connectors").rglob("*.py")]
    assert len(files) >= 2
    imports = {
        match
        for path in files
        for match in re.findall(r"^(?:from|import) (holdfast\S*)", path.read_text(), re.MULTILINE)
    }
    assert imports == {"holdfast.connectors"}


def test_every_public_name_of_connectors_is_in_the_guide():
    """A promise is made for these names and no other."""
    guide = (ROOT / "docs" / "guides" / "connectors.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", guide))
    assert sorted(set(dir(holdfast.connectors)) - named) == []
