"""A new command is one file: the one of CONTRIBUTING.md is added and run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.helpers.cli_world import environment
from tests.helpers.paths import ROOT


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Holdfast with one file more."""
    folder = tmp_path_factory.mktemp("own") / "src"
    shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__"))
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Add a command")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    (folder / "holdfast" / "cli" / "commands" / "size.py").write_text(code)
    return folder


def _run(source, *words):
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**environment(), "PYTHONPATH": str(source)},
    )


def test_it_is_listed_explained_and_run(source, world):
    """`--help` knows it without being told; it answers people and programs, with an exit code."""
    listed = _run(source, "--help")
    assert re.search(r"^  size +Say how much room", listed.stdout, re.MULTILINE), listed.stdout
    explained = _run(source, "size", "--help").stdout
    assert "Example:\n    holdfast size checkpoints/orders" in explained
    assert "--pipeline NAME" in explained
    said = _run(source, "size", world.address)
    assert (said.returncode, said.stdout.split(", ")[0]) == (0, "orders: 4 checkpoints")
    told = _run(source, "size", world.address, "--json")
    total = sum(entry.bytes_new for entry in world.reader.list())
    assert json.loads(told.stdout) == {
        "schema": "holdfast.size/1",
        "pipeline": "orders",
        "checkpoints": 4,
        "bytes": total,
    }


def test_its_errors_are_worded_as_all_others(source, tmp_path):
    """A place that is not there is exit 2, a message with a remedy, and a document."""
    failed = _run(source, "size", str(tmp_path / "nowhere" / "x"), "--json")
    assert failed.returncode == 2
    assert json.loads(failed.stdout)["schema"] == "holdfast.error/1"
    assert "  try: " in failed.stderr


def test_listing_imports_no_command():
    """`holdfast --help` reads first lines: not one file of the folder is imported."""
    code = (
        "import sys; from holdfast.cli.main import main; main(['--help'])\n"
        "print('LOADED', [n for n in sys.modules if n.startswith('holdfast.cli.commands')],"
        " sorted({'msgspec', 'pyarrow', 'pyspark', 'holdfast.checkpoint.reader'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment(),
    )
    assert "LOADED [] ['msgspec']" in done.stdout
