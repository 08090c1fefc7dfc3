"""Write docs/reference/errors.md from the catalogue of kinds.

Run: python tools/make_error_docs.py [--check]

With --check nothing is written; exit 1 says that the page is not what it should be.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from holdfast import errors  # noqa: E402 - after the path
from holdfast.format.finding_kinds import finding_kinds  # noqa: E402
from holdfast.kinds import SECTIONS, Kind, kinds  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "errors.md"

_HEAD = """\
# Errors and findings

Made from `src/holdfast/kinds.py` and `format/finding_kinds.py` by `python
tools/make_error_docs.py`; a test compares.

Every error of Holdfast is a `HoldfastError`; its class says what a caller does about it, its `kind`
says exactly what happened. Kinds are stable: one is never renamed, never given a second meaning.
A message is what happened, then facts, then what to do.

| class | what a caller does |
|---|---|
"""
_CALLERS = {
    "AlreadyExistsError": "the object is there already: read it, compare, decide",
    "CommitUnknownError": "the outcome is unknown: open the store again before retrying",
    "ConflictError": "another writer won: reload and decide",
    "CorruptionError": "bytes disagree with their digest or the specification",
    "FencedError": "this writer has a successor: stop",
    "HoldfastError": "the root: raised by itself only where there is nothing to decide",
    "IncompatibleError": "pipeline, format or version do not fit; the differences are listed",
    "InternalError": "a bug in Holdfast: please report it",
    "InvalidInputError": "correct the call (also a `ValueError`)",
    "NotFoundError": "something that was named is not there (also a `KeyError`)",
    "RefusedError": "possible, but not safe unless it is asked for by name",
    "StorageError": "the environment failed; `retryable` says whether trying again may help",
}
_FINDINGS = """\
## Kinds of findings

What verification reports. Severity *error*: do not trust this checkpoint. *warning*: look. *info*:
worth knowing. An error that was met on the way is a finding too, under its own kind from the table
above.

| kind | severity | meaning |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    classes = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.HoldfastError)
    }
    if classes != set(_CALLERS):
        raise SystemExit(f"say what a caller does: {sorted(classes ^ set(_CALLERS))}")
    chapters = [_HEAD + "".join(f"| `{name}` | {what} |\n" for name, what in _CALLERS.items())]
    chapters.append("## Kinds of errors\n")
    for section, (introduction, _) in SECTIONS.items():
        rows = "".join(
            f"| `{each.name}` | {_names(each)} | {each.meaning} | {each.remedy} |\n"
            for each in kinds().values()
            if each.section == section
        )
        table = f"| kind | class | meaning | what to do |\n|---|---|---|---|\n{rows}"
        chapters.append(f"### {section}\n\n{introduction}\n\n{table}")
    rows = "".join(
        f"| `{each.name}` | {each.severity} | {each.meaning} |\n"
        for each in finding_kinds().values()
    )
    chapters.append(_FINDINGS + rows)
    return "\n".join(chapters)


def _names(kind: Kind) -> str:
    return " or ".join(each.__name__.removesuffix("Error") for each in kind.classes)


def run() -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != text:
            print(f"not up to date: {PAGE.name}; run python tools/make_error_docs.py")
            return 1
        return 0
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(run())
