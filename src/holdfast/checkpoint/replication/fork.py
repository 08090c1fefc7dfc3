"""Forks: a new pipeline that begins at a checkpoint of another one, without copying a file.

Invariants:
- The origin's checkpoint is pinned for the fork before the fork names its files, and the pin is
  looked for again afterwards: until then, anybody could take it for one that nobody needs.
- The fork's own pipeline is opened before that pin is made, so that no collection of an earlier
  writer of that name can release it.
- The fork begins like every pipeline: header, `open` record, one commit. A crash leaves at worst a
  pin and an empty pipeline, and forking again continues from there.
- The fork has the origin's epoch, positions, watermarks and state. It has no sink tokens: what the
  origin has staged stays the origin's.
- A fork's files lie in its origin as long as the fork names them; the origin holds them by a pin
  whose label and note name the fork. The pin goes only when no live checkpoint of the fork names a
  file of another pipeline. What cannot be read counts as needed.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import msgspec

from holdfast.checkpoint.commit.catalog import write_hint
from holdfast.checkpoint.commit.protocol import Committed, commit_draft
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.draft import Draft
from holdfast.checkpoint.pins import label_taken, pin
from holdfast.checkpoint.reader import StoreReader, list_pipelines, retired_error
from holdfast.checkpoint.recovery.open import Opened, StoreEnvironment, take_over
from holdfast.checkpoint.recovery.plan import RecoveryOptions
from holdfast.checkpoint.reference import Ref
from holdfast.checkpoint.verify import RETIRED, VerifyReport, verify_checkpoints
from holdfast.clock import Clock, SystemClock
from holdfast.errors import ConflictError, CorruptionError, HoldfastError, NotFoundError
from holdfast.format import paths
from holdfast.format.documents import SMALL_BYTES_MAX, DropBody, Pin, Summary, parse_pin
from holdfast.format.findings import errors_of
from holdfast.format.manifest import Manifest
from holdfast.ids import IdSource, RandomIds
from holdfast.settings import Settings
from holdfast.storage.base import Storage, StorageReader

_LABEL_MAX = 128
_NOTE = re.compile(r"shared with pipeline (?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,127})")


@dataclass(frozen=True)
class Forked:
    """A fork that was made."""

    origin: str
    source: Summary
    fork: str
    summary: Summary
    pin: Pin
    files: int
    bytes_shared: int


def fork_pipeline(
    storage: Storage,
    origin: str,
    ref: Ref,
    new: str,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Forked:
    """Begin pipeline `new` at a checkpoint of `origin`, in the same root."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    paths.pipeline_dir(new)
    reader = StoreReader(PipelineDirectory(storage, paths.pipeline_dir(origin)))
    reader.header()
    source = reader.resolve(ref)
    manifest = _whole(reader, source)
    _check_free(storage, new)
    _check_label(reader, new, source)
    environment = StoreEnvironment(storage, Settings(exclusive=True), clock, ids)
    opened = take_over(
        environment, new, RecoveryOptions(topology=manifest.topology), takeover=False
    )
    try:
        if opened.catalog.state.live:
            raise _exists(new)
        held = _pin(reader, environment, new, source)
        draft = Draft(
            directory=opened.reader.directory,
            storage=storage,
            ids=ids,
            settings=environment.settings,
            topology=manifest.topology,
            parent=_shared(manifest, origin),
            checkpoint=ids.checkpoint_id(clock.wall_us()),
            epoch=source.epoch,
            label=None,
        )
        done = _commit(reader, environment, opened, draft, source)
        try:
            _pin(reader, environment, new, source)
        except NotFoundError:
            # The pin was released, and what it held with it: the fork must not list it.
            gone = DropBody(checkpoints=[done.summary.checkpoint], reason="delete")
            opened.catalog.append(gone)
            raise
        summary = done.summary
        write_hint(
            opened.reader.directory,
            storage,
            opened.catalog.state,
            summary.checkpoint,
            summary.epoch,
        )
    finally:
        if opened.lease is not None:
            opened.lease.release()
    return Forked(
        origin=origin,
        source=source,
        fork=new,
        summary=done.summary,
        pin=held,
        files=len(done.manifest.files),
        bytes_shared=done.manifest.bytes_total,
    )


def _pin(reader: StoreReader, environment: StoreEnvironment, new: str, source: Summary) -> Pin:
    """Hold the origin's checkpoint for the fork; once more does no harm."""
    return pin(
        reader,
        environment.storage,
        environment.clock,
        label=fork_label(new),
        ref=source.checkpoint,
        note=fork_note(new),
        fork=True,
    )


def _commit(
    reader: StoreReader,
    environment: StoreEnvironment,
    opened: Opened,
    draft: Draft,
    source: Summary,
) -> Committed:
    try:
        return commit_draft(
            opened.reader.directory,
            environment.storage,
            opened.catalog,
            draft,
            None,
            lineage=opened.header.lineage,
            clock=environment.clock,
        )
    except CorruptionError:
        if source.checkpoint in reader.retired([source.checkpoint]):
            raise retired_error(source.checkpoint) from None
        raise


def _check_label(reader: StoreReader, new: str, source: Summary) -> None:
    """An interrupted fork of that name may hold another checkpoint."""
    label = fork_label(new)
    for held in reader.pins():
        if held.label == label and held.checkpoint != source.checkpoint:
            raise label_taken(label, held.checkpoint)


def _whole(reader: StoreReader, source: Summary) -> Manifest:
    """The manifest of a checkpoint whose files are all there."""
    report = VerifyReport(deep=False)
    manifests = verify_checkpoints(reader, [source], report)
    found = report.by_checkpoint[source.checkpoint]
    if any(finding.kind == RETIRED for finding in found):
        raise retired_error(source.checkpoint)
    wrong = errors_of(found)
    if wrong or source.checkpoint not in manifests:
        raise CorruptionError(
            f"the checkpoint is damaged: {wrong[0].message}" if wrong else "it cannot be read",
            kind="damaged_checkpoint",
            path=wrong[0].path if wrong else None,
            checkpoint=source.checkpoint,
            remedy="choose an intact one: `holdfast recover --plan` shows them",
        )
    return manifests[source.checkpoint]


def _check_free(storage: Storage, new: str) -> None:
    """The name is free, or an interrupted fork has left an empty pipeline there."""
    reader = StoreReader(PipelineDirectory(storage, new))
    try:
        reader.header()
    except NotFoundError:
        return
    try:
        state = reader.catalog()
        free = (
            not state.live and not state.damage and not any(reader.directory.list(paths.OUTCOMES))
        )
    except HoldfastError:
        free = False
    if not free:
        raise _exists(new)


def _exists(new: str) -> ConflictError:
    return ConflictError(
        "a pipeline of that name exists already",
        kind="pipeline_exists",
        pipeline=new,
        remedy="choose another name for the fork",
    )


def _shared(manifest: Manifest, origin: str) -> Manifest:
    """The origin's checkpoint as another pipeline of the root sees it."""
    return msgspec.structs.replace(
        manifest,
        segments=[],
        listed=[
            msgspec.structs.replace(entry, pipeline=entry.pipeline or origin)
            for entry in manifest.files
            if entry.kind != "segment"
        ],
        properties={
            **manifest.properties,
            "forked_from": f"{origin}/{manifest.checkpoint}",
        },
    )


def fork_label(fork: str) -> str:
    """The label under which an origin holds what a fork shares."""
    label = f"fork-{fork}"
    if len(label) <= _LABEL_MAX:
        return label
    return f"fork-{fork[:100]}-{hashlib.sha256(fork.encode()).hexdigest()[:16]}"


def fork_note(fork: str) -> str:
    """The note of such a pin."""
    return f"shared with pipeline {fork}"


def fork_of(pin: Pin) -> str | None:
    """The fork that a pin is held for, if it is one of those."""
    match = _NOTE.fullmatch(pin.note)
    if match is None or pin.label != fork_label(match["name"]):
        return None
    return match["name"]


def uses_files_of_others(storage: StorageReader, pipeline: str) -> bool:
    """Whether a live checkpoint of a pipeline names files of another one."""
    reader = StoreReader(PipelineDirectory(storage, paths.pipeline_dir(pipeline)))
    try:
        summaries = reader.list()
    except NotFoundError:
        return False
    except HoldfastError:
        return True
    for summary in summaries:
        try:
            manifest = reader.manifest(summary)
        except HoldfastError:
            return True
        if any(entry.pipeline not in (None, pipeline) for entry in manifest.files):
            return True
    return False


def pins_for(storage: StorageReader, fork: str) -> dict[str, str]:
    """The pins that origins hold for a fork: their paths, by the names of the origins."""
    found = {}
    label = fork_label(fork)
    for name in list_pipelines(storage):
        path = f"{name}/{paths.pin(label)}"
        if name == fork or not storage.exists(path):
            continue
        try:
            pin = parse_pin(storage.get(path, bytes_max=SMALL_BYTES_MAX), path, label)
        except NotFoundError:
            continue  # released meanwhile
        if fork_of(pin) == fork:
            found[name] = path
    return found
