"""Where a journal's files lie below its root, and which names it could have written itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import InvalidInputError
from holdfast.ids import check_name

_SEGMENT = re.compile(r"(\d{20})\.seg")
_INDEX = re.compile(r"(\d{20})\.idx")
_TEMPORARY = re.compile(r"\d{20}\.(seg|idx)\.tmp")


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one journal."""

    root: Path

    def __post_init__(self) -> None:
        """A journal is a directory: an address would become one of a strange name."""
        if self.root.parts and self.root.parts[0].endswith(":") and len(self.root.parts) > 1:
            raise InvalidInputError(
                "a journal lies in a local directory",
                kind="unknown_scheme",
                journal=str(self.root),
                remedy="give a directory of this machine",
            )

    @property
    def meta(self) -> Path:
        """Journal id and base."""
        return self.root / "journal.meta"

    @property
    def lock(self) -> Path:
        """The writer's lock."""
        return self.root / "writer.lock"

    @property
    def mark(self) -> Path:
        """What the writer knows to be durable, for readers in other processes."""
        return self.root / "durable.mark"

    @property
    def checkpoint(self) -> Path:
        """The index checkpoint."""
        return self.root / "index.ckpt"

    @property
    def segments(self) -> Path:
        """The directory of segments."""
        return self.root / "segments"

    @property
    def holds(self) -> Path:
        """The directory of holds."""
        return self.root / "holds"

    @property
    def cursors(self) -> Path:
        """The directory of cursors."""
        return self.root / "cursors"

    def segment(self, first: int) -> Path:
        """The segment that begins at a sequence."""
        return self.segments / f"{first:020d}.seg"

    def index(self, first: int) -> Path:
        """The look-up index of the segment that begins at a sequence."""
        return self.segments / f"{first:020d}.idx"

    def hold(self, name: str) -> Path:
        """A named hold."""
        return self.holds / f"{check_name(name, 'hold')}.hold"

    def cursor(self, name: str) -> Path:
        """A named cursor."""
        return self.cursors / f"{check_name(name, 'cursor')}.cursor"


def segment_first(name: str) -> int | None:
    """The first sequence in a segment's file name; None for other files."""
    found = _SEGMENT.fullmatch(name)
    return int(found[1]) if found else None


def index_first(name: str) -> int | None:
    """The first sequence in an index file's name; None for other files."""
    found = _INDEX.fullmatch(name)
    return int(found[1]) if found else None


def is_temporary(name: str) -> bool:
    """Whether this is an unfinished file of the journal's own."""
    return _TEMPORARY.fullmatch(name) is not None
