"""Where values go: standard output, with or without a terminal, and progress to standard error.

Invariants:
- Standard output carries the value and nothing else: a table or exactly one JSON document.
- Progress goes to standard error, and only when that is a terminal.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.cli.text import Line, plain, use_colour
from holdfast.console import encode, exit_code, verb, write, write_json

__all__ = ["emit", "encode", "exit_code", "progress", "show", "verb"]

V = TypeVar("V")


def emit(value: V, view: Callable[[V], Iterable[Line]], *, as_json: bool) -> None:
    """Print a value, as JSON or as a view of it."""
    if as_json:
        write_json(value)
        return
    show(view(value))


def show(lines: Iterable[Line]) -> None:
    """Print lines, coloured on a terminal."""
    if not use_colour():
        write(plain(lines))
        return
    from rich.console import Console
    from rich.text import Text

    out = io.StringIO()
    console = Console(file=out, highlight=False, soft_wrap=True, force_terminal=True)
    for each in lines:
        console.print(Text.assemble(*[(text, style or "default") for text, style in each]))
    write(out.getvalue())


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
