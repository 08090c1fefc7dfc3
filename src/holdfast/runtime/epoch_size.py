"""How many rows the next epoch takes, so that it lasts about as long as the target says.

Rows per millisecond of the last epochs are smoothed; the fixed cost of an epoch is in them, so the
size converges in a few steps. Decisions are pure: the same epochs give the same sizes.

Invariants:
- From one epoch to the next the size at most doubles or halves.
- An epoch that found few rows says nothing about how many it could have taken.
- Sources share the size by the rows that each had in the last epoch that was full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.connectors.base import SourceReader
    from holdfast.runtime.report import EpochReport

FIRST_ROWS = 10_000
LEAST_ROWS = 100
_SMOOTHING = 0.5
_FULL = 0.5


@dataclass(frozen=True)
class SizeChoice:
    """How many rows an epoch may take, and why."""

    rows: int
    why: str


@dataclass
class EpochSize:
    """Follows a target for the time of an epoch."""

    target_ms: float
    sources: tuple[str, ...]
    choice: SizeChoice = SizeChoice(FIRST_ROWS, "first")
    _rate: float | None = None
    _shares: dict[str, float] = field(default_factory=dict)

    def note(self, rows: Mapping[str, int], milliseconds: float) -> SizeChoice:
        """Take one epoch into account.

        Args:
            rows: of each source that had some.
            milliseconds: how long the epoch took, on the critical path.

        Returns:
            The choice for the epochs that are planned from now on.
        """
        total = sum(rows.values())
        if total < _FULL * self.choice.rows or milliseconds <= 0:
            self.choice = SizeChoice(self.choice.rows, "few rows came")
            return self.choice
        rate = total / milliseconds
        smoothed = rate if self._rate is None else self._rate + _SMOOTHING * (rate - self._rate)
        self._rate = smoothed
        self._shares = {name: count / total for name, count in rows.items()}
        wanted = int(smoothed * self.target_ms)
        low, high = max(LEAST_ROWS, self.choice.rows // 2), self.choice.rows * 2
        bounded = min(max(wanted, low), high)
        why = f"{smoothed:.1f} rows/ms"
        if bounded != wanted:
            why += ", at most twice as many" if wanted > bounded else ", at least half as many"
        self.choice = SizeChoice(bounded, why)
        return self.choice

    def of(self, source: str) -> int:
        """The part of one source; one that had nothing gets as much as all, when it has some."""
        share = self._shares.get(source, 1.0 if self._shares else 1 / len(self.sources))
        return max(1, int(self.choice.rows * share))


class Pacing:
    """Limits the splits of all sources by a target; without one it does nothing."""

    def __init__(self, target_ms: int | None, readers: Mapping[str, SourceReader]) -> None:
        """Begin with a small epoch."""
        self._readers = readers
        self._size = None if target_ms is None else EpochSize(target_ms, tuple(readers))

    def limit(self) -> None:
        """Tell every source how many rows its next split may have."""
        if self._size is not None:
            for name, reader in self._readers.items():
                reader.limit_rows(self._size.of(name))

    def noted(self, report: EpochReport) -> EpochReport:
        """The report of an epoch, with what the next ones may take and why."""
        if self._size is None:
            return report
        choice = self._size.note(report.rows_by_source, report.total_ms)
        return replace(report, rows_next=choice.rows, rows_next_why=choice.why)
