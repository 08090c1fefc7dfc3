"""Sources that are logs: how much was read of them, how far a checkpoint has seen, what they keep.

Invariants:
- Sources are told after the checkpoint is durable, never before: what they then forget is needed by
  no checkpoint.
- `manifest.log` is the position of the pipeline's log. A pipeline without one, or with several, has
  none there: one position cannot stand for two logs.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.checkpoint import Draft, Store
from holdfast.connectors.base import SourceReader, Split
from holdfast.format.position import Position


class Logs:
    """The logs among the sources of one running pipeline."""

    def __init__(self, readers: Mapping[str, SourceReader]) -> None:
        """A reader with `is_log` reads a log, and its splits say how many bytes of it they are."""
        self._readers = readers
        self._names = {name for name, one in readers.items() if one.is_log}
        self._grown = 0

    def read(self, splits: Mapping[str, Split]) -> None:
        """An epoch has read these splits."""
        self._grown += sum(split.bytes for name, split in splits.items() if name in self._names)

    @property
    def grown_bytes(self) -> int | None:
        """Bytes read since the last checkpoint; None unless all sources are logs.

        Rows of another source must not wait for a log to grow.
        """
        return self._grown if self._names and len(self._names) == len(self._readers) else None

    def save(self, name: str, position: Position, draft: Draft) -> None:
        """A source stands there in a checkpoint: if it is the log, the checkpoint says so."""
        if name in self._names or not self._names:
            draft.set_log(position if self._names == {name} else None)
        self._grown = 0

    def tell(self, store: Store) -> None:
        """The newest checkpoint is durable: sources may forget what none that is left needs."""
        manifest = store.current
        if manifest is None:
            return
        floors: Mapping[str, Position] = store.log_floor()
        for name, reader in self._readers.items():
            reader.committed(manifest, floors.get(name))
