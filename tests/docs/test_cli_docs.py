"""The pages about the command line are what the command itself says."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.helpers.cli_world import call, environment
from tests.helpers.paths import ROOT


def test_reference_pages_are_made_from_help_and_values():
    """docs/reference/cli.md and json.md are exactly what tools/make_cli_docs.py writes."""
    pinned = re.search(r"^typer==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if version("typer") != pinned[1]:
        pytest.skip("help is worded by another version of typer")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_cli_docs.py"), "--check"],
        capture_output=True, text=True, timeout=120, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def _verbs():
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    return re.findall(r"^## (\S+)$", page, re.MULTILINE)


def test_every_verb_has_an_example_and_fits_eighty_columns():
    """`--help` of each verb ends with an example, and no line is wider than 80."""
    verbs = _verbs()
    assert len(verbs) == 18
    for verb in verbs:
        text = call(verb, "--help").out
        assert "Example:" in text, verb
        assert f"holdfast {verb} " in text.split("Example:")[1], verb
        assert max(len(line) for line in text.splitlines()) <= 80, verb


def test_the_recorded_session_shows_the_four_verbs():
    """The picture of the README has ls, show, verify and diff, and loads nothing from elsewhere."""
    picture = (ROOT / "docs" / "img" / "cli.svg").read_text().replace("&#160;", " ")
    text = re.sub(r"<[^>]*>", "", picture)
    for verb in ("ls", "show", "verify", "diff"):
        assert f"holdfast {verb} checkpoints" in text or f"holdfast {verb} --deep" in text, verb
    assert "url(http" not in picture
    assert "@font-face" not in picture


def test_the_readme_names_every_verb():
    """The section about the command line mentions each verb but `run`, which has its own."""
    section = (ROOT / "README.md").read_text()
    missing = [
        verb for verb in _verbs() if verb != "run" and not re.search(rf"\b{verb}\b", section)
    ]
    assert missing == []
