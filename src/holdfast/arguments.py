"""Arguments of the public API as people give them: checked where they come in.

Invariant: an argument of the wrong type is an `InvalidInputError` that names the argument, never an
error of Python from deep inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from holdfast.errors import InvalidInputError

T = TypeVar("T")


def several(value: str | Sequence[str], argument: str, owner: str) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise InvalidInputError(
        "not names of columns",
        kind="invalid_key",
        operator=owner,
        argument=argument,
        value=repr(value)[:80],
        remedy=f'write it like {argument}="customer" or {argument}=["customer", "day"]; name an '
        'expression first: with_columns(day="date(at)")',
    )


def value_map(value: Mapping[str, Any] | None, argument: str) -> dict[str, Any]:
    """Values by name, where None is none of them."""
    if value is None:
        return {}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return dict(value)
    raise InvalidInputError(
        f"{argument} needs values by name",
        kind="invalid_argument",
        argument=argument,
        value=type(value).__name__,  # never the value: it may hold a secret
        remedy='give a dictionary with names as keys, such as {"name": "value"}',
    )


def whole_number(
    value: object, argument: str, *, least: int, most: int | None = None, kind: str
) -> int:
    """A whole number in a range."""
    known = isinstance(value, int) and not isinstance(value, bool)
    if known and least <= value and (most is None or value <= most):  # type: ignore[operator]
        return value  # type: ignore[return-value]
    above = f"from {least} to {most}" if most is not None else f"of at least {least}"
    raise InvalidInputError(
        f"{argument} must be a whole number {above}",
        kind=kind,
        **{argument: repr(value)[:60]},
        remedy=f"give a whole number {above}",
    )


def instance_of(value: object, wanted: type[T], argument: str, example: str) -> T:
    """A value of one class."""
    if isinstance(value, wanted):
        return value
    raise InvalidInputError(
        f"{argument} must be a {wanted.__name__}",
        kind="invalid_argument",
        argument=argument,
        value=repr(value)[:80],
        remedy=f"give {example}",
    )


def text_of(value: object, argument: str, owner: str, example: str) -> str:
    """A text that is not empty."""
    if isinstance(value, str) and value:
        return value
    raise InvalidInputError(
        f"{argument} must be text",
        kind="invalid_argument",
        operator=owner,
        argument=argument,
        value=repr(value)[:80],
        remedy=f"write it like {argument}={example!r}",
    )
