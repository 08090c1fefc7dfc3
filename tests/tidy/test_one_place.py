"""One place for each hard thing: durable calls in the disk layer, connectors behind their contract."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.helpers.source import nodes_of

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src" / "holdfast"
MODULES = sorted(SOURCE.rglob("*.py"))
# The test kit plays the disk itself.
OUTSIDE = [p for p in MODULES if p.relative_to(SOURCE).parts[0] not in ("storage", "testing")]

OS_CALLS = {
    *("fsync", "fdatasync", "sync", "rename", "renames", "replace", "link", "symlink"),
    *("open", "write", "writev", "pwrite", "pwritev", "truncate", "ftruncate"),
    *("mkdir", "makedirs", "unlink", "remove", "rmdir", "removedirs"),
}
SHUTIL_CALLS = {"rmtree", "move", "copy", "copy2", "copyfile", "copytree"}
PATH_CALLS = {"rename", "symlink_to", "hardlink_to"}
# What is no file of Holdfast's: standard streams, and a temporary result next to a user's file.
PUBLIC = {"sources.py", "sinks.py", "api/training.py"}  # the last is a pipeline like a user's
ALLOWED = {
    ("cli/main.py", "os.open"): "a closed standard stream gets /dev/null",
    ("cli/output.py", "os.open"): "a broken pipe gets /dev/null",
    ("cli/completion.py", "os.makedirs"): "the shell's own directory",
    ("state/sql.py", "os.unlink"): "a result that was not finished",
}


def _disk_calls(path: Path):
    """Calls that make, name, change or sync a file without the disk layer."""
    for node in nodes_of(path):
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        if (owner == "os" and node.attr in OS_CALLS) or (
            owner == "shutil" and node.attr in SHUTIL_CALLS
        ):
            yield f"{owner}.{node.attr}", node.lineno
        elif node.attr in PATH_CALLS and not owner.endswith(("disk", "disk()", "super()")):
            yield f".{node.attr}", node.lineno


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_are_made_named_and_synced_in_the_disk_layer(path) -> None:
    """Tests can count, fail and lose every call that matters, since all of them go through `Disk`."""
    name = str(path.relative_to(SOURCE))
    if name == "journal/files.py":  # a typed layer over `Disk`, with the same names
        text = path.read_text(encoding="utf-8")
        assert not any(f"os.{call}" in text for call in ("fsync", "rename", "open", "unlink"))
        return
    found = [call for call in _disk_calls(path) if (name, call[0]) not in ALLOWED]
    assert found == [], f"{name}: use holdfast.storage.local.disk"


def test_every_exception_is_still_needed() -> None:
    """An entry of the list that no module uses is an error."""
    used = {(name, call) for name, _ in ALLOWED for call, _ in _disk_calls(SOURCE / name)}
    assert set(ALLOWED) <= used


def test_the_runtime_knows_the_contract_of_connectors_and_no_connector() -> None:
    """Outside of its room a connector is imported by public names alone."""
    contract = {
        f"holdfast.connectors.{name}"
        for name in (
            "bad_rows",
            "base",
            "locations",
            "plugins",
            "staging",
        )
    } | {"holdfast.connectors"}
    strangers = []
    for path in MODULES:
        here = path.relative_to(SOURCE).as_posix()
        if here.startswith("connectors/") or here in PUBLIC:
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            strangers += [
                f"{here}: {name}"
                for name in names
                if name.startswith("holdfast.connectors") and name not in contract
            ]
    assert strangers == []
