"""Windows of event time as a user writes them: `hf.tumbling("at", "1 hour")`. No Spark in here.

Windows are counted from 1970-01-01 00:00:00 UTC plus `offset`, as Spark's own `window` does, and a
session ends `gap` after its last row, as in Spark's `session_window`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.durations import duration_us
from holdfast.errors import InvalidInputError

WINDOWS_MAX = 1_000
START, END = "window_start", "window_end"


@dataclass(frozen=True, slots=True)
class Window:
    """One way to cut time into windows. `time` is a column or a SQL expression.

    Tumbling and sliding windows are `size_us` long and begin every `slide_us`. A session is as long
    as its rows are not further apart than `size_us`.
    """

    kind: Literal["tumbling", "sliding", "session"]
    time: str
    size_us: int
    slide_us: int
    offset_us: int = 0

    def __str__(self) -> str:
        """For the fingerprint."""
        if self.kind == "session":
            return f"session({self.time}, gap_us={self.size_us})"
        return (
            f"{self.kind}({self.time}, size_us={self.size_us}, slide_us={self.slide_us}, "
            f"offset_us={self.offset_us})"
        )


def tumbling(time: str, size: str, *, offset: str = "0 seconds") -> Window:
    """Windows of one size, one after the other; `offset` moves their beginning away from UTC."""
    return sliding_of("tumbling", time, size, size, offset)


def sliding(time: str, size: str, slide: str, *, offset: str = "0 seconds") -> Window:
    """Windows of one size that begin every `slide`: a row belongs to several of them."""
    return sliding_of("sliding", time, size, slide, offset)


def session_window(time: str, gap: str) -> Window:
    """Rows of a key that are not more than `gap` apart; a session ends `gap` after its last row."""
    gap_us = _positive(gap, "gap")
    return Window("session", time, gap_us, gap_us)


def sliding_of(
    kind: Literal["tumbling", "sliding"], time: str, size: str, slide: str, offset: str
) -> Window:
    """A checked window of a fixed size."""
    size_us, slide_us = _positive(size, "size"), _positive(slide, "slide")
    if slide_us > size_us or size_us > slide_us * WINDOWS_MAX:
        raise InvalidInputError(
            "windows must begin at least once in their length, and not too often",
            kind="invalid_window", size=size, slide=slide, limit=WINDOWS_MAX,
            remedy=f"use a slide between size / {WINDOWS_MAX} and size",
        )  # fmt: skip
    return Window(kind, time, size_us, slide_us, duration_us(offset) % slide_us)


def _positive(text: str, what: str) -> int:
    found = duration_us(text)
    if found <= 0:
        raise InvalidInputError(
            "a window needs a length", kind="invalid_window", **{what: text},
            remedy="write it like '10 minutes'",
        )  # fmt: skip
    return found
