"""Windows of event time as a user writes them. No Spark in here.

Windows are counted from 1970-01-01 00:00:00 UTC plus `offset`, as Spark's own `window` does, and a
session ends `gap` after its last row, as in Spark's `session_window`.
"""

from __future__ import annotations

from typing import get_args

from holdfast.api.spelling import keywords
from holdfast.durations import Duration, duration_us
from holdfast.errors import InvalidInputError
from holdfast.operators.window.declare import Emit, Window, WindowKind

WINDOWS_MAX = 1_000


@keywords('hf.tumbling("at", size="1 hour")', positional=1)
def tumbling(
    time: str,
    *,
    size: Duration,
    offset: Duration = "0 seconds",
    emit: Emit = "update",
    allowed_lateness: Duration | None = None,
) -> Window:
    """Windows of one size, one after the other.

    Args:
        time: the column of event time, or a SQL expression.
        size: how long a window is.
        offset: moves the beginning of the windows away from midnight, UTC.
        emit: "update" gives changes at every epoch; "close" gives one row for each window and
            group, when the window is closed.
        allowed_lateness: how far the watermark may pass the end of a window before it is closed.

    Returns:
        The window, for `Stream.group_by`.

    Raises:
        InvalidInputError: a size is not a duration or not positive, or `emit` is unknown.

    Example:
        >>> hourly = orders.group_by("customer", hf.tumbling("at", size="1 hour"))
        >>> hourly.agg(n=hf.count(), name="hourly").columns
        ['customer', 'window_start', 'window_end', 'n']
    """
    return _fixed("tumbling", time, size, size, offset, emit, allowed_lateness)


@keywords('hf.sliding("at", size="1 hour", slide="10 minutes")', positional=1)
def sliding(
    time: str,
    *,
    size: Duration,
    slide: Duration,
    offset: Duration = "0 seconds",
    emit: Emit = "update",
    allowed_lateness: Duration | None = None,
) -> Window:
    """Windows of one size that begin every `slide`: a row belongs to several of them.

    Args:
        time: the column of event time, or a SQL expression.
        size: how long a window is.
        slide: how often a window begins; at most `size`.
        offset: moves the beginning of the windows away from midnight, UTC.
        emit: "update" gives changes at every epoch; "close" gives one row for each window and
            group, when the window is closed.
        allowed_lateness: how far the watermark may pass the end of a window before it is closed.

    Returns:
        The window, for `Stream.group_by`.

    Raises:
        InvalidInputError: a size is not a duration or out of range, or `emit` is unknown.

    Example:
        >>> recent = hf.sliding("at", size="1 hour", slide="10 minutes", emit="close")
        >>> orders.group_by(recent).agg(n=hf.count(), name="recent").columns
        ['window_start', 'window_end', 'n']
    """
    return _fixed("sliding", time, size, slide, offset, emit, allowed_lateness)


@keywords('hf.session_window("at", gap="10 minutes")', positional=1)
def session_window(
    time: str,
    *,
    gap: Duration,
    emit: Emit = "update",
    allowed_lateness: Duration | None = None,
) -> Window:
    """Rows of a key that are not more than `gap` apart; a session ends `gap` after its last row.

    Args:
        time: the column of event time, or a SQL expression.
        gap: how long a key must be quiet for its session to end.
        emit: "update" gives changes at every epoch; "close" gives one row for each session, when
            it is closed.
        allowed_lateness: how far the watermark may pass the end of a session before it is closed.

    Returns:
        The window, for `Stream.group_by`.

    Raises:
        InvalidInputError: the gap is not a duration or not positive, or `emit` is unknown.

    Example:
        >>> visits = orders.group_by("customer", hf.session_window("at", gap="30 minutes"))
        >>> visits.agg(spent=hf.sum("amount"), name="visits").columns
        ['customer', 'window_start', 'window_end', 'spent']
    """
    gap_us = _positive(gap, "gap")
    return _window("session", time, gap_us, gap_us, 0, emit, allowed_lateness)


def _fixed(
    kind: WindowKind,
    time: str,
    size: Duration,
    slide: Duration,
    offset: Duration,
    emit: Emit,
    allowed_lateness: Duration | None,
) -> Window:
    size_us, slide_us = _positive(size, "size"), _positive(slide, "slide")
    if slide_us > size_us or size_us > slide_us * WINDOWS_MAX:
        raise InvalidInputError(
            "windows must begin at least once in their length, and not too often",
            kind="invalid_window",
            size=size,
            slide=slide,
            limit=WINDOWS_MAX,
            remedy=f"use a slide between size / {WINDOWS_MAX} and size",
        )
    offset_us = duration_us(offset) % slide_us
    return _window(kind, time, size_us, slide_us, offset_us, emit, allowed_lateness)


def _window(
    kind: WindowKind,
    time: str,
    size_us: int,
    slide_us: int,
    offset_us: int,
    emit: Emit,
    allowed_lateness: Duration | None,
) -> Window:
    if not isinstance(time, str):
        raise InvalidInputError(
            "a window goes by a column of event time",
            kind="invalid_window",
            time=repr(time)[:60],
            remedy='give its name or a SQL expression: hf.tumbling("at", size="1 hour")',
        )
    if emit not in get_args(Emit):
        raise InvalidInputError(
            "unknown way to emit windows",
            kind="unknown_emit",
            emit=repr(emit)[:60],
            remedy='use emit="update" or emit="close"',
        )
    lateness_us = None if allowed_lateness is None else duration_us(allowed_lateness)
    return Window(kind, time, size_us, slide_us, offset_us, emit, lateness_us)


def _positive(duration: Duration, what: str) -> int:
    length_us = duration_us(duration)
    if length_us <= 0:
        raise InvalidInputError(
            "a window needs a length",
            kind="invalid_window",
            **{what: duration},
            remedy="write it like '10 minutes'",
        )
    return length_us
