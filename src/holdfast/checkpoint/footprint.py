"""What a checkpoint costs: the bytes that deleting it would free, and those it shares."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from holdfast.checkpoint.reader import StoreReader
from holdfast.errors import CorruptionError
from holdfast.format import paths
from holdfast.ids import CheckpointId


@dataclass(frozen=True)
class Footprint:
    """Bytes of one checkpoint. `exclusive` is what deleting it alone would free.

    That is its manifest, the outcomes of its sinks, and the files that no other one needs.
    """

    checkpoint: CheckpointId
    exclusive: int
    shared: int
    readable: bool = True

    @property
    def total(self) -> int:
        """Everything that it needs."""
        return self.exclusive + self.shared


def footprints(reader: StoreReader) -> list[Footprint]:
    """All live checkpoints, newest first. One whose manifest is damaged is shown as unreadable."""
    summaries = [*reversed(reader.catalog().live)]
    sizes: dict[str, int] = {}
    users: Counter[str] = Counter()
    needs: dict[CheckpointId, set[str]] = {}
    for summary in summaries:
        try:
            manifest = reader.manifest(summary)
        except CorruptionError:
            continue
        wanted = {reader.home.file(entry): entry.size for entry in manifest.files}
        sizes.update(wanted)
        users.update(wanted.keys())
        needs[summary.checkpoint] = set(wanted)
    outcomes: Counter[int] = Counter()
    for entry in reader.home.list(paths.OUTCOMES):
        meaning = paths.classify(entry.path)
        if meaning is not None and meaning.epoch is not None:
            outcomes[meaning.epoch] += entry.size
    found = []
    for summary in summaries:
        wanted_paths = needs.get(summary.checkpoint)
        if wanted_paths is None:
            found.append(Footprint(summary.checkpoint, 0, 0, readable=False))
            continue
        exclusive = sum(sizes[path] for path in wanted_paths if users[path] == 1)
        shared = sum(sizes[path] for path in wanted_paths if users[path] > 1)
        exclusive += summary.manifest_bytes + outcomes[summary.epoch]
        found.append(Footprint(summary.checkpoint, exclusive, shared))
    return found
