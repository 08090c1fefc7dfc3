"""The types of the public API, as mypy sees them: real ones, of PySpark too."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT

pytest.importorskip("mypy")
HERE = ROOT / "tests" / "typing"
_MARK = re.compile(r"# wrong: (\S+)")
_ERROR = re.compile(r"^(\S+?):(\d+): error: .*\[(\S+)\]$", re.MULTILINE)


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """By file and line, the codes of what mypy reports."""
    files = [str(HERE / "door.py"), str(HERE / "wrong.py")]
    cache = tmp_path_factory.mktemp("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(HERE / "mypy.ini"),
         "--cache-dir", str(cache), "--no-pretty", *files],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    errors: dict[str, dict[int, set[str]]] = {}
    for path, line, code in _ERROR.findall(done.stdout):
        errors.setdefault(path.rpartition("/")[2], {}).setdefault(int(line), set()).add(code)
    return errors


def test_every_public_signature_has_the_types_that_are_pinned(reported):
    """DataFrame, Column, Source, Sink and so on, not Any."""
    assert "door.py" not in reported


def test_mypy_refuses_each_mistake_and_nothing_else(reported):
    """A signature of Any would accept them all."""
    lines = (HERE / "wrong.py").read_text().splitlines()
    wanted = {
        number: match.group(1)
        for number, line in enumerate(lines, 1)
        if (match := _MARK.search(line))
    }
    assert len(wanted) > 20
    assert reported["wrong.py"].keys() == wanted.keys()
    for number, code in wanted.items():
        assert code in reported["wrong.py"][number], lines[number - 1]
