"""The shape of a trace: kind, key columns, value columns, event-time column.

Invariants:
- A stored row is: hash, marker, keys, values. The marker is a tombstone flag (latest) or a
  weight (bag). Their names begin with `__hf_`, which no user column may.
- Stored types are plain: dictionaries, views and run-end encodings are decoded on the way in,
  so that one value has one representation.
- Keys (and the whole row of a bag) are normalised as Spark normalises grouping keys:
  every NaN is one NaN, and -0.0 is 0.0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.state.arrow.batches import one_batch
from holdfast.state.arrow.numpy_views import pc
from holdfast.state.arrow.row_equality import normalise, plain_type

HASH = "__hf_hash"
DELETED = "__hf_deleted"
WEIGHT = "__hf_weight"
RESERVED_PREFIX = "__hf_"


class TraceKind(StrEnum):
    """How rows of one key combine over time."""

    LATEST = "latest"
    BAG = "bag"


@dataclass(frozen=True, slots=True)
class TraceSchema:
    """What a trace holds. Build it with `latest` or `bag`."""

    kind: TraceKind
    keys: pa.Schema
    values: pa.Schema
    time_column: str | None = None
    stored: pa.Schema = field(init=False, compare=False, repr=False)
    """The Arrow schema of a stored row."""

    @classmethod
    def latest(
        cls, keys: pa.Schema, values: pa.Schema, *, time_column: str | None = None
    ) -> TraceSchema:
        """A trace where the newest row of a key wins; `keys` and `values` are Arrow schemas."""
        return cls(TraceKind.LATEST, pa.schema(keys), pa.schema(values), time_column)

    @classmethod
    def bag(
        cls, keys: pa.Schema, values: pa.Schema, *, time_column: str | None = None
    ) -> TraceSchema:
        """A trace of rows with integer weights that sum."""
        return cls(TraceKind.BAG, pa.schema(keys), pa.schema(values), time_column)

    def __post_init__(self) -> None:
        """Check names and types once, and make the types plain."""
        object.__setattr__(self, "keys", _plain(self.keys))
        object.__setattr__(self, "values", _plain(self.values))
        object.__setattr__(self, "stored", self._stored())
        names = [*self.keys.names, *self.values.names]
        if not self.keys.names:
            raise InvalidInputError("a trace needs at least one key column", kind="no_key_columns")
        doubles = sorted({name for name in names if names.count(name) > 1})
        reserved = sorted(name for name in names if name.startswith(RESERVED_PREFIX))
        if doubles or reserved:
            raise InvalidInputError(
                "column names of a trace are not usable",
                kind="invalid_columns",
                twice=",".join(doubles) or None,
                reserved=",".join(reserved) or None,
                remedy=f"name every column once, and begin none with {RESERVED_PREFIX!r}",
            )
        if self.time_column is not None:
            self._check_time(names)

    def _check_time(self, names: list[str]) -> None:
        column = self.time_column
        kind = self.row_type(column) if column in names else None
        if kind is None or not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise InvalidInputError(
                "the event-time column must be a timestamp or date column of the trace",
                kind="invalid_time_column",
                column=column,
                type=kind,
            )

    @property
    def time_is_key(self) -> bool:
        """Whether all versions of a key have one time, so that forgetting one brings none back."""
        return self.time_column in self.keys.names

    def text(self) -> str:
        """The columns as one line, for a fingerprint: what a stored row means."""
        keys = ", ".join(f"{field.name} {field.type}" for field in self.keys)
        values = ", ".join(f"{field.name} {field.type}" for field in self.values)
        time = f"; time {self.time_column}" if self.time_column else ""
        return f"{self.kind.value} ({keys}) -> ({values}){time}"

    def row_type(self, column: str | None) -> pa.DataType:
        """The Arrow type of a key or value column."""
        kind: pa.DataType = self.stored.field(cast("str", column)).type
        return kind

    @property
    def marker(self) -> str:
        """Name of the column that says what a row does: delete, or add so many."""
        return DELETED if self.kind is TraceKind.LATEST else WEIGHT

    def _stored(self) -> pa.Schema:
        marker = pa.bool_() if self.kind is TraceKind.LATEST else pa.int64()
        head: list[pa.Field[Any]] = [pa.field(HASH, pa.uint64(), nullable=False)]
        head.append(pa.field(self.marker, marker, nullable=False))
        return pa.schema([*head, *self.keys, *self.values])

    @property
    def key_indices(self) -> range:
        """Where the keys stand in a stored row."""
        return range(2, 2 + len(self.keys))

    @property
    def value_indices(self) -> range:
        """Where the values stand in a stored row."""
        return range(2 + len(self.keys), 2 + len(self.keys) + len(self.values))

    @property
    def identity_indices(self) -> range:
        """The columns that decide whether two rows are the same: keys, or all of a bag's row."""
        if self.kind is TraceKind.LATEST:
            return self.key_indices
        return range(2, 2 + len(self.keys) + len(self.values))

    def keys_of(self, rows: pa.Table | pa.RecordBatch) -> tuple[np.ndarray, list[Any]]:
        """Hashes and normalised key columns of a table or batch to be looked up."""
        batch = one_batch(rows)
        columns = [_column(batch, field, normal=True) for field in self.keys]
        return _hashes(batch), columns

    def rows_of(self, rows: pa.Table | pa.RecordBatch) -> pa.RecordBatch:
        """A table or batch of updates as one batch of stored rows, in its own order."""
        batch = one_batch(rows)
        bag = self.kind is TraceKind.BAG
        hashes = pa.array(_hashes(batch))
        columns = [hashes, _marker(batch, self.marker, bag=bag)]
        columns += [_column(batch, field, normal=True) for field in self.keys]
        columns += [_column(batch, field, normal=bag) for field in self.values]
        return pa.RecordBatch.from_arrays(columns, schema=self.stored)

    def times_us(self, batch: pa.RecordBatch) -> Any:
        """Event times of stored rows in microseconds, with nulls; None without such a column."""
        if self.time_column is None:
            return None
        column = batch.column(batch.schema.get_field_index(self.time_column))
        zone = getattr(column.type, "tz", None)
        return column.cast(pa.timestamp("us", tz=zone), safe=False).cast(pa.int64())

    def behind(self, batch: pa.RecordBatch, bound_us: int | None) -> np.ndarray | None:
        """Which stored rows have an event time before the bound; None when none can have."""
        times = self.times_us(batch) if bound_us is not None else None
        if times is None:
            return None
        mask: np.ndarray = pc.fill_null(pc.less(times, bound_us), False).to_numpy(  # noqa: FBT003
            zero_copy_only=False
        )
        return mask


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, plain_type(f.type, f.name), f.nullable) for f in schema])


def _hashes(batch: pa.RecordBatch) -> np.ndarray:
    """The hash column as unsigned numbers: Spark's signed ones keep their bits."""
    index = batch.schema.get_field_index(HASH)
    column = batch.column(index) if index >= 0 else None
    if column is None or column.null_count or column.type not in (pa.int64(), pa.uint64()):
        raise InvalidInputError(
            "rows need a 64-bit hash column without nulls",
            kind="invalid_hash_column",
            column=HASH,
            type=None if column is None else column.type,
            nulls=None if column is None else column.null_count,
            remedy=f"add xxhash64 of the key columns as {HASH!r}",
        )
    hashes: np.ndarray = column.to_numpy(zero_copy_only=False).view(np.uint64)
    return hashes


def _marker(batch: pa.RecordBatch, name: str, *, bag: bool) -> Any:
    kind = pa.int64() if bag else pa.bool_()
    index = batch.schema.get_field_index(name)
    if index < 0:
        ones = np.ones if bag else np.zeros
        return pa.array(ones(batch.num_rows, np.int64 if bag else np.bool_))
    column = batch.column(index)
    integer = pa.types.is_integer(column.type) if bag else column.type == kind
    if column.null_count or not integer:
        raise InvalidInputError(
            "the weight or tombstone column is not usable",
            kind="invalid_marker_column",
            column=name,
            type=column.type,
            nulls=column.null_count,
            expected=kind,
        )
    return column.cast(kind)


def _column(batch: pa.RecordBatch, field: pa.Field[Any], *, normal: bool) -> Any:
    index = batch.schema.get_field_index(field.name)
    if index < 0:
        raise InvalidInputError(
            "a column of the trace is missing from the rows",
            kind="missing_column",
            column=field.name,
            present=",".join(batch.schema.names)[:300],
        )
    column = batch.column(index)
    if column.type != field.type:
        if plain_type(column.type, field.name) != field.type:
            raise InvalidInputError(
                "a column has another type than in the trace",
                kind="column_type_differs",
                column=field.name,
                expected=field.type,
                actual=column.type,
            )
        column = column.cast(field.type)
    if column.null_count and not field.nullable:
        raise InvalidInputError(
            "a column that is declared without nulls has some",
            kind="unexpected_null",
            column=field.name,
        )
    return normalise(column) if normal else column
