"""Spark's classes in one file, ready for use: pipelines start sooner.

A JVM that starts Spark finds, checks and links some ten thousand classes one by one. It can write
them into an archive as it ends, and later ones map that file into memory instead. The command
`holdfast prepare` makes the archive, and sessions that Holdfast opens on this machine use it.

Invariants:
- An archive never changes what runs: the JVM checks Java, jars and options, and goes on without it
  where something is different.
- An archive appears whole or not at all. It can be deleted at any time.
- Nothing is written unless the user asks for it.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from holdfast.errors import IncompatibleError, InvalidInputError
from holdfast.java import Java

CACHE_VARIABLE = "HOLDFAST_CACHE"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_PLAIN = re.compile(r"[\w./~+@%:=,-]+")  # what needs no quoting among the options of a JVM
_SECONDS_MAX = 600


@dataclass(frozen=True)
class Prepared:
    """What `prepare` came to."""

    path: Path
    size: int
    seconds: float
    made: bool
    """False where it had been there before."""


def cache_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Where archives are: `HOLDFAST_CACHE`, or the user's cache directory."""
    known = os.environ if environment is None else environment
    if known.get(CACHE_VARIABLE):
        return Path(known[CACHE_VARIABLE]).absolute()
    base = known.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "holdfast"


def archive_path(java: Java) -> Path:
    """The archive of this Java and this Spark; there may be none yet."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InvalidInputError(
            "pipelines need Spark", kind="missing_extra", remedy="pip install 'holdfast[spark]'"
        )
    facts = [
        str(java.home.resolve()), _text(java.home / "release"),
        str(Path(spec.origin).parent), _text(Path(spec.origin).with_name("version.py")),
    ]  # fmt: skip
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    return cache_directory() / f"spark-classes-{digest[:16]}.jsa"


def archive_options(java: Java) -> str:
    """Options for a JVM that is to use the archive; empty where there is none."""
    path = archive_path(java)
    if not path.is_file() or not _PLAIN.fullmatch(str(path)):
        return ""
    return f"-XX:SharedArchiveFile={path} {_QUIET}"


def prepare(java: Java) -> Prepared:
    """Make the archive, unless it is there: run a small pipeline and let its JVM write it."""
    path = archive_path(java)
    if path.is_file():
        return Prepared(path, path.stat().st_size, 0.0, made=False)
    if not _PLAIN.fullmatch(str(path)):
        raise InvalidInputError(
            "the path of the cache cannot be given to a JVM", kind="unusable_cache", path=path,
            remedy=f"set {CACHE_VARIABLE} to a path of letters, digits and -_./",
        )  # fmt: skip
    began = time.perf_counter()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=path.parent) as name:
        made = Path(name) / "classes.jsa"
        # The JVM writes after Python has ended; both hold the pipe, so this waits for both.
        done = subprocess.run(  # noqa: S603 - this Python, and names made here
            [sys.executable, "-m", "holdfast.pipeline.training", name, str(made)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
            timeout=_SECONDS_MAX, check=False, env={**os.environ, "JAVA_HOME": str(java.home)},
        )  # fmt: skip
        if done.returncode or not made.is_file():
            raise IncompatibleError(
                "this Java wrote no archive of classes", kind="no_class_archive", java=java.home,
                reason=_last_line(done.stdout),
                remedy="pipelines run without it; for faster starts use a full JDK 17 or newer",
            )  # fmt: skip
        made.replace(path)
    return Prepared(path, path.stat().st_size, time.perf_counter() - began, made=True)


def remove() -> list[Path]:
    """Delete all archives of this cache, also those of other versions; returns which."""
    found = sorted(cache_directory().glob("spark-classes-*.jsa"))
    for path in found:
        path.unlink(missing_ok=True)
    return found


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"
