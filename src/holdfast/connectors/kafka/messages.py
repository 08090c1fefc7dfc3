"""Sink: staged rows as Kafka messages, whole columns at a time.

| mode | messages of an epoch |
|---|---|
| `changelog` | every change as a row; `_weight` says +1 or -1 where rows can be retracted |
| `upsert` | the new row under its key; a key that is gone gets a message without value |
| `debezium` | an envelope with `before`, `after` and `op` |

Invariants:
- Within an epoch the removals of a key stand before its additions, wherever they were staged: the
  last message of a key is its state.
- No loop over rows but the one that hands messages to the client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.journal.encode import TEXT, json_texts, plain_texts
from holdfast.connectors.staging import STAGED_WEIGHT


class Messages(NamedTuple):
    """Columns of one batch of messages; a null value is a tombstone."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]


def passes(mode: str, *, retracts: bool) -> tuple[str, ...]:
    """How often the staged rows are read: removals first, where a key can have both."""
    return ("removed", "added") if retracts and mode != "changelog" else ("all",)


def messages(
    rows: pa.RecordBatch, mode: str, key: Sequence[str], which: str, encode: Any = json_texts
) -> Iterator[Messages]:
    """The messages of some staged rows in one pass."""
    if mode == "changelog":
        yield _messages(_keys(rows, key), encode(rows))
        return
    weights = _weights(rows)
    plain = rows.drop_columns([STAGED_WEIGHT]) if weights is not None else rows
    if weights is None:
        values = encode(plain) if mode == "upsert" else _envelopes(None, plain, "c", encode)
        yield _messages(_keys(plain, key), values)
        return
    keys = _keys(plain, key)
    added, removed = np.flatnonzero(weights > 0), np.flatnonzero(weights < 0)
    if which == "removed":
        gone = removed[~_within(keys, removed, added)]
        if len(gone):
            taken = pa.array(gone)
            empty: Any = [None] * len(gone)
            values = empty
            if mode == "debezium":
                values = _envelopes(plain.take(taken), None, "d", encode)
            yield _messages(pc.take(keys, taken), values)
        return
    yield from _additions(plain, keys, added, removed, mode, encode)


def _additions(
    plain: pa.RecordBatch, keys: Any, added: Any, removed: Any, mode: str, encode: Any
) -> Iterator[Messages]:
    """New rows; for Debezium with the image before where it was retracted in the same batch."""
    if not len(added):
        return
    taken = pa.array(added)
    rows = plain.take(taken)
    if mode == "upsert":
        yield _messages(pc.take(keys, taken), encode(rows))
        return
    where = _first_of(keys, added, removed)
    fresh, changed = np.flatnonzero(where < 0), np.flatnonzero(where >= 0)
    if len(fresh):
        part = pa.array(added[fresh])
        values = _envelopes(None, plain.take(part), "c", encode)
        yield _messages(pc.take(keys, part), values)
    if len(changed):
        part = pa.array(added[changed])
        before = plain.take(pa.array(removed[where[changed]]))
        values = _envelopes(before, plain.take(part), "u", encode)
        yield _messages(pc.take(keys, part), values)


def _weights(rows: pa.RecordBatch) -> Any:
    if STAGED_WEIGHT not in rows.schema.names:
        return None
    return rows.column(rows.schema.names.index(STAGED_WEIGHT)).to_numpy(zero_copy_only=False)


def _within(keys: Any, some: Any, others: Any) -> Any:
    """Which of some rows have a key that other rows have, too."""
    found = pc.is_in(pc.take(keys, pa.array(some)), value_set=pc.take(keys, pa.array(others)))
    return found.to_numpy(zero_copy_only=False)


def _first_of(keys: Any, some: Any, others: Any) -> Any:
    """For each of some rows, the number among `others` of a row with its key; -1 without."""
    found = pc.index_in(pc.take(keys, pa.array(some)), value_set=pc.take(keys, pa.array(others)))
    return found.fill_null(-1).to_numpy(zero_copy_only=False)


def key_texts(rows: pa.RecordBatch, key: Sequence[str]) -> Any:
    """Keys: the plain text of one scalar column, a JSON object of several."""
    names = [name.lower() for name in rows.schema.names]
    places = [names.index(name.lower()) for name in key]
    columns = [rows.column(place) for place in places]
    if len(columns) == 1 and not pa.types.is_nested(columns[0].type):
        return plain_texts(columns[0]).cast(TEXT)
    batch = pa.RecordBatch.from_arrays(columns, names=[rows.schema.names[i] for i in places])
    return json_texts(batch).cast(TEXT)


def _keys(rows: pa.RecordBatch, key: Sequence[str]) -> Any:
    return key_texts(rows, key) if key else pa.nulls(rows.num_rows, TEXT)


def _envelopes(
    before: pa.RecordBatch | None, after: pa.RecordBatch | None, op: str, encode: Any
) -> Any:
    """Debezium's envelopes without schema."""
    some = after if after is not None else before
    count = 0 if some is None else some.num_rows
    null = pa.repeat(pa.scalar("null", TEXT), count)
    images = [null if rows is None else encode(rows).cast(TEXT) for rows in (before, after)]
    parts = ['{"before":', images[0], ',"after":', images[1], f',"op":"{op}"}}']
    texts = [pa.scalar(part, TEXT) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*texts, pa.scalar("", TEXT))


def _messages(keys: Any, values: Any) -> Messages:
    return Messages(_bytes(keys), _bytes(values))


def _bytes(column: Any) -> Sequence[bytes | None]:
    if isinstance(column, list):
        return column
    found: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return found
