"""Write section 10 of the specification again: `.venv/bin/python tools/spec_example.py`.

Only after a deliberate change of the format; the diff of the bytes is then part of the review.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "spec" / "format-v2.md"
MARK = "<!-- the bytes: written by tools/spec_example.py, checked by tests/docs/test_spec.py -->\n"


def example(store: Path) -> str:
    """The files of a store as text: digests, then every file."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    lines = ["```"]
    for path in files:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{digest}  {path.relative_to(store).as_posix()}")
    lines.append("```")
    for path in files:
        data = path.read_bytes()
        if not data:
            continue
        lines += ["", f"`{path.relative_to(store).as_posix()}`, {len(data)} bytes:", "", "```"]
        lines += [data.decode().removesuffix("\n"), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Replace everything after the mark."""
    sys.path.insert(0, str(ROOT))
    from tests.helpers.spec_store import write_spec_store

    with tempfile.TemporaryDirectory() as place:
        text = example(write_spec_store(Path(place)))
    SPEC.write_text(SPEC.read_text().split(MARK)[0] + MARK + "\n" + text)


if __name__ == "__main__":
    main()
