"""A reference model: what a store must answer, in plain dictionaries.

Written from the specification and not from the code: no catalog, no files, no recovery; only what a
user may rely on. A state machine drives the store and the model side by side and compares.

Invariants:
- An epoch is used at most once, on any branch.
- `current` is the checkpoint that the next one builds on.
- Abandoned checkpoints can be looked at and returned to, but are never chosen by themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ModelCheckpoint:
    """One checkpoint: its epoch, whatever it holds, and what became of its sink tokens."""

    epoch: int
    content: Any
    parent: int | None
    sinks: dict[str, str] = field(default_factory=dict)
    abandoned: bool = False
    created_us: int = 0

    @property
    def committed(self) -> bool:
        """Whether every sink has published it."""
        return all(status == "committed" for status in self.sinks.values())


@dataclass
class Model:
    """One pipeline's checkpoints, by epoch."""

    live: dict[int, ModelCheckpoint] = field(default_factory=dict)
    current: int | None = None
    epochs: set[int] = field(default_factory=set)
    pins: dict[str, int] = field(default_factory=dict)

    def commit(
        self, epoch: int, content: Any, *, sinks: Collection[str] = (), created_us: int = 0
    ) -> None:
        """A checkpoint became durable."""
        if epoch in self.epochs or epoch <= max(self.epochs, default=-1):
            message = f"epoch {epoch} was used before"
            raise AssertionError(message)
        self.epochs.add(epoch)
        tokens = dict.fromkeys(sinks, "pending")
        self.live[epoch] = ModelCheckpoint(
            epoch, content, self.current, tokens, created_us=created_us
        )
        self.current = epoch

    def outcome(self, epoch: int, sink: str, status: str) -> None:
        """A sink said what became of its token; committed is final."""
        if self.live[epoch].sinks[sink] != "committed":
            self.live[epoch].sinks[sink] = status

    def pending(self) -> list[tuple[int, str]]:
        """Tokens that must still be rolled forward, oldest first."""
        return [
            (entry.epoch, sink)
            for entry in self.live.values()
            if not entry.abandoned
            for sink, status in sorted(entry.sinks.items())
            if status in ("pending", "failed")
        ]

    def pin(self, label: str, epoch: int) -> None:
        """A savepoint."""
        self.pins[label] = epoch

    def unpin(self, label: str) -> None:
        """Release a savepoint."""
        del self.pins[label]

    def lineage(self, epoch: int | None) -> list[int]:
        """The checkpoint and its live ancestors, newest first."""
        found = []
        while epoch is not None and epoch in self.live:
            found.append(epoch)
            epoch = self.live[epoch].parent
        return found

    def reopen(self, damaged: Collection[int] = ()) -> int | None:
        """Recovery: the newest intact checkpoint that is not abandoned; newer ones are given up."""
        chosen = None
        for entry in reversed(self.live.values()):
            if not entry.abandoned and entry.epoch not in damaged:
                chosen = entry.epoch
                break
        return self.resume(chosen) if chosen is not None else None

    def resume(self, epoch: int) -> int:
        """Going back: other branches are given up; the one resumed counts again."""
        self._only_branch(epoch)
        self.current = epoch
        return epoch

    def _only_branch(self, epoch: int) -> None:
        """Younger than the oldest known ancestor, yet no ancestor: another branch."""
        chain = self.lineage(epoch)
        for entry in self.live.values():
            if entry.epoch in chain:
                entry.abandoned = False
            elif entry.epoch > min(chain):
                entry.abandoned = True

    def keeps(self, retain: int, *, age_us: int = 0, now_us: int = 0) -> set[int]:
        """Epochs that retention must keep."""
        committed = [e for e in reversed(self.live.values()) if e.committed and not e.abandoned]
        newest = [entry.epoch for entry in committed[:retain]]
        kept = set(newest) | set(self.pins.values())
        for entry in self.live.values():
            if not entry.abandoned and not entry.committed:
                kept.add(entry.epoch)
            if entry.abandoned and (not newest or entry.epoch > min(newest)):
                kept.add(entry.epoch)
            if age_us and now_us - entry.created_us < age_us:
                kept.add(entry.epoch)
        return kept & set(self.live)

    def retain(self, retain: int, *, age_us: int = 0, now_us: int = 0) -> set[int]:
        """Drop what retention does not keep; returns what went."""
        gone = set(self.live) - self.keeps(retain, age_us=age_us, now_us=now_us)
        self.drop(gone)
        return gone

    def deletable(self, epoch: int) -> bool:
        """Whether a user may delete it."""
        entry = self.live[epoch]
        committed = [e.epoch for e in self.live.values() if e.committed and not e.abandoned]
        return not (
            epoch in self.pins.values()
            or epoch == self.current
            or (not entry.abandoned and not entry.committed)
            or committed == [epoch]
        )

    def drop(self, epochs: Collection[int]) -> None:
        """Checkpoints left the store; their epochs stay used."""
        for epoch in epochs:
            del self.live[epoch]

    def rebuilt(self) -> None:
        """The catalog was rebuilt from the manifests: only their parents tell of branches."""
        for entry in self.live.values():
            entry.abandoned = False
        self.current = max(self.live, default=None)
        if self.current is None:
            return
        self._only_branch(self.current)
        chain = self.lineage(self.current)
        parents = {entry.parent for entry in self.live.values()}
        for entry in self.live.values():
            confirmed = entry.epoch in parents or set(entry.sinks.values()) - {"pending"}
            if entry.epoch not in chain and not confirmed:
                entry.abandoned = True  # an overtaken writer may have left it

    def view(self) -> Mapping[str, Any]:
        """Everything that a store can be compared with."""
        return {
            "live": {
                entry.epoch: (entry.content, dict(entry.sinks), entry.abandoned)
                for entry in self.live.values()
            },
            "pins": dict(self.pins),
        }
