"""`diff`: two checkpoints next to each other, down to the rows of one operator."""

from __future__ import annotations

import tempfile
from typing import Any

from holdfast.cli.address import Place
from holdfast.cli.facts.listing import known, position_text
from holdfast.cli.facts.sql import Database, database
from holdfast.cli.facts.state import file_format
from holdfast.cli.values import (
    Difference,
    OperatorChange,
    PositionChange,
    RowChange,
    RowChanges,
)
from holdfast.errors import HoldfastError, IncompatibleError, NotFoundError
from holdfast.format.documents import Summary
from holdfast.format.manifest import Manifest, OperatorEntry, SourceEntry
from holdfast.format.position import compare
from holdfast.format.topology import differences
from holdfast.ids import RandomIds

_CACHE_BYTES = 1 << 40


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
    "equal": "same", "before": "forward", "after": "back", "diverged": "diverged",
    "unordered": "moved",
}  # fmt: skip


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
    kind = file_format(to, force=False)
    with database(to) as db, tempfile.TemporaryDirectory(prefix="holdfast-runs-") as directory:
        trace, keys, values = _load(db, place, left, right, operator, directory)
        if to is not None:
            db.write(_changes_sql(trace, keys, values), to, kind)
        counts = dict(
            db.run(
                f"SELECT change, sum(weight) FROM ({_changes_sql(trace, keys, values)}) "  # noqa: S608
                "GROUP BY change"
            ).fetchall()
        )
        sample = _sample(db, trace, keys, values, limit)
    return RowChanges(
        operator=operator, trace=trace, keys=keys, added=int(counts.get("added", 0)),
        removed=int(counts.get("removed", 0)), changed=int(counts.get("changed", 0)), sample=sample,
    )  # fmt: skip


def _load(
    db: Database, place: Place, left: Manifest, right: Manifest, operator: str, directory: str
) -> tuple[str, list[str], list[str]]:
    """The difference as the table `changes` of the database."""
    import pyarrow as pa

    from holdfast.state import RunCache, diff, open_trace

    cache = RunCache(directory, bytes_max=_CACHE_BYTES, ids=RandomIds())
    before = open_trace(place.storage, left, operator, cache=cache)
    after = open_trace(place.storage, right, operator, cache=cache)
    if before.schema != after.schema:
        raise IncompatibleError(
            "the operator's columns differ between the checkpoints",
            kind="run_schema_differs",
            before=",".join(before.schema.stored.names[2:]),
            after=",".join(after.schema.stored.names[2:]),
        )
    schema = before.schema
    fields = [pa.field("__hf_weight", pa.int64(), nullable=False)]
    fields += [f.with_nullable(True) for f in (*schema.keys, *schema.values)]  # noqa: FBT003
    wanted = pa.schema(fields)
    failures: list[HoldfastError] = []

    def batches() -> Any:
        try:
            for batch in diff(before, after):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=wanted)
        except HoldfastError as error:
            failures.append(error)
            raise

    db.connection.register("hf_diff", pa.RecordBatchReader.from_batches(wanted, batches()))
    try:
        db.run("CREATE TABLE changes AS SELECT * FROM hf_diff")
    except HoldfastError:
        if failures:
            raise failures[0] from None
        raise
    return str(schema.kind), list(schema.keys.names), list(schema.values.names)


def _changes_sql(trace: str, keys: list[str], values: list[str]) -> str:
    """One row for each change: what kind, how often, key, values before and after."""
    key = ", ".join(_name(each) for each in keys)
    if trace == "bag":
        both = ", ".join(_name(each) for each in (*keys, *values))
        return (
            "SELECT CASE WHEN __hf_weight > 0 THEN 'added' ELSE 'removed' END AS change, "  # noqa: S608
            f"abs(__hf_weight) AS weight, {both} FROM changes"
        )
    sides = []
    for column in values:
        name = _name(column)
        for side, sign in (("before", "<"), ("after", ">")):
            sides.append(
                f"first({name}) FILTER (WHERE __hf_weight {sign} 0) AS {_name(f'{column}_{side}')}"
            )
    shown = "".join(f", {side}" for side in sides)
    return (
        "SELECT CASE WHEN min(__hf_weight) < 0 AND max(__hf_weight) > 0 THEN 'changed' "  # noqa: S608
        "WHEN max(__hf_weight) > 0 THEN 'added' ELSE 'removed' END AS change, 1 AS weight, "
        f"{key}{shown} FROM changes GROUP BY {key}"
    )


def _sample(
    db: Database, trace: str, keys: list[str], values: list[str], limit: int | None
) -> list[RowChange]:
    bound = "" if limit is None else f" LIMIT {limit}"
    order = ", ".join(str(i + 3) for i in range(len(keys)))
    rows = db.run(f"{_changes_sql(trace, keys, values)} ORDER BY {order}{bound}").fetchall()
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


def _name(column: str) -> str:
    """A quoted name."""
    return '"' + column.replace('"', '""') + '"'
