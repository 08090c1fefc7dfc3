"""Lag: what every source has left to read, in rows, bytes and seconds.

A source says what it knows (`Backlog`). The rest is estimated from what the run has seen: rows from
bytes by the average so far, bytes from rows; seconds by when there was first more than is read now.

Invariants:
- What a source says is never replaced by an estimate; what is estimated is called so.
- Nothing is made up: without anything to go by, a figure is None.
- Nothing left is zero in every unit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.clock import Clock

if TYPE_CHECKING:
    from holdfast.connectors.base import Backlog, SourceReader, Split

_SAMPLES_MAX = 512
_ROWS = ("rows", "events", "records", "messages")


@dataclass(frozen=True)
class Lag:
    """What a source has left to read. estimated: which of the three it did not say itself.

    seconds: how long the oldest row that is not read has waited.
    """

    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    estimated: tuple[str, ...] = ()

    def facts(self) -> dict[str, int | float]:
        """What is known, by unit."""
        known = {"rows": self.rows, "bytes": self.bytes, "seconds": self.seconds}
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in known.items()
            if value is not None
        }

    def __str__(self) -> str:
        about = dict.fromkeys(self.estimated, "about ")
        texts = []
        if self.rows is not None:
            texts.append(f"{about.get('rows', '')}{self.rows} rows")
        if self.bytes is not None:
            texts.append(f"{about.get('bytes', '')}{self.bytes} bytes")
        if self.seconds is not None:
            texts.append(f"{about.get('seconds', '')}{self.seconds:.1f} s")
        return ", ".join(texts) or "unknown"


@dataclass
class _Seen:
    """What a run has seen of one source."""

    rows: int = 0
    bytes: int = 0
    totals: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES_MAX))


@dataclass
class LagMeter:
    """Measures the lag of all sources of a run."""

    clock: Clock
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def read(self, name: str, split: Split, rows: int) -> None:
        """An epoch has read a split of so many rows."""
        seen = self._seen.setdefault(name, _Seen())
        seen.rows += rows
        seen.bytes += split.bytes

    def measure(
        self, readers: Mapping[str, SourceReader]
    ) -> tuple[dict[str, Backlog], dict[str, Lag]]:
        """How far every source is, and its lag."""
        backlogs = {name: reader.backlog() for name, reader in readers.items()}
        return backlogs, {name: self.lag(name, backlog) for name, backlog in backlogs.items()}

    def lag(self, name: str, backlog: Backlog) -> Lag:
        """One source's lag now."""
        seen = self._seen.setdefault(name, _Seen())
        now_ms = self.clock.monotonic_ms()
        if not seen.totals or backlog.total > seen.totals[-1][1]:
            seen.totals.append((now_ms, backlog.total))
        left = max(0, backlog.total - backlog.done)
        if not left:
            return Lag(0, 0, 0.0)
        rows, bytes_left, seconds = backlog.rows, backlog.bytes, backlog.seconds
        if rows is None and backlog.unit in _ROWS:
            rows = left
        if bytes_left is None and backlog.unit == "bytes":
            bytes_left = left
        estimated = []
        if rows is None and bytes_left is not None and seen.bytes:
            rows = round(bytes_left * seen.rows / seen.bytes)
            estimated.append("rows")
        if bytes_left is None and rows is not None and seen.rows and seen.bytes:
            bytes_left = round(rows * seen.bytes / seen.rows)
            estimated.append("bytes")
        if seconds is None:
            seconds = self._waiting_s(seen, backlog.done, now_ms)
            estimated.append("seconds")
        return Lag(rows, bytes_left, seconds, tuple(estimated))

    def _waiting_s(self, seen: _Seen, done: int, now_ms: int) -> float:
        """Since when there is more than what is read by now, as far as this run has looked."""
        while len(seen.totals) > 1 and seen.totals[0][1] <= done:
            seen.totals.popleft()
        return (now_ms - seen.totals[0][0]) / 1e3
