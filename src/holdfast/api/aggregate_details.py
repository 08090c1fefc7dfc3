"""What an aggregate knows besides its expression; each has a text for the fingerprint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.operators.sort_order import Term


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Which points, and whether one value or a list was asked for."""

    points: tuple[float, ...]
    several: bool

    def __str__(self) -> str:
        """As in SQL."""
        text = ", ".join(str(point) for point in self.points)
        return f"array({text})" if self.several else text


@dataclass(frozen=True, slots=True)
class Limit:
    """How many values a collection holds."""

    limit: int

    def __str__(self) -> str:
        """For the fingerprint."""
        return f"limit {self.limit}"


@dataclass(frozen=True, slots=True)
class Ordering:
    """Which row's value is taken."""

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        """As in SQL."""
        return "order by " + ", ".join(str(term) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Deviation:
    """The relative standard deviation of an estimate."""

    rsd: float

    def __str__(self) -> str:
        """As in SQL."""
        return str(self.rsd)


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function of the user, the columns that it gets, and what it gives."""

    function: Callable[..., Any]
    inputs: tuple[tuple[str, str], ...]
    returns: str
    text: str

    def __str__(self) -> str:
        """For the fingerprint."""
        columns = ", ".join(f"{text} AS {name}" for name, text in self.inputs)
        return f"{self.text}, [{columns}], {self.returns}"
