"""How the rows of one operator differ between two checkpoints, as a table of DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import HoldfastError, IncompatibleError
from holdfast.state.reader import diff

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.state.reader import TraceReader
    from holdfast.state.sql import Database


def load_changes(
    db: Database, before: TraceReader, after: TraceReader
) -> tuple[str, list[str], list[str]]:
    """The difference as the table `changes` of the database."""
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

    def batches() -> Iterator[pa.RecordBatch]:
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


def changes_sql(trace: str, keys: list[str], values: list[str]) -> str:
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


def _name(column: str) -> str:
    """A quoted name."""
    return '"' + column.replace('"', '""') + '"'
