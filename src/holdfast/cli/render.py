"""Lines of text: numbers for people, tables that fit, styles that disappear in a pipe.

Invariants:
- A line is never wider than it may be: the widest free cell is cut, with an ellipsis.
- Control characters from a store never reach a terminal.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

Piece = tuple[str, str]
Line = list[Piece]
WIDTH = 80
GOOD, BAD, WARN, DIM = "green", "bold red", "yellow", "dim"
_CODES = {GOOD: "32", BAD: "1;31", WARN: "33", DIM: "2", "cyan": "36", "bold": "1"}
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


@dataclass(frozen=True)
class Col:
    """A column: title, alignment, and whether it may be cut to make the table fit."""

    title: str
    right: bool = False
    cut: bool = False
    least: int = 5


def clean(text: object) -> str:
    """Text without control characters, so that no name can move the cursor."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def width() -> int:
    """How wide a line may be: the terminal's width, 80 in a pipe."""
    if sys.stdout is None or not sys.stdout.isatty():
        return WIDTH
    return max(WIDTH // 2, shutil.get_terminal_size((WIDTH, 24)).columns)


def use_colour() -> bool:
    """Colours are for terminals that have not been told otherwise."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout is not None and sys.stdout.isatty()


def size(count: int | None) -> str:
    """Bytes: 1.2 MB as `1.2MB`."""
    if count is None:
        return "?"
    value = float(count)
    for unit in _UNITS:
        if value < 999.5 or unit == _UNITS[-1]:
            return f"{value:.0f}{unit}" if value >= 99.95 or unit == "B" else f"{value:.1f}{unit}"
        value /= 1_000
    raise AssertionError


def count(number: int | None, kind: str = "live") -> str:
    """Up to five digits as they are, then 1.2M; what is a bound says so, None is `?`."""
    if number is None:
        return "?"
    if kind == "bound":
        return f"<={count(number)}"
    if number < 100_000:
        return str(number)
    value = float(number)
    for unit in ("", "k", "M", "G", "T"):
        if value < 999.5 or unit == "T":
            return f"{value:.0f}{unit}" if value >= 99.95 else f"{value:.1f}{unit}"
        value /= 1_000
    raise AssertionError


def age(microseconds: int) -> str:
    """How long ago: 5s, 12m, 3h, 9d."""
    seconds = microseconds // 1_000_000
    for limit, unit, name in ((60, 1, "s"), (3_600, 60, "m"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds // unit}{name}"
    return f"{seconds // 86_400}d"


def when(microseconds: int | None) -> str:
    """An instant, UTC."""
    if microseconds is None:
        return "-"
    try:
        at = datetime.fromtimestamp(microseconds // 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{microseconds}us"
    return at.strftime("%Y-%m-%d %H:%M:%SZ")


def moment(microseconds: int | None) -> str:
    """An instant, UTC, to the millisecond where it has any."""
    text = when(microseconds)
    if microseconds is None or not text.endswith("Z") or not microseconds % 1_000_000:
        return text
    return f"{text[:-1]}.{microseconds % 1_000_000 // 1_000:03d}Z"


def plural(number: int, one: str, many: str | None = None) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def cut(text: str, room: int) -> str:
    """The head of a text that is too long."""
    return text if len(text) <= room else text[: max(0, room - 1)] + "…"


def short_ids(ids: Sequence[str], least: int = 13) -> dict[str, str]:
    """The shortest starts that tell all ids apart: at least the time, which is 13 characters."""
    ordered = sorted(set(ids))
    length = least
    for left, right in pairwise(ordered):
        common = next(i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
        length = max(length, common + 1)
    return {each: each[:length].rstrip("-") for each in ids}


def line(*pieces: str | Piece) -> Line:
    """One line of plain or styled pieces."""
    return [(clean(p), "") if isinstance(p, str) else (clean(p[0]), p[1]) for p in pieces]


def wrapped(text: object, indent: str = "", room: int | None = None, style: str = "") -> list[Line]:
    """A paragraph that fits; a long word such as a path is never broken: it can be found."""
    found = textwrap.wrap(
        clean(text),
        (room or width()),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [[(each, style)] for each in found] or [[("", "")]]


def table(
    columns: Sequence[Col], rows: Iterable[Sequence[str | Piece]], room: int | None = None
) -> list[Line]:
    """Rows below their titles, as wide as needed and not wider than there is room."""
    cells = [
        [(clean(c), "") if isinstance(c, str) else (clean(c[0]), c[1]) for c in row] for row in rows
    ]
    widths = [
        max([len(column.title), *(len(row[i][0]) for row in cells)])
        for i, column in enumerate(columns)
    ]
    over = sum(widths) + len(widths) - 1 - (room or width())
    while over > 0:
        free = [i for i, c in enumerate(columns) if c.cut and widths[i] > c.least]
        if not free:
            break
        widest = max(free, key=lambda i: widths[i])
        widths[widest] -= 1
        over -= 1
    head = [[(column.title, "bold") for column in columns]]
    return [_row(columns, widths, row) for row in [*head, *cells]]


def _row(columns: Sequence[Col], widths: Sequence[int], row: Sequence[Piece]) -> Line:
    pieces: Line = []
    for number, (column, room, (text, style)) in enumerate(zip(columns, widths, row, strict=True)):
        shown = cut(text, room)
        last = number == len(columns) - 1
        padded = shown.rjust(room) if column.right else (shown if last else shown.ljust(room))
        pieces.append((padded if number == 0 else f" {padded}", style))
    return pieces


def plain(lines: Iterable[Line]) -> str:
    """Lines as text without styles."""
    return "".join("".join(text for text, _ in each).rstrip() + "\n" for each in lines)


def coloured(lines: Iterable[Line]) -> str:
    """Lines as text with the escape codes of their styles."""
    return "".join("".join(_styled(*piece) for piece in each) + "\n" for each in lines)


def _styled(text: str, style: str) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and text else text
