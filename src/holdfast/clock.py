"""Time comes in as an argument, so that tests can hold it, step it back and skip it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for people, monotonic time for intervals."""

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC. May step backwards."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start. Never steps backwards."""
        ...

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clock."""

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start."""
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait."""
        time.sleep(duration_ms / 1_000)


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, wall_us: int = 1_700_000_000_000_000, monotonic_ms: int = 0) -> None:
        """Start at the given instants."""
        self._wall_us = wall_us
        self._monotonic_ms = monotonic_ms

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return self._wall_us

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start."""
        return self._monotonic_ms

    def sleep_ms(self, duration_ms: int) -> None:
        """Advance instead of waiting."""
        self.advance_ms(duration_ms)

    def advance_ms(self, duration_ms: int) -> None:
        """Let both clocks run."""
        self._wall_us += duration_ms * 1_000
        self._monotonic_ms += duration_ms

    def step_wall_ms(self, duration_ms: int) -> None:
        """Step the wall clock alone, as an administrator or NTP does; may be negative."""
        self._wall_us += duration_ms * 1_000
