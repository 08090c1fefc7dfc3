"""Opening a pipeline for writing: plan the recovery, take the fence, clean up.

Invariants:
- Nothing is written before the plan says that the store may be opened.
- The `open` record goes to the number after the head that the plan was made from: if anything has
  happened since, the put-if-absent fails and the plan is made again.
- Once the record exists, the writer before is fenced.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from os import PathLike
from typing import Any

from holdfast.checkpoint.commit.catalog import CatalogWriter
from holdfast.checkpoint.commit.conditional_put import publish
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.reader import StoreReader
from holdfast.checkpoint.recovery.evidence import Evidence, gather
from holdfast.checkpoint.recovery.plan import RecoveryOptions, RecoveryPlan, plan_recovery
from holdfast.checkpoint.recovery.witness import SHRANK
from holdfast.checkpoint.reference import Ref
from holdfast.clock import Clock, SystemClock
from holdfast.errors import AlreadyExistsError, ConflictError, FencedError, HoldfastError
from holdfast.failpoints import failpoint
from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST
from holdfast.format.documents import OpenBody, StoreHeader, header_bytes
from holdfast.format.topology import Topology
from holdfast.ids import VNODE_COUNT, IdSource, RandomIds
from holdfast.settings import Settings
from holdfast.storage.base import Lease, Storage
from holdfast.storage.open import storage_at
from holdfast.version import __version__

_TRIES = 100


@dataclass(frozen=True)
class StoreEnvironment:
    """What a store is given from outside."""

    storage: Storage
    settings: Settings
    clock: Clock
    ids: IdSource
    spark: str = ""


@dataclass(frozen=True)
class Opened:
    """A store that this writer holds."""

    reader: StoreReader
    header: StoreHeader
    plan: RecoveryPlan
    evidence: Evidence
    catalog: CatalogWriter
    lease: Lease | None


def store_environment(
    root: str | PathLike[str] | Storage,
    *,
    settings: Settings | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    options: dict[str, Any] | None = None,
    spark: str = "",
) -> StoreEnvironment:
    """Fill in the defaults."""
    storage = storage_at(root, options=options)
    return StoreEnvironment(
        storage, settings or Settings(), clock or SystemClock(), ids or RandomIds(), spark
    )


def recovery_plan(
    root: str | PathLike[str] | Storage,
    pipeline: str,
    *,
    topology: Topology | None = None,
    resume: Ref | None = None,
    accept_duplicates: bool = False,
    accept_loss: bool = False,
    allow_changes: bool = False,
    settings: Settings | None = None,
    options: dict[str, Any] | None = None,
) -> RecoveryPlan:
    """What opening would do. Reads only."""
    storage = storage_at(root, create=False, options=options)
    reader = StoreReader(PipelineDirectory(storage, paths.pipeline_dir(pipeline)))
    recovery = RecoveryOptions(
        topology=topology,
        resume=resume,
        accept_duplicates=accept_duplicates,
        accept_loss=accept_loss,
        allow_changes=allow_changes,
    )
    return plan_recovery(gather(reader, settings or Settings(), resume), recovery)


def take_over(
    environment: StoreEnvironment, pipeline: str, options: RecoveryOptions, *, takeover: bool
) -> Opened:
    """Plan, fence, and return what is held now."""
    reader = StoreReader(PipelineDirectory(environment.storage, paths.pipeline_dir(pipeline)))
    lease: Lease | None = None
    try:
        for attempt in range(_TRIES):
            if attempt:
                environment.clock.sleep_ms(min(attempt, 20))
            evidence = gather(reader, environment.settings, options.resume)
            plan = plan_recovery(evidence, options)
            if plan.refusal is not None:
                raise plan.refusal
            if lease is None and environment.settings.exclusive and not takeover:
                lease = environment.storage.exclusive(
                    reader.directory.at(paths.LOCK), f"pid {os.getpid()}"
                )
            header = evidence.header or _write_header(environment, reader, options)
            catalog = CatalogWriter(
                reader.directory,
                environment.storage,
                evidence.state,
                environment.ids.writer_id(),
                environment.clock,
            )
            try:
                _append_open(catalog, plan)
                _keep_lost(catalog, plan)
            except FencedError:
                continue
            return Opened(reader, header, plan, evidence, catalog, lease)
        raise ConflictError(
            "too many writers are opening this pipeline at once",
            kind="busy",
            pipeline=pipeline,
            remedy="find out who they are; only one of them can win",
        )
    except HoldfastError:
        if lease is not None:
            lease.release()
        raise


def _append_open(catalog: CatalogWriter, plan: RecoveryPlan) -> None:
    failpoint("open.before_record")
    catalog.append(
        OpenBody(
            resume=plan.chosen.checkpoint if plan.chosen else None,
            abandoned=list(plan.abandon),
            revived=list(plan.revive),
            host=platform.node()[:128],
        )
    )
    failpoint("open.after_record")


def _keep_lost(catalog: CatalogWriter, plan: RecoveryPlan) -> None:
    """Records at the end were lost: what they committed is listed again, as abandoned.

    The hint that tells of them is soon replaced, and the next clean-up would take their files for
    leftovers. As abandoned checkpoints they stay, and can be gone back to by name.
    """
    if any(finding.kind == SHRANK for finding in catalog.state.damage):
        catalog.append_lost(plan.rescue, epoch_max=plan.epoch_next - 1)


def _write_header(
    environment: StoreEnvironment, reader: StoreReader, options: RecoveryOptions
) -> StoreHeader:
    """The first thing that a new store gets; of two that try, one wins and both read it."""
    header = StoreHeader(
        format=FORMAT_VERSION,
        sha256=NO_DIGEST,
        lineage=str(environment.ids.writer_id()),
        pipeline=reader.directory.pipeline,
        created_us=environment.clock.wall_us(),
        vnodes=options.topology.vnodes if options.topology else VNODE_COUNT,
        holdfast=__version__,
    )
    failpoint("open.before_header")
    try:
        publish(
            environment.storage,
            reader.directory.at(paths.HEADER),
            header_bytes(header),
            environment.clock,
        )
    except AlreadyExistsError:
        return reader.header()
    failpoint("open.after_header")
    return reader.header()
