"""Durations: one parser, short and long names, sums; nothing else."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.durations import duration_us
from holdfast.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("7us", 7),
        ("5ms", 5_000),
        ("5 milliseconds", 5_000),
        ("90s", 90_000_000),
        ("1 second", 1_000_000),
        ("2m", 120_000_000),
        ("2 min", 120_000_000),
        ("10 Minutes", 600_000_000),
        ("1h30m", 5_400_000_000),
        (" 1 hour 30 minutes ", 5_400_000_000),
        ("1d", 86_400_000_000),
        ("2 weeks", 1_209_600_000_000),
        ("0s", 0),
        (timedelta(milliseconds=1, microseconds=5), 1_005),
    ],
)
def test_what_a_duration_may_look_like(text, microseconds):
    """A number and a unit, several of them, or a timedelta."""
    assert duration_us(text) == microseconds


@pytest.mark.parametrize(
    "wrong", ["", "5", "h", "1.5h", "-1h", "1 hour and", "5 mss", "1 month", 5, None, timedelta(-1)]
)
def test_what_is_no_duration_is_refused(wrong):
    """The value is named together with how it is written."""
    with pytest.raises(InvalidInputError) as caught:
        duration_us(wrong)
    assert caught.value.kind == "invalid_duration"
    assert "10 minutes" in caught.value.remedy
