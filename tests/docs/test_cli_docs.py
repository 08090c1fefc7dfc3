"""The pages about the command line are what the command itself says."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from holdfast.cli.app import load, sections, summary
from tests.helpers.cli_world import call, environment
from tests.helpers.paths import ROOT


def test_reference_pages_are_made_from_help_and_values():
    """docs/reference/cli.md and json.md are exactly what tools/make_cli_docs.py writes."""
    pinned = re.search(r"^click==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if version("click") != pinned[1]:
        pytest.skip("help is worded by another version of click")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_cli_docs.py"), "--check"],
        capture_output=True, text=True, timeout=120, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def _commands():
    """Every command, those of groups as two words."""
    names = [name for section in sections().values() for name in section]
    inner = [f"{name} {each}" for name in names for each in getattr(load(name), "commands", ())]
    return [name for name in names if name not in ("guard", "journal")] + inner


def test_every_command_has_an_example_and_fits_eighty_columns():
    """`--help` of each command ends with an example, and no line is wider than 80."""
    commands = _commands()
    assert len(commands) == 35
    for name in commands:
        text = call(*name.split(), "--help").out
        assert "Example:" in text, name
        assert f"holdfast {name}" in text.split("Example:")[1], name
        assert max(len(line) for line in text.splitlines()) <= 80, name


def test_the_list_of_commands_says_what_each_help_says():
    """`holdfast --help` reads the first line of each file; it is how the command's help begins."""
    for name in (name for section in sections().values() for name in section):
        text = " ".join(call(name, "--help").out.split())
        assert summary(name).rstrip(".") in text, name
        assert summary(name).endswith("."), name


def test_the_recorded_session_shows_the_four_verbs():
    """The picture of the README has ls, show, verify and diff, and loads nothing from elsewhere."""
    picture = (ROOT / "docs" / "img" / "cli.svg").read_text().replace("&#160;", " ")
    text = re.sub(r"<[^>]*>", "", picture)
    for verb in ("ls", "show", "verify", "diff"):
        assert f"holdfast {verb} checkpoints" in text or f"holdfast {verb} --deep" in text, verb
    assert "url(http" not in picture
    assert "@font-face" not in picture


def test_the_readme_names_every_command():
    """The section about the command line mentions each command but `run`, which has its own."""
    section = (ROOT / "README.md").read_text()
    missing = [
        name
        for name in {each.split()[0] for each in _commands()} - {"run"}
        if not re.search(rf"\b{name}\b", section)
    ]
    assert missing == []
