"""Where things are: the repository, the package under test, and what a child process needs."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PROGRAMS = TESTS / "helpers" / "programs"
PACKAGE = Path(holdfast.__file__).resolve().parent  # a mutant lies elsewhere than ROOT / "src"
SOURCE = PACKAGE.parent


def child_environment(**more: str) -> dict[str, str]:
    """The environment of a process that loads the package under test and the helpers."""
    return {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}", **more}
