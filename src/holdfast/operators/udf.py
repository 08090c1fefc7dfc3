"""Calling functions of the user: whatever goes wrong names the operator's part and a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import HoldfastError, InvalidInputError

REMEDY = "the last checkpoint is untouched: correct the function and run again"


def key_text(keys: Any, row: int = 0) -> str:
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


def called(function: Callable[..., Any], *args: Any, kind: str, keys: Any, **facts: object) -> Any:
    """The answer of a user's function; an exception becomes one of Holdfast's."""
    try:
        return function(*args)
    except HoldfastError:
        raise
    except Exception as error:
        raise InvalidInputError(
            "a function of the user failed",
            kind=kind,
            cause=kind,
            **facts,
            sample_key=key_text(keys),
            reason=" ".join(f"{type(error).__name__}: {error}".split())[:500],
            remedy=REMEDY,
        ) from error


_ANSWERS = {
    "apply_result": "a function of the user returned something of another shape",
    "apply_unknown_key": "a function of the user returned state of a key that it was not given",
    "apply_duplicate_key": "a function of the user returned two states of one key",
}


def wrong_answer(keys: Any, *, kind: str, **facts: object) -> InvalidInputError:
    """An answer that cannot be taken; `keys` are those that the function was asked about."""
    return InvalidInputError(
        _ANSWERS[kind], kind=kind, cause=kind, sample_key=key_text(keys), **facts, remedy=REMEDY
    )
