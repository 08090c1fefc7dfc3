"""group_by with a window: what can be checked before Spark starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.api.functions import Aggregate
from holdfast.api.windows import END, START, Emit, Window
from holdfast.errors import InvalidInputError
from holdfast.operators.join.declare import JoinSpec
from holdfast.runtime.graph import (
    DedupeBound,
    LateNode,
    Node,
    OperatorNode,
    StepNode,
    checked_names,
    checked_output,
    delay_before,
    require_watermark,
)

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(eq=False)
class WindowDetail:
    """What the resolver of windows must know. `late_asked`: a sink wants the late rows.

    `lateness_us` has what windows before this one may lag behind the watermark in it.
    """

    window: Window
    aggregates: Mapping[str, Aggregate]
    emit: Emit
    lateness_us: int
    late_asked: bool = False


def split_window(keys: tuple[str | Window, ...], owner: str) -> tuple[tuple[str, ...], Window]:
    """The plain keys, and the one window among them."""
    windows = [key for key in keys if isinstance(key, Window)]
    if len(windows) != 1:
        raise InvalidInputError(
            "one window at a time", kind="several_windows", operator=owner,
            windows="; ".join(map(str, windows)),
            remedy="group by one window here, and by the other in an operator after it",
        )  # fmt: skip
    return tuple(key for key in keys if isinstance(key, str)), windows[0]


def window_node(
    before: Node, keys: tuple[str | Window, ...], aggregates: Mapping[str, Aggregate],
    *, name: str,
) -> OperatorNode:  # fmt: skip
    """A windowed aggregate, checked."""
    plain, window = split_window(keys, name)
    checked_names(list(plain), before, name)
    if _PLAIN.fullmatch(window.time):
        checked_names([window.time], before, name)
    how = window.emit
    if how == "close" or window.lateness_us is not None:
        require_watermark(before, name)
    lateness_us = (window.lateness_us or 0) + delay_before(before, name)
    columns = checked_output([*plain, START, END, *aggregates], name)
    params = {"window": str(window), "emit": how, "lateness_us": str(lateness_us)}
    params |= {
        f"column {column}" if column in params else column: str(aggregate)
        for column, aggregate in aggregates.items()
    }
    return OperatorNode(
        columns=columns, changes=how == "update", name=name, befores=(before,), what="window",
        keys=plain, params=params,
        detail=WindowDetail(window, dict(aggregates), how, lateness_us),
    )  # fmt: skip


def late_node(node: Node) -> LateNode:
    """The rows that came too late for an operator."""
    while isinstance(node, StepNode):
        node = node.before
    if isinstance(node, OperatorNode) and isinstance(node.detail, WindowDetail):
        node.detail.late_asked = True
        before = node.befores[0]
        return LateNode(columns=before.columns, changes=before.changes, operator=node)
    if isinstance(node, OperatorNode) and isinstance(node.detail, JoinSpec) and node.detail.within:
        node.detail.late_asked = True
        return LateNode(columns=None, changes=True, operator=node)
    bounded = isinstance(node, OperatorNode) and (
        isinstance(node.detail, DedupeBound) or getattr(node.detail, "ttl_us", None) is not None
    )
    if isinstance(node, OperatorNode) and bounded:
        before = node.befores[0]
        return LateNode(columns=before.columns, changes=before.changes, operator=node)
    raise InvalidInputError(
        "only windows, interval joins, dedupe within a time and apply with a TTL have late rows",
        kind="no_late_rows", operator=getattr(node, "name", type(node).__name__),
        remedy="ask the stream that an operator with event time returned",
    )  # fmt: skip
