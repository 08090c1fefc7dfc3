"""Write the table of docs/adr/README.md from the decision records themselves.

Run: .venv/bin/python tools/make_adr_index.py
"""

from __future__ import annotations

import re
from pathlib import Path

ADR = Path(__file__).resolve().parents[1] / "docs" / "adr"
INDEX = ADR / "README.md"
_HEAD = re.compile(r"# (\d{4}) (.+)\n\n- Status: (.+)\n- Date: (\d{4}-\d\d-\d\d)\n\n## Context\n")
_BEGIN = "| number | decision | status | date |\n|---|---|---|---|\n"


def row(record: Path) -> str:
    """One line of the table, from the head of a record."""
    head = _HEAD.match(record.read_text(encoding="utf-8"))
    if head is None or not record.name.startswith(f"{head[1]}-"):
        message = f"{record.name} does not begin as the template of {INDEX.name} says"
        raise SystemExit(message)
    return f"| [{head[1]}]({record.name}) | {head[2]} | {head[3]} | {head[4]} |\n"


def page() -> str:
    """The index with its table made again."""
    text = INDEX.read_text(encoding="utf-8")
    before = text.split(_BEGIN)[0]
    return before + _BEGIN + "".join(row(record) for record in sorted(ADR.glob("[0-9]*.md")))


if __name__ == "__main__":
    INDEX.write_text(page(), encoding="utf-8")
