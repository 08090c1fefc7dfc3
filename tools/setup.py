"""Set-up: a `.venv` with pinned packages, made by whichever Python 3.11+ runs this file.

    python3 tools/setup.py run     what the example needs
    python3 tools/setup.py dev     what tests and checks need, and a Java 17+ for Spark
    python3 tools/setup.py bench   that, and what benchmarks compare with

Invariants:
- Standard library only: this runs before anything is installed.
- A finished set-up is recognised by one small file, so that calling it again costs almost nothing.
- A `.venv` that was being made when the power went, or that was moved, is made again; one that
  works is added to.
- Two calls at once wait for each other. The lock is on the project's directory: no file is left.
- Every failure is one sentence that says what to do, and exit status 1.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PYTHON_MIN = (3, 11)
LEVELS = {"core": "", "run": "[cli,spark]", "dev": "[dev]", "bench": "[dev,bench]"}
SEEDS = ("pip", "setuptools")
STAMP = "holdfast-setup.json"
_NO_NETWORK = re.compile(
    r"connection broken|NewConnectionError|ConnectTimeout|ReadTimeout|Max retries exceeded"
    r"|name resolution|Network is unreachable|ProxyError|\(from versions: none\)",
    re.IGNORECASE,
)
_NO_PIP = re.compile(r"No module named pip\b|no such option: --python")


class SetupError(Exception):
    """One sentence for the person at the keyboard."""


def main(arguments: Sequence[str]) -> int:
    """Make the environment of the level that is named."""
    level = arguments[0] if arguments else "dev"
    root = Path(__file__).resolve().parent.parent
    try:
        _check_call(arguments)
        ensure(root, level)
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up: interrupted; the next call begins again", file=sys.stderr)
        return 130
    return 0


def _check_call(arguments: Sequence[str]) -> None:
    if len(arguments) > 1 or not set(arguments) <= set(LEVELS):
        raise SetupError(f"usage: setup.py {'|'.join(LEVELS)}")
    if sys.version_info < PYTHON_MIN:
        raise SetupError(
            f"Holdfast needs Python {_dotted(PYTHON_MIN)} or newer, this is "
            f"{platform.python_version()}: install one, or name it with `make PYTHON=...`"
        )


def ensure(root: Path, level: str) -> None:
    """Bring `.venv` to this level; at once when it is there already."""
    venv = root / ".venv"
    wanted = fingerprint(root)
    if _is_ready(venv, level, wanted):
        return
    with _locked(root):
        if _is_ready(venv, level, wanted):  # somebody else has just made it
            return
        _say(f"preparing {venv.name} ({level}); only the first time takes this long")
        before = _read(venv)
        if not _is_usable(venv):
            before = {}
            make_venv(venv)
        _write(venv, {"state": "busy"})
        seed(venv)
        install(root, venv, level)
        if level != "core":
            _bring_java(root, venv)
        levels = before.get("levels", []) if before.get("fingerprint") == wanted else []
        done = {"state": "ready", "fingerprint": wanted, "root": str(root)}
        _write(venv, {**done, "levels": [*levels, *_upto(level)]})
        _say("ready")


def fingerprint(root: Path) -> str:
    """Changes whenever the set-up would do something else."""
    digest = hashlib.sha256(platform.python_version().encode())
    digest.update(os.environ.get("JAVA_HOME", "").encode())
    for name in ("pyproject.toml", "constraints.txt", "tools/setup.py", "tools/java.py"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def _upto(level: str) -> list[str]:
    """The levels that this one contains."""
    names = [*LEVELS]
    return names[: names.index(level) + 1]


def make_venv(venv: Path) -> None:
    """A new, empty virtual environment."""
    if venv.is_symlink() or venv.is_file():
        venv.unlink()
    shutil.rmtree(venv, ignore_errors=True)
    venv.mkdir()
    _write(venv, {"state": "busy"})
    made = _run([sys.executable, "-m", "venv", "--without-pip", str(venv)])
    if made.returncode != 0:
        _make_with_virtualenv(venv)


def seed(venv: Path) -> None:
    """The pinned pip and build tools inside the environment."""
    pins = _pins(venv.parent)
    seeds = [f"{name}=={pins[name]}" for name in SEEDS]
    # pip of the outside installs pip of the inside: quicker than ensurepip, which some systems
    # do not have, and the version is then always the same.
    outside = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
    done = _run([*outside, "install", "--quiet", *seeds])
    if done.returncode != 0 and _NO_PIP.search(done.stderr):
        inside = str(venv / "bin" / "python")
        if _run([inside, "-m", "ensurepip"]).returncode != 0:
            raise SetupError(
                f"{sys.executable} has no pip 22.3 or newer: install pip "
                "(for example python3-pip), then run make again"
            )
        done = _run([inside, "-m", "pip", "install", "--quiet", *seeds])
    _check_pip(done)


def _make_with_virtualenv(venv: Path) -> None:
    """For a Python without the venv module: virtualenv, used from a temporary directory."""
    pins = _pins(venv.parent)
    with tempfile.TemporaryDirectory(prefix="holdfast-setup-") as place:
        target = ["install", "--quiet", "--target", place]
        constraints = ["-c", str(venv.parent / "constraints.txt")]
        wanted = f"virtualenv=={pins['virtualenv']}"
        done = _run([sys.executable, "-m", "pip", *target, *constraints, wanted])
        if done.returncode != 0 and _NO_PIP.search(done.stderr):
            raise SetupError(
                f"{sys.executable} has neither venv nor pip: install both "
                "(for example python3-venv and python3-pip), then run make again"
            )
        _check_pip(done)
        command = [sys.executable, "-m", "virtualenv", "--no-download", "--quiet", str(venv)]
        made = _run(command, PYTHONPATH=place)
        if made.returncode != 0:
            raise SetupError(f"a virtual environment cannot be made: {_last_line(made.stderr)}")


def install(root: Path, venv: Path, level: str) -> None:
    """The project itself, editable, with the pinned packages of this level."""
    # Without build isolation even the build tools are the pinned ones. Python compiles what is
    # imported when it is imported: less than half of it all, and half of pip's time.
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    command += ["-c", str(root / "constraints.txt"), "--no-build-isolation"]
    _check_pip(_run([*command, "--editable", f"{root}{LEVELS[level]}"]))


def _bring_java(root: Path, venv: Path) -> None:
    command = [str(venv / "bin" / "python"), str(root / "tools" / "java.py"), str(venv / "java")]
    done = _run(command)
    if done.returncode != 0:
        raise SetupError(_last_line(done.stderr))
    (venv / "java-home").write_text(done.stdout.strip())


# What is there already


def _is_ready(venv: Path, level: str, wanted: str) -> bool:
    stamp = _read(venv)
    return (
        stamp.get("state") == "ready"
        and stamp.get("fingerprint") == wanted
        and stamp.get("root") == str(venv.parent)
        and level in stamp.get("levels", [])
        and (venv / "bin" / "python").exists()
        and (level == "core" or _java_is_there(venv))
    )


def _java_is_there(venv: Path) -> bool:
    try:
        home = (venv / "java-home").read_text()
    except OSError:
        return False
    return os.access(Path(home) / "bin" / "java", os.X_OK)


def _is_usable(venv: Path) -> bool:
    """A finished environment of this very Python, ours or made by hand."""
    stamp = _read(venv)
    if venv.is_symlink() or stamp.get("state") == "busy":
        return False
    if stamp.get("root", str(venv.parent)) != str(venv.parent):
        return False  # the directory was moved: scripts inside still name the old place
    python = venv / "bin" / "python"
    if not python.exists():
        return False
    code = "import platform; print(platform.python_version())"
    answer = _run([str(python), "-c", code])
    return answer.returncode == 0 and answer.stdout.strip() == platform.python_version()


def _read(venv: Path) -> dict[str, Any]:
    try:
        stamp = json.loads((venv / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _write(venv: Path, stamp: dict[str, object]) -> None:
    temporary = venv / f"{STAMP}.new"
    temporary.write_text(json.dumps(stamp))
    temporary.replace(venv / STAMP)


def _pins(root: Path) -> dict[str, str]:
    lines = (root / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


# Small tools


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One set-up at a time; the kernel lets go of the lock when the process ends."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another set-up of this directory")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _run(command: Sequence[str], **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", **extra}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def _check_pip(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode == 0:
        return
    if _NO_PIP.search(done.stderr):
        raise SetupError(f"{done.args[0]} has no pip: install it, then run make again")
    if _NO_NETWORK.search(done.stderr):
        raise SetupError(
            "the package index cannot be reached: check the network (or PIP_INDEX_URL and the "
            "proxy settings), then run make again"
        )
    raise SetupError(f"pip failed: {_last_line(done.stderr)}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return ([*lines, *errors] or ["no message"])[-1]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _say(text: str) -> None:
    print(f"set-up: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
