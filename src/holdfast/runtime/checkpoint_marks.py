"""What a run writes on its checkpoints besides positions and state: label, properties, tables.

Invariants:
- The digest of every static table is part of each checkpoint. Another table is refused by name
  before anything runs, unless the change is allowed; then it is recorded.
- Names of properties that begin with `holdfast.` are Holdfast's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from holdfast.checkpoint import Draft
from holdfast.errors import HoldfastError, IncompatibleError, InvalidInputError
from holdfast.format.manifest import Manifest
from holdfast.ids import check_label
from holdfast.operators.declaration import StaticTable
from holdfast.runtime.graph import Graph
from holdfast.spark.errors import spark_failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

OWN = "holdfast."
_TABLE = f"{OWN}static."
_BYTES_MAX = 2 * 1024


@dataclass(frozen=True)
class Marks:
    """Label and properties of a run's checkpoints. tables: digests by the join's name."""

    label: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)

    def mark(self, draft: Draft) -> None:
        """Write them on a draft; properties of the checkpoint before are replaced."""
        own = {f"{_TABLE}{name}": digest for name, digest in self.tables.items()}
        draft.set_properties({**self.properties, **own})


def checked_marks(label: str | None, properties: Mapping[str, str] | None) -> Marks:
    """Refuse what a checkpoint cannot carry, before anything runs."""
    if label is not None:
        check_label(label)
    given = dict(properties or {})
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str) or key.startswith(OWN):
            raise InvalidInputError(
                "a property is a text under a name that does not begin with 'holdfast.'",
                kind="invalid_property",
                property=repr(key)[:80],
                value=repr(value)[:80],
                remedy='give texts: properties={"git": "4f2a"}',
            )
    size = sum(len(key) + len(value) for key, value in given.items())
    if size > _BYTES_MAX:
        raise InvalidInputError(
            "properties are too large",
            kind="properties_too_large",
            size=size,
            limit=_BYTES_MAX,
        )
    return Marks(label, given)


def static_tables(graph: Graph) -> dict[str, StaticTable]:
    """The tables of all static joins by name."""
    return {table.name: table for node in graph.nodes() for table in node.tables()}


def table_digests(graph: Graph, spark: SparkSession) -> dict[str, str]:
    """Digests of the content of all static tables: one aggregation for each."""
    return {
        name: _read_digest(name, table, spark)
        for name, table in static_tables(graph).items()
        if table.check
    }


def _read_digest(name: str, table: StaticTable, spark: SparkSession) -> str:
    try:
        return _digest(table.frame(spark))
    except HoldfastError:
        raise
    except Exception as error:
        found = spark_failure(error, None)
        if found.kind == "job_failed" and found.facts.get("retryable"):
            found.facts["table"] = name
            raise found from error
        raise InvalidInputError(
            "a table of a static join cannot be read",
            kind="static_table_unreadable",
            table=name,
            path=found.facts.get("path"),
            reason=found.facts.get("reason") or str(found),
            remedy="bring the table back, or correct what reads it, and run again: nothing began",
        ) from error


def _digest(frame: DataFrame) -> str:
    """Count and two sums over the hashes of all rows: independent of their order."""
    names = [f"`{name.replace('`', '``')}`" for name in frame.columns]
    shape = frame.schema.simpleString()
    row = f"struct({', '.join(names)})"
    hashed = f"to_json({row})" if "map<" in shape or "variant" in shape else ", ".join(names)
    found = (
        frame.selectExpr(f"xxhash64({hashed}) AS h", f"hash({hashed}) AS g")
        .selectExpr(
            "count(*) AS n",
            "coalesce(sum(cast(h AS decimal(20,0))), 0) AS s",
            "coalesce(bit_xor(xxhash64(h, g)), 0) AS x",
        )
        .first()
    )
    sums = cast("Row", found)  # an aggregate without groups has one row
    return f"{sums['n']}:{sums['s']}:{sums['x']}"


def check_tables(
    manifest: Manifest | None, digests: Mapping[str, str], *, allow_changes: bool
) -> list[str]:
    """Notes about tables that differ from those of the checkpoint; refused unless allowed."""
    if manifest is None:
        return []
    before = {
        key.removeprefix(_TABLE): value
        for key, value in manifest.properties.items()
        if key.startswith(_TABLE)
    }
    changed = sorted(name for name in digests if before.get(name, digests[name]) != digests[name])
    if changed and not allow_changes:
        raise IncompatibleError(
            "a table of a static join is not the one that the state was made with",
            kind="static_table_changed",
            tables=",".join(changed),
            rows=",".join(
                f"{before[n].split(':')[0]}->{digests[n].split(':')[0]}" for n in changed
            ),
            remedy="bring the old table back; or allow_changes=True: rows from now on meet the new "
            "table, and what the old one gave stays; or start a new pipeline",
        )
    return [f"{name}: another table from now on, what the old one gave stays" for name in changed]
