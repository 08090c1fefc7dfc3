"""Whether rows of one key are added up in the JVM before they go to the state.

Adding up first costs a shuffle of its own, but moves fewer rows into Python: it pays when an epoch
has many rows for few keys. Decided by what earlier epochs saw; any decision gives the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ROWS_MIN = 500_000
ROWS_PER_KEY_MIN = 8


@dataclass
class PartialAggregationPolicy:
    """Rows and keys that each operator saw in its last epoch."""

    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, totals: Mapping[str, Mapping[str, int]]) -> None:
        """Counters of one epoch, by operator."""
        for name, counts in totals.items():
            self.seen[name] = (counts.get("rows_in", 0), counts.get("keys", 0))

    def operators(self) -> set[str]:
        """Those for which it pays."""
        return {
            name
            for name, (rows, keys) in self.seen.items()
            if rows >= ROWS_MIN and rows >= ROWS_PER_KEY_MIN * keys > 0
        }
