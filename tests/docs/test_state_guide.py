"""The guide's example runs as printed."""

from __future__ import annotations

import re

from tests.helpers.paths import ROOT


def test_the_example_of_the_guide_runs(tmp_path):
    """The Python block of docs/guides/state.md is correct code with correct results."""
    text = (ROOT / "docs" / "guides" / "state.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], "state.md", "exec"), {"root": tmp_path})


def test_links_of_the_guide_lead_somewhere():
    """Every relative link of the guide names a file."""
    guide = ROOT / "docs" / "guides" / "state.md"
    for link in re.findall(r"\]\(([^)]+)\)", guide.read_text()):
        assert (guide.parent / link).exists(), link
