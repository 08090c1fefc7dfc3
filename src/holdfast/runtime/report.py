"""What the epoch loop tells: one report for each epoch, and a summary."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from holdfast.connectors.base import Backlog


@dataclass
class CheckpointState:
    """What has become of a checkpoint; changes while its epochs wait for it."""

    id: str
    durable: bool = False


@dataclass(frozen=True)
class CheckpointReport:
    """One checkpoint that is durable. pending: sinks whose rows are not published yet."""

    checkpoint: str
    epoch: int
    milliseconds: float
    bytes_new: int
    published: tuple[str, ...] = ()
    pending: int = 0


@dataclass(frozen=True)
class EpochReport:
    """One epoch. `phases_ms`: where the time went; commit runs while the next epoch is computed.

    rows: read from the sources, each once, however many branches they go through.
    watermark_us: what the epoch went by. lag_us: how far that is behind the newest event time seen.
    future: rows that lie too far ahead of the wall clock to move the watermark.
    """

    epoch: int
    rows: int
    changes: int
    keys: int
    late: int
    bytes_new: int
    phases_ms: dict[str, float]
    backlog: dict[str, Backlog]
    checkpoint: CheckpointState
    watermark_us: int | None = None
    lag_us: int | None = None
    future: int = 0

    @property
    def committed(self) -> bool:
        """Whether the checkpoint of this epoch is durable by now; several epochs may share one."""
        return self.checkpoint.durable

    @property
    def total_ms(self) -> float:
        """Time on the critical path."""
        return sum(ms for name, ms in self.phases_ms.items() if name != "commit")


@dataclass
class RunSummary:
    """A whole run."""

    epochs: int = 0
    rows: int = 0
    changes: int = 0
    late: int = 0
    resumed_from: int | None = None
    last_epoch: int | None = None
    milliseconds: float = 0.0
    notes: list[str] = field(default_factory=list)


class Stopwatch:
    """Says which phase of an epoch took how long."""

    def __init__(self) -> None:
        """Start."""
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """The time since the last lap belongs to this phase."""
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + (now - self._last) * 1e3
        self._last = now
