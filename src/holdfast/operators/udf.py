"""Calling user functions, and checks of what they return: errors name the part and a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.state.arrow.batches import one_batch
from holdfast.state.arrow.row_equality import normalise, row_codes

REMEDY = "the last checkpoint is untouched: correct the function and run again"


def key_text(keys: pa.RecordBatch, row: int = 0) -> str:
    """One key of a batch of key columns, as a person would read it."""
    if not keys.num_rows:
        return "none"
    values = {
        name: keys.column(name)[row].as_py()
        for name in keys.schema.names
        if not name.startswith("__hf_")
    }
    # One line: errors come back from executors as text.
    return ",".join(f"{name}:{value!r}" for name, value in values.items())[:200]


def called(
    function: Callable[..., Any], *args: Any, kind: str, keys: pa.RecordBatch, **facts: object
) -> Any:
    """The answer of a user's function; an exception becomes one of Holdfast's."""
    try:
        return function(*args)
    except HoldfastError:
        raise
    except Exception as error:
        raise InvalidInputError(
            "the user function failed",
            kind=kind,
            cause=kind,
            **facts,
            sample_key=key_text(keys),
            reason=" ".join(f"{type(error).__name__}: {error}".split())[:500],
            remedy=REMEDY,
        ) from error


_ANSWERS = {
    "apply_result": "the user function returned something of another shape",
    "apply_unknown_key": "the user function returned state of a key that it was not given",
    "apply_duplicate_key": "the user function returned two states of one key",
}


def wrong_answer(keys: pa.RecordBatch, *, kind: str, **facts: object) -> InvalidInputError:
    """An answer that cannot be taken; `keys` are those that the function was asked about."""
    return InvalidInputError(
        _ANSWERS[kind], kind=kind, cause=kind, sample_key=key_text(keys), **facts, remedy=REMEDY
    )


def checked_table(
    answer: Any, schema: pa.Schema, *, what: str, keys: pa.RecordBatch
) -> pa.RecordBatch:
    """One batch with exactly the columns of a schema, in its order; types are converted safely."""
    if not isinstance(answer, (pa.Table, pa.RecordBatch)):
        raise wrong_answer(
            keys,
            kind="apply_result",
            part=what,
            expected="an Arrow table",
            actual=type(answer).__name__,
        )
    given = answer.schema.names
    if sorted(given) != sorted(schema.names):
        missing = [name for name in schema.names if name not in given]
        unknown = [name for name in given if name not in schema.names]
        twice = sorted({name for name in given if given.count(name) > 1})
        raise wrong_answer(
            keys,
            kind="apply_result",
            part=what,
            missing=",".join(missing) or None,
            unknown=",".join(unknown) or None,
            twice=",".join(twice) or None,
        )
    batch = one_batch(answer)
    columns = []
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise wrong_answer(
                keys,
                kind="apply_result",
                part=what,
                column=field.name,
                expected=field.type,
                actual=column.type,
                reason=" ".join(str(error).split())[:200],
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def places_of(rows: pa.RecordBatch, keys: pa.RecordBatch, names: list[str]) -> np.ndarray:
    """For each row the number of its key; each key at most once, and none that was not asked."""
    if not rows.num_rows:
        return np.zeros(0, np.int64)
    pairs = [
        pa.concat_arrays([normalise(keys.column(n)), normalise(rows.column(n))]) for n in names
    ]
    codes = row_codes(pairs)
    asked, given = codes[: keys.num_rows], codes[keys.num_rows :]
    order = np.argsort(asked, kind="stable")
    place = np.minimum(np.searchsorted(asked[order], given), len(order) - 1)
    found: np.ndarray = order[place]
    unknown = np.flatnonzero(asked[found] != given)
    only = rows.select(names)
    if len(unknown):
        raise wrong_answer(
            keys, kind="apply_unknown_key", key=key_text(only, int(unknown[0])), rows=len(unknown)
        )
    numbers, counts = np.unique(found, return_counts=True)
    if (counts > 1).any():
        twice = int(numbers[counts > 1][0])
        raise wrong_answer(
            keys, kind="apply_duplicate_key", key=key_text(keys, twice), rows=int(counts.max())
        )
    return found
