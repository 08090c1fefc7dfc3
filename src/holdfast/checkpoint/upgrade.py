"""Upgrading a store of format 1: from then on, older software refuses it at the first look.

A store needs no upgrade to be used: format 1 is read, and whatever is written is format 2.
Upgrading makes it one thing instead of two: one base record of format 2, and a header that says so.

Invariants:
- Nothing that a digest covers is written again: manifests, outcomes and pins stay as they are.
- The order is fence, base record, header. A crash anywhere leaves a store that opens; upgrading
  again does what is left. A store that is up to date is not written to.
- Like every writer it takes the fence, and it does not choose another checkpoint by the way.

Spec: spec/format-v2.md, section 8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.checkpoint.commit.catalog import CatalogState, record_numbers
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.reader import StoreReader
from holdfast.checkpoint.recovery.evidence import gather
from holdfast.checkpoint.recovery.open import StoreEnvironment, take_over
from holdfast.checkpoint.recovery.plan import RecoveryOptions, plan_recovery
from holdfast.clock import Clock, SystemClock
from holdfast.errors import (
    CorruptionError,
    HoldfastError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from holdfast.failpoints import failpoint
from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION
from holdfast.format.documents import RECORD_BYTES_MAX, BaseBody, header_bytes, parse_record
from holdfast.format.manifest import MANIFEST_BYTES_MAX
from holdfast.ids import IdSource, RandomIds, Sequence
from holdfast.settings import Settings
from holdfast.storage.base import Storage

_LOOKS = 5


class _FormatPeek(msgspec.Struct):
    format: int


@dataclass(frozen=True)
class UpgradePlan:
    """What of a store is older than the software; `kept`: documents that stay as they are."""

    pipeline: str
    header: int
    records: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """Whether upgrading would write anything."""
        return self.header < FORMAT_VERSION or self.records > 0

    @property
    def steps(self) -> tuple[str, ...]:
        """What upgrading does, in order."""
        if not self.needed:
            return ()
        found = ["append an open record: a writer that still runs is fenced"]
        if self.records:
            found.append(f"replace {self.records} catalog records of format 1 by a base record")
        if self.header < FORMAT_VERSION:
            found.append(f"replace the header: format {self.header} becomes {FORMAT_VERSION}")
        return tuple(found)


def plan_upgrade(reader: StoreReader) -> UpgradePlan:
    """Look at header, catalog and manifests. Reads only.

    A writer may compact meanwhile: a record that vanishes means looking again.
    """
    for _ in range(_LOOKS):
        try:
            return _look(reader)
        except NotFoundError as error:
            if error.kind != "not_found":
                raise
    raise StorageError(
        "the catalog changes faster than it can be read",
        kind="busy_catalog",
        retryable=True,
        remedy="stop the pipeline first, or try again; nothing was changed",
        took_effect=False,
    )


def _look(reader: StoreReader) -> UpgradePlan:
    header = reader.header()
    state = reader.catalog()
    _check_whole(reader)
    _check_no_replica(reader, state)
    wanted = [
        paths.record(Sequence(number))
        for number in record_numbers(reader.directory)
        if state.base <= number <= state.head
    ]
    records = _formats(reader.directory, wanted, RECORD_BYTES_MAX)
    manifests = _formats(
        reader.directory,
        [paths.manifest(entry.checkpoint) for entry in state.live],
        MANIFEST_BYTES_MAX,
    )
    kept = {"manifests": sum(n for f, n in manifests.items() if f < FORMAT_VERSION)}
    return UpgradePlan(
        pipeline=reader.directory.pipeline,
        header=header.format,
        records=sum(count for found, count in records.items() if found < FORMAT_VERSION),
        kept={kind: count for kind, count in kept.items() if count},
    )


def _formats(directory: PipelineDirectory, wanted: list[str], bytes_max: int) -> Counter[int]:
    """How many documents have which format; what was removed meanwhile is not counted."""
    found: Counter[int] = Counter()
    for path, content in zip(wanted, directory.get_many(wanted, bytes_max=bytes_max), strict=True):
        if isinstance(content, NotFoundError):
            continue
        if isinstance(content, HoldfastError):
            raise content
        try:
            found[msgspec.json.decode(content, type=_FormatPeek).format] += 1
        except msgspec.MsgspecError as error:
            raise CorruptionError(
                "a document cannot be decoded",
                kind="undecodable",
                path=directory.at(path),
                remedy="run `holdfast verify` to see what is damaged",
            ) from error
    return found


def _check_whole(reader: StoreReader) -> None:
    """Refuse where opening would not simply continue."""
    plan = plan_recovery(gather(reader, Settings()), RecoveryOptions())
    if plan.refusal is not None:
        raise plan.refusal
    if plan.abandon or plan.notes:
        raise RefusedError(
            "the store is damaged: upgrading is for stores that are whole",
            kind="not_whole",
            pipeline=reader.directory.pipeline,
            found=plan.notes[0] if plan.notes else f"{len(plan.abandon)} checkpoints damaged",
            remedy="look at `holdfast recover --plan` and repair it first; nothing was changed",
        )


def _check_no_replica(reader: StoreReader, state: CatalogState) -> None:
    """A copy that is written to is no copy any more: its source is upgraded instead."""
    if state.head < 0:
        return
    path = paths.record(state.head)
    data = reader.directory.get(path, bytes_max=RECORD_BYTES_MAX)
    body = parse_record(data, reader.directory.at(path), state.head).body
    if isinstance(body, BaseBody) and body.synced:
        raise RefusedError(
            "the store is a copy of another one",
            kind="replica",
            pipeline=reader.directory.pipeline,
            remedy="upgrade its source, then `holdfast sync` again; nothing was changed",
        )


def upgrade_store(
    storage: Storage,
    pipeline: str,
    *,
    takeover: bool = False,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> UpgradePlan:
    """Bring a pipeline's store to the newest format; returns what was done."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    reader = StoreReader(PipelineDirectory(storage, paths.pipeline_dir(pipeline)))
    plan = plan_upgrade(reader)
    if not plan.needed:
        return plan
    environment = StoreEnvironment(storage, Settings(exclusive=True), clock, ids)
    opened = take_over(environment, pipeline, RecoveryOptions(), takeover=takeover)
    try:
        failpoint("upgrade.before_base")
        opened.catalog.compact()
        failpoint("upgrade.before_header")
        opened.catalog.confirm_alive()
        header = msgspec.structs.replace(opened.header, format=FORMAT_VERSION)
        storage.put(reader.directory.at(paths.HEADER), header_bytes(header))
        failpoint("upgrade.after_header")
    finally:
        if opened.lease is not None:
            opened.lease.release()
    return plan
