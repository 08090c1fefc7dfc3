"""What the epoch loop tells: reports, a summary, and structured log records.

A record goes to the logger `holdfast.pipeline` with its facts as data, one for each recovery,
epoch, checkpoint and publication; `holdfast run --log-json` writes them as JSON lines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.connectors.base import Backlog
from holdfast.format.documents import Summary
from holdfast.format.manifest import Manifest
from holdfast.runtime.bad_rows import BadRows
from holdfast.runtime.lag import Lag
from holdfast.runtime.quality import Verdicts

log = logging.getLogger("holdfast.pipeline")


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
    outdated: rows that came behind a newer one of their key, which `upsert` ignores.
    bad: by source, rows that could not be read, with the first of them. expectations: by name, how
    many rows met each and how many failed. lag: by source, what is left to read.
    tasks: by operator, how many tasks it had; few rows get few tasks.
    rows_by_source: `rows`, by source. rows_next: how many rows the epochs that are planned from now
    on may take, where there is an `epoch_target`, and why.
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
    outdated: int = 0
    bad: dict[str, BadRows] = field(default_factory=dict)
    expectations: dict[str, Verdicts] = field(default_factory=dict)
    lag: dict[str, Lag] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    rows_by_source: dict[str, int] = field(default_factory=dict)
    rows_next: int | None = None
    rows_next_why: str = ""

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
    outdated: int = 0
    resumed_from: int | None = None
    last_epoch: int | None = None
    milliseconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    bad: dict[str, int] = field(default_factory=dict)
    expectations: dict[str, Verdicts] = field(default_factory=dict)
    lag: dict[str, Lag] = field(default_factory=dict)

    def add(self, report: EpochReport) -> None:
        """Count one epoch."""
        self.epochs += 1
        self.rows += report.rows
        self.changes += report.changes
        self.late += report.late
        self.outdated += report.outdated
        self.last_epoch = report.epoch
        self.lag = dict(report.lag)
        for source, bad in report.bad.items():
            self.bad[source] = self.bad.get(source, 0) + bad.count
        for name, outcome in report.expectations.items():
            self.expectations[name] = self.expectations.get(name, Verdicts()) + outcome


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


def record(event: str, pipeline: str, **facts: object) -> None:
    """One record; facts that are None are left out."""
    if not log.isEnabledFor(logging.INFO):
        return
    known = {key: value for key, value in facts.items() if value is not None}
    text = " ".join(f"{key}={value}" for key, value in known.items())
    data = {"event": event, "pipeline": pipeline, **known}
    log.info("%s %s", event, text, extra={"facts": data})


def record_recovery(pipeline: str, manifest: Manifest | None, epoch_next: int) -> None:
    """Where a run begins: behind a checkpoint, or from scratch."""
    epoch = None if manifest is None else int(manifest.epoch)
    checkpoint = None if manifest is None else str(manifest.checkpoint)
    record("recovery", pipeline, checkpoint=checkpoint, epoch=epoch, epoch_next=epoch_next)


def record_epoch(pipeline: str, report: EpochReport) -> None:
    """One epoch."""
    record(
        "epoch",
        pipeline,
        epoch=report.epoch,
        rows=report.rows,
        changes=report.changes,
        keys=report.keys,
        late=report.late,
        future=report.future,
        outdated=report.outdated or None,
        bytes_new=report.bytes_new,
        milliseconds=round(report.total_ms, 1),
        phases_ms={name: round(ms, 1) for name, ms in report.phases_ms.items()},
        backlog={name: b.total - b.done for name, b in report.backlog.items()},
        lag={name: lag.facts() for name, lag in report.lag.items()},
        bad={name: bad.count for name, bad in report.bad.items() if bad.count} or None,
        failed={name: one.failed for name, one in report.expectations.items() if one.failed}
        or None,
        watermark_us=report.watermark_us,
        rows_next=report.rows_next,
        checkpoint=report.checkpoint.id,
        tasks=dict(report.tasks),
    )


def record_checkpoint(
    pipeline: str, summary: Summary, milliseconds: float, pending: int
) -> CheckpointReport:
    """One durable checkpoint, and what its sinks published."""
    sinks = tuple(promise.name for promise in summary.sinks)
    epoch, checkpoint = int(summary.epoch), str(summary.checkpoint)
    report = CheckpointReport(checkpoint, epoch, milliseconds, summary.bytes_new, sinks, pending)
    record(
        "checkpoint",
        pipeline,
        checkpoint=checkpoint,
        epoch=epoch,
        bytes_new=report.bytes_new,
        milliseconds=round(milliseconds, 1),
        pending=pending,
    )
    for sink in sinks:
        record("publish", pipeline, sink=sink, epoch=epoch, checkpoint=checkpoint)
    return report
