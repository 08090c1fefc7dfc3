"""Savepoints: a checkpoint held under a label until it is unpinned.

Invariants:
- Pinning needs no writer: it works while a pipeline runs, which looks at the pins again after
  it has dropped checkpoints and before it deletes a file.
- Pinning looks at the catalog after the pin is durable: a pin on a checkpoint that was dropped
  meanwhile is removed and reported, so a pin that was confirmed always holds something.
- Labels that begin with `fork-` are made by forks; one is released only when the fork is done with
  the files.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.checkpoint.commit.conditional_put import publish
from holdfast.checkpoint.reader import StoreReader
from holdfast.checkpoint.reference import Ref
from holdfast.clock import Clock
from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
)
from holdfast.failpoints import failpoint
from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST
from holdfast.format.documents import SMALL_BYTES_MAX, Pin, parse_pin, pin_bytes
from holdfast.ids import CheckpointId, check_label, check_name
from holdfast.storage.base import Storage

FORK_PREFIX = "fork-"
_NOTE_MAX = 1_000


def pin(
    reader: StoreReader,
    storage: Storage,
    clock: Clock,
    *,
    label: str,
    ref: Ref,
    note: str = "",
    fork: bool = False,
) -> Pin:
    """Hold a checkpoint under a label. The same pin twice is fine; another one is a conflict."""
    check_pin(label, note, fork=fork)
    summary = reader.resolve(ref)
    new_pin = Pin(
        format=FORMAT_VERSION,
        sha256=NO_DIGEST,
        label=label,
        checkpoint=summary.checkpoint,
        epoch=summary.epoch,
        created_us=clock.wall_us(),
        manifest_sha256=summary.manifest_sha256,
        note=note,
    )
    path = reader.directory.at(paths.pin(label))
    data = pin_bytes(new_pin)
    failpoint("pin.before_record")
    try:
        publish(storage, path, data, clock)
    except AlreadyExistsError as error:
        data = _existing(storage, path)
        existing = parse_pin(data, path, label)
        if existing.checkpoint != new_pin.checkpoint:
            raise label_taken(label, existing.checkpoint) from error
    failpoint("pin.after_record")
    if reader.catalog().find(summary.checkpoint) is None:
        _remove_pin(storage, path, data)
        raise NotFoundError(
            "the checkpoint was dropped while it was being pinned",
            kind="no_checkpoint",
            ref=ref,
            remedy="choose a newer one",
        )
    return parse_pin(data, path, label)


def check_pin(label: str, note: str = "", *, fork: bool = False) -> None:
    """Refuse a label or a note that no pin can have."""
    check_label(label)
    if label.startswith(FORK_PREFIX) and not fork:
        raise InvalidInputError(
            "labels that begin with fork- are kept for forks",
            kind="reserved_label",
            label=label,
            remedy="choose another label",
        )
    if len(note) > _NOTE_MAX:
        raise InvalidInputError("note is too long", kind="note_too_long", limit=_NOTE_MAX)


def label_taken(label: str, holds: CheckpointId) -> ConflictError:
    """Says that a label holds another checkpoint."""
    return ConflictError(
        "the label is taken",
        kind="label_taken",
        label=label,
        holds=holds,
        remedy="unpin it first, or choose another label",
    )


def _existing(storage: Storage, path: str) -> bytes:
    try:
        return storage.get(path, bytes_max=SMALL_BYTES_MAX)
    except NotFoundError as error:
        raise ConflictError(
            "the label was taken and released at this moment",
            kind="label_taken",
            path=path,
            remedy="try again",
        ) from error


def _remove_pin(storage: Storage, path: str, data: bytes) -> None:
    """Remove a pin that holds nothing, unless the label has been given to another one since."""
    with suppress(NotFoundError):
        if storage.get(path, bytes_max=SMALL_BYTES_MAX) == data:
            storage.delete(path)


def unpin(reader: StoreReader, storage: Storage, label: str, *, force: bool = False) -> None:
    """Release a savepoint; the next retention may drop the checkpoint.

    A fork's pin is refused while the fork still needs the files, unless forced.
    """
    path = reader.directory.at(paths.pin(check_name(label, "label")))
    try:
        data = storage.get(path, bytes_max=SMALL_BYTES_MAX)
    except NotFoundError:
        raise NotFoundError(
            "no savepoint of that label",
            kind="no_pin",
            label=label,
            remedy="run `holdfast ls` to see the labels",
        ) from None
    fork = None
    if label.startswith(FORK_PREFIX) and not force:
        fork = _check_fork_is_done(reader, storage, data, label)
    failpoint("unpin.before_delete")
    storage.delete(path)
    failpoint("unpin.after_delete")
    if fork is not None:
        try:
            _check_fork_is_done(reader, storage, data, label)
        except RefusedError:
            # The fork was in the making, and has come to need the files since it was asked.
            with suppress(AlreadyExistsError):
                storage.put_new(path, data)
            raise


def _check_fork_is_done(
    reader: StoreReader, storage: Storage, data: bytes, label: str
) -> str | None:
    """The fork that a pin was made for, if it is one and needs the pin no more."""
    from holdfast.checkpoint.replication.fork import fork_of, uses_files_of_others

    name = fork_of(parse_pin(data, reader.directory.at(paths.pin(label)), label))
    if name is None or not uses_files_of_others(storage, name):
        return name
    raise RefusedError(
        "a fork still needs the files that this savepoint holds",
        kind="fork_in_use",
        label=label,
        pipeline=reader.directory.pipeline,
        fork=name,
        remedy="the fork's own gc releases it when it is done; force it to break the fork",
    )
