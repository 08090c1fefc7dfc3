"""Prometheus metrics, on request, on loopback. Those of checkpoints have the label `pipeline`."""

from __future__ import annotations

from typing import Any

from holdfast.clock import SystemClock
from holdfast.errors import InvalidInputError
from holdfast.runtime.report import CheckpointReport, EpochReport


class Metrics:
    """Counters of one run, served over HTTP."""

    def __init__(self, port: int, pipeline: str) -> None:
        """Begin to serve; port 0 takes a free one."""
        try:
            import prometheus_client as prometheus
        except ImportError as error:
            raise InvalidInputError(
                "metrics need an extra package",
                kind="missing_extra",
                remedy="pip install 'holdfast-spark[metrics]'",
            ) from error
        self._place = prometheus.CollectorRegistry()
        self._prometheus, self._pipeline = prometheus, pipeline
        count, gauge, histogram = prometheus.Counter, prometheus.Gauge, prometheus.Histogram
        self._epochs = self._metric(count, "epochs", "Epochs that were run")
        self._rows = self._metric(count, "rows", "Rows that were read from the sources")
        self._changes = self._metric(count, "changes", "Changes that operators gave")
        self._late = self._metric(count, "late_rows", "Rows that came too late")
        self._future = self._metric(count, "future_rows", "Rows too far ahead for the watermark")
        outdated = "Rows that came behind a newer one of their key"
        self._outdated = self._metric(count, "outdated_rows", outdated)
        self._bytes = self._metric(count, "state_bytes", "Bytes of new runs")
        self._epoch = self._metric(gauge, "epoch", "The last epoch")
        self._lag = self._metric(gauge, "backlog", "What is left to read", "source", "unit")
        lag = "What a source has left, by unit: rows, bytes, seconds"
        self._behind_by = self._metric(gauge, "source_lag", lag, "source", "unit")
        unread = "Rows that a source could not read"
        self._bad = self._metric(count, "bad_rows", unread, "source")
        judged = "Rows that an expectation looked at, by outcome: passed, failed"
        self._judged = self._metric(count, "expectation_rows", judged, "expectation", "outcome")
        self._phase = self._metric(histogram, "phase_seconds", "Time by phase of an epoch", "phase")
        made = "Time to make a checkpoint durable"
        self._commit = self._metric(histogram, "checkpoint_seconds", made, "pipeline")
        self._checkpoints = self._metric(count, "checkpoints", "Durable checkpoints", "pipeline")
        wrote = "Bytes that checkpoints wrote"
        self._written = self._metric(count, "checkpoint_bytes", wrote, "pipeline")
        waiting = "Tokens that wait to be published"
        self._pending = self._metric(gauge, "pending_sinks", waiting, "pipeline")
        self._watermark: Any = None
        self._behind: Any = None
        self._clock = SystemClock()
        self._last_ms = self._clock.monotonic_ms()
        age = self._metric(gauge, "checkpoint_age_seconds", "Time since the last one", "pipeline")
        age.labels(pipeline).set_function(self._age_seconds)
        serve = prometheus.start_http_server
        try:
            self.server = serve(port, addr="127.0.0.1", registry=self._place)
        except (OSError, OverflowError) as error:
            raise InvalidInputError(
                "metrics cannot be served on this port",
                kind="metrics_port",
                port=port,
                reason=str(error)[:200],
                remedy="give another port, or 0 for a free one",
            ) from error

    def _age_seconds(self) -> float:
        return (self._clock.monotonic_ms() - self._last_ms) / 1e3

    def _metric(self, make: Any, name: str, text: str, *labels: str) -> Any:
        return make(f"holdfast_{name}", text, labels, registry=self._place)

    def add(self, report: EpochReport) -> None:
        """One more epoch."""
        self._epochs.inc()
        self._rows.inc(report.rows)
        self._changes.inc(report.changes)
        self._late.inc(report.late)
        self._outdated.inc(report.outdated)
        self._bytes.inc(report.bytes_new)
        self._future.inc(report.future)
        self._set_time(report)
        self._epoch.set(report.epoch)
        for source, backlog in report.backlog.items():
            self._lag.labels(source, backlog.unit).set(backlog.total - backlog.done)
        for source, lag in report.lag.items():
            for unit, left in lag.facts().items():
                self._behind_by.labels(source, unit).set(left)
        for source, bad in report.bad.items():
            self._bad.labels(source).inc(bad.count)
        for name, outcome in report.expectations.items():
            self._judged.labels(name, "passed").inc(outcome.passed)
            self._judged.labels(name, "failed").inc(outcome.failed)
        for phase, ms in report.phases_ms.items():
            self._phase.labels(phase.replace(" ", "_")).observe(ms / 1e3)

    def _set_time(self, report: EpochReport) -> None:
        """A pipeline without a watermark has no such metric, rather than 0."""
        gauge = self._prometheus.Gauge
        if report.watermark_us is not None:
            if self._watermark is None:
                self._watermark = self._metric(
                    gauge, "watermark_seconds", "Event time that is complete"
                )
            self._watermark.set(report.watermark_us / 1e6)
        if report.lag_us is not None:
            if self._behind is None:
                self._behind = self._metric(
                    gauge, "watermark_lag_seconds", "Watermark behind the newest event"
                )
            self._behind.set(report.lag_us / 1e6)

    def add_checkpoint(self, report: CheckpointReport) -> None:
        """One more durable checkpoint; called in the commit thread."""
        self._last_ms = self._clock.monotonic_ms()
        self._checkpoints.labels(self._pipeline).inc()
        self._commit.labels(self._pipeline).observe(report.milliseconds / 1e3)
        self._written.labels(self._pipeline).inc(report.bytes_new)
        self._pending.labels(self._pipeline).set(report.pending)
