"""The set of crash points and the source name the same points."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast
from holdfast.failpoints import POINTS

SOURCE = Path(holdfast.__file__).parent


def test_points_and_source_agree():
    """Every registered point stands in the source, and every point in the source is registered."""
    kinds = "|".join(sorted({name.split(".")[0] for name in POINTS}))
    literal = re.compile(rf'"((?:{kinds})\.[a-z_]+)"')
    reached = re.compile(r'\breach\(\s*"([^"]+)"')
    used = set()
    for file in SOURCE.rglob("*.py"):
        if file.name == "points.py" or "testing" in file.parts:
            continue
        text = file.read_text(encoding="utf-8")
        used |= set(literal.findall(text)) | set(reached.findall(text))
    assert used == POINTS
