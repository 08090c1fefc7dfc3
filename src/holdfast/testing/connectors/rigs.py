"""What a conformance check knows of a connector: the world outside, as its author sees it.

A rig is made for one check, with a directory of its own. It makes declarations, lets rows come, and
reads what was published. The checks do the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint import Manifest, Part, Store, open_store, topology
from holdfast.connectors import BAD, Sink, Source, SourceReader, Split, quoted

if TYPE_CHECKING:
    from holdfast.spark.annotations import DataFrame, SparkSession

NAME = "tested"
_PIPELINE = "conformance"


class ConformanceError(AssertionError):
    """A connector does not keep its contract. check: which rule."""

    def __init__(self, check: str, what: str, **facts: object) -> None:
        text = " ".join(f"{name}={value}" for name, value in facts.items())
        super().__init__(f"{check}: {what}{'. ' if text else ''}{text}")
        self.check = check


def require(condition: object, check: str, what: str, **facts: object) -> None:
    """Raise unless a rule holds."""
    if not condition:
        raise ConformanceError(check, what, **facts)


class SourceRig(ABC):
    """A source and the world that it reads.

    rows_max: the most rows of one split, where the declaration sets such a limit. grows: rows that
    are added later are seen by readers that were opened before. secrets: texts that the declaration
    was given and that must not leave it. compared: the columns whose values `add` tells; None: all.
    """

    compared: Sequence[str] | None = None
    rows_max: int | None = None
    grows: bool = True
    secrets: Sequence[str] = ()

    def __init__(self, home: Path, spark: SparkSession) -> None:
        """home: an empty directory of this rig."""
        self.home, self.spark = home, spark

    @abstractmethod
    def source(self) -> Source:
        """A new declaration that reads this world; the same one each time."""

    @abstractmethod
    def add(self, count: int) -> Iterable[Sequence[Any]]:
        """Let some rows come.

        Returns:
            These rows: the values of `compared`, or of `columns()` and the weight last.
        """

    def add_bad(self, count: int) -> bool:
        """Let some rows come that cannot be read; False where the world has no such rows."""
        del count
        return False

    def directories(self) -> Sequence[str]:
        """Local directories that the source reads or changes."""
        return ()


class SinkRig(ABC):
    """A sink and the world that it writes to.

    owned: another pipeline is refused (False for outputs that several share by design). history:
    it keeps every change; False where it shows the rows as they are now.
    """

    owned: bool = True
    secrets: Sequence[str] = ()

    def __init__(self, home: Path, spark: SparkSession) -> None:
        """home: an empty directory of this rig."""
        self.home, self.spark = home, spark

    @abstractmethod
    def sink(self) -> Sink:
        """A new declaration that writes to this world; the same one each time."""

    @abstractmethod
    def rows(self) -> Iterable[tuple[int, int]]:
        """The rows `(k, n)` that are there: what was retracted is not, each as often as it is."""

    def directories(self) -> Sequence[str]:
        """Local directories that the sink writes to, besides the store."""
        return ()


def texts(rows: Iterable[Sequence[Any]]) -> Counter[tuple[str, ...]]:
    """Rows that can be counted and compared."""
    return Counter(tuple(_text(value) for value in row) for row in rows)


def _text(value: Any) -> str:
    """Spark gives bytes in two types, by its version."""
    return repr(bytes(value) if isinstance(value, (bytearray, memoryview)) else value)


class Reading:
    """Readers of one source, and a store that keeps their positions."""

    def __init__(self, rig: SourceRig, store: Store) -> None:
        self.rig, self.store = rig, store

    def opened(self) -> SourceReader:
        """A reader from the very start."""
        reader = self.rig.source().open(NAME)
        reader.check()
        return reader

    def restored(self) -> SourceReader:
        """A reader as another process makes it after a restart."""
        reader = self.opened()
        manifest = self.store.current
        if manifest is not None:
            reader.restore(manifest, self.store.reader)
        return reader

    def frame(self, reader: SourceReader, split: Split) -> DataFrame:
        """The rows of a split that could be read."""
        frame = reader.read(self.rig.spark, split)
        return frame.where(f"{quoted(BAD)} IS NULL").drop(BAD) if BAD in frame.columns else frame

    def rows(self, reader: SourceReader, split: Split) -> Counter[tuple[str, ...]]:
        """The same, counted."""
        source = self.rig.source()
        names = [*source.columns(), *([source.weight] if source.weight else [])]
        names = names if self.rig.compared is None else [*self.rig.compared]
        return texts(self.frame(reader, split).select(*(quoted(n) for n in names)).collect())

    def drain(self, reader: SourceReader, most: int = 50) -> Iterator[Split]:
        """Splits until there is nothing new; the position is behind each when the next is asked."""
        for _ in range(most):
            split = reader.plan()
            if split is None:
                return
            yield split
            reader.advance(split)
        raise ConformanceError("drained", "there is always one more split", splits=most)

    def draft(self, reader: SourceReader) -> Any:
        """A checkpoint with the reader's position, not committed."""
        store = self.store
        draft = store.draft(checkpoint=store.reserve(), epoch=store.epoch_next)
        draft.set_source(NAME, reader.save(draft))
        return draft

    def commit(self, reader: SourceReader) -> Manifest:
        """A durable checkpoint with the reader's position; the reader is told."""
        self.store.commit(self.draft(reader))
        manifest = self.store.current
        require(manifest is not None, "restore", "nothing was committed")
        assert manifest is not None
        reader.committed(manifest, self.store.log_floor().get(NAME))
        return manifest


@contextmanager
def reading(rig: SourceRig, home: Path, part: Part | None = None) -> Iterator[Reading]:
    """A source with a store of its own. part: stands for the source in the fingerprint."""
    source = rig.source()
    known = part or Part(name=NAME, kind="source", what=source.kind, schema=source.schema_text)
    store = open_store(home / "positions", _PIPELINE, topology=topology(known), allow_changes=True)
    try:
        yield Reading(rig, store)
    finally:
        store.close()
