"""Compare two checkpoints: positions, operators and, for one operator, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from holdfast.cli.app import argument, command, option
from holdfast.cli.commands.state import cell, file_format, limit_option
from holdfast.cli.output import Value, emit
from holdfast.cli.parts import known, position_text
from holdfast.cli.render import (
    BAD,
    DIM,
    GOOD,
    WARN,
    Col,
    Line,
    Piece,
    count,
    line,
    size,
    table,
    when,
    wrapped,
)
from holdfast.cli.targets import (
    Place,
    find_place,
    named,
    parse_options,
    store_argument,
    store_options,
)
from holdfast.errors import NotFoundError
from holdfast.format.documents import Summary
from holdfast.format.manifest import Manifest, OperatorEntry, SourceEntry
from holdfast.format.position import compare
from holdfast.format.topology import differences

if TYPE_CHECKING:
    from holdfast.state.sql import Database

_CHANGES = {"added": ("+", GOOD), "removed": ("-", BAD), "changed": ("~", WARN)}


class PositionChange(Value, frozen=True, kw_only=True):
    """How a source moved."""

    source: str
    order: str
    before: dict[str, str]
    after: dict[str, str]
    watermark_before_us: int | None
    watermark_after_us: int | None


class OperatorChange(Value, frozen=True, kw_only=True):
    """How an operator's state grew."""

    operator: str
    change: str
    rows_before: int | None
    rows_after: int | None
    keys_before: int | None
    keys_after: int | None
    bytes_before: int
    bytes_after: int
    files_shared: int
    files_only_before: int
    files_only_after: int


class RowChange(Value, frozen=True, kw_only=True):
    """One row that differs. `before` is None for an added one, `after` for a removed one."""

    change: Literal["added", "removed", "changed"]
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    weight: int = 1


class RowChanges(Value, frozen=True, kw_only=True):
    """How the rows of one operator differ."""

    operator: str
    trace: str
    keys: list[str]
    added: int
    removed: int
    changed: int
    sample: list[RowChange]


class Difference(Value, frozen=True, kw_only=True, tag="holdfast.diff/1", tag_field="schema"):
    """`holdfast diff STORE A B`."""

    root: str
    pipeline: str
    before: str
    after: str
    epoch_before: int
    epoch_after: int
    processed: int
    topology: list[str]
    positions: list[PositionChange]
    operators: list[OperatorChange]
    rows: RowChanges | None


# How it is built


def diff_places(
    place: Place,
    before: Summary,
    after: Summary,
    *,
    operator: str | None = None,
    limit: int | None = 20,
    to: str | None = None,
) -> Difference:
    """How `after` differs from `before`."""
    left, right = place.reader.manifest(before), place.reader.manifest(after)
    rows = None
    if operator is not None:
        with place.reader.reading(left.checkpoint, right.checkpoint):
            rows = _row_changes(place, left, right, operator, limit, to)
    return Difference(
        root=place.root,
        pipeline=place.pipeline,
        before=left.checkpoint,
        after=right.checkpoint,
        epoch_before=left.epoch,
        epoch_after=right.epoch,
        processed=right.processed - left.processed,
        topology=[str(each) for each in differences(left.topology, right.topology)],
        positions=_positions(left, right),
        operators=_operators(left, right),
        rows=rows,
    )


def _positions(left: Manifest, right: Manifest) -> list[PositionChange]:
    found = []
    names = sorted({s.name for s in left.sources} | {s.name for s in right.sources})
    for name in names:
        old, new = left.source(name), right.source(name)
        found.append(
            PositionChange(
                source=name,
                order=_order(old, new),
                before=position_text(old) if old else {},
                after=position_text(new) if new else {},
                watermark_before_us=old.watermark_us if old else None,
                watermark_after_us=new.watermark_us if new else None,
            )
        )
    return found


_ORDERS = {
    "equal": "same",
    "before": "forward",
    "after": "back",
    "diverged": "diverged",
    "unordered": "moved",
}


def _order(old: SourceEntry | None, new: SourceEntry | None) -> str:
    if old is None or new is None:
        return "added" if old is None else "removed"
    return _ORDERS[compare(old.position, new.position)]


def _operators(left: Manifest, right: Manifest) -> list[OperatorChange]:
    names = sorted({o.name for o in left.operators} | {o.name for o in right.operators})
    return [_operator(left, right, name) for name in names]


def _operator(left: Manifest, right: Manifest, name: str) -> OperatorChange:
    old, new = left.operator(name), right.operator(name)
    here = {(f.pipeline or left.pipeline, f.path, f.sha256) for f in left.files_of(name)}
    there = {(f.pipeline or right.pipeline, f.path, f.sha256) for f in right.files_of(name)}
    return OperatorChange(
        operator=name,
        change=_change(old, new, same=here == there),
        rows_before=_known(old, "rows"),
        rows_after=_known(new, "rows"),
        keys_before=_known(old, "keys"),
        keys_after=_known(new, "keys"),
        bytes_before=old.bytes if old else 0,
        bytes_after=new.bytes if new else 0,
        files_shared=len(here & there),
        files_only_before=len(here - there),
        files_only_after=len(there - here),
    )


def _known(entry: OperatorEntry | None, what: str) -> int | None:
    if entry is None:
        return 0
    counted = entry.counts if entry.trace in ("latest", "bag") else "live"
    return known(getattr(entry, what), counted)


def _change(old: OperatorEntry | None, new: OperatorEntry | None, *, same: bool) -> str:
    if old is None or new is None:
        return "added" if old is None else "removed"
    return "same" if same and old.small == new.small else "changed"


# Rows


def _row_changes(
    place: Place, left: Manifest, right: Manifest, operator: str, limit: int | None, to: str | None
) -> RowChanges:
    """Added, removed and changed rows of one operator."""
    for manifest in (left, right):
        entry = manifest.operator(operator)
        if entry is None or entry.trace == "small":
            raise NotFoundError(
                "the operator keeps no rows in both checkpoints",
                kind="no_trace",
                operator=operator,
                checkpoint=manifest.checkpoint,
                traces=",".join(o.name for o in manifest.operators if o.trace != "small") or "none",
                remedy="choose one of these",
            )
    from holdfast.state.query import traces
    from holdfast.state.row_changes import changes_sql, load_changes
    from holdfast.state.sql import database

    kind = file_format(to, force=False)
    with database(to) as db, traces(place.reader, operator, left, right) as (before, after):
        trace, keys, values = load_changes(db, before, after)
        if to is not None:
            db.write(changes_sql(trace, keys, values), to, kind)
        counts = dict(
            db.run(
                f"SELECT change, sum(weight) FROM ({changes_sql(trace, keys, values)}) "  # noqa: S608
                "GROUP BY change"
            ).fetchall()
        )
        sample = _sample(db, trace, keys, values, limit)
    return RowChanges(
        operator=operator,
        trace=trace,
        keys=keys,
        added=int(counts.get("added", 0)),
        removed=int(counts.get("removed", 0)),
        changed=int(counts.get("changed", 0)),
        sample=sample,
    )


def _sample(
    db: Database, trace: str, keys: list[str], values: list[str], limit: int | None
) -> list[RowChange]:
    from holdfast.state.row_changes import changes_sql

    bound = "" if limit is None else f" LIMIT {limit}"
    order = ", ".join(str(i + 3) for i in range(len(keys)))
    rows = db.run(f"{changes_sql(trace, keys, values)} ORDER BY {order}{bound}").fetchall()
    return [_row_change(trace, keys, values, row) for row in rows]


def _row_change(trace: str, keys: list[str], values: list[str], row: tuple[Any, ...]) -> RowChange:
    change, weight, rest = row[0], int(row[1]), row[2:]
    key = dict(zip(keys, rest, strict=False))
    if trace == "bag":
        both = dict(zip(values, rest[len(keys) :], strict=False))
        before, after = (None, both) if change == "added" else (both, None)
    else:
        pairs = rest[len(keys) :]
        before = None if change == "added" else dict(zip(values, pairs[0::2], strict=False))
        after = None if change == "removed" else dict(zip(values, pairs[1::2], strict=False))
    return RowChange(change=change, key=key, before=before, after=after, weight=weight)


# How it is shown


def difference_lines(value: Difference) -> Iterator[Line]:
    """Two checkpoints next to each other."""
    yield line(("before", "bold"), f" epoch {value.epoch_before} {value.before}")
    yield line(("after ", "bold"), f" epoch {value.epoch_after} {value.after}")
    yield line(f"{value.processed:+d} records processed")
    for change in value.topology:
        yield from wrapped(f"pipeline changed: {change}", style=WARN)
    yield from _position_lines(value.positions)
    yield from _operator_lines(value.operators)
    if value.rows is not None:
        yield from _row_lines(value.rows)


def _position_lines(found: list[PositionChange]) -> Iterator[Line]:
    if not found:
        return
    cells: list[list[str | Piece]] = []
    for change in found:
        names = sorted(change.before.keys() | change.after.keys())
        for number, name in enumerate(names):
            before, after = change.before.get(name, "-"), change.after.get(name, "-")
            cells.append(
                [
                    change.source if number == 0 else "",
                    name,
                    before,
                    (after, "" if before == after else WARN),
                    _moved(before, after),
                ]
            )
        earlier, later = change.watermark_before_us, change.watermark_after_us
        if earlier != later:
            cells.append(["", "watermark", when(earlier), when(later), ""])
    yield line("")
    columns = [Col(name, cut=True) for name in ("source", "partition", "before", "after")]
    yield from table([*columns, Col("change", right=True)], cells)


def _moved(before: str, after: str) -> str:
    if before.isdecimal() and after.isdecimal():
        return f"{int(after) - int(before):+d}" if before != after else "="
    return "=" if before == after else "moved"


def _operator_lines(found: list[OperatorChange]) -> Iterator[Line]:
    if not found:
        return
    yield line("")
    numbers = ("rows", "keys", "bytes", "files shared", "gone", "new")
    columns = [Col(name, right=True) for name in numbers]
    yield from table(
        [Col("operator", cut=True), Col("change"), *columns],
        [
            (
                each.operator,
                each.change,
                _delta(each.rows_before, each.rows_after),
                _delta(each.keys_before, each.keys_after),
                _grown(each.bytes_before, each.bytes_after),
                str(each.files_shared),
                str(each.files_only_before),
                str(each.files_only_after),
            )
            for each in found
        ],
    )


def _delta(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "?"
    return "=" if before == after else f"{after - before:+d}"


def _grown(before: int, after: int) -> str:
    return (
        "=" if before == after else f"{'+' if after > before else '-'}{size(abs(after - before))}"
    )


def _row_lines(value: RowChanges) -> Iterator[Line]:
    yield line("")
    yield line(
        ("rows of ", "bold"),
        (value.operator, "bold"),
        ": ",
        (f"+{count(value.added)} added", GOOD),
        "  ",
        (f"-{count(value.removed)} removed", BAD),
        "  ",
        (f"~{count(value.changed)} changed", WARN),
    )
    for each in value.sample:
        mark, style = _CHANGES[each.change]
        times = f" x{each.weight}" if each.weight != 1 else ""
        yield from wrapped(f"{mark} {_fields(each.key)}: {_values(each)}{times}", style=style)
    hidden = value.added + value.removed + value.changed - len(value.sample)
    if hidden > 0:
        yield [(f"and {count(hidden)} more: --limit 0 shows all, --to FILE writes them", DIM)]


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


@command("holdfast diff checkpoints/orders epoch:17 latest --operator totals")
@store_argument
@argument("before", "A", "The earlier checkpoint.")
@argument("after", "B", "The later one.", default="latest")
@option("--operator", metavar="NAME", help="Compare the rows of this operator.")
@option("--to", metavar="FILE", help="Write the changed rows to .parquet, .csv or .arrow.")
@limit_option
@store_options
def diff(
    *,
    store: str,
    before: str,
    after: str,
    operator: str | None,
    to: str | None,
    limit: int,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> None:
    """Compare two checkpoints: positions, operators and, for one operator, row by row."""
    place = find_place(store, pipeline, parse_options(option))
    value = diff_places(
        place,
        named(place, before),
        named(place, after),
        operator=operator,
        limit=limit or None,
        to=to,
    )
    emit(value, difference_lines, as_json=as_json)
