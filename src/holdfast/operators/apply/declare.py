"""apply as it is declared: what is checked before Spark starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.arguments import several, text_of
from holdfast.durations import Duration, duration_us
from holdfast.errors import InvalidInputError
from holdfast.operators.declaration import (
    Declaration,
    LateNode,
    Node,
    checked_names,
    checked_output,
    late_of,
    require_watermark,
)
from holdfast.spark.ddl import ddl_columns

if TYPE_CHECKING:
    from holdfast.operators.base import Analyzed
    from holdfast.spark.annotations import DataFrame

APPLY_WEIGHT = "_weight"


@dataclass(frozen=True, eq=False, kw_only=True)
class ApplyDeclaration(Declaration):
    """A user function over rows and state of some keys; `text` stands for it when stored."""

    kind: ClassVar[str] = "apply"
    function: Callable[..., Any]
    text: str
    state_schema: str
    output_schema: str
    time: str | None = None
    ttl_us: int | None = None
    timers: str | None = None

    def fingerprint(self) -> Mapping[str, str]:
        """The function by its text, what it keeps and gives, and how it goes by time."""
        params = {
            "function": self.text,
            "state": self.state_schema,
            "output": self.output_schema,
        }
        more = {
            "time": self.time,
            "ttl_us": self.ttl_us,
            "timers": self.timers,
            "changes": self.retracts or None,
        }
        return params | {name: str(value) for name, value in more.items() if value is not None}

    def analyze(self, frames: Sequence[DataFrame], *, late_rows: bool) -> Analyzed:
        """State and output have the types that the user declared, the input its own."""
        from holdfast.operators.apply.analyze import analyze_apply

        del late_rows
        return analyze_apply(self, frames[0])

    def late_rows(self) -> LateNode:
        """Rows from before what the TTL remembers."""
        if self.ttl_us is None:
            return super().late_rows()
        before = self.inputs[0]
        return late_of(self, before.columns, retracts=before.retracts)


def apply(
    before: Node,
    function: Callable[..., Any],
    *,
    key: str | Sequence[str],
    state_schema: str,
    output_schema: str,
    name: str,
    ttl: Duration | None,
    time: str | None,
    timers: str | None,
    retracts: bool,
    text: str | None,
) -> ApplyDeclaration:
    """A user function over rows and state of some keys, checked."""
    keys = several(key, "key", name)
    if not callable(function):
        raise InvalidInputError(
            "apply needs a function",
            kind="not_a_function",
            operator=name,
            value=repr(function)[:80],
            remedy="give function(changes, state, context)",
        )
    if not keys:
        raise InvalidInputError(
            "apply needs a key",
            kind="no_keys",
            operator=name,
            remedy='name the columns that state is kept by: key="customer"',
        )
    checked_names([*keys, *([] if time is None else [time])], before, name)
    for argument, schema in (("state_schema", state_schema), ("output_schema", output_schema)):
        text_of(schema, argument, name, "customer string, n long")
    kept = ddl_columns(state_schema, name)
    checked_output([*keys, *kept], name)
    columns = checked_output(ddl_columns(output_schema, name), name)
    _check_time(before, name, ttl=ttl, time=time, timers=timers, kept=kept)
    return ApplyDeclaration(
        columns=columns,
        retracts=retracts,
        name=name,
        inputs=(before,),
        keys=keys,
        function=function,
        text=text or f"{function.__module__}.{getattr(function, '__qualname__', '?')}",
        state_schema=state_schema,
        output_schema=output_schema,
        time=time,
        ttl_us=None if ttl is None else duration_us(ttl),
        timers=timers,
    )


def _check_time(
    before: Node,
    name: str,
    *,
    ttl: Duration | None,
    time: str | None,
    timers: str | None,
    kept: list[str],
) -> None:
    if ttl is not None and time is None:
        raise InvalidInputError(
            "a TTL goes by event time",
            kind="invalid_bound",
            operator=name,
            remedy='say time="column", which tells when a key was last touched',
        )
    if timers is not None and str(timers).lower() not in {column.lower() for column in kept}:
        raise InvalidInputError(
            "timers must name a column of the state",
            kind="unknown_column",
            operator=name,
            column=timers,
            known=",".join(kept),
            remedy="add a timestamp column to state_schema",
        )
    if ttl is not None or timers is not None:
        require_watermark(before, name)
