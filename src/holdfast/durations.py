"""Durations as people write them: `10 minutes`, or a `timedelta`."""

from __future__ import annotations

import re
from datetime import timedelta

from holdfast.errors import InvalidInputError

Duration = str | timedelta

_UNITS_US = {
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_TEXT = re.compile(r"\s*(\d+)\s*([a-z]+?)s?\s*", re.IGNORECASE)
_MICROSECOND = timedelta(microseconds=1)


def duration_us(duration: Duration) -> int:
    """Microseconds of a duration such as `90 seconds`, `1 hour` or `timedelta(hours=1)`."""
    if isinstance(duration, timedelta) and duration >= timedelta(0):
        return duration // _MICROSECOND
    match = _TEXT.fullmatch(duration) if isinstance(duration, str) else None
    unit = _UNITS_US.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise InvalidInputError(
            "not a duration",
            kind="invalid_duration",
            value=repr(duration)[:60],
            remedy="write it like '10 minutes': milliseconds, seconds, minutes, hours, days, weeks;"
            " or give a timedelta that is not negative",
        )
    return int(match.group(1)) * unit
