"""The documents of the repository: links lead somewhere, decisions follow one template."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ADR = ROOT / "docs" / "adr"
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "spec/**/*.md", "src/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
    if path.is_file()
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _prose(page):
    """A page without its code, where brackets mean something else."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))


def _anchors(page):
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _name(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_between_documents_resolve(page):
    """Every relative link leads to a file, every fragment to a heading, in the repository."""
    broken = []
    for target in _LINK.findall(_prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if (
            not file.exists()
            or not file.is_relative_to(ROOT)
            or (fragment and file.suffix == ".md" and fragment not in _anchors(file))
        ):
            broken.append(target)
    assert broken == []


def test_every_decision_record_follows_the_template():
    """Each ADR has a status, a date and four parts in order; the index is made from them."""
    spec = importlib.util.spec_from_file_location("adr", ROOT / "tools" / "make_adr_index.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ADR / "README.md").read_text(encoding="utf-8") == module.page()
    records = sorted(ADR.glob("[0-9]*.md"))
    assert len({record.name[:4] for record in records}) == len(records), "a number is used twice"
    for record in records:
        parts = re.findall(r"^## (.*)$", record.read_text(encoding="utf-8"), re.MULTILINE)
        assert parts == ["Context", "Decision", "Rejected", "Consequences"], record.name
