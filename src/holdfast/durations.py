"""Durations as people write them: `10 minutes`, `2h`, or a `timedelta`.

Invariant: there is no other parser of durations; the API, settings, the guard and the command line
use this one, so that they take the same texts and give the same error.
"""

from __future__ import annotations

import re
from datetime import timedelta

from holdfast.errors import InvalidInputError

Duration = str | timedelta

_NAMES = {
    1: ("us", "microsecond", "microseconds"),
    1_000: ("ms", "millisecond", "milliseconds"),
    1_000_000: ("s", "second", "seconds"),
    60_000_000: ("m", "min", "minute", "minutes"),
    3_600_000_000: ("h", "hour", "hours"),
    86_400_000_000: ("d", "day", "days"),
    604_800_000_000: ("w", "week", "weeks"),
}
_UNITS_US = {name: unit for unit, names in _NAMES.items() for name in names}
_PART = r"(\d+)\s*([a-z]+)"
_TEXT = re.compile(rf"\s*{_PART}(?:\s*{_PART})*\s*", re.IGNORECASE)
_PARTS = re.compile(_PART, re.IGNORECASE)
_MICROSECOND = timedelta(microseconds=1)
_TEXT_MAX = 200
LONGEST_US = 1_000_000 * 86_400_000_000
"""The longest duration: added to or taken from a time of today, it still fits 64 bits."""


def duration_us(duration: Duration) -> int:
    """Microseconds of a duration.

    Args:
        duration: A `timedelta`, or numbers with units: `90 seconds`, `2h`, `1 hour 30 minutes`.
            Units are us, ms, s, m, h, d, w and their names.

    Returns:
        A whole number, not negative and at most a million days.

    Raises:
        InvalidInputError: It is something else (`invalid_duration`).

    Example:
        >>> from holdfast.durations import duration_us
        >>> duration_us("90 minutes") == duration_us("1h 30m")
        True
    """
    length_us = _microseconds(duration)
    if length_us is not None and 0 <= length_us <= LONGEST_US:
        return length_us
    raise InvalidInputError(
        "not a duration",
        kind="invalid_duration",
        value=repr(duration)[:60],
        remedy="write it like '10 minutes' or '2h': milliseconds, seconds, minutes, hours, days, "
        "weeks; or give a timedelta that is not negative; at most 1000000 days",
    )


def _microseconds(duration: object) -> int | None:
    if isinstance(duration, timedelta):
        return duration // _MICROSECOND
    if not isinstance(duration, str) or len(duration) > _TEXT_MAX or not _TEXT.fullmatch(duration):
        return None
    parts = [(number, name.lower()) for number, name in _PARTS.findall(duration)]
    if not all(name in _UNITS_US for _, name in parts):
        return None
    return sum(int(number) * _UNITS_US[name] for number, name in parts)
