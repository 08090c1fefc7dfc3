"""A live table of epochs on a terminal; one plain line an epoch elsewhere."""

from __future__ import annotations

import datetime as dt
import sys
from collections import deque
from types import TracebackType
from typing import Any, Self

from holdfast.runtime.report import EpochReport

_SHOWN = 12


class EpochTable:
    """Shows epochs as they happen."""

    def __init__(self, pipeline: str, *, plain: bool = False) -> None:
        """Live on a terminal with rich installed, plain otherwise."""
        self._pipeline = pipeline
        self._rows: deque[EpochReport] = deque(maxlen=_SHOWN)
        self._note = ""
        self._live: Any = None
        if not plain and sys.stdout.isatty():
            try:
                from rich.live import Live
            except ImportError:
                return
            self._live = Live(auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def say(self, text: str) -> None:
        """A remark for the person."""
        if self._live is None:
            print(text, flush=True)  # noqa: T201
        else:
            self._note = text
            self._refresh()

    def add(self, report: EpochReport) -> None:
        """One more epoch."""
        self._rows.append(report)
        if self._live is not None:
            self._refresh()
            return
        phases = " ".join(f"{name}={ms:.0f}ms" for name, ms in report.phases_ms.items())
        print(  # noqa: T201
            f"epoch {report.epoch}: {report.rows} rows, {report.keys} keys, "
            f"{report.changes} changes, {report.late} late, {report.bytes_new} bytes, "
            f"{report.total_ms:.0f} ms ({phases}){_time(report)}{_lag(report)}",
            flush=True,
        )

    def _refresh(self) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(title=f"pipeline {self._pipeline}", expand=False)
        for name in (
            "epoch",
            "rows",
            "keys",
            "changes",
            "late",
            "watermark",
            "bytes",
            "plan",
            "job",
            "draft",
            "ms",
        ):
            table.add_column(name, justify="right")
        for row in self._rows:
            ms = row.phases_ms
            table.add_row(
                str(row.epoch),
                str(row.rows),
                str(row.keys),
                str(row.changes),
                str(row.late),
                _mark(row),
                str(row.bytes_new),
                f"{ms.get('plan', 0) + ms.get('build', 0):.0f}",
                f"{ms.get('job', 0):.0f}",
                f"{ms.get('draft', 0) + ms.get('wait', 0):.0f}",
                f"{row.total_ms:.0f}",
            )
        parts: list[Any] = [table]
        for name, backlog in self._rows[-1].backlog.items() if self._rows else ():
            if backlog.total:
                bar = ProgressBar(total=backlog.total, completed=backlog.done, width=40)
                parts += [f"{name}: {backlog.done} of {backlog.total} {backlog.unit}", bar]
        if self._note:
            parts.append(self._note)
        self._live.update(Group(*parts), refresh=True)


def _mark(report: EpochReport) -> str:
    """The watermark as a time of day in UTC, with its date."""
    if report.watermark_us is None:
        return ""
    origin = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    try:
        at = origin + dt.timedelta(microseconds=report.watermark_us)
    except OverflowError:  # Spark's years go further than Python's
        return f"{report.watermark_us // 1_000_000} s"
    return at.strftime("%Y-%m-%d %H:%M:%S")


def _time(report: EpochReport) -> str:
    if report.watermark_us is None:
        return ""
    lag = "" if report.lag_us is None else f", {report.lag_us / 1e6:.0f} s behind the newest row"
    return f"; watermark {_mark(report)}{lag}"


def _lag(report: EpochReport) -> str:
    left = [
        f"{name}: {b.total - b.done} {b.unit} left"
        for name, b in report.backlog.items()
        if b.total > b.done
    ]
    return f"; {', '.join(left)}" if left else ""
