"""A live table of epochs on a terminal; one plain line an epoch elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from holdfast.cli.output import write
from holdfast.cli.render import (
    Col,
    Line,
    coloured,
    cut,
    line,
    plain,
    table,
    use_colour,
    when,
    width,
)

if TYPE_CHECKING:
    from holdfast.runtime.report import EpochReport

_SHOWN = 12
_BAR = 40
_COLUMNS = (
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
)


class EpochTable:
    """Shows epochs as they happen."""

    def __init__(self, pipeline: str, *, plain: bool = False) -> None:
        """Live on a terminal, plain otherwise."""
        self._pipeline = pipeline
        self._rows: deque[EpochReport] = deque(maxlen=_SHOWN)
        self._note = ""
        self._live = not plain and sys.stdout.isatty()
        self._height = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The last picture stays."""
        self._height = 0

    def say(self, text: str) -> None:
        """A remark for the person."""
        if self._live:
            self._note = text
            self._refresh()
        else:
            write(f"{text}\n")

    def add(self, report: EpochReport) -> None:
        """One more epoch."""
        self._rows.append(report)
        if self._live:
            self._refresh()
            return
        phases = " ".join(f"{name}={ms:.0f}ms" for name, ms in report.phases_ms.items())
        write(
            f"epoch {report.epoch}: {report.rows} rows, {report.keys} keys, "
            f"{report.changes} changes, {report.late} late, {report.bytes_new} bytes, "
            f"{report.total_ms:.0f} ms ({phases}){_time(report)}{_lag(report)}"
            f"{_odd(report)}{_next(report)}\n"
        )

    def _refresh(self) -> None:
        """Draw over the last picture: up by its height, then clear to the end of the screen."""
        lines = [*self.picture()]
        text = coloured(lines) if use_colour() else plain(lines)
        up = f"\x1b[{self._height}A\r\x1b[J" if self._height else ""
        self._height = len(lines)
        write(up + text)

    def picture(self) -> Iterator[Line]:
        """Title, the newest epochs, how far each source is, and the remark."""
        yield line((f"pipeline {self._pipeline}", "bold"))
        columns = [Col(name, right=True, cut=name == "watermark") for name in _COLUMNS]
        yield from table(columns, [_cells(row) for row in self._rows])
        for name, backlog in self._rows[-1].backlog.items() if self._rows else ():
            if backlog.total:
                full = min(_BAR, _BAR * backlog.done // backlog.total)
                text = f"{name}: {backlog.done} of {backlog.total} {backlog.unit}"
                lag = self._rows[-1].lag.get(name)
                if lag is not None and lag.facts() and any(lag.facts().values()):
                    text += f"; behind by {lag}"
                yield line(cut(text, width()))
                yield line(("━" * full, "green"), "━" * (_BAR - full))
        if self._rows and self._rows[-1].rows_next is not None:
            yield line(cut(_next(self._rows[-1]).removeprefix("; "), width()))
        if self._note:
            yield line((cut(self._note, width()), "yellow"))


def _cells(row: EpochReport) -> list[str]:
    ms = row.phases_ms
    planned, drafted = (
        ms.get("plan", 0) + ms.get("build", 0),
        ms.get("draft", 0) + ms.get("wait", 0),
    )
    numbers = (row.epoch, row.rows, row.keys, row.changes, row.late)
    times = (planned, ms.get("job", 0), drafted, row.total_ms)
    return [
        *(str(number) for number in numbers),
        _mark(row),
        str(row.bytes_new),
        *(f"{time:.0f}" for time in times),
    ]


def _mark(report: EpochReport) -> str:
    """The watermark in UTC."""
    return "" if report.watermark_us is None else when(report.watermark_us).removesuffix("Z")


def _time(report: EpochReport) -> str:
    if report.watermark_us is None:
        return ""
    lag = "" if report.lag_us is None else f", {report.lag_us / 1e6:.0f} s behind the newest row"
    return f"; watermark {_mark(report)}{lag}"


def _lag(report: EpochReport) -> str:
    left = [
        f"{name}: {report.lag[name] if name in report.lag else f'{b.total - b.done} {b.unit}'} left"
        for name, b in report.backlog.items()
        if b.total > b.done
    ]
    return f"; {', '.join(left)}" if left else ""


def _odd(report: EpochReport) -> str:
    """Rows that were not as they should be."""
    parts = [f"{name}: {bad.count} bad rows" for name, bad in report.bad.items() if bad.count]
    parts += [
        f"{name}: {verdicts.failed} rows failed"
        for name, verdicts in report.expectations.items()
        if verdicts.failed
    ]
    if report.outdated:
        parts.append(f"{report.outdated} outdated")
    return f"; {', '.join(parts)}" if parts else ""


def _next(report: EpochReport) -> str:
    """How many rows the next epochs may take, where a target decides."""
    if report.rows_next is None:
        return ""
    return f"; next at most {report.rows_next} rows ({report.rows_next_why})"
