"""Structured records of a run: one for each recovery, epoch, checkpoint and publication.

They go to the logger `holdfast.pipeline` with their facts as data; `holdfast run --log-json` writes
them as JSON lines.
"""

from __future__ import annotations

import logging

from holdfast.format.documents import Summary
from holdfast.format.manifest import Manifest
from holdfast.runtime.report import CheckpointReport, EpochReport

log = logging.getLogger("holdfast.pipeline")


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
        bytes_new=report.bytes_new,
        milliseconds=round(report.total_ms, 1),
        phases_ms={name: round(ms, 1) for name, ms in report.phases_ms.items()},
        backlog={name: b.total - b.done for name, b in report.backlog.items()},
        watermark_us=report.watermark_us,
        checkpoint=report.checkpoint.id,
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
