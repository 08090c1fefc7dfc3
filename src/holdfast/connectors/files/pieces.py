"""What one epoch takes: whole files, and ranges of rows of a file that is too large for one.

Invariants:
- Pieces of a file are taken in the order of its rows, without gaps, and nothing else is begun
  before its last row is taken.
- An epoch takes at least one piece. What it takes keeps to the limits, unless one piece that cannot
  be cut is larger.
- A file is cut between row groups where one of their bounds lies within the limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.storage import Entry


@dataclass(frozen=True)
class FileFacts:
    """How large a file is once it is read.

    rows: None where nobody knows. bytes: of its rows in memory, an estimate. bounds: where rows of
    it may begin to be read, without its beginning; None where only all of it can be read.
    """

    rows: int | None
    bytes: int
    bounds: tuple[int, ...] | None = None

    @property
    def row_bytes(self) -> int:
        """About how large one row is."""
        return max(1, self.bytes // self.rows) if self.rows else 1


@dataclass(frozen=True)
class EpochLimits:
    """What one epoch may take."""

    files: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class FilePiece:
    """A whole file, or rows `start` to before `stop` of it. stop: None with the last row."""

    entry: Entry
    facts: FileFacts
    start: int = 0
    stop: int | None = None

    @property
    def path(self) -> str:
        """Of the file."""
        return self.entry.path

    @property
    def whole(self) -> bool:
        """Whether it is all of the file."""
        return self.start == 0 and self.stop is None

    @property
    def rows(self) -> int | None:
        """How many, where that is known."""
        if self.stop is not None:
            return self.stop - self.start
        return None if self.facts.rows is None else self.facts.rows - self.start

    @property
    def bytes(self) -> int:
        """About how large its rows are."""
        if self.whole or self.rows is None:
            return self.facts.bytes
        return self.rows * self.facts.row_bytes

    @property
    def file_bytes(self) -> int:
        """Its share of the file as it lies there."""
        if self.whole or not self.facts.rows or self.rows is None:
            return self.entry.size
        return self.entry.size * self.rows // self.facts.rows


def next_pieces(rests: Iterable[FilePiece], limits: EpochLimits) -> tuple[FilePiece, ...]:
    """What the next epoch takes of these rests of files, in their order; at least one piece.

    Args:
        rests: for each file that waits, what is left of it. Asked for one after the other.
        limits: of one epoch.

    Returns:
        Pieces; only the last one may end before its file does.
    """
    taken: list[FilePiece] = []
    rows = size = 0
    for rest in rests:
        fits = rows + (rest.rows or 0) <= limits.rows and size + rest.bytes <= limits.bytes
        if taken and (len(taken) >= limits.files or not fits):
            break
        if not fits:
            taken.append(_cut(rest, limits))
            break
        taken.append(rest)
        rows, size = rows + (rest.rows or 0), size + rest.bytes
    return tuple(taken)


def _cut(rest: FilePiece, limits: EpochLimits) -> FilePiece:
    """The first rows of a rest that is too large, as far as it can be cut."""
    bounds, total = rest.facts.bounds, rest.facts.rows
    if bounds is None or total is None:
        return rest
    stop = rest.start + max(1, min(limits.rows, limits.bytes // rest.facts.row_bytes))
    stop = max((bound for bound in bounds if rest.start < bound <= stop), default=stop)
    return FilePiece(rest.entry, rest.facts, rest.start, None if stop >= total else stop)
