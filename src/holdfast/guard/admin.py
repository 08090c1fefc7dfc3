"""Showing, pinning and collecting savepoints: the core's own verbs, for guarded queries.

Invariants:
- Pinning works concurrently with a running query and its attachment: it needs no writer.
- Collecting never touches what is pinned, nor the newest savepoints that the settings keep.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import msgspec

from holdfast.checkpoint import StoreReader, SweepReport, footprints, open_store
from holdfast.checkpoint.gc.reachability import plan_sweep, reachable
from holdfast.checkpoint.gc.retention import plan_retention
from holdfast.checkpoint.pins import pin as core_pin
from holdfast.checkpoint.pins import unpin as core_unpin
from holdfast.checkpoint.reference import Ref
from holdfast.clock import Clock, SystemClock
from holdfast.errors import NotFoundError
from holdfast.format.documents import Pin
from holdfast.guard._save import DEFAULTS
from holdfast.guard.savepoints import Listed, Savepoints
from holdfast.guard.spark_files.state_inspect import (
    STATE_BYTES_MAX,
    StoreCount,
    StoreDiff,
    counts,
    diff,
)
from holdfast.settings import Settings
from holdfast.storage.base import Storage
from holdfast.storage.open import storage_at


@dataclass
class Shown:
    """One savepoint in full. `exclusive`: what deleting it alone would free."""

    checkpoint: str
    batch: int
    label: str
    query: str
    location: str
    layout: str
    spark: str
    holdfast: str
    created_us: int
    watermark_ms: int
    next_watermark_ms: int
    timestamp_ms: int
    files: int
    bytes: int
    exclusive: int
    shared: int
    sink: str
    shuffle_partitions: str
    sources: list[dict[str, str]] = field(default_factory=list)
    state: list[StoreCount] = field(default_factory=list)


def ls(
    checkpoint_location: str | PathLike[str],
    store: str | PathLike[str] | Storage,
    *,
    name: str | None = None,
    options: dict[str, Any] | None = None,
) -> list[Listed]:
    """Savepoints of a query, newest first."""
    return [
        *Savepoints.open(store, location=checkpoint_location, name=name, options=options).list()
    ]


def show(
    checkpoint_location: str | PathLike[str],
    store: str | PathLike[str] | Storage,
    ref: Ref = "latest",
    *,
    name: str | None = None,
    state_bytes_max: int = STATE_BYTES_MAX,
    options: dict[str, Any] | None = None,
) -> Shown:
    """Offsets by source, watermark, and keys and bytes of state by operator and store."""
    savepoints = Savepoints.open(store, location=checkpoint_location, name=name, options=options)
    manifest = savepoints.find(ref)
    index = savepoints.index(manifest)
    cost = next(
        (f for f in footprints(savepoints.reader) if f.checkpoint == manifest.checkpoint), None
    )
    return Shown(
        checkpoint=manifest.checkpoint,
        batch=index.batch,
        label=manifest.label or "",
        query=index.query,
        location=index.location,
        layout=index.layout,
        spark=manifest.versions.spark,
        holdfast=manifest.versions.holdfast,
        created_us=manifest.created_us,
        watermark_ms=index.watermark_ms,
        next_watermark_ms=index.next_watermark_ms,
        timestamp_ms=index.timestamp_ms,
        files=len(index.files),
        bytes=sum(file.size for file in index.files),
        exclusive=cost.exclusive if cost else 0,
        shared=cost.shared if cost else 0,
        sink=index.sink,
        shuffle_partitions=index.shuffle_partitions,
        sources=[{"name": source.name, "offset": source.offset} for source in index.sources],
        state=counts(savepoints, index, bytes_max=state_bytes_max),
    )


def compare(
    checkpoint_location: str | PathLike[str],
    store: str | PathLike[str] | Storage,
    older: Ref,
    newer: Ref = "latest",
    *,
    name: str | None = None,
    state_bytes_max: int = STATE_BYTES_MAX,
    options: dict[str, Any] | None = None,
) -> list[StoreDiff]:
    """Keys that two savepoints do not share, store by store, read without a JVM."""
    savepoints = Savepoints.open(store, location=checkpoint_location, name=name, options=options)
    indexes = [savepoints.index(savepoints.find(ref)) for ref in (older, newer)]
    return diff(savepoints, indexes[0], indexes[1], bytes_max=state_bytes_max)


def pin(
    checkpoint_location: str | PathLike[str],
    store: str | PathLike[str] | Storage,
    label: str,
    ref: Ref = "latest",
    *,
    name: str | None = None,
    note: str = "",
    options: dict[str, Any] | None = None,
    clock: Clock | None = None,
) -> Pin:
    """Hold a savepoint under a label until it is unpinned."""
    savepoints, storage = _writable(checkpoint_location, store, name, options)
    found = savepoints.find(ref).checkpoint
    return core_pin(
        savepoints.reader, storage, clock or SystemClock(), label=label, ref=found, note=note
    )


def unpin(
    checkpoint_location: str | PathLike[str],
    store: str | PathLike[str] | Storage,
    label: str,
    *,
    name: str | None = None,
    options: dict[str, Any] | None = None,
) -> None:
    """Release a savepoint; the next collection may drop it."""
    savepoints, storage = _writable(checkpoint_location, store, name, options)
    core_unpin(savepoints.reader, storage, label)


def gc(
    checkpoint_location: str | PathLike[str],
    store: str | PathLike[str] | Storage,
    *,
    keep: int = 10,
    dry_run: bool = False,
    name: str | None = None,
    options: dict[str, Any] | None = None,
    clock: Clock | None = None,
) -> SweepReport:
    """Drop all but the newest `keep` savepoints and the pinned ones, and what only they needed."""
    savepoints = Savepoints.open(store, location=checkpoint_location, name=name, options=options)
    found = savepoints.latest()
    if found is None:
        raise NotFoundError(
            "the query was never saved in this store",
            kind="no_savepoint",
            remedy="run `holdfast guard save` first",
        )
    settings = msgspec.structs.replace(DEFAULTS, retain=keep)
    clock = clock or SystemClock()
    if dry_run:
        return _would_collect(savepoints.reader, settings, clock)
    with open_store(
        store,
        savepoints.reader.directory.pipeline,
        topology=found[0].topology,
        settings=settings,
        options=options,
        clock=clock,
    ) as held:
        return held.gc()


def _would_collect(reader: StoreReader, settings: Settings, clock: Clock) -> SweepReport:
    """The same decision from reading alone: a dry run never takes the store from its writer."""
    state = reader.catalog()
    plan = plan_retention(
        state, reader.outcomes(), reader.pins(), settings=settings, now_us=clock.wall_us()
    )
    dropped = tuple(entry.checkpoint for entry in plan.drop)
    after = replace(state, live=tuple(e for e in state.live if e.checkpoint not in dropped))
    needed = reachable((reader.manifest(entry) for entry in after.live), reader.directory.pipeline)
    sweep = plan_sweep(reader.directory.list(), after, needed)
    return SweepReport(sweep, dropped=dropped, dry_run=True)


def _writable(
    location: str | PathLike[str],
    store: str | PathLike[str] | Storage,
    name: str | None,
    options: dict[str, Any] | None,
) -> tuple[Savepoints, Storage]:
    storage = storage_at(store, create=False, options=options)
    return Savepoints.open(storage, location=location, name=name), storage
