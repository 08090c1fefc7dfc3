"""Types and expressions of joins.

Both sides become one DataFrame: a hash, the side, the keys in a type that both sides share, and
slots for the other columns. A slot may hold a column of the left side in some rows and one of the
right side in others, as long as they have one type: rows stay narrow on their way.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

from holdfast.errors import InvalidInputError
from holdfast.operators.analyze import key_schema, nullable_type
from holdfast.operators.base import Analyzed
from holdfast.operators.columns import HASH, SIDE, WEIGHT
from holdfast.operators.join.declare import JoinDeclaration, JoinSpec, join_columns
from holdfast.operators.join.execute import LATE_SIDE, LEFT, RIGHT, JoinSide, JoinTask, OutColumn
from holdfast.operators.join.matching import Reach
from holdfast.spark.classic import Selection
from holdfast.spark.ddl import quoted
from holdfast.spark.types import has_maps, kept_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SIDES = ("left", "right")
_DIGITS_MAX = 38


@dataclass
class _Input:
    """One side while it is worked out."""

    fields: dict[str, Any]
    on: list[str]
    key_names: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    slots: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    """Columns that only late rows show."""

    def carried(self, name: str) -> int | None:
        """The key that stands for a column, if one does."""
        names = [key.lower() for key in self.key_names]
        return names.index(name.lower()) if name.lower() in names else None


def analyze_join(
    node: JoinDeclaration, frames: Sequence[DataFrame], *, late_rows: bool
) -> AnalyzedJoin:
    """Task and DataFrame code of a join."""
    spec = node.spec
    inputs = [
        _Input({f.name.lower(): f for f in df.schema.fields if f.name != WEIGHT}, list(names))
        for df, names in zip(frames, zip(*spec.on, strict=True), strict=True)
    ]
    for df, side in zip(frames, inputs, strict=True):
        key_schema(node, df, tuple(side.on))
    types = [
        _common(
            node,
            frames[LEFT],
            a,
            b,
            [s.fields[n.lower()].dataType for s, n in zip(inputs, (a, b), strict=True)],
        )
        for a, b in spec.on
    ]
    slot_types = _layout(node, inputs, types, late_rows=late_rows)
    task = _task(node, inputs, types, late_rows=late_rows)
    weighted = any(WEIGHT in df.columns for df in frames)
    sides = tuple(
        _expressions(spec, number, side, types, slot_types, shown=task.sides[number].shows is False)
        for number, side in enumerate(inputs)
    )
    parts = tuple(
        Selection(*texts, *_weight(df, weighted=weighted))
        for df, (texts, _) in zip(frames, sides, strict=True)
    )
    return AnalyzedJoin(node, task, parts, tuple(where for _, where in sides))


def _weight(df: DataFrame, *, weighted: bool) -> list[str]:
    """The weight of each row, where rows of one side can be retracted."""
    if not weighted:
        return []
    return [WEIGHT if WEIGHT in df.columns else f"1L AS {WEIGHT}"]


def _common(node: JoinDeclaration, df: DataFrame, left: str, right: str, kinds: list[Any]) -> Any:
    """The type in which both keys are compared."""
    if kinds[0] == kinds[1]:
        return kinds[0]
    nested = (T.StructType, T.ArrayType)
    if all(isinstance(kind, T.DecimalType) for kind in kinds):
        whole, scale = (
            max(values)
            for values in zip(*((k.precision - k.scale, k.scale) for k in kinds), strict=True)
        )
        if whole + scale > _DIGITS_MAX:
            raise _incomparable(node, left, right, kinds)
    texts = [isinstance(kind, T.StringType) for kind in kinds]
    if texts[0] != texts[1] or any(isinstance(kind, nested) for kind in kinds):
        raise _incomparable(node, left, right, kinds)
    names = [f"cast(NULL AS {kind.simpleString()})" for kind in kinds]
    found = df.sparkSession.range(0).selectExpr(f"coalesce({', '.join(names)}) AS x")
    return found.schema.fields[0].dataType


def _incomparable(
    node: JoinDeclaration, left: str, right: str, kinds: list[Any]
) -> InvalidInputError:
    return InvalidInputError(
        "the keys of a join have types that cannot be compared safely",
        kind="join_key_types",
        operator=node.name,
        left=f"{left} {kinds[0].simpleString()}",
        right=f"{right} {kinds[1].simpleString()}",
        remedy="cast one of them before the join",
    )


def _layout(
    node: JoinDeclaration, inputs: list[_Input], types: list[Any], *, late_rows: bool
) -> list[Any]:
    """Names of keys and values in the traces, and the slots of values; gives the slots' types."""
    spec = node.spec
    slot_types: list[Any] = []
    times = (spec.within.left_time, spec.within.right_time) if spec.within else (None, None)
    for number, side in enumerate(inputs):
        time = times[number]
        for index, (name, kind) in enumerate(zip(side.on, types, strict=True)):
            own = side.fields[name.lower()]
            whole = own.dataType == kind and own.name not in side.key_names
            if time is not None and own.name.lower() == time.lower():
                whole = False
            side.key_names.append(own.name if whole else _hidden(index, side.fields))
        wanted = [f.name for f in side.fields.values() if side.carried(f.name) is None]
        if number == RIGHT and spec.how in ("semi", "anti"):
            whole_row = wanted
            wanted = [name for name in wanted if time is not None and name.lower() == time.lower()]
            if late_rows:
                side.extra = [name for name in whole_row if name not in wanted]
        if time is not None:
            _check_time(node, side.fields[time.lower()])
        side.values = wanted
        free = list(range(len(slot_types)))
        for name in [*wanted, *side.extra]:
            kind = side.fields[name.lower()].dataType
            sent = _arrow(kind, name)
            same = [slot for slot in free if _arrow(slot_types[slot], name) == sent]
            found = same[0] if same else None
            if found is None:
                slot_types.append(kind)
                found = len(slot_types) - 1
            else:
                free.remove(found)
            side.slots.append(f"__hf_c{found}")
    return slot_types


def _hidden(index: int, taken: dict[str, Any]) -> str:
    name = f"_key_{index}"
    while name in taken:
        name = f"_{name}"
    return name


def _check_time(node: JoinDeclaration, column: Any) -> None:
    if not isinstance(column.dataType, (T.TimestampType, T.TimestampNTZType)):
        raise InvalidInputError(
            "the event time must be a timestamp",
            kind="invalid_time_column",
            operator=node.name,
            column=column.name,
            type=column.dataType.simpleString(),
        )


def _arrow(kind: Any, column: str) -> Any:
    return nullable_type(kept_type(kind, column))


def _task(
    node: JoinDeclaration, inputs: list[_Input], types: list[Any], *, late_rows: bool
) -> JoinTask:
    spec = node.spec
    how, within = spec.how, spec.within
    shows: list[bool | None] = [
        {"left": False, "full": False, "semi": True, "anti": False}.get(how),
        {"right": False, "full": False}.get(how),
    ]
    sides = []
    for number, side in enumerate(inputs):
        trace = f"{node.name}.{_SIDES[number]}"
        counted = shows[1 - number] is not None and within is None
        slim = number == RIGHT and how in ("semi", "anti")
        time, keep_us, reach = None, 0, None
        if within is not None:
            name = (within.left_time, within.right_time)[number]
            time = [value.lower() for value in side.values].index(name.lower())
            ahead, behind = within.before_us, within.after_us
            reach = Reach(ahead, behind) if number == LEFT else Reach(behind, ahead)
            keep_us = behind if number == LEFT else ahead
            if shows[1 - number] is not None:  # rows of the other side are counted with it
                keep_us = ahead + behind
        counts = (trace if slim else f"{trace}-keys") if counted else None
        keys = [(n, _arrow(t, n)) for n, t in zip(side.key_names, types, strict=True)]
        values = [(n, _arrow(side.fields[n.lower()].dataType, n)) for n in side.values]
        sides.append(
            JoinSide(
                trace=trace,
                slots=tuple(side.slots[: len(side.values)]),
                keys=pa.schema(keys),
                values=pa.schema(values),
                shows=shows[number],
                counts=counts,
                time=time,
                keep_us=keep_us,
                reach=reach,
                late_slots=tuple(side.slots[len(side.values) :]),
                late_types=tuple(_arrow(side.fields[n.lower()].dataType, n) for n in side.extra),
            )
        )
    late = _late(node, spec, inputs, types) if late_rows else ()
    return JoinTask(
        node.name,
        tuple(f"__hf_k{n}" for n in range(len(types))),
        (sides[0], sides[1]),
        _columns(node, spec, inputs, types),
        pairs=how not in ("semi", "anti"),
        changes=node.retracts,
        late_columns=late,
    )


def _columns(
    node: JoinDeclaration, spec: JoinSpec, inputs: list[_Input], types: list[Any]
) -> tuple[OutColumn, ...]:
    names = [[f.name for f in side.fields.values()] for side in inputs]
    found = []
    for column in join_columns(names[LEFT], names[RIGHT], spec, node.name):
        if column.side is None:
            key = [a.lower() for a, _ in spec.on].index(column.source.lower())
            found.append(OutColumn(column.name, _arrow(types[key], column.name), None, key=key))
            continue
        number = _SIDES.index(column.side)
        side = inputs[number]
        own = side.fields[column.source.lower()]
        carried = side.carried(own.name)
        sent = [*side.values, *side.extra]
        value = sent.index(own.name) if own.name in sent else None
        if carried is None and value is None:
            continue
        found.append(OutColumn(column.name, _arrow(own.dataType, own.name), number, carried, value))
    return tuple(found)


def _late(
    node: JoinDeclaration, spec: JoinSpec, inputs: list[_Input], types: list[Any]
) -> tuple[OutColumn, ...]:
    """Late rows show all that was sent of both sides, whatever the join shows."""
    whole = JoinSpec(spec.on, "full", spec.suffix or "_right", spec.within)
    found = _columns(node, whole, inputs, types)
    if any(column.name.lower() == LATE_SIDE for column in found):
        raise InvalidInputError(
            "a column has the name that late rows use for their side",
            kind="reserved_column",
            operator=node.name,
            column=LATE_SIDE,
            remedy="rename it before the join",
        )
    return found


@dataclass(frozen=True)
class AnalyzedJoin(Analyzed):
    """Both inputs as one DataFrame: for each side its expressions, and which rows matter."""

    parts: tuple[Selection, ...]
    conditions: tuple[str | None, ...]

    def project(self, frames: Sequence[DataFrame]) -> DataFrame:
        """The union of both sides."""
        sides = zip(frames, self.parts, self.conditions, strict=True)
        parts = [select(df if where is None else df.where(where)) for df, select, where in sides]
        return functools.reduce(lambda union, part: union.unionByName(part), parts)


def _expressions(
    spec: JoinSpec,
    number: int,
    side: _Input,
    types: list[Any],
    slot_types: list[Any],
    *,
    shown: bool,
) -> tuple[list[str], str | None]:
    """What is sent of a side, and of which rows. shown: rows without a partner show."""
    keys = [
        quoted(name)
        if side.fields[name.lower()].dataType == kind
        else f"cast({quoted(name)} AS {_ddl(kind)})"
        for name, kind in zip(side.on, types, strict=True)
    ]
    timed = spec.within is not None
    # A row without a key meets nothing, but with a time it may be late, and counts as such.
    given = [] if timed else [f"{quoted(name)} IS NOT NULL" for name in side.on]
    if spec.within is not None:
        time = (spec.within.left_time, spec.within.right_time)[number]
        given.append(f"{quoted(time)} IS NOT NULL")
    hashed = f"xxhash64({', '.join(keys)})"
    if shown or timed:  # rows without a key meet nothing: they may go anywhere
        anywhere = ", ".join(_hashable(side)) or "1"
        missing = " OR ".join(f"{quoted(name)} IS NULL" for name in side.on)
        hashed = f"CASE WHEN {missing} THEN xxhash64({anywhere}) ELSE {hashed} END"
    placed = dict(zip(side.slots, [*side.values, *side.extra], strict=True))
    texts = [f"{hashed} AS {HASH}", f"{number} AS {SIDE}"]
    texts += [f"{key} AS __hf_k{n}" for n, key in enumerate(keys)]
    texts += [
        f"{quoted(placed[f'__hf_c{n}'])} AS __hf_c{n}"
        if f"__hf_c{n}" in placed
        else f"cast(NULL AS {_ddl(kind)}) AS __hf_c{n}"
        for n, kind in enumerate(slot_types)
    ]
    return texts, None if shown else " AND ".join(given)


def _hashable(side: _Input) -> list[str]:
    return [quoted(f.name) for f in side.fields.values() if not has_maps(f.dataType)]


def _ddl(kind: Any) -> str:
    """The type in SQL, with quoted names of fields."""
    if isinstance(kind, T.StructType):
        return (
            "struct<"
            + ", ".join(f"{quoted(f.name)}: {_ddl(f.dataType)}" for f in kind.fields)
            + ">"
        )
    if isinstance(kind, T.ArrayType):
        return f"array<{_ddl(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    return str(kind.simpleString())
