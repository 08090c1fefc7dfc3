"""What the epoch loop asks of a source.

Invariants:
- A slice is bounded and can be read again with the same result until it is committed.
- A position is taken after the slices that were read, never ahead of them.
- `committed` is the only place where a source may forget or acknowledge: the checkpoint is durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.checkpoint import Draft, StoreReader
from holdfast.format.manifest import Manifest
from holdfast.format.position import Position


@dataclass(frozen=True)
class Slice:
    """A bounded part of a source for one epoch. `detail` belongs to the source."""

    source: str
    rows: int | None
    bytes: int
    detail: Any


@dataclass(frozen=True)
class Backlog:
    """What is left to read, in the source's own unit."""

    done: int
    total: int
    unit: str


def rows_of(reader: Any, piece: Slice, observed: int | None, scans: Sequence[Any]) -> int:
    """How many rows a slice had: known beforehand, observed, or counted by Spark."""
    if piece.rows is not None:
        return piece.rows
    if observed is not None:
        return observed
    rows_read = getattr(reader, "rows_read", None)
    return (rows_read(piece, scans) or 0) if rows_read else 0


class Source(Protocol):
    """A declaration: plain data, no connection."""

    @property
    def what(self) -> str:
        """Kind of connector, for the fingerprint."""
        ...

    @property
    def schema_text(self) -> str:
        """Schema as SQL writes it."""
        ...

    @property
    def weight(self) -> str | None:
        """Column that holds the weight of each row, if rows can be taken back."""
        ...

    def columns(self) -> list[str]:
        """Column names without the weight."""
        ...

    def empty(self, spark: Any) -> Any:
        """A DataFrame of the right shape without rows."""
        ...

    def open(self, name: str) -> SourceReader:
        """Begin to read from the very start."""
        ...


class SourceReader(Protocol):
    """A source while the pipeline runs."""

    def restore(self, manifest: Manifest, reader: StoreReader) -> None:
        """Go to where a checkpoint stands."""
        ...

    def plan(self, after: Slice | None = None) -> Slice | None:
        """The next slice behind the position, or None when there is nothing new.

        after: the slice that is being worked on; the position moves behind it only when it is done.
        """
        ...

    def read(self, spark: Any, piece: Slice) -> Any:
        """The rows of a slice as a DataFrame."""
        ...

    def advance(self, piece: Slice) -> None:
        """The slice went through the operators: the position moves behind it."""
        ...

    def save(self, draft: Draft) -> Position:
        """Put what does not fit a position into the draft; returns the position."""
        ...

    def committed(self, manifest: Manifest, floor: Position | None) -> None:
        """The saved position is durable; nobody needs what lies before `floor`."""
        ...

    def history(self) -> list[Slice]:
        """Everything up to the position, to fill new operators; refused when some of it is lost."""
        ...

    def backlog(self) -> Backlog:
        """How far it is."""
        ...
