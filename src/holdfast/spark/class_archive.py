"""Spark's classes in one file, ready for use: pipelines start sooner.

A JVM that starts Spark finds, checks and links some ten thousand classes one by one. It can write
them into an archive as it ends, and later ones map that file into memory instead. The command
`holdfast warmup` makes the archive, and sessions that Holdfast opens on this machine use it.

Invariants:
- An archive never changes what runs: the JVM checks Java, jars, options and every byte of the
  archive, and continues without it where something is different.
- An archive appears whole, durable and tried out, or not at all. It can be deleted at any time.
- Nothing is written unless the user asks for it, and no start fails because of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from holdfast.errors import IncompatibleError, InternalError, InvalidInputError
from holdfast.spark.java import Java
from holdfast.storage.local.disk import current_disk

CACHE_VARIABLE = "HOLDFAST_CACHE"
TRAINING = "holdfast.api.training"  # a program, run in a process of its own
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_PLAIN = re.compile(r"[\w./~+@%=,-]+", re.ASCII)  # what needs no quoting among options of a JVM
_SECONDS_MAX = 600
_ANSWER_SECONDS = 60
_ROOM = 500_000_000  # while it is written; 190 MB are left
_PARTS = ".preparing-"


@dataclass(frozen=True)
class Prepared:
    """What `holdfast warmup` came to."""

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
    digest = hashlib.sha256(f"{java.home.resolve()}\0{_text(java.home / 'release')}".encode())
    for jar in sorted((_spark_home() / "jars").glob("*.jar")):
        found = jar.stat()
        digest.update(f"\0{jar}\0{found.st_size}\0{found.st_mtime_ns}".encode())
    return cache_directory() / f"spark-classes-{digest.hexdigest()[:16]}.jsa"


def archive_options(java: Java) -> str:
    """Options for a JVM that is to use the archive; empty where there is none."""
    try:
        path = archive_path(java)
        usable = path.is_file() and _PLAIN.fullmatch(str(path)) is not None
    except (OSError, RuntimeError, InvalidInputError):  # no home, no right to look: no archive
        return ""
    return f"-XX:SharedArchiveFile={path} -XX:+VerifySharedSpaces {_QUIET}" if usable else ""


def prepare(java: Java, announce: Callable[[], None] = lambda: None) -> Prepared:
    """Make the archive, unless it is there: run a small pipeline and let its JVM write it.

    announce: called before the minute that this takes.
    """
    began = time.perf_counter()
    with _typed():
        path = archive_path(java)
        if not _PLAIN.fullmatch(str(path)):
            raise _unusable("the path of the cache cannot be given to a JVM", path)
        path.parent.mkdir(parents=True, exist_ok=True)
        listed = path.with_suffix(".classpath")
        if path.is_file() and _complaint(java, path, _text(listed)) is None:
            return Prepared(path, path.stat().st_size, 0.0, made=False)
        if shutil.disk_usage(path.parent).free < _ROOM:
            raise _unusable("the cache has too little room", path, needed=_ROOM)
        announce()
        with tempfile.TemporaryDirectory(prefix=_PARTS, dir=path.parent) as name:
            made = Path(name) / "classes.jsa"
            said = _train(java, Path(name), made)
            class_path = _text(Path(name) / "classpath")
            wrong = _complaint(java, made, class_path) if made.is_file() else _last_line(said)
            if wrong is not None:
                raise _none_written(java, wrong)
            listed.write_text(class_path, encoding="utf-8")
            _publish(made, path)
        return Prepared(path, path.stat().st_size, time.perf_counter() - began, made=True)


def remove() -> list[Path]:
    """Delete all archives of this cache, also those of other versions; returns which."""
    with _typed():
        found = sorted(cache_directory().glob("spark-classes-*.jsa"))
        for path in found:
            path.unlink(missing_ok=True)
            path.with_suffix(".classpath").unlink(missing_ok=True)
        for part in cache_directory().glob(f"{_PARTS}*"):  # of a call that was killed
            current_disk().remove_tree(str(part))
            found.append(part)
    return found


def _spark_home() -> Path:
    if os.environ.get("SPARK_HOME"):
        return Path(os.environ["SPARK_HOME"])
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InvalidInputError(
            "pipelines need Spark",
            kind="missing_extra",
            remedy="pip install 'holdfast-spark[spark]'",
        )
    return Path(spec.origin).parent


def _train(java: Java, home: Path, made: Path) -> str:
    """Run the small pipeline, and wait for its JVM; returns what they printed."""
    # The JVM writes after Python has ended; both hold the pipe, so this waits for both.
    process = subprocess.Popen(  # noqa: S603 - this Python, and names made here
        [sys.executable, "-P", "-m", TRAINING, str(home), str(made)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "JAVA_HOME": str(java.home)},
    )
    try:
        said, _ = process.communicate(timeout=_SECONDS_MAX)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise _failed(f"it took more than {_SECONDS_MAX} s") from error
        raise
    if process.returncode:
        raise _failed(_last_line(said))
    return said


def _complaint(java: Java, archive: Path, class_path: str) -> str | None:
    """What a JVM says that must not start without the archive; None where it starts."""
    options = ["-Xshare:on", f"-XX:SharedArchiveFile={archive}", "-XX:+VerifySharedSpaces"]
    try:
        done = subprocess.run(  # noqa: S603
            [str(java.home / "bin" / "java"), *options, "-cp", class_path, "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_ANSWER_SECONDS} s"
    return None if done.returncode == 0 else _last_line(done.stdout + done.stderr)


@contextmanager
def _typed() -> Iterator[None]:
    """What the file system refuses is an error of the cache's place."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise _unusable("the cache cannot be used", None, reason=str(error)) from error


def _unusable(what: str, path: Path | None, **facts: object) -> InvalidInputError:
    return InvalidInputError(
        what,
        kind="unusable_cache",
        path=path,
        **facts,
        remedy=f"set {CACHE_VARIABLE} to a directory of yours, with a path of letters, digits "
        "and -_./ and 500 MB of room",
    )


def _failed(reason: str) -> InternalError:
    return InternalError(
        "the small pipeline that shows what Spark loads failed",
        kind="training_failed",
        reason=reason,
        remedy="see `holdfast doctor`; pipelines run without the archive",
    )


def _none_written(java: Java, reason: str) -> IncompatibleError:
    remedy = "pipelines run without it; for faster starts use a full JDK 17 or newer"
    if "non-empty directory" in reason:
        remedy = "pipelines run without it: archives allow no SPARK_CONF_DIR with files in it"
    return IncompatibleError(
        "this Java wrote no archive of classes",
        kind="no_class_archive",
        java=java.home,
        reason=reason,
        remedy=remedy,
    )


def _publish(made: Path, path: Path) -> None:
    """Give a file its name once its content is durable."""
    disk = current_disk()
    descriptor = disk.open_read(str(made))
    try:
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    disk.rename(str(made), str(path))
    disk.sync_dir(str(path.parent))


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"
