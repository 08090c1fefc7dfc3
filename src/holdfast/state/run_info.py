"""What is known of a run without opening it.

Invariants:
- A `RunInfo` is plain and frozen: it crosses Spark tasks and ends up in a manifest.
- A run speaks for a range of vnodes and a range of epochs: it holds all that they say. For one
  vnode, a run with wider epochs replaces one with narrower: that is how a compaction becomes
  visible.
- A compaction may keep the epochs (one run, cleaned or cut). So a run has a generation: 0 when an
  epoch wrote it, one more than that of everything compacted into it otherwise. Of equal epochs the
  higher generation counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import InvalidInputError
from holdfast.format import paths
from holdfast.ids import VNODE_BITS, VNODE_COUNT, CheckpointId, Epoch, check_name
from holdfast.state.schema import TraceKind

HASH_BITS = 64
HASH_MAX = (1 << HASH_BITS) - 1
_VNODE_SHIFT = HASH_BITS - VNODE_BITS


@dataclass(frozen=True, slots=True, order=True)
class VnodeRange:
    """A contiguous range of vnodes, from `low` to before `high`."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Refuse empty and outlying ranges."""
        if not 0 <= self.low < self.high <= VNODE_COUNT:
            raise InvalidInputError(
                "not a range of vnodes", kind="invalid_vnode_range", low=self.low, high=self.high
            )

    @property
    def hash_low(self) -> int:
        """The smallest hash inside."""
        return self.low << _VNODE_SHIFT

    @property
    def hash_high(self) -> int:
        """The largest hash inside."""
        return (self.high << _VNODE_SHIFT) - 1

    def intersect(self, other: VnodeRange) -> VnodeRange | None:
        """What both have, if anything."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return VnodeRange(low, high) if low < high else None

    def subtract(self, other: VnodeRange) -> list[VnodeRange]:
        """What is left of this one without the other."""
        pieces = ((self.low, min(self.high, other.low)), (max(self.low, other.high), self.high))
        return [VnodeRange(low, high) for low, high in pieces if low < high]

    def __len__(self) -> int:
        """How many vnodes."""
        return self.high - self.low


ALL_VNODES = VnodeRange(0, VNODE_COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """Where a task writes a run, and what the run will stand for.

    `attempt` comes from `IdSource.token()` and is new for each try, so that a retried or
    speculative task never reuses a name. `base` is the checkpoint that a delta builds on.
    `pipeline` is the directory below the storage's root; None when the storage begins there.
    """

    checkpoint: CheckpointId
    operator: str
    partition: int
    partitions: int
    attempt: str
    epoch: Epoch
    base: CheckpointId | None = None
    pipeline: str | None = None

    def path(self, *, snapshot: bool) -> str:
        """The run's path inside the pipeline."""
        return paths.run(
            self.checkpoint, self.operator, self.partition, self.attempt, snapshot=snapshot
        )


def object_path(pipeline: str | None, path: str) -> str:
    """A path inside a pipeline, as the storage knows it."""
    return path if pipeline is None else f"{paths.pipeline_dir(pipeline)}/{path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The facts of one whole run.

    A compaction whose rows all cancelled is a run without rows: it still replaces what it
    compacted. Its hash range is then the first hash of its vnodes. `path` is relative to the
    pipeline's directory; `pipeline` is set when a fork shares the run of another pipeline.
    """

    path: str
    size: int
    sha256: str
    trace: str
    snapshot: bool
    operator: str
    partition: int
    rows: int
    hash_min: int
    hash_max: int
    vnodes: VnodeRange
    epoch_low: int
    epoch_high: int
    generation: int = 0
    time_min_us: int | None = None
    time_max_us: int | None = None
    base: str | None = None
    pipeline: str | None = None

    def __post_init__(self) -> None:
        """Refuse facts that contradict each other."""
        check_name(self.operator, "operator name")
        TraceKind(self.trace)
        inside = self.vnodes.hash_low <= self.hash_min <= self.hash_max <= self.vnodes.hash_high
        times = (self.time_min_us is None) == (self.time_max_us is None)
        counts = min(self.rows, self.generation, self.epoch_low) >= 0
        if not (inside and times and counts and self.epoch_low <= self.epoch_high):
            raise InvalidInputError(
                "facts of a run contradict each other",
                kind="invalid_run_info",
                path=self.path,
                rows=self.rows,
                hashes=f"{self.hash_min:016x}..{self.hash_max:016x}",
                vnodes=f"{self.vnodes.low}..{self.vnodes.high}",
                epochs=f"{self.epoch_low}..{self.epoch_high}",
            )

    @property
    def kind(self) -> str:
        """`snapshot` when nothing older is needed to read it, else `delta`."""
        return "snapshot" if self.snapshot else "delta"

    def covers(self, other: RunInfo) -> bool:
        """Whether this run stands for all that the other one does, and more or more recently."""
        own_epochs, other_epochs = (
            (self.epoch_low, self.epoch_high),
            (other.epoch_low, other.epoch_high),
        )
        if own_epochs == other_epochs:
            return self.generation > other.generation
        return own_epochs[0] <= other_epochs[0] and other_epochs[1] <= own_epochs[1]

    def overlaps(self, other: RunInfo) -> bool:
        """Whether any epoch belongs to both."""
        return self.epoch_low <= other.epoch_high and other.epoch_low <= self.epoch_high
