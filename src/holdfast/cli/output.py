"""Where values and messages go: standard output and error, with or without a terminal.

Invariants:
- Standard output carries the value and nothing else: a table or exactly one JSON document.
- Progress goes to standard error, and only when that is a terminal.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import msgspec
import typer

from holdfast.cli.text import Line, clean, plain, use_colour
from holdfast.errors import (
    HoldfastError,
    InternalError,
    InvalidInputError,
    NotFoundError,
)

V = TypeVar("V")
P = ParamSpec("P")

_FOUND_MISSING = ("not_found", "run_missing", "is_directory")
_UNKNOWN = "please report it with the output of the same command under HOLDFAST_DEBUG=1"


def emit(value: V, view: Callable[[V], Iterable[Line]], *, as_json: bool) -> None:
    """Print a value, as JSON or as a view of it."""
    if as_json:
        sys.stdout.write(msgspec.json.format(encode(value), indent=2).decode() + "\n")
        return
    show(view(value))


def encode(value: object) -> bytes:
    """JSON of a value; what JSON has no form for becomes text."""
    return msgspec.json.encode(value, enc_hook=str)


def show(lines: Iterable[Line]) -> None:
    """Print lines, coloured on a terminal."""
    if not use_colour():
        sys.stdout.write(plain(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for each in lines:
        console.print(Text.assemble(*[(text, style or "default") for text, style in each]))


def verb(function: Callable[P, None]) -> Callable[P, None]:
    """Turn errors of a verb into a message, a JSON document and an exit code."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except HoldfastError as error:
            _complain(error, as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(exit_code(error)) from error
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if "click" in type(error).__module__:  # wrong usage: the parser words it itself
                raise
            if os.environ.get("HOLDFAST_DEBUG"):
                traceback.print_exc()
            odd = InternalError(f"{type(error).__name__}: {error}", remedy=_UNKNOWN)
            _complain(odd, as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(1) from error

    return run


def exit_code(error: HoldfastError) -> int:
    """2 for what the user can type differently, 1 for everything else."""
    if isinstance(error, NotFoundError):
        return 1 if error.kind in _FOUND_MISSING else 2
    return 2 if isinstance(error, InvalidInputError) else 1


def _complain(error: HoldfastError, *, as_json: bool) -> None:
    if os.environ.get("HOLDFAST_DEBUG"):
        traceback.print_exc()
    error = _in_our_words(error)
    if as_json:
        from holdfast.cli.facts.checking import failure_of

        sys.stdout.write(msgspec.json.format(encode(failure_of(error)), indent=2).decode() + "\n")
    parts = [error.what]
    parts += [f"  {key}: {value}" for key, value in error.facts.items() if key not in _QUIET]
    if error.remedy:
        parts.append(f"  try: {error.remedy}")
    sys.stderr.write("holdfast: " + "\n".join(clean(part) for part in parts) + "\n")


_QUIET = ("retryable", "took_effect", "asked_by")
_OPTIONS = {
    "takeover=True": "--takeover",
    "(accept_duplicates)": "(--accept-duplicates)",
    "(accept_loss)": "(--accept-loss)",
    "(choose)": "(--choose)",
    "force it": "give --force",
    "open with --takeover": "give --takeover",
}


def _in_our_words(error: HoldfastError) -> HoldfastError:
    """Remedies of the library name its arguments; here they are options."""
    remedy = error.remedy or ""
    for library, option in _OPTIONS.items():
        remedy = remedy.replace(library, option)
    error.remedy = remedy or None
    return error


@contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error with bytes and bytes per second; None where nobody would see it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns: list[Any] = [
        TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(),
    ]  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
