"""What moves from epoch to epoch, and what waits for the next checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.connectors.base import StagedFile
from holdfast.ids import CheckpointId
from holdfast.runtime.live_counts import LiveCounts
from holdfast.runtime.report import CheckpointState
from holdfast.state import RunInfo


@dataclass
class Progress:
    """Everything that moves from epoch to epoch."""

    runs: dict[str, list[RunInfo]] = field(default_factory=dict)
    counts: LiveCounts = field(default_factory=LiveCounts)
    parent: CheckpointId | None = None
    epoch: int = 0


@dataclass
class Waiting:
    """Epochs since the last checkpoint, under one reserved id."""

    checkpoint: CheckpointId
    staged: dict[str, list[StagedFile]] = field(default_factory=dict)
    rows: int = 0
    epochs: int = 0
    state: CheckpointState = field(init=False)

    def __post_init__(self) -> None:
        """Not durable yet."""
        self.state = CheckpointState(self.checkpoint)
