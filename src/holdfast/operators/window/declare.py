"""group_by with a window: what can be checked before Spark starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from holdfast.errors import InvalidInputError
from holdfast.operators.aggregate.declare import Aggregate
from holdfast.operators.declaration import (
    Declaration,
    LateNode,
    Node,
    checked_names,
    checked_output,
    delay_before,
    late_of,
    require_watermark,
)
from holdfast.operators.sort_order import PLAIN

if TYPE_CHECKING:
    from holdfast.operators.base import Analyzed
    from holdfast.spark.annotations import DataFrame

Emit = Literal["update", "close"]
WindowKind = Literal["tumbling", "sliding", "session"]
START, END = "window_start", "window_end"


@dataclass(frozen=True, slots=True)
class Window:
    """One way to cut time into windows. `time` is a column or a SQL expression.

    Tumbling and sliding windows are `size_us` long and begin every `slide_us`. A session is as long
    as its rows are not further apart than `size_us`. `lateness_us` is None where none was asked
    for: such a window needs no watermark.
    """

    kind: WindowKind
    time: str
    size_us: int
    slide_us: int
    offset_us: int = 0
    emit: Emit = "update"
    lateness_us: int | None = None

    def __str__(self) -> str:
        """For the fingerprint, which has `emit` and the lateness under names of their own."""
        if self.kind == "session":
            return f"session({self.time}, gap_us={self.size_us})"
        return (
            f"{self.kind}({self.time}, size_us={self.size_us}, slide_us={self.slide_us}, "
            f"offset_us={self.offset_us})"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowDeclaration(Declaration):
    """An aggregate by keys and window.

    lateness_us: has what windows before this one may lag behind the watermark in it.
    """

    kind: ClassVar[str] = "window"
    window: Window
    aggregates: Mapping[str, Aggregate]
    lateness_us: int

    def fingerprint(self) -> Mapping[str, str]:
        """Aggregates, window, and when it gives rows."""
        params = {
            "window": str(self.window),
            "emit": self.window.emit,
            "lateness_us": str(self.lateness_us),
        }
        return params | {
            f"column {column}" if column in params else column: str(aggregate)
            for column, aggregate in self.aggregates.items()
        }

    def analyze(self, frames: Sequence[DataFrame], *, late_rows: bool) -> Analyzed:
        """The aggregate as it would be without time, and the work around it."""
        from holdfast.operators.window.analyze import analyze_window

        return analyze_window(self, frames[0], late_rows=late_rows)

    def lag_us(self, owner: str) -> int:
        """A window that gives updates speaks of times down to its size and lateness behind.

        One that speaks only when it closes is always behind, by as much as the watermark moved, and
        a session may have begun at any time: what goes by time cannot follow those.
        """
        if self.window.emit == "close" or self.window.kind == "session":
            raise InvalidInputError(
                "an operator that goes by event time cannot follow a session or closed windows",
                kind="time_behind_window",
                operator=owner,
                window=self.name,
                remedy='use emit="update" in the window before, or group by window_start and '
                "window_end as plain columns",
            )
        return self.window.size_us + self.lateness_us

    def late_rows(self) -> LateNode:
        """Rows whose windows are closed, as they came."""
        before = self.inputs[0]
        return late_of(self, before.columns, retracts=before.retracts)


def split_window(keys: tuple[str | Window, ...], owner: str) -> tuple[tuple[str, ...], Window]:
    """The plain keys, and the one window among them."""
    windows = [key for key in keys if isinstance(key, Window)]
    if len(windows) != 1:
        raise InvalidInputError(
            "one window at a time",
            kind="several_windows",
            operator=owner,
            windows="; ".join(map(str, windows)),
            remedy="group by one window here, and by the other in an operator after it",
        )
    return tuple(key for key in keys if isinstance(key, str)), windows[0]


def windowed(
    before: Node,
    keys: tuple[str | Window, ...],
    aggregates: Mapping[str, Aggregate],
    *,
    name: str,
) -> WindowDeclaration:
    """A windowed aggregate, checked."""
    plain, window = split_window(keys, name)
    checked_names(list(plain), before, name)
    if PLAIN.fullmatch(window.time):
        checked_names([window.time], before, name)
    if window.emit == "close" or window.lateness_us is not None:
        require_watermark(before, name)
    return WindowDeclaration(
        columns=checked_output([*plain, START, END, *aggregates], name),
        retracts=window.emit == "update",
        name=name,
        inputs=(before,),
        keys=plain,
        window=window,
        aggregates=dict(aggregates),
        lateness_us=(window.lateness_us or 0) + delay_before(before, name),
    )
