"""`state`, `diff`, `doctor` and `prepare` for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.cli.machine import Diagnosis, Preparation
from holdfast.cli.text import (
    Col,
    Line,
    Piece,
    count,
    line,
    plural,
    size,
    table,
    when,
    width,
    wrapped,
)
from holdfast.cli.values import (
    Difference,
    OperatorChange,
    OperatorList,
    PositionChange,
    RowChange,
    RowChanges,
    StateRows,
)
from holdfast.cli.views.inspect import operators

_GOOD, _BAD, _MEH, _DIM = "green", "bold red", "yellow", "dim"
_CHANGES = {"added": ("+", _GOOD), "removed": ("-", _BAD), "changed": ("~", _MEH)}
_CHECKS = {"ok": _GOOD, "warning": _MEH, "problem": _BAD, "skipped": _DIM}


def cell(value: Any) -> str:
    """A value of a row."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def operator_list(value: OperatorList) -> Iterator[Line]:
    """Which operators there are."""
    yield line(f"pipeline {value.pipeline}, epoch {value.epoch} {value.checkpoint}")
    yield from operators(value.operators)


def rows(value: StateRows) -> Iterator[Line]:
    """Rows of an operator, or of a query over them."""
    if value.written is not None:
        yield from wrapped(f"wrote {plural(value.rows_written or 0, 'row')} to {value.written}")
        return
    yield from _grid(value)
    if value.more:
        yield [("more rows: --limit 0 shows all, --to FILE writes them", _DIM)]


def _grid(value: StateRows) -> Iterator[Line]:
    numbers = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "HUGEINT")
    columns = [
        Col(column.name, cut=True, least=4, right=any(word in column.type for word in numbers))
        for column in value.columns
    ]
    room = width()
    fit = max(1, (room + 1) // 5)
    if len(columns) > fit:  # more columns than can be told apart: one line for each value
        for number, row in enumerate(value.rows):
            yield [(f"row {number}", "bold")]
            for column, item in zip(value.columns, row, strict=True):
                yield from wrapped(f"{column.name}: {cell(item)}", indent="  ")
        return
    yield from table(columns, [[cell(item) for item in row] for row in value.rows], room)


# diff


def difference(value: Difference) -> Iterator[Line]:
    """Two checkpoints next to each other."""
    yield line(("before", "bold"), f" epoch {value.epoch_before} {value.before}")
    yield line(("after ", "bold"), f" epoch {value.epoch_after} {value.after}")
    yield line(f"{value.processed:+d} records processed")
    for change in value.topology:
        yield from wrapped(f"pipeline changed: {change}", style=_MEH)
    yield from _positions(value.positions)
    yield from _operators(value.operators)
    if value.rows is not None:
        yield from _rows(value.rows)


def _positions(found: list[PositionChange]) -> Iterator[Line]:
    if not found:
        return
    cells: list[list[str | Piece]] = []
    for change in found:
        names = sorted(change.before.keys() | change.after.keys())
        for number, name in enumerate(names):
            before, after = change.before.get(name, "-"), change.after.get(name, "-")
            cells.append(
                [change.source if number == 0 else "", name, before,
                 (after, "" if before == after else _MEH), _moved(before, after)]
            )  # fmt: skip
        if change.watermark_before_us != change.watermark_after_us:
            cells.append(
                ["", "watermark", when(change.watermark_before_us), when(change.watermark_after_us),
                 ""]
            )  # fmt: skip
    yield line("")
    columns = [Col("source", cut=True), Col("partition", cut=True), Col("before", cut=True),
               Col("after", cut=True), Col("change", right=True)]  # fmt: skip
    yield from table(columns, cells)


def _moved(before: str, after: str) -> str:
    if before.isdecimal() and after.isdecimal():
        return f"{int(after) - int(before):+d}" if before != after else "="
    return "=" if before == after else "moved"


def _operators(found: list[OperatorChange]) -> Iterator[Line]:
    if not found:
        return
    yield line("")
    columns = [
        Col("operator", cut=True), Col("change"), Col("rows", right=True), Col("keys", right=True),
        Col("bytes", right=True), Col("files shared", right=True), Col("gone", right=True),
        Col("new", right=True),
    ]  # fmt: skip
    yield from table(
        columns,
        [
            (each.operator, each.change, _delta(each.rows_before, each.rows_after),
             _delta(each.keys_before, each.keys_after),
             _grown(each.bytes_before, each.bytes_after),
             str(each.files_shared), str(each.files_only_before), str(each.files_only_after))
            for each in found
        ],
    )  # fmt: skip


def _delta(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "?"
    return "=" if before == after else f"{after - before:+d}"


def _grown(before: int, after: int) -> str:
    return (
        "=" if before == after else f"{'+' if after > before else '-'}{size(abs(after - before))}"
    )


def _rows(value: RowChanges) -> Iterator[Line]:
    yield line("")
    yield line(
        ("rows of ", "bold"), (value.operator, "bold"), ": ",
        (f"+{count(value.added)} added", _GOOD), "  ", (f"-{count(value.removed)} removed", _BAD),
        "  ", (f"~{count(value.changed)} changed", _MEH),
    )  # fmt: skip
    for each in value.sample:
        mark, style = _CHANGES[each.change]
        times = f" x{each.weight}" if each.weight != 1 else ""
        yield from wrapped(f"{mark} {_fields(each.key)}: {_values(each)}{times}", style=style)
    hidden = value.added + value.removed + value.changed - len(value.sample)
    if hidden > 0:
        yield [(f"and {count(hidden)} more: --limit 0 shows all, --to FILE writes them", _DIM)]


def _values(each: RowChange) -> str:
    if each.before is None or each.after is None:
        return _fields(each.after or each.before or {})
    return ", ".join(
        f"{name} {cell(each.before[name])} -> {cell(each.after[name])}"
        for name in each.after
        if each.before.get(name) != each.after[name]
    )


def _fields(found: dict[str, Any]) -> str:
    return ", ".join(f"{name}={cell(item)}" for name, item in found.items())


# doctor


def diagnosis(value: Diagnosis) -> Iterator[Line]:
    """What was looked at; what is wrong comes with its remedy."""
    longest = max((len(check.name) for check in value.checks), default=0)
    for check in value.checks:
        head = line((f"{check.status:<8}", _CHECKS[check.status]), f" {check.name:<{longest}}  ")
        room = width() - 11 - longest
        found = wrapped(check.found, room=room)
        yield [*head, *found[0]]
        for more in found[1:]:
            yield [(" " * (11 + longest), ""), *more]
        if check.remedy:
            yield from wrapped(f"try: {check.remedy}", indent=" " * 9)
    if value.ok:
        yield line(("everything needed is here", _GOOD))


# prepare


def preparation(value: Preparation) -> Iterator[Line]:
    """What is stored now, or what was deleted."""
    if value.path is not None:
        how = f"in {value.seconds:.0f} s" if value.made else "before"
        yield line(("prepared", _GOOD), f" {how}: {size(value.bytes)} in {value.path}")
        yield line("pipelines on this machine start sooner; --remove deletes it")
    elif value.deleted:
        for path in value.deleted:
            yield line(f"removed {path}")
    else:
        yield line("nothing was stored")
