"""Prometheus metrics, on request, on loopback."""

from __future__ import annotations

from holdfast.errors import InvalidInputError
from holdfast.pipeline.report import EpochReport


class Metrics:
    """Counters of one run, served over HTTP."""

    def __init__(self, port: int) -> None:
        """Begin to serve; port 0 takes a free one."""
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
            from prometheus_client import start_http_server as serve
        except ImportError as error:
            raise InvalidInputError(
                "metrics need an extra package", kind="missing_extra",
                remedy="pip install 'holdfast-spark[metrics]'",
            ) from error  # fmt: skip
        self._registry = place = CollectorRegistry()
        self._epochs = Counter("holdfast_epochs", "Epochs that were run", registry=place)
        self._rows = Counter("holdfast_rows", "Rows that were read", registry=place)
        self._changes = Counter("holdfast_changes", "Changes that operators gave", registry=place)
        self._late = Counter("holdfast_late_rows", "Rows that came too late", registry=place)
        self._future = Counter(
            "holdfast_future_rows", "Rows too far ahead to move the watermark", registry=place
        )
        self._watermark = Gauge(
            "holdfast_watermark_seconds", "Event time that is complete", registry=place
        )
        self._behind = Gauge(
            "holdfast_watermark_lag_seconds", "Watermark behind the newest event", registry=place
        )
        self._bytes = Counter("holdfast_state_bytes", "Bytes of new runs", registry=place)
        self._epoch = Gauge("holdfast_epoch", "The last epoch", registry=place)
        self._lag = Gauge(
            "holdfast_backlog", "What is left to read", ["source", "unit"], registry=place
        )
        self._phase = Histogram(
            "holdfast_phase_seconds", "Time by phase of an epoch", ["phase"], registry=place
        )
        self.server = serve(port, addr="127.0.0.1", registry=self._registry)

    def add(self, report: EpochReport) -> None:
        """One more epoch."""
        self._epochs.inc()
        self._rows.inc(report.rows)
        self._changes.inc(report.changes)
        self._late.inc(report.late)
        self._bytes.inc(report.bytes_new)
        self._future.inc(report.future)
        if report.watermark_us is not None:
            self._watermark.set(report.watermark_us / 1e6)
        if report.lag_us is not None:
            self._behind.set(report.lag_us / 1e6)
        self._epoch.set(report.epoch)
        for name, backlog in report.backlog.items():
            self._lag.labels(name, backlog.unit).set(backlog.total - backlog.done)
        for phase, ms in report.phases_ms.items():
            self._phase.labels(phase).observe(ms / 1e3)
