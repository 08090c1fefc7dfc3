"""Finding a Java that Spark can run on.

Invariants:
- Standard library and `holdfast.errors` only; nothing is downloaded or installed here.
- A Java counts when it was asked for its version and answered with 17 or more; a directory name
  is never believed.
- A missing or too old Java is one sentence, before Spark is started.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import IncompatibleError, NotFoundError

JAVA_MIN = 17
_VERSION = re.compile(r'version "(?P<major>[0-9]+)(?:\.(?P<minor>[0-9]+))?')
PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
)
_ANSWER_SECONDS = 60
_REMEDY = (
    f"install Java {JAVA_MIN} or newer and set JAVA_HOME, or let `make setup` bring one into .venv"
)

# PySpark's launcher asks every JVM for this module. Small runtimes do not have it, and Spark works
# without it.
_WRAPPER = """\
#!/bin/sh
# Java without the launcher's request for a module that this runtime does not have.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that answered."""

    home: Path
    major: int


def find_java(
    environment: Mapping[str, str] | None = None, *, places: Sequence[str] = PLACES
) -> Java | None:
    """The first Java of at least `JAVA_MIN`: JAVA_HOME, this environment's own, PATH, `places`."""
    for candidate in candidates(os.environ if environment is None else environment, places):
        major = java_major(candidate)
        if major is not None and major >= JAVA_MIN:
            return Java(candidate.parent.parent, major)
    return None


def require_java(
    environment: Mapping[str, str] | None = None, *, places: Sequence[str] = PLACES
) -> Java:
    """A Java that Spark can run on, or an error that says what to do."""
    known = os.environ if environment is None else environment
    found = find_java(known, places=places)
    if found is not None:
        return found
    for candidate in candidates(known, places):
        major = java_major(candidate)
        if major is not None:
            raise IncompatibleError(
                "Java is too old for Spark",
                kind="java_too_old",
                java=candidate,
                found=major,
                needed=JAVA_MIN,
                remedy=_REMEDY,
            )
    raise NotFoundError("Spark needs Java, and none was found", kind="no_java", remedy=_REMEDY)


def candidates(environment: Mapping[str, str], places: Sequence[str] = PLACES) -> Iterator[Path]:
    """Where a `java` may be, in the order in which they are tried; each once."""
    seen: set[Path] = set()
    for place in _places(environment, places):
        java = place / "bin" / "java"
        if java not in seen and os.access(java, os.X_OK) and java.is_file():
            seen.add(java)
            yield java


def _places(environment: Mapping[str, str], patterns: Sequence[str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    yield Path(sys.prefix) / "java"  # where `make setup` puts one
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    for pattern in patterns:
        yield from sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)


def java_major(java: Path) -> int | None:
    """Ask a `java` for its version; None when it does not answer as a Java does."""
    try:
        answer = subprocess.run(  # noqa: S603 - an absolute path, no shell
            [str(java), "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or match is None:
        return None
    major = int(match["major"])
    return int(match["minor"] or 0) if major == 1 else major  # 1.8 is 8


def wrap_java(java: Path, home: Path) -> Path:
    """Make `home/bin/java` start `java` without the module that small runtimes lack."""
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(_WRAPPER.format(java=str(java).replace("'", "'\\''")))
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return home
