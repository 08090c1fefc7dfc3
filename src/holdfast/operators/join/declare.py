"""Joins as they are declared: names, keys and kinds are checked before Spark starts.

A condition on an outer join decides which rows have a partner, so it cannot simply be filtered by
afterwards. Such a join is put together: the pairs that the condition leaves, and the rows of a side
that are in none of them, found by comparing whole rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.durations import Duration, duration_us
from holdfast.errors import InvalidInputError
from holdfast.operators.declaration import (
    Declaration,
    LateNode,
    Node,
    StepNode,
    UnionNode,
    checked_names,
    late_of,
    require_watermark,
)
from holdfast.operators.setops.declare import compared, select_step
from holdfast.spark.ddl import check_columns, quoted

if TYPE_CHECKING:
    from holdfast.operators.base import Analyzed
    from holdfast.spark.annotations import DataFrame

HOWS = ("inner", "left", "right", "full", "semi", "anti")
_SPELLINGS = {
    **{how: how for how in HOWS},
    "outer": "full",
    "leftouter": "left",
    "rightouter": "right",
    "fullouter": "full",
    "leftsemi": "semi",
    "leftanti": "anti",
}
"""PySpark's spellings, without underscores; the fingerprint has ours."""
On = str | Sequence[str] | Mapping[str, str]


@dataclass(frozen=True)
class Interval:
    """Rows belong together when right_time lies in left_time - before .. left_time + after."""

    left_time: str
    right_time: str
    before_us: int
    after_us: int


def interval(
    left_time: str,
    right_time: str,
    *,
    before: Duration = "0 seconds",
    after: Duration = "0 seconds",
) -> Interval:
    """How far the times of two rows that belong together may lie apart; for `join(within=...)`.

    Args:
        left_time: the column of event time of the left side.
        right_time: that of the right side.
        before: how far the right side's time may lie before the left's.
        after: how far it may lie after the left's.

    Returns:
        The interval.

    Raises:
        InvalidInputError: a duration cannot be read.

    Example:
        >>> near = hf.interval("at", "at", before="10 minutes", after="1 hour")
    """
    return Interval(left_time, right_time, duration_us(before), duration_us(after))


@dataclass(frozen=True)
class JoinSpec:
    """What a join is. `apart`: keys of both sides are kept, each as it was, for further steps."""

    on: tuple[tuple[str, str], ...]
    how: str
    suffix: str | None = None
    within: Interval | None = None
    apart: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class JoinDeclaration(Declaration):
    """Rows of two streams that belong together by key."""

    kind: ClassVar[str] = "join"
    spec: JoinSpec

    def fingerprint(self) -> Mapping[str, str]:
        """Keys, kind, and how far apart in time."""
        spec = self.spec
        params = {"how": spec.how, "on": ", ".join(f"{a} = {b}" for a, b in spec.on)}
        if spec.suffix:
            params["suffix"] = spec.suffix
        if spec.within is not None:
            within = spec.within
            params["within"] = (
                f"{within.right_time} in {within.left_time} - {within.before_us} us .. + "
                f"{within.after_us} us"
            )
        return params

    def analyze(self, frames: Sequence[DataFrame], *, late_rows: bool) -> Analyzed:
        """Both sides as one DataFrame."""
        from holdfast.operators.join.analyze import analyze_join

        return analyze_join(self, frames, late_rows=late_rows)

    def late_rows(self) -> LateNode:
        """Rows of both sides that an interval join can no longer count with."""
        if self.spec.within is None:
            return super().late_rows()
        return late_of(self, None, retracts=True)


@dataclass(frozen=True)
class JoinColumn:
    """A column of the result: of a side ("left", "right"), or a key that both share."""

    name: str
    side: str | None
    source: str


@dataclass(frozen=True)
class JoinRequest:
    """Everything that a user says about a join."""

    on: On | None
    how: str
    name: str
    condition: str | None = None
    within: Interval | None = None
    suffix: str | None = None


def join_streams(left: Node, right: Node, join: JoinRequest) -> Node:
    """The node whose rows are the join's."""
    how = _SPELLINGS.get(str(join.how).replace("_", "").lower(), join.how)
    join = replace(join, how=how)
    spec = _checked(left, right, join)
    if join.condition is None or join.how == "inner":
        found: Node = _declared(left, right, join.name, spec)
        return found if join.condition is None else _where(found, join.condition)
    if join.within is not None:
        raise InvalidInputError(
            "an interval join with a condition must be an inner join",
            kind="unsupported_join",
            operator=join.name,
            how=join.how,
            remedy="leave the condition out, or use how='inner'",
        )
    return _composed(left, right, join, spec)


def join_columns(
    left: Sequence[str], right: Sequence[str], spec: JoinSpec, owner: str
) -> list[JoinColumn]:
    """The columns of the result: shared keys, then the left side's, then the right side's."""
    shared = {} if spec.apart else {a.lower(): a for a, b in spec.on if a.lower() == b.lower()}
    if spec.how in ("semi", "anti"):
        return [JoinColumn(name, "left", name) for name in left]
    own = [JoinColumn(name, None, name) for name in shared.values()]
    own += [JoinColumn(name, "left", name) for name in left if name.lower() not in shared]
    taken = {column.name.lower() for column in own}
    keys = {b.lower() for a, b in spec.on if a.lower() == b.lower()} if spec.apart else set()
    for name in right:
        if name.lower() in shared:
            continue
        given = f"_right_{name}" if name.lower() in keys else name
        if given.lower() in taken and spec.suffix:
            given = f"{name}{spec.suffix}"
        if given.lower() in taken:
            raise InvalidInputError(
                "both sides of a join have a column of this name",
                kind="column_collision",
                operator=owner,
                column=given,
                remedy='rename it with select("... AS ..."), or give suffix="_right"',
            )
        taken.add(given.lower())
        own.append(JoinColumn(given, "right", name))
    check_columns([column.name for column in own], owner)
    return own


def _checked(left: Node, right: Node, join: JoinRequest) -> JoinSpec:
    if join.how not in HOWS:
        raise InvalidInputError(
            "no such kind of join",
            kind="unsupported_join",
            operator=join.name,
            how=join.how,
            remedy=f"use one of {', '.join(HOWS)}",
        )
    on = () if join.on is None else _pairs(join.on)
    if not on:
        raise InvalidInputError(
            "a join needs a key",
            kind="no_keys",
            operator=join.name,
            remedy='on="column", on=["a", "b"] or on={"left column": "right column"}',
        )
    checked_names([a for a, _ in on], left, join.name)
    checked_names([b for _, b in on], right, join.name)
    if join.within is not None:
        if not isinstance(join.within, Interval):
            raise InvalidInputError(
                "not an interval",
                kind="invalid_bound",
                operator=join.name,
                value=repr(join.within)[:80],
                remedy='use hf.interval("left_time", "right_time", before="10 minutes")',
            )
        checked_names([join.within.left_time], left, join.name)
        checked_names([join.within.right_time], right, join.name)
        require_watermark(left, join.name)
        require_watermark(right, join.name)
    return JoinSpec(on, join.how, join.suffix, join.within)


def _pairs(on: On) -> tuple[tuple[str, str], ...]:
    if isinstance(on, str):
        return ((on, on),)
    if isinstance(on, Mapping):
        return tuple(on.items())
    if not isinstance(on, Sequence):
        raise InvalidInputError(
            "a join goes by names of columns",
            kind="invalid_key",
            value=repr(on)[:80],
            remedy='on="column", on=["a", "b"] or on={"left column": "right column"}; another '
            'condition is condition="SQL over the columns of both sides"',
        )
    return tuple((name, name) for name in on)


def _retracts(spec: JoinSpec, left: Node, right: Node) -> bool:
    return spec.how not in ("inner", "semi") or left.retracts or right.retracts


def _declared(left: Node, right: Node, name: str, spec: JoinSpec) -> JoinDeclaration:
    columns = None
    if left.columns is not None and right.columns is not None:
        found = join_columns(left.columns, right.columns, spec, name)
        columns = [column.name for column in found]
    return JoinDeclaration(
        columns=columns,
        retracts=_retracts(spec, left, right),
        name=name,
        inputs=(left, right),
        keys=tuple(a for a, _ in spec.on),
        spec=spec,
    )


def _where(before: Node, condition: str) -> StepNode:
    return StepNode(
        columns=before.columns,
        retracts=before.retracts,
        inputs=(before,),
        apply=lambda df: df.where(condition),
        text=f"where {condition}",
    )


def _known(node: Node, name: str) -> list[str]:
    if node.columns is None:
        raise InvalidInputError(
            "the columns of both sides must be known for this join",
            kind="unknown_columns",
            operator=name,
            remedy='name them with select("a", "b + 1 AS c") before the join',
        )
    return node.columns


def _composed(left: Node, right: Node, join: JoinRequest, spec: JoinSpec) -> Node:
    """A join with a condition that is not an inner one."""
    names = _known(left, join.name), _known(right, join.name)
    existence = join.how in ("semi", "anti")
    inner = replace(spec, how="inner", apart=True)
    columns = join_columns(*names, inner, join.name)
    pairs = _declared(left, right, f"{join.name}.pairs" if existence else join.name, inner)
    kept = _where(pairs, str(join.condition))
    of_left = {c.source: c.name for c in columns if c.side == "left"}
    of_right = {c.source: c.name for c in columns if c.side == "right"}
    if existence:
        matched = select_step(kept, of_left)
        rule = "matched" if join.how == "semi" else "unmatched"
        return compared(left, matched, join.name, rule)
    shown = join_columns(*names, spec, join.name)
    parts: list[Node] = [_shown(kept, shown, of_left, of_right)]
    if join.how in ("left", "full"):
        alone = compared(
            left, select_step(kept, of_left), f"{join.name}.unmatched-left", "unmatched"
        )
        parts.append(_shown(alone, shown, {n: n for n in names[0]}, {}))
    if join.how in ("right", "full"):
        alone = compared(
            right, select_step(kept, of_right), f"{join.name}.unmatched-right", "unmatched"
        )
        parts.append(_shown(alone, shown, {}, {n: n for n in names[1]}))
    return UnionNode(columns=[c.name for c in shown], retracts=True, inputs=tuple(parts))


def _shown(
    before: Node, columns: Sequence[JoinColumn], left: dict[str, str], right: dict[str, str]
) -> StepNode:
    """The result's columns from those of both sides; NULL where a side is not there."""
    by_lower = [{k.lower(): v for k, v in side.items()} for side in (left, right)]
    texts: dict[str, Any] = {}
    for column in columns:
        key = column.source.lower()
        if column.side is None:
            found = [side[key] for side in by_lower if key in side]
            texts[column.name] = f"coalesce({', '.join(quoted(name) for name in found)})"
            continue
        name = by_lower[0 if column.side == "left" else 1].get(key)
        texts[column.name] = "NULL" if name is None else quoted(name)
    return select_step(before, texts, expressions=True)
