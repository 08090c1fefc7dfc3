"""Declaring operators with state of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.durations import Duration, duration_us
from holdfast.errors import InvalidInputError
from holdfast.runtime.graph import (
    Node,
    OperatorNode,
    checked_names,
    checked_output,
    require_watermark,
)
from holdfast.spark.ddl import ddl_columns

APPLY_WEIGHT = "_weight"


@dataclass(frozen=True)
class ApplyDetail:
    """What the resolver of apply needs."""

    function: Callable[..., Any]
    state_schema: str
    output_schema: str
    time: str | None
    ttl_us: int | None
    timers: str | None


def apply_node(
    before: Node, function: Callable[..., Any], *, key: str | Sequence[str], state_schema: str,
    output_schema: str, name: str, ttl: Duration | None, time: str | None, timers: str | None,
    changes: bool, text: str | None,
) -> OperatorNode:  # fmt: skip
    """A function of the user over rows and state of some keys."""
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not callable(function):
        raise InvalidInputError(
            "apply needs a function", kind="not_a_function", operator=name,
            value=repr(function)[:80], remedy="give function(changes, state, context)",
        )  # fmt: skip
    if not keys:
        raise InvalidInputError("apply needs a key", kind="no_keys", operator=name)
    checked_names([*keys, *([time] if time else [])], before, name)
    kept = ddl_columns(state_schema, name)
    checked_output([*keys, *kept], name)
    columns = checked_output(ddl_columns(output_schema, name), name)
    _check_time(before, name, ttl=ttl, time=time, timers=timers, kept=kept)
    label = text or f"{function.__module__}.{getattr(function, '__qualname__', '?')}"
    detail = ApplyDetail(
        function, state_schema, output_schema, time, duration_us(ttl) if ttl else None, timers
    )
    params = {"function": label, "state": state_schema, "output": output_schema}
    more = {"time": time, "ttl_us": detail.ttl_us, "timers": timers, "changes": changes or None}
    params |= {name: str(value) for name, value in more.items() if value is not None}
    return OperatorNode(
        columns=columns, changes=changes, name=name, befores=(before,), what="apply", keys=keys,
        params=params, detail=detail,
    )  # fmt: skip


def _check_time(
    before: Node, name: str, *, ttl: Duration | None, time: str | None, timers: str | None,
    kept: list[str],
) -> None:  # fmt: skip
    if ttl is not None and time is None:
        raise InvalidInputError(
            "a TTL goes by event time", kind="invalid_bound", operator=name,
            remedy='say time="column", which tells when a key was last touched',
        )  # fmt: skip
    if timers is not None and timers.lower() not in {column.lower() for column in kept}:
        raise InvalidInputError(
            "timers must name a column of the state", kind="unknown_column", operator=name,
            column=timers, known=",".join(kept),
            remedy="add a timestamp column to state_schema",
        )  # fmt: skip
    if ttl is not None or timers is not None:
        require_watermark(before, name)
