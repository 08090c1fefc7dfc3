"""What a checkpoint costs: the bytes that deleting it would free, and those it shares.

Invariants:
- Exact: a file counts as exclusive only when no other live checkpoint names it, whether or not
  that other one is asked for. A file of another pipeline (a fork's) is never exclusive.
- A manifest is read only after its digest agrees with the catalog, so no second check is needed
  and the parts that do not matter here are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.checkpoint.reader import StoreReader
from holdfast.checkpoint.segments import load_segments
from holdfast.errors import CorruptionError, HoldfastError, NotFoundError
from holdfast.format import paths
from holdfast.format.canonical import sha256_hex
from holdfast.format.documents import Summary
from holdfast.format.manifest import MANIFEST_BYTES_MAX, parse_manifest
from holdfast.ids import CheckpointId

_BATCH = 256


@dataclass(frozen=True)
class Footprint:
    """Bytes of one checkpoint. `exclusive` is what deleting it alone would free."""

    checkpoint: CheckpointId
    exclusive: int
    shared: int
    readable: bool = True

    @property
    def total(self) -> int:
        """Everything that it needs."""
        return self.exclusive + self.shared


class File(msgspec.Struct, frozen=True):
    """What of a file matters here."""

    path: str
    size: int
    pipeline: str | None = None


class _Files(msgspec.Struct):
    files: list[File] = []
    segments: list[File] = []


_decoder = msgspec.json.Decoder(_Files)


def footprints(reader: StoreReader, *, newest: int | None = None) -> list[Footprint]:
    """Live checkpoints, newest first, all or the newest few; a damaged one is unreadable."""
    live = [*reversed(reader.catalog().live)]
    return footprints_of(reader, live, newest=newest)[0]


def footprints_of(
    reader: StoreReader, live: Sequence[Summary], *, newest: int | None = None
) -> tuple[list[Footprint], Mapping[CheckpointId, Sequence[File] | None]]:
    """The same for a list that is newest first, with the files of each; None where unreadable."""
    shown = live if newest is None else live[:newest]
    files: dict[CheckpointId, Sequence[File] | None] = {}
    users: Counter[str] = Counter()
    for summary, found in _read(reader, shown):
        files[summary.checkpoint] = found
        users.update(file.path for file in found or () if file.pipeline is None)
    _look_further(reader, live, len(shown), users)
    outcomes = _outcome_bytes(reader, shown)
    result = []
    for summary in shown:
        wanted = files[summary.checkpoint]
        if wanted is None:
            result.append(Footprint(summary.checkpoint, 0, 0, readable=False))
            continue
        total = sum(file.size for file in wanted)
        own = sum(f.size for f in wanted if f.pipeline is None and users[f.path] == 1)
        documents = summary.manifest_bytes + outcomes[summary.epoch]
        result.append(Footprint(summary.checkpoint, own + documents, total - own))
    return result, files


def _outcome_bytes(reader: StoreReader, shown: Sequence[Summary]) -> Counter[int]:
    """By epoch, the bytes of what is recorded about its sinks."""
    sizes: Counter[int] = Counter()
    epochs = {paths.outcomes_of(summary.epoch): summary.epoch for summary in shown if summary.sinks}
    for entry in reader.directory.list(paths.OUTCOMES) if epochs else ():
        epoch = epochs.get(entry.path[: paths.OUTCOMES_OF_LENGTH])
        if epoch is not None and paths.classify(entry.path) is not None:
            sizes[epoch] += entry.size
    return sizes


def _look_further(
    reader: StoreReader, live: Sequence[Summary], start: int, users: Counter[str]
) -> None:
    """Older checkpoints may share files that look exclusive among the newest ones.

    A checkpoint cannot name a file of a younger one, so the search ends at the oldest creator.
    """
    ages = {summary.checkpoint: number for number, summary in enumerate(live)}
    alone = {path for path, count in users.items() if count == 1}
    end = max((ages.get(_creator(path), len(live)) for path in alone), default=0)
    for _, found in _read(reader, live[start : end + 1]):
        users.update(file.path for file in found or () if file.path in alone)


def _creator(path: str) -> CheckpointId:
    meaning = paths.classify(path)
    return CheckpointId(meaning.checkpoint or "") if meaning else CheckpointId("")


def _read(
    reader: StoreReader, summaries: Sequence[Summary]
) -> Iterator[tuple[Summary, Sequence[File] | None]]:
    """The files of each checkpoint, or None where its manifest is missing or damaged."""
    for start in range(0, len(summaries), _BATCH):
        some = summaries[start : start + _BATCH]
        wanted = [paths.manifest(summary.checkpoint) for summary in some]
        contents = reader.directory.get_many(wanted, bytes_max=MANIFEST_BYTES_MAX)
        for summary, content in zip(some, contents, strict=True):
            yield summary, _files(reader, summary, content)


def _files(
    reader: StoreReader, summary: Summary, content: bytes | HoldfastError
) -> Sequence[File] | None:
    if isinstance(content, HoldfastError):
        if content.kind in ("not_found", "object_too_large") or isinstance(content, NotFoundError):
            return None
        raise content
    if sha256_hex(content) != summary.manifest_sha256:
        return None
    try:
        document = _decoder.decode(content)
        if not document.segments:
            return document.files
        path = reader.directory.at(paths.manifest(summary.checkpoint))
        whole = load_segments(reader.directory, parse_manifest(content, path, summary.checkpoint))
    except (msgspec.MsgspecError, CorruptionError):
        return None
    return [File(entry.path, entry.size, entry.pipeline) for entry in whole.files]
