"""Savepoints: a checkpoint held under a label until it is unpinned.

Invariants:
- Pinning needs no writer: it works beside a running pipeline, which looks at the pins again after
  it has dropped checkpoints and before it deletes a file.
- Whoever pins looks at the catalog after the pin is durable: a pin on a checkpoint that was dropped
  meanwhile is taken back and reported, so a pin that was confirmed always holds something.
"""

from __future__ import annotations

from holdfast.checkpoint.publish import publish
from holdfast.checkpoint.reader import StoreReader
from holdfast.clock import Clock
from holdfast.errors import AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError
from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST
from holdfast.format.records import SMALL_BYTES_MAX, Pin, parse_pin, pin_bytes
from holdfast.ids import check_name
from holdfast.points import reach
from holdfast.storage.api import Storage

_NOTE_MAX = 1_000


def pin(
    reader: StoreReader, storage: Storage, clock: Clock, *, label: str, ref: str, note: str = ""
) -> Pin:
    """Hold a checkpoint under a label. The same pin twice is fine; another one is a conflict."""
    check_name(label, "label")
    if len(note) > _NOTE_MAX:
        raise InvalidInputError("note is too long", kind="note_too_long", limit=_NOTE_MAX)
    summary = reader.resolve(ref)
    wanted = Pin(
        format=FORMAT_VERSION,
        sha256=NO_DIGEST,
        label=label,
        checkpoint=summary.checkpoint,
        epoch=summary.epoch,
        created_us=clock.wall_us(),
        manifest_sha256=summary.manifest_sha256,
        note=note,
    )
    path = reader.home.at(paths.pin(label))
    data = pin_bytes(wanted)
    reach("pin.before_record")
    try:
        publish(storage, path, data, clock)
    except AlreadyExistsError as error:
        existing = parse_pin(storage.get(path, bytes_max=SMALL_BYTES_MAX), path, label)
        if existing.checkpoint != wanted.checkpoint:
            raise ConflictError(
                "the label is taken",
                kind="label_taken",
                label=label,
                holds=existing.checkpoint,
                remedy="unpin it first, or choose another label",
            ) from error
        return existing
    reach("pin.after_record")
    if reader.catalog().find(summary.checkpoint) is None:
        storage.delete(path)
        raise NotFoundError(
            "the checkpoint was dropped while it was being pinned",
            kind="no_checkpoint",
            ref=ref,
            remedy="choose a newer one",
        )
    return parse_pin(data, path, label)


def unpin(reader: StoreReader, storage: Storage, label: str) -> None:
    """Let a savepoint go; the next retention may drop the checkpoint."""
    path = reader.home.at(paths.pin(check_name(label, "label")))
    if not storage.exists(path):
        raise NotFoundError(
            "no savepoint of that label", kind="no_pin", label=label,
            remedy="run `holdfast ls` to see the labels",
        )  # fmt: skip
    reach("unpin.before_delete")
    storage.delete(path)
    reach("unpin.after_delete")
