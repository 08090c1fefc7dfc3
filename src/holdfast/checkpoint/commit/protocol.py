"""Commit protocol: publish a checkpoint exactly once per epoch.

Invariants:
- Every file that a manifest names, and every file that a sink has staged for it, is durable before
  the catalog record that names the manifest exists.
- A catalog sequence number is written by at most one writer.
- Epochs never decrease along the catalog, and neither do positions and watermarks along a lineage.
- A commit that failed leaves the state in memory as it was and no manifest on disk; a commit whose
  outcome is unknown, and one that a successor may count on, leave everything where it is.
- Files that a barrier could not make durable are never offered to a second one.

Spec: spec/format-v2.md, section 4.3.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.checkpoint.commit.catalog import CatalogWriter, load_catalog
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.draft import Draft
from holdfast.checkpoint.reader import StoreReader
from holdfast.checkpoint.recovery.rebuild import summarise
from holdfast.checkpoint.verify import check_file
from holdfast.clock import Clock
from holdfast.errors import (
    CommitUnknownError,
    CorruptionError,
    FencedError,
    HoldfastError,
    InvalidInputError,
)
from holdfast.failpoints import failpoint
from holdfast.format import paths
from holdfast.format.documents import CommitBody, Summary
from holdfast.format.findings import errors_of
from holdfast.format.inventory import NO_FILES, FileEntry
from holdfast.format.manifest import Manifest, Versions, seal_manifest
from holdfast.format.position import compare
from holdfast.format.validate import validate
from holdfast.ids import Sequence
from holdfast.storage.base import Storage
from holdfast.version import __version__


@dataclass(frozen=True)
class Committed:
    """A checkpoint that is durable."""

    summary: Summary
    manifest: Manifest


def software(spark: str = "") -> Versions:
    """Which software is running; pyarrow only if it was loaded anyway."""
    arrow = sys.modules.get("pyarrow")
    return Versions(
        holdfast=__version__,
        python=platform.python_version(),
        spark=spark,
        pyarrow=str(getattr(arrow, "__version__", "")) if arrow else "",
    )


def _sync_staged(draft: Draft, storage: Storage) -> list[str]:
    """Make rows durable that sinks have staged elsewhere; returns those staged in the store."""
    in_store: list[str] = []
    for place, files in draft.staged:
        if place.url == storage.url:
            in_store += files
        else:
            place.barrier(files)
    return in_store


def commit_draft(
    directory: PipelineDirectory,
    storage: Storage,
    catalog: CatalogWriter,
    draft: Draft,
    parent: Manifest | None,
    *,
    lineage: str,
    clock: Clock,
    spark: str = "",
) -> Committed:
    """Take a draft through the protocol."""
    catalog.check_alive()
    failpoint("commit.before_manifest")
    manifest = draft.seal(
        sequence=Sequence(catalog.state.head + 1),
        writer=catalog.writer,
        lineage=lineage,
        created_us=clock.wall_us(),
        versions=software(spark),
    )
    _check_progress(manifest, parent, catalog.state.epoch_max)
    manifest, data = seal_manifest(manifest)
    path = paths.manifest(manifest.checkpoint)
    try:
        new_files = manifest.inventory.unlike(parent.inventory if parent else NO_FILES)
        own_paths = _check_own_files(directory, manifest, new_files)
        _check_inherited(directory, manifest, new_files)
    except CorruptionError:
        catalog.confirm_alive()  # a successor's clean-up takes the drafts of whom it has fenced
        raise
    try:
        storage.put(directory.at(path), data, durable=False)
        failpoint("commit.after_manifest")
    except HoldfastError:
        _forget(directory, storage, path)
        catalog.confirm_alive()
        raise
    try:
        staged = _sync_staged(draft, storage)
        own_files = [directory.at(name) for name in own_paths]
        storage.barrier([*own_files, directory.at(path), *staged])
    except HoldfastError:
        # A file that failed to sync once may sync "well" the next time without its data: what
        # was written must not be offered again.
        draft.abort()
        catalog.confirm_alive()
        raise
    failpoint("commit.after_barrier")
    summary = summarise(manifest, data)
    draft.finished = True  # from here on, only the catalog says whether its files may go
    try:
        catalog.append(CommitBody(summary=summary))
    except CommitUnknownError:
        raise
    except FencedError:
        draft.finished = catalog.put_done or _may_be_needed(directory, manifest)
        raise
    except HoldfastError:
        draft.finished = False
        _forget(directory, storage, path)
        raise
    failpoint("commit.after_record")
    return Committed(summary, manifest)


def _may_be_needed(directory: PipelineDirectory, manifest: Manifest) -> bool:
    """Whether anybody may count on a checkpoint whose record was refused.

    The refused put may have been the second one of a client that tries again by itself: the first
    was then part of the chain before a successor folded it into a base. The checkpoint belongs to
    that successor, and so do its files while a later checkpoint names them, even after it was
    dropped itself: deleting any of it would be a loss of data.
    """
    own, reader = manifest.own_prefix(), StoreReader(directory)
    try:
        state = load_catalog(directory)
        if state is None or state.damage or state.find(manifest.checkpoint) is not None:
            return True
        if any(pin.checkpoint == manifest.checkpoint for pin in reader.pins()):
            return True
        return any(
            entry.pipeline is None and entry.path.startswith(own)
            for summary in state.live
            for entry in reader.manifest(summary).files
        )
    except HoldfastError:
        return True


def _forget(directory: PipelineDirectory, storage: Storage, path: str) -> None:
    """A manifest without a record must not be taken for a checkpoint by a rebuild."""
    try:
        storage.delete(directory.at(path))
    except HoldfastError:
        return


def _check_progress(manifest: Manifest, parent: Manifest | None, epoch_max: int) -> None:
    """Nothing goes backwards, and the manifest is one that can be read again."""
    errors = errors_of(validate(manifest, parent=parent))
    if errors:
        raise InvalidInputError(
            f"the checkpoint is not complete: {errors[0].message}",
            kind="invalid_checkpoint",
            findings="; ".join(str(finding) for finding in errors[:10]),
            remedy="correct the draft; nothing was committed",
        )
    if manifest.epoch <= epoch_max:
        raise InvalidInputError(
            "an epoch is never used twice",
            kind="epoch_used",
            epoch=manifest.epoch,
            at_least=epoch_max + 1,
            remedy="take the next epoch from the store",
        )
    if parent is None:
        return
    if parent.watermark_us is not None:
        _check_watermark(parent.watermark_us, manifest.watermark_us, None)
    for source in manifest.sources:
        parent_entry = parent.source(source.name)
        if parent_entry and parent_entry.watermark_us is not None:
            _check_watermark(parent_entry.watermark_us, source.watermark_us, source.name)
        order = compare(parent_entry.position, source.position) if parent_entry else "before"
        if order not in ("equal", "before", "unordered"):
            raise InvalidInputError(
                "a source went backwards",
                kind="position_regressed",
                source=source.name,
                order="it lost partitions or was replaced" if order == "diverged" else order,
                remedy="resume the source from the checkpoint's position",
            )


def _check_watermark(before: int, now: int | None, source: str | None) -> None:
    if now is None or now < before:
        raise InvalidInputError(
            "the watermark went backwards",
            kind="watermark_regressed",
            source=source,
            before=before,
            now=now,
            remedy="restore the watermark from the checkpoint before you continue",
        )


def _check_own_files(
    directory: PipelineDirectory, manifest: Manifest, new_files: Iterable[FileEntry]
) -> list[str]:
    """One listing shows whether every new file is there and whole, before anything is published."""
    prefix = manifest.own_prefix()
    own_files = {e.path: e for e in new_files if e.pipeline is None and e.path.startswith(prefix)}
    if not own_files:
        return []
    sizes = {entry.path: entry.size for entry in directory.list(prefix.rstrip("/"))}
    for path, entry in own_files.items():
        if sizes.get(path) != entry.size:
            raise CorruptionError(
                "a file of the draft is missing or has another size than its writer said",
                kind="draft_file_differs",
                path=directory.at(path),
                expected=entry.size,
                actual=sizes.get(path),
                remedy="write the file again under a new attempt; nothing was committed",
            )
    return list(own_files)


def _check_inherited(
    directory: PipelineDirectory, manifest: Manifest, new_files: Iterable[FileEntry]
) -> None:
    """Files of others that the parent does not vouch for are looked at before they count."""
    own = manifest.own_prefix()
    for entry in new_files:
        if entry.pipeline is None and entry.path.startswith(own):
            continue
        finding = check_file(directory.storage, directory.file(entry), entry, deep=False)
        if finding is not None:
            raise CorruptionError(
                "a file that the draft wants to inherit is missing or has another size",
                kind="inherited_file_differs",
                path=directory.file(entry),
                reason=finding.message,
                remedy="inherit only files of checkpoints that are live; nothing was committed",
            )
