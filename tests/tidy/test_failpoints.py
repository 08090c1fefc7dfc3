"""The set of failpoints and the source name the same failpoints."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast
from holdfast.failpoints import FAILPOINTS

SOURCE = Path(holdfast.__file__).parent


def test_failpoints_and_source_agree():
    """Every registered failpoint stands in the source, and the other way round."""
    kinds = "|".join(sorted({name.split(".")[0] for name in FAILPOINTS}))
    literal = re.compile(rf'"((?:{kinds})\.[a-z_]+)"')
    reached = re.compile(r'\bfailpoint\(\s*"([^"]+)"')
    used = set()
    for file in SOURCE.rglob("*.py"):
        if file.name == "failpoints.py" or "testing" in file.parts:
            continue
        text = file.read_text(encoding="utf-8")
        used |= set(literal.findall(text)) | set(reached.findall(text))
    assert used == FAILPOINTS
