"""group_by with a window: what can be checked before Spark starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from holdfast.api.functions import Aggregate
from holdfast.api.windows import END, START, Window
from holdfast.durations import duration_us
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

Emit = Literal["update", "close"]
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
    *, name: str, emit: str | None, lateness: str | None,
) -> OperatorNode:  # fmt: skip
    """A windowed aggregate, checked."""
    plain, window = split_window(keys, name)
    checked_names(list(plain), before, name)
    if _PLAIN.fullmatch(window.time):
        checked_names([window.time], before, name)
    how = emit or "update"
    if how not in ("update", "close"):
        raise InvalidInputError(
            "unknown way to emit windows", kind="unknown_emit", operator=name, emit=repr(emit)[:60],
            remedy='use emit="update" or emit="close"',
        )  # fmt: skip
    if how == "close" or lateness is not None:
        require_watermark(before, name)
    own_us = 0 if lateness is None else duration_us(lateness)
    lateness_us = own_us + delay_before(before, name)
    columns = checked_output([*plain, START, END, *aggregates], name)
    params = {column: str(aggregate) for column, aggregate in aggregates.items()}
    params |= {"window": str(window), "emit": how, "lateness_us": str(lateness_us)}
    return OperatorNode(
        columns=columns, changes=how == "update", name=name, befores=(before,), what="window",
        keys=plain, params=params,
        detail=WindowDetail(window, dict(aggregates), how, lateness_us),  # type: ignore[arg-type]
    )  # fmt: skip


def refuse_window_options(name: str, emit: object, lateness: object) -> None:
    """`emit` and `lateness` mean nothing without a window."""
    if emit is not None or lateness is not None:
        raise InvalidInputError(
            "emit and lateness are for windows", kind="no_window", operator=name,
            remedy='group by a window too: group_by("customer", hf.tumbling("at", "1 hour"))',
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
