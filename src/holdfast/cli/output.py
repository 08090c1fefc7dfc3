"""Where values go: standard output, with or without a terminal, and progress to standard error.

Invariants:
- Standard output carries the value and nothing else: a table, or with `--json` exactly one
  document.
- Output that cannot be written (closed, full) is a problem that is said on standard error. A reader
  that has seen enough (`| head`) is none: the command ends as it would have.
- Progress goes to standard error, and only when that is a terminal.
- No sink token and no secret is ever part of a value. Times are microseconds since 1970-01-01 UTC,
  sizes are bytes: nothing is rounded or translated. Fields are only ever added; a change of meaning
  gets a new number in `schema`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from holdfast.cli.render import Line, coloured, plain, size, use_colour

V = TypeVar("V")


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A document that a command prints, or a part of one: docs/reference/json.md."""


class OutputError(Exception):
    """Standard output cannot be written."""


def emit(
    value: V, view: Callable[[V], Iterable[Line]], *, as_json: bool, schema: str | None = None
) -> None:
    """Print a value, as JSON or as a view of it.

    Args:
        value: What to print.
        view: Its lines for people.
        as_json: Whether to print JSON.
        schema: How the document names itself, where the value's type does not say it. A list
            becomes the field `items`.
    """
    if as_json:
        write_json(value if schema is None else _named(value, schema))
        return
    show(view(value))


def show(lines: Iterable[Line]) -> None:
    """Print lines, coloured on a terminal."""
    write(coloured(lines) if use_colour() else plain(lines))


# Standard output and error


def write(text: str, *, flush: bool = True) -> bool:
    """Write to standard output; False when its reader has gone, which is no error."""
    try:
        sys.stdout.write(text)
        if flush:
            sys.stdout.flush()
    except BrokenPipeError:
        mute()
        return False
    except (OSError, ValueError, AttributeError) as error:  # full; closed; never there
        raise OutputError(getattr(error, "strerror", None) or "it is closed") from error
    return True


def _named(value: object, schema: str) -> dict[str, object]:
    fields = msgspec.to_builtins(value, enc_hook=str)
    return {"schema": schema, **(fields if isinstance(fields, dict) else {"items": fields})}


def write_json(value: object) -> bool:
    """One JSON document, over several lines."""
    return write(msgspec.json.format(encode(value), indent=2).decode() + "\n")


def encode(value: object) -> bytes:
    """JSON of a value; what JSON has no form for becomes text."""
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:  # a name that is no text: bytes of a path, as Python shows them
        return msgspec.json.encode(_readable(msgspec.to_builtins(value, enc_hook=str)))


def _readable(value: object) -> object:
    """The same with U+FFFD for every byte that is no text."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    return value


def say(text: str) -> None:
    """Write to standard error, if there is one."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def mute() -> None:
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
        """Raise, so that nothing is lost in silence."""
        del text
        raise OSError(9, "it is closed")


# Progress

_BAR = 30
_REFRESH_SECONDS = 0.1


@contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error with bytes and bytes per second; None where nobody would see it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from time import perf_counter

    begun = perf_counter()
    drawn = 0.0

    def update(done: int, total: int) -> None:
        nonlocal drawn
        now = perf_counter()
        if now - drawn < _REFRESH_SECONDS and done < total:
            return
        drawn = now
        sys.stderr.write(f"\r{progress_line(what, done, total, now - begun)}\x1b[K")
        sys.stderr.flush()

    try:
        yield update
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def progress_line(what: str, done: int, total: int, seconds: float) -> str:
    """How far it is, how fast, and how long it still takes."""
    part = min(1.0, done / total) if total else 0.0
    full = int(part * _BAR)
    speed = done / seconds if seconds else 0.0
    left = int((total - done) / speed) if speed else 0
    bar = "━" * full + " " * (_BAR - full)
    return (
        f"{what} {bar} {size(done)}/{size(total)} {size(int(speed))}/s "
        f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
    )
