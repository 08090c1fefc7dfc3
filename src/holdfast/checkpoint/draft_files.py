"""The files of a draft: what its parent has, and how it differs.

Invariants:
- What a change costs follows the change; only replacing an operator's whole list walks that list.
- A file that stays is the parent's own entry, so that nobody needs to look at it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.checkpoint.segments import Arrangement, arrange
from holdfast.errors import InvalidInputError
from holdfast.format.inventory import (
    NO_FILES,
    NO_STATE,
    STATE_KINDS,
    FileEntry,
    Inventory,
    Key,
    Tally,
)


class DraftFiles:
    """State files by operator; packs and offsets are the draft's."""

    def __init__(self, parent: Inventory = NO_FILES, *, operators: Collection[str] = ()) -> None:
        """Begin with what the parent has of these operators."""
        self.inherited = frozenset(operators) if parent is not NO_FILES else frozenset()
        self._parts = [*parent.parts]
        self._listed = {e.key: e for e in parent.listed if e.kind in STATE_KINDS}
        self._added: dict[str, list[FileEntry]] = {}
        self.by_operator: dict[str, Tally] = dict(parent.by_operator)
        for name in [*self.by_operator]:
            if name not in operators:
                self.replace(name, ())
                del self.by_operator[name]

    def tally(self, operator: str) -> Tally:
        """How many files an operator has, and how large they are."""
        return self.by_operator.get(operator, NO_STATE)

    def add(self, entry: FileEntry) -> None:
        """One more file of its operator."""
        operator = str(entry.operator)
        self.by_operator[operator] = self.tally(operator).plus(entry)
        self._added.setdefault(operator, []).append(entry)

    def remove(self, operator: str, keys: Iterable[Key]) -> None:
        """These files of an operator leave."""
        places: dict[int, list[int]] = {}
        for key in keys:
            entry = self._unlist(operator, key)
            if entry is None:
                number, place = self._find(key)
                places.setdefault(number, []).append(place)
                entry = self._parts[number].segment.files[place]
            self.by_operator[operator] = self.tally(operator).minus(entry)
        for number, gone in places.items():
            self._parts[number] = self._parts[number].without(gone)

    def _unlist(self, operator: str, key: Key) -> FileEntry | None:
        for entry in self._added.get(operator, ()):
            if entry.key == key:
                self._added[operator].remove(entry)
                return entry
        return self._listed.pop(key, None)

    def _find(self, key: Key) -> tuple[int, int]:
        for number, part in enumerate(self._parts):
            place = part.place(key)
            if place is not None:
                return number, place
        raise InvalidInputError(
            "a file that should leave is not in the inventory",
            kind="file_not_listed",
            path=key[1],
            remedy="name files that the parent or this draft lists",
        )

    def replace(self, operator: str, entries: Sequence[FileEntry]) -> list[FileEntry]:
        """This is an operator's whole list now; returns those that the parent does not have."""
        wanted = {entry.key: entry for entry in entries}
        before = {key: e for key, e in self._listed.items() if e.operator == operator}
        if len(wanted) < len(entries):
            wanted, before = {}, {}  # a file that is named twice is found when the draft is sealed
        kept: set[Key] = set()
        for number, part in enumerate(self._parts):
            gone = []
            for place, entry in enumerate(part.segment.files):
                if entry.operator != operator or place in part.gone:
                    continue
                if wanted.get(entry.key) == entry:
                    kept.add(entry.key)
                else:
                    gone.append(place)
            if gone:
                self._parts[number] = part.without(gone)
        self._listed = {key: e for key, e in self._listed.items() if e.operator != operator}
        self.by_operator[operator] = Tally(len(entries), sum(entry.size for entry in entries))
        same = {key: entry for key, entry in before.items() if wanted.get(key) == entry}
        rest = [entry for entry in entries if entry.key not in kept]
        self._added[operator] = [same.get(entry.key, entry) for entry in rest]
        return [entry for entry in rest if entry.key not in same]

    def arrange(self, operators: Sequence[str], others: Iterable[FileEntry]) -> Arrangement:
        """Where everything is listed: by operator, oldest first, and then what is no state."""
        listed: dict[str, list[FileEntry]] = {name: [] for name in operators}
        for entry in self._listed.values():
            listed[str(entry.operator)].append(entry)
        for name in operators:
            listed[name] += self._added.get(name, ())
        return arrange(self._parts, [*(e for some in listed.values() for e in some), *others])
