"""Durations as people write them: `10 minutes`."""

from __future__ import annotations

import re

from holdfast.errors import InvalidInputError

_UNITS_US = {
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_TEXT = re.compile(r"\s*(\d+)\s*([a-z]+?)s?\s*", re.IGNORECASE)


def duration_us(text: str) -> int:
    """Microseconds of a duration such as `90 seconds` or `1 hour`."""
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    unit = _UNITS_US.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise InvalidInputError(
            "not a duration",
            kind="invalid_duration",
            value=repr(text)[:60],
            remedy="write it like '10 minutes': milliseconds, seconds, minutes, hours, days, weeks",
        )
    return int(match.group(1)) * unit
