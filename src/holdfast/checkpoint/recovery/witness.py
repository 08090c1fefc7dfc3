"""Witnesses: what remembers records that the catalog has lost.

Invariants:
- The hint is written after the record that it names is durable. Outcomes are written after their
  checkpoint was committed. A manifest is written for the number after the newest record.
- They are called before the catalog is read: a catalog that is read later is never behind them,
  unless it has lost something.
- What they say is damage: nothing is opened, swept or compacted over it without being asked.
- Half a copy from another store is no witness: a sync brings manifests before it brings the record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.checkpoint.commit.catalog import CatalogState, read_hint
from holdfast.checkpoint.reader import Outcomes, StoreReader
from holdfast.errors import CorruptionError, NotFoundError
from holdfast.format import paths
from holdfast.format.documents import RECORD_BYTES_MAX, Latest
from holdfast.format.findings import Finding
from holdfast.format.manifest import MANIFEST_BYTES_MAX, Manifest, parse_manifest
from holdfast.ids import CheckpointId, Sequence

SHRANK = "catalog_shrank"


@dataclass(frozen=True)
class Witnesses:
    """The hint, the checkpoints that have a manifest, and the sizes of all their files."""

    hint: Latest | None
    manifests: frozenset[CheckpointId]
    sizes: Mapping[str, int] = field(default_factory=dict)


def call_witnesses(reader: StoreReader) -> Witnesses:
    """Look at the hint and list the manifests; to be called before the catalog is read."""
    hint = read_hint(reader.directory)
    sizes = {entry.path: entry.size for entry in reader.directory.list(paths.CHECKPOINTS)}
    parsed_paths = (paths.classify(path) for path in sizes if path.endswith(paths.MANIFEST_END))
    manifests = frozenset(
        meaning.checkpoint
        for meaning in parsed_paths
        if meaning is not None and meaning.kind == "manifest" and meaning.checkpoint is not None
    )
    return Witnesses(hint, manifests, sizes)


def against(
    witnesses: Witnesses, state: CatalogState, outcomes: Outcomes, reader: StoreReader
) -> CatalogState:
    """The catalog, with everything that it has lost as damage after its head."""
    lost = [
        finding
        for finding in (
            _hint(witnesses.hint, state, reader),
            _outcomes(outcomes, state, reader),
            _manifests(witnesses, state, reader),
        )
        if finding is not None
    ]
    if not lost:
        return state
    return replace(state, damage=(*state.damage, *lost), damaged_after=Sequence(state.head + 1))


def epochs_beyond(witnesses: Witnesses, state: CatalogState, reader: StoreReader) -> int:
    """The highest epoch that a manifest or the hint tells of: never given out again."""
    hint = witnesses.hint.epoch if witnesses.hint else -1
    return max([hint, *(manifest.epoch for manifest, _ in strays(witnesses, state, reader))])


def _hint(hint: Latest | None, state: CatalogState, reader: StoreReader) -> Finding | None:
    if hint is None or hint.sequence < state.base:
        return None
    if hint.sequence > state.head:
        return _lost(
            "the hint is ahead of the catalog: records were lost",
            reader.directory.at(paths.LATEST),
            f"record {hint.sequence} with epoch {hint.epoch}",
            f"record {state.head} with epoch {state.epoch_max}",
        )
    digest = _digest(hint.sequence, state, reader)
    if digest in ("", hint.record_sha256):
        return None
    return _lost(
        "the hint knows another record of this number: records were lost and written again",
        reader.directory.at(paths.LATEST),
        f"record {hint.sequence} with digest {hint.record_sha256}",
        f"digest {digest}",
    )


def _digest(number: Sequence, state: CatalogState, reader: StoreReader) -> str:
    """Of a record's file; empty where it cannot be read."""
    if number == state.head:
        return state.head_sha256
    try:
        data = reader.directory.get(paths.record(number), bytes_max=RECORD_BYTES_MAX)
    except (NotFoundError, CorruptionError):
        return ""  # compacted since, or damaged: that is said elsewhere
    return hashlib.sha256(data).hexdigest()


def _outcomes(outcomes: Outcomes, state: CatalogState, reader: StoreReader) -> Finding | None:
    beyond = [
        outcome
        for known in outcomes.by_token.values()
        for outcome in known
        if outcome.epoch > state.epoch_max
    ]
    if not beyond:
        return None
    newest = max(beyond, key=lambda outcome: outcome.epoch)
    return _lost(
        f"sink {newest.sink} knows an epoch that the catalog has lost",
        reader.directory.at(paths.outcome(newest.epoch, newest.sink, newest.attempt)),
        f"epoch {newest.epoch}",
        f"epoch {state.epoch_max}",
    )


def _manifests(witnesses: Witnesses, state: CatalogState, reader: StoreReader) -> Finding | None:
    """A manifest is made for the number after the newest record: one beyond that proves a loss."""
    if state.synced:
        return None
    beyond = [m for m, _ in strays(witnesses, state, reader) if m.sequence > state.head + 1]
    if not beyond:
        return None
    newest = max(beyond, key=lambda manifest: manifest.sequence)
    return _lost(
        "a manifest was made on top of records that the catalog has lost",
        reader.directory.at(paths.manifest(newest.checkpoint)),
        f"record {newest.sequence - 1}",
        f"record {state.head}",
    )


def strays(
    witnesses: Witnesses, state: CatalogState, reader: StoreReader
) -> list[tuple[Manifest, bytes]]:
    """Manifests that no live checkpoint explains: of crashed commits, of drops under way."""
    live = {entry.checkpoint for entry in state.live}
    candidates = []
    for checkpoint in sorted(witnesses.manifests - live):
        path = paths.manifest(checkpoint)
        try:
            data = reader.directory.get(path, bytes_max=MANIFEST_BYTES_MAX)
            manifest = parse_manifest(data, reader.directory.at(path), checkpoint)
        except (NotFoundError, CorruptionError):
            continue  # removed since, or torn by the crash that left it
        if manifest.pipeline == reader.directory.pipeline:
            candidates.append((manifest, data))
    return candidates


def _lost(message: str, path: str, expected: str, actual: str) -> Finding:
    return Finding(
        severity="error",
        kind="catalog_shrank",
        message=message,
        path=path,
        expected=expected,
        actual=actual,
    )
